package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/kueue/pkg/constants"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// FieldManager is the name under which the API server records the integration's writes. Nothing depends on it: any
// client may use any name, and a server-side apply removes what was applied before under the same name. TrainJobs are
// therefore written by JSON patches of single fields, which leave every other entry unchanged, byte for byte. A client
// that sends the whole list drops explicit zero values and fields that its types don't know, which the CRD's rules
// reject.
const FieldManager = "signalbox"

// ConflictDelay is how long after a conflict a cache will have the version that caused it.
const ConflictDelay = 100 * time.Millisecond

// maxCacheDelay is how stale a cache may be. A version that hasn't arrived after that never will: the API server was
// set back, and has nothing newer.
const maxCacheDelay = time.Minute

// Writer is the only writer of TrainJobs. It remembers the version that it wrote last, so that no decision is based on
// an older one that a cache still has.
type Writer struct {
	client client.Client
	clock  clock.PassiveClock
	// extended is set if the CRD is the bundled Trainer's, whose status has a state.
	extended bool

	// refused is when the Trainer has last refused an atomic start; nil for never.
	refused atomic.Pointer[time.Time]

	mu      sync.Mutex
	written map[types.NamespacedName]written
}

type written struct {
	uid     types.UID
	version string
	at      time.Time
}

// NewWriter returns a Writer. extended is set if the TrainJobs' CRD is the bundled Trainer's.
func NewWriter(c client.Client, clk clock.PassiveClock, extended bool) *Writer {
	return &Writer{client: c, clock: clk, extended: extended, written: map[types.NamespacedName]written{}}
}

// Behind reports whether a TrainJob, as it was read, is older than what this Writer wrote of it.
func (w *Writer) Behind(job *api.TrainJob) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, found := w.written[client.ObjectKeyFromObject(job)]
	if !found || last.uid != job.UID || w.clock.Since(last.at) > maxCacheDelay {
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

// Rejected reports whether the API server, or a webhook, has rejected a write for good, so that it would reject it
// again: it is invalid or forbidden, or larger than what etcd stores.
func Rejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; {
	case code == http.StatusNotFound || code == http.StatusConflict || code == http.StatusTooManyRequests:
		return false
	case code >= 400 && code < 500:
		return true
	}
	return strings.Contains(err.Error(), "request is too large") // etcd's, which the API server doesn't know
}

// dryRunUnsupported is the whole message of the API server where a webhook has side effects, so that it isn't called in
// dry runs; there is no reason of its own (k8s.io/apiserver v0.36, NewDryRunUnsupportedErr). A webhook that denies an
// object may quote what the user wrote, so that a part of the message proves nothing.
var dryRunUnsupported = regexp.MustCompile(`^admission webhook "[^"]+" does not support dry run$`)

// SkipsDryRuns reports whether a dry run says nothing of its object, because a webhook takes no part in dry runs.
func SkipsDryRuns(err error) bool {
	return apierrors.IsBadRequest(err) && dryRunUnsupported.MatchString(err.Error())
}

// Suspend stops the TrainJob and changes nothing else: its entry must stay while pods run with it. It is a conflict if
// another TrainJob has taken the name.
func (w *Writer) Suspend(ctx context.Context, job *api.TrainJob) error {
	return w.suspend(ctx, job, "")
}

// SuspendAsRead stops the TrainJob if it hasn't changed since it was read.
func (w *Writer) SuspendAsRead(ctx context.Context, job *api.TrainJob) error {
	return w.suspend(ctx, job, job.ResourceVersion)
}

func (w *Writer) suspend(ctx context.Context, job *api.TrainJob, version string) error {
	none := nameOnly(job)
	stopped := none.DeepCopy()
	stopped.UID, stopped.ResourceVersion, stopped.Spec.Suspend = job.UID, version, new(true)
	return w.patch(ctx, stopped, client.MergeFrom(none))
}

// Stop asks for the stop of a queued TrainJob, as its user does, if the TrainJob hasn't changed since it was read. why
// is the value of the annotation.
func (w *Writer) Stop(ctx context.Context, job *api.TrainJob, why string) error {
	none := nameOnly(job)
	stopped := none.DeepCopy()
	annotate(stopped, job, api.StopAnnotation, why)
	return w.patch(ctx, stopped, client.MergeFrom(none))
}

