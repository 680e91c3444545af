package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// FieldManager is the name by which the API server records the integration's writes. Nothing depends on it: anybody may
// write by any name, and a server-side apply takes away what was applied before by the same. So a TrainJob is written by
// JSON patches of single fields, which leave every other entry as it is, byte for byte: a client that sends the whole list
// drops explicit zero values and fields that its types don't know, and the CRD's rules then refuse the change.
const FieldManager = "signalbox"

// Writer is the one place that writes TrainJobs. It remembers what it wrote last, so that nothing is decided on an older
// version that a cache still shows.
type Writer struct {
	client client.Client
	clock  clock.PassiveClock
	// extended is set where the CRD is the bundled Trainer's, whose status has a state.
	extended bool

	mu      sync.Mutex
	written map[types.NamespacedName]written
}

type written struct {
	uid     types.UID
	version string
	at      time.Time
}

// NewWriter returns a Writer. extended tells that the TrainJobs' CRD is the bundled Trainer's.
func NewWriter(c client.Client, clk clock.PassiveClock, extended bool) *Writer {
	return &Writer{client: c, clock: clk, extended: extended, written: map[types.NamespacedName]written{}}
}

// ConflictDelay is how long after a conflict a cache will show what it was about.
const ConflictDelay = 100 * time.Millisecond

// Note keeps a message within an event's limit of 1,024 bytes, with room for what stands beside it.
func Note(message string) string {
	const limit = 850
	if len(message) <= limit {
		return message
	}
	return strings.ToValidUTF8(message[:limit], "") + "…" // the cut may be within a character
}

// lateCache is how long a cache may be late. A version that hasn't come after that never will: the API server was set
// back, and what it has is all there is.
const lateCache = time.Minute

// Behind tells whether the TrainJob, as it was read, is older than what this Writer wrote of it.
func (w *Writer) Behind(job *api.TrainJob) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, found := w.written[client.ObjectKeyFromObject(job)]
	if !found || last.uid != job.UID || w.clock.Since(last.at) > lateCache {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(job.ResourceVersion, last.version)
	return err == nil && order < 0
}

// Forget drops what is remembered of a TrainJob that is gone.
func (w *Writer) Forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.written, key)
}

func (w *Writer) wrote(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written[client.ObjectKeyFromObject(o)] = written{uid: o.GetUID(), version: o.GetResourceVersion(), at: w.clock.Now()}
}

// ErrNotRendered is about a Record whose elements did not come into the list of overrides: our webhook puts them there.
var ErrNotRendered = errors.New("the integration's elements are not in the TrainJob's list of overrides, where Signalbox's mutating webhook puts them; see that its MutatingWebhookConfiguration is installed")

// Refused tells whether an atomic start was refused by a Trainer that takes no changes of entries in the update that
// starts a TrainJob (Kubeflow Trainer v2.2.0; it has the same CRD as v2.2.1, which does).
func Refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "RuntimePatches can only be modified when the TrainJob is suspended") &&
		!strings.Contains(err.Error(), "before or after the update")
}

// StartInTwo writes the entry while the TrainJob is suspended, and then clears suspend, for Trainers that refuse to have
// both in one request. Each fails with a conflict where the TrainJob has changed since it was read; what was written is
// cleared then, and the start decided anew.
func (w *Writer) StartInTwo(ctx context.Context, s *Start) error {
	job := &api.TrainJob{}
	job.Namespace, job.Name, job.UID, job.ResourceVersion = s.Key.Namespace, s.Key.Name, s.UID, s.ResourceVersion
	var operations []operation
	if s.Record != nil {
		list, err := w.writeRecord(ctx, job, s.Record)
		if err != nil {
			return err
		}
		// A CRD that is upgraded now drops the list, which changes no version of the TrainJob.
		operations = append(operations, operation{"test", "/spec/" + s.Record.Field, list})
	} else {
		written := job.DeepCopy()
		if err := w.patchFields(ctx, written, s.guarded(s.entry())); err != nil {
			return err
		}
		job.ResourceVersion = written.ResourceVersion
	}
	operations = append(guard(s.UID, job.ResourceVersion), append(operations, operation{"add", "/spec/suspend", false})...)
	return w.patchFields(ctx, job, operations)
}

