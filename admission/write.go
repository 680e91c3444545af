package admission

import (
	"context"
	"encoding/json"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldManager owns, on a TrainJob, the integration's entry and suspend. Server-side apply of these two alone leaves
// every other entry as it is, byte for byte: a client that sends the whole list drops explicit zero values and fields
// that its types don't know, and the CRD's rules then refuse the change.
const FieldManager = "signalbox"

// Writer is the one place that writes TrainJobs.
type Writer struct {
	Client client.Client
}

// Start writes the entry and clears suspend in one request. It fails with a conflict where the TrainJob has changed
// since the start was decided.
func (w Writer) Start(ctx context.Context, s *Start) error {
	metadata := map[string]any{"uid": string(s.UID), "resourceVersion": s.ResourceVersion}
	return w.apply(ctx, s.Key, metadata, s.Entry, false)
}

// Suspend stops the TrainJob and changes nothing else: its entry must stay while pods run with it.
func (w Writer) Suspend(ctx context.Context, job *trainer.TrainJob) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))
	return w.Client.Patch(ctx, job, patch, client.FieldOwner(FieldManager))
}

// Clear empties the entry of a TrainJob that no longer runs.
func (w Writer) Clear(ctx context.Context, job *trainer.TrainJob, own *trainer.RuntimePatch) error {
	metadata := map[string]any{"uid": string(job.UID), "resourceVersion": job.ResourceVersion}
	return w.apply(ctx, client.ObjectKeyFromObject(job), metadata, Neutral(own), true)
}

func (w Writer) apply(ctx context.Context, key types.NamespacedName, metadata map[string]any, own trainer.RuntimePatch, suspend bool) error {
	data, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("encoding the entry of %s: %w", own.Manager, err)
	}
	var patch map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		return fmt.Errorf("encoding the entry of %s: %w", own.Manager, err)
	}
	metadata["namespace"], metadata["name"] = key.Namespace, key.Name
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": trainer.GroupVersion.String(),
		"kind":       trainer.TrainJobKind,
		"metadata":   metadata,
		"spec":       map[string]any{"suspend": suspend, "runtimePatches": []any{patch}},
	}}
	return w.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldManager), client.ForceOwnership)
}
