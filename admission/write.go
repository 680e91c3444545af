package admission

import (
	"context"
	"encoding/json"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/overrides"
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
	data, err := json.Marshal(s.Entry)
	if err != nil {
		return fmt.Errorf("encoding the entry of %s: %w", s.Entry.Manager, err)
	}
	var entry map[string]any
	if err := json.Unmarshal(data, &entry); err != nil {
		return fmt.Errorf("encoding the entry of %s: %w", s.Entry.Manager, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": trainer.GroupVersion.String(),
		"kind":       trainer.TrainJobKind,
		"metadata":   map[string]any{"namespace": s.Key.Namespace, "name": s.Key.Name, "uid": string(s.UID), "resourceVersion": s.ResourceVersion},
		"spec":       map[string]any{"suspend": false, "runtimePatches": []any{entry}},
	}}
	return w.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldManager), client.ForceOwnership)
}

// Suspend stops the TrainJob and changes nothing else: its entry must stay while pods run with it.
func (w Writer) Suspend(ctx context.Context, job *trainer.TrainJob) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))
	return w.Client.Patch(ctx, job, patch, client.FieldOwner(FieldManager))
}

// Clear empties the entry of a TrainJob that no longer runs. It replaces the entry as it stands, whoever owns its fields
// by now: an update of somebody else's that dropped the entry has taken them from us before our webhook put it back, and
// Kueue's built-in integration may have written it.
func (w Writer) Clear(ctx context.Context, job *trainer.TrainJob) error {
	i := overrides.OwnIndex(job)
	if i < 0 {
		return nil
	}
	entry := fmt.Sprintf("/spec/runtimePatches/%d", i)
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": job.UID},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": job.ResourceVersion}, // a conflict where it has changed since
		{"op": "test", "path": entry + "/manager", "value": overrides.Manager},
		{"op": "replace", "path": entry, "value": Neutral(&job.Spec.RuntimePatches[i])},
	})
	if err != nil {
		return fmt.Errorf("encoding the entry of %s: %w", overrides.Manager, err)
	}
	return w.Client.Patch(ctx, job.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(FieldManager))
}