// Clear empties the entry of a TrainJob that no longer runs. It replaces the entry whoever owns its fields: an update
// by another client that dropped the entry has taken the fields from the integration before the webhook restored them,
// and Kueue's built-in integration may have written them.
func (w *Writer) Clear(ctx context.Context, trainer *dialect.Dialect, job *api.TrainJob) error {
	own := trainer.Own(job)
	if own == nil {
		return nil
	}
	neutral := admission.Neutral(own)
	neutral.Time = &metav1.Time{Time: w.clock.Now()} // no webhook sets it
	record, err := trainer.Record(job, &neutral)
	if err != nil {
		return err
	}
	if record != nil {
		_, err = w.writeRecord(ctx, job.DeepCopy(), record)
		return err
	}
	entry := fmt.Sprintf("/spec/%s/%d", overrides.RuntimePatches, overrides.OwnIndex(job))
	return w.patchFields(ctx, job.DeepCopy(), append(guard(job.UID, job.ResourceVersion),
		operation{Operation: "test", Path: entry + "/manager", Value: overrides.Manager},
		operation{Operation: "replace", Path: entry, Value: neutral}))
}

// Heed notes how those have ended that a TrainJob waits for, or opens its gate, if it hasn't changed since it was read.
func (w *Writer) Heed(ctx context.Context, job *api.TrainJob, v after.Verdict) error {
	annotations := map[string]any{}
	if v.Note != nil {
		annotations[api.AfterEndedAnnotation] = nil
		if *v.Note != "" {
			annotations[api.AfterEndedAnnotation] = *v.Note
		}
	}
	if v.Open {
		annotations[constants.AdmissionGatedByAnnotation] = nil
		if gates := after.WithoutGate(job); gates != "" {
			annotations[constants.AdmissionGatedByAnnotation] = gates
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": job.UID, "resourceVersion": job.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return err
	}
	return w.patch(ctx, job.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

// Migrate replaces the Record of another Trainer by what it says in the present Trainer's fields. An API server that
// still serves the previous CRD rejects it, because it would drop both.
func (w *Writer) Migrate(ctx context.Context, job *api.TrainJob, operations []jsonpatch.Operation) error {
	return w.patchFields(ctx, job.DeepCopy(), append(guard(job.UID, job.ResourceVersion), operations...),
		client.FieldValidation(metav1.FieldValidationStrict))
}

// Pin writes the runtime that a TrainJob starts on which isn't queued. That of a queued one is written with its start.
func (w *Writer) Pin(ctx context.Context, job *api.TrainJob, pin string) error {
	none := nameOnly(job)
	pinned := none.DeepCopy()
	annotate(pinned, job, PinAnnotation, pin)
	if err := w.patch(ctx, pinned, client.MergeFrom(none)); err != nil {
		return err
	}
	pins.Inc()
	return nil
}

func (w *Writer) patchFields(
	ctx context.Context, job *api.TrainJob, operations []operation, options ...client.PatchOption,
) error {
	patch, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encoding a patch of TrainJob %s/%s: %w", job.Namespace, job.Name, err)
	}
	return w.patch(ctx, job, client.RawPatch(types.JSONPatchType, patch), options...)
}

func (w *Writer) patch(
	ctx context.Context, job client.Object, patch client.Patch, options ...client.PatchOption,
) error {
	if err := w.client.Patch(ctx, job, patch, append(options, client.FieldOwner(FieldManager))...); err != nil {
		return err
	}
	w.wrote(job)
	return nil
}

// ErrNotRendered is about a Record whose elements are not in the TrainJob's list of overrides.
var ErrNotRendered = errors.New("the integration's elements are not in the TrainJob's list of overrides, where " +
	"Signalbox's mutating webhook puts them; see that its MutatingWebhookConfiguration is installed")

// writeRecord writes the Record, and returns the list of overrides, which Signalbox's webhook has updated from it.
func (w *Writer) writeRecord(ctx context.Context, job *api.TrainJob, record *legacy.Record) ([]any, error) {
	value, err := record.String()
	if err != nil {
		return nil, err
	}
	none := &unstructured.Unstructured{}
	none.SetGroupVersionKind(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	none.SetNamespace(job.Namespace)
	none.SetName(job.Name)
	u := none.DeepCopy()
	annotate(u, job, legacy.RecordAnnotation, value)
	if err := w.patch(ctx, u, client.MergeFrom(none)); err != nil {
		return nil, err
	}
	list, _, err := unstructured.NestedSlice(u.Object, "spec", record.Field)
	if err != nil || !record.Rendered(list) {
		return nil, errors.Join(err, ErrNotRendered)
	}
	job.ResourceVersion = u.GetResourceVersion()
	return list, nil
}

var pins = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "signalbox_runtime_pins_total",
	Help: "TrainJobs to which the bundled Trainer has pinned a runtime, at their first start.",
})

func init() { metrics.Registry.MustRegister(pins) }
