package webhook

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/grow"
	"github.com/signalbox-dev/signalbox/admission/stalled"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

var refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "signalbox_ownership_refusals_total",
	Help: "Requests of users that would have changed a field of the integration. what: its entry, its annotation or " +
		"suspend. answer: refused, or restored if the rest of the request was accepted.",
}, []string{"what", "answer"})

func init() {
	metrics.Registry.MustRegister(refusals)
	// A rate sees the first of a kind only where there was a zero before.
	for _, what := range []string{"entry", "annotation"} {
		refusals.WithLabelValues(what, "refused")
		refusals.WithLabelValues(what, "restored")
	}
	refusals.WithLabelValues("suspend", "restored")
}

// Reviews are the parts of the webhook that depend on how the Trainer takes overrides.
type Reviews interface {
	// CompleteOwn returns the patch of the integration's own update.
	CompleteOwn(rq *review.Request) ([]jsonpatch.Operation, error)
	// Keep returns the patch of another's update that restores the integration's entry and annotations.
	Keep(rq *review.Request) ([]jsonpatch.Operation, error)
	// Unqueued returns the further patch of a TrainJob that Kueue doesn't manage.
	Unqueued(rq *review.Request) []jsonpatch.Operation
	// Queued returns the further patch of a TrainJob that Kueue manages.
	Queued(rq *review.Request) ([]jsonpatch.Operation, error)
	// CheckSize returns errors about the size of a TrainJob in a request that the Trainer itself rejects without saying
	// what to do.
	CheckSize(rq *review.Request) field.ErrorList
	// Warnings returns what a request asks for that the Trainer doesn't do.
	Warnings(rq *review.Request) []string
	// Guarded returns the annotations that nobody else may bring.
	Guarded() []string
}

// own are the integration's annotations. Nobody else may add, change or remove them.
var own = []string{store.PinAnnotation, legacy.RecordAnnotation}

// ofKubeflow is what is the same for all releases of Kubeflow Trainer.
type ofKubeflow struct{}

// CheckSize rejects a minimum for partial admission that a request sets on a queued TrainJob.
func (ofKubeflow) CheckSize(rq *review.Request) field.ErrorList {
	value, found := rq.New.Annotations[overrides.MinParallelismAnnotation]
	if !found || jobframework.QueueNameForObject(rq.New) == "" ||
		!rq.AnnotationChanged(overrides.MinParallelismAnnotation) {
		return nil
	}
	path := field.NewPath("metadata", "annotations").Key(overrides.MinParallelismAnnotation)
	return field.ErrorList{field.Invalid(path, value, ErrNoPartialAdmission.Error())}
}

// Warnings says that nothing can report, and so nothing stalls, and that nothing grows.
func (ofKubeflow) Warnings(rq *review.Request) []string {
	warnings := stalled.Unheard(rq.Old, rq.New)
	if rq.New.Annotations[api.GrowAnnotation] == "true" && rq.AnnotationChanged(api.GrowAnnotation) &&
		!managed.Elsewhere(rq.New) {
		warnings = append(warnings, grow.NoEffect+"it needs the Trainer that Signalbox bundles; remove the annotation")
	}
	return warnings
}

// ErrNoPartialAdmission is why a TrainJob can't have a minimum.
var ErrNoPartialAdmission = errors.New("only the Trainer that Signalbox bundles supports partial admission; request " +
	"fewer nodes, or remove annotation " + overrides.MinParallelismAnnotation)