// writeRecord writes the Record, and returns the list of overrides, which our webhook has brought into line with it.
func (w *Writer) writeRecord(ctx context.Context, job *api.TrainJob, record *overrides.Record) ([]any, error) {
	value, err := record.String()
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": job.UID, "resourceVersion": job.ResourceVersion, "annotations": map[string]string{overrides.RecordAnnotation: value}}})
	if err != nil {
		return nil, fmt.Errorf("encoding annotation %s: %w", overrides.RecordAnnotation, err)
	}
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(trainerapi.GroupVersion.String())
	u.SetKind(trainerapi.TrainJobKind)
	u.SetNamespace(job.Namespace)
	u.SetName(job.Name)
	if err := w.client.Patch(ctx, u, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return nil, err
	}
	w.wrote(u)
	list, _, err := unstructured.NestedSlice(u.Object, "spec", record.Field)
	if err != nil || len(list)-len(overrides.Without(list, record.Own)) != len(record.Own) {
		return nil, errors.Join(err, ErrNotRendered)
	}
	job.ResourceVersion = u.GetResourceVersion()
	return list, nil
}

// operation adds, replaces or tests a value in a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// guard fails a patch where the TrainJob is another, and makes it a conflict where it has changed since that version.
func guard(uid types.UID, version string) []operation {
	return []operation{{"test", "/metadata/uid", uid}, {"replace", "/metadata/resourceVersion", version}}
}

func (s *Start) guarded(operations ...operation) []operation {
	return append(guard(s.UID, s.ResourceVersion), operations...)
}

// entry writes the integration's entry: in its place, or after all others.
func (s *Start) entry() operation {
	const list = "/spec/" + overrides.RuntimePatches
	switch {
	case s.At >= 0:
		return operation{"replace", fmt.Sprintf("%s/%d", list, s.At), s.Entry}
	case s.Others:
		return operation{"add", list + "/-", s.Entry}
	}
	return operation{"add", list, []any{s.Entry}}
}

// pin writes the pinned runtime.
func (s *Start) pin() operation {
	if !s.Annotated {
		return operation{"add", "/metadata/annotations", map[string]string{overrides.PinAnnotation: s.Pin}}
	}
	return operation{"add", "/metadata/annotations/" + strings.ReplaceAll(overrides.PinAnnotation, "/", "~1"), s.Pin}
}

func (w *Writer) patchFields(ctx context.Context, job *api.TrainJob, operations []operation) error {
	patch, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encoding a patch of TrainJob %s/%s: %w", job.Namespace, job.Name, err)
	}
	return w.patch(ctx, job, client.RawPatch(types.JSONPatchType, patch))
}

// Start writes the entry and clears suspend in one request. It fails with a conflict where the TrainJob has changed
// since the start was decided.
func (w *Writer) Start(ctx context.Context, s *Start) error {
	job := &api.TrainJob{}
	job.Namespace, job.Name = s.Key.Namespace, s.Key.Name
	operations := s.guarded(s.entry(), operation{"add", "/spec/suspend", false})
	if s.NewPin {
		operations = append(operations, s.pin())
	}
	if err := w.patchFields(ctx, job, operations); err != nil {
		return err
	}
	if s.NewPin {
		pins.Inc()
	}
	return nil
}

// Suspend stops the TrainJob and changes nothing else: its entry must stay while pods run with it.
func (w *Writer) Suspend(ctx context.Context, job *api.TrainJob) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))
	return w.patch(ctx, job, patch)
}

// Clear empties the entry of a TrainJob that no longer runs. It replaces the entry as it stands, whoever owns its fields
// by now: an update of somebody else's that dropped the entry has taken them from us before our webhook put it back, and
// Kueue's built-in integration may have written it.
func (w *Writer) Clear(ctx context.Context, d overrides.Dialect, job *api.TrainJob) error {
	if !d.Keyed() {
		neutral := w.neutral(d.Own(job))
		record, err := recordOf(d, job, &neutral)
		if err != nil {
			return err
		}
		_, err = w.writeRecord(ctx, job.DeepCopy(), record)
		return err
	}
	i := overrides.OwnIndex(job)
	if i < 0 {
		return nil
	}
	entry := fmt.Sprintf("/spec/runtimePatches/%d", i)
	return w.patchFields(ctx, job.DeepCopy(), append(guard(job.UID, job.ResourceVersion),
		operation{"test", entry + "/manager", overrides.Manager}, operation{"replace", entry, w.neutral(&job.Spec.RuntimePatches[i])}))
}

// neutral is Neutral at this time, which no webhook of ours sets.
func (w *Writer) neutral(own *trainerapi.RuntimePatch) trainerapi.RuntimePatch {
	entry := Neutral(own)
	entry.Time = &metav1.Time{Time: w.clock.Now()}
	return entry
}

// Migrate writes what takes the place of a Record of another Trainer, and takes the Record away. An API server that still
// serves the CRD of before refuses it: it would drop the one and the other.
func (w *Writer) Migrate(ctx context.Context, d overrides.Dialect, job *api.TrainJob, m *overrides.Migration) error {
	operations := []map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": job.UID},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": job.ResourceVersion},
	}
	const annotation = "/metadata/annotations/signalbox.dev~1overrides"
	switch {
	case !d.Keyed():
		record, err := m.Record(d)
		if err != nil {
			return fmt.Errorf("encoding the migration: %w", err)
		}
		value, err := record.String()
		if err != nil {
			return err
		}
		if len(m.List) > 0 {
			operations = append(operations, map[string]any{"op": "add", "path": "/spec/" + d.Field, "value": m.List})
		}
		operations = append(operations, map[string]any{"op": "replace", "path": annotation, "value": value})
	default:
		operations = append(operations, map[string]any{"op": "remove", "path": annotation})
		if len(job.Spec.PodTemplateOverrides) > 0 && d.Bundled { // its CRD has the list too
			change := map[string]any{"op": "remove", "path": "/spec/" + overrides.PodTemplateOverrides}
			if len(m.List) > 0 {
				change = map[string]any{"op": "replace", "path": "/spec/" + overrides.PodTemplateOverrides, "value": m.List}
			}
			operations = append(operations, change)
		}
		if m.Patch != nil && len(job.Spec.RuntimePatches) > 0 {
			operations = append(operations, map[string]any{"op": "add", "path": "/spec/" + d.Field + "/0", "value": m.Patch})
		} else if m.Patch != nil {
			operations = append(operations, map[string]any{"op": "add", "path": "/spec/" + d.Field, "value": []any{m.Patch}})
		}
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encoding the migration: %w", err)
	}
	return w.patch(ctx, job.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), client.FieldValidation(metav1.FieldValidationStrict))
}

// Pin writes the runtime that the TrainJob starts on, for one that nobody queues: a queued one's comes with its start.
func (w *Writer) Pin(ctx context.Context, job *api.TrainJob, pin string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": job.UID, "resourceVersion": job.ResourceVersion, "annotations": map[string]string{overrides.PinAnnotation: pin}}})
	if err != nil {
		return fmt.Errorf("encoding the pin: %w", err)
	}
	if err := w.patch(ctx, job.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	pins.Inc()
	return nil
}

func (w *Writer) patch(ctx context.Context, job *api.TrainJob, patch client.Patch, options ...client.PatchOption) error {
	if err := w.client.Patch(ctx, job, patch, append(options, client.FieldOwner(FieldManager))...); err != nil {
		return err
	}
	w.wrote(job)
	return nil
}

// Status writes what has changed of the status, and where the CRD has it the state that the status amounts to. more are
// further fields of the status. Nothing else is touched: a training process may be writing its own part of it.
func (w *Writer) Status(ctx context.Context, before *api.TrainJob, status *trainerapi.TrainJobStatus, more map[string]any) error {
	after := before.DeepCopy()
	after.Status.TrainJobStatus = *status
	data, err := client.MergeFrom(before).Data(after)
	if err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	var change map[string]any
	if err := json.Unmarshal(data, &change); err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	fields, _ := change["status"].(map[string]any)
	if fields == nil {
		fields = map[string]any{}
	}
	metadata := map[string]any{"uid": before.UID}
	if w.extended {
		fields["state"] = api.StateOf(status)
		for key, value := range more {
			fields[key] = value
		}
	} else {
		metadata["resourceVersion"] = before.ResourceVersion // Kubeflow Trainer writes the same list of conditions
	}
	if data, err = json.Marshal(map[string]any{"metadata": metadata, "status": fields}); err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	if err := w.client.Status().Patch(ctx, after, client.RawPatch(types.MergePatchType, data), client.FieldOwner(FieldManager)); err != nil {
		return err
	}
	w.wrote(after)
	return nil
}
