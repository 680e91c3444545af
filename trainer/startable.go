package trainer

import (
	"context"
	"fmt"
	"strings"
	"time"
	"weak"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	machineryruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// Reasons of the condition Blocked, and of the events beside it.
const (
	// ReasonNameTaken: an object that the TrainJob needs exists and belongs to another owner. The message names it;
	// delete it, or create the TrainJob by another name.
	ReasonNameTaken = "NameTaken"
	// ReasonInvalidJobSet: the JobSet that the TrainJob needs is rejected. The message has the reason and who rejects
	// it; change the TrainJob or the runtime.
	ReasonInvalidJobSet = "InvalidJobSet"
	// ReasonTooLarge: the runtime doesn't fit into the TrainJob's annotations, where the start pins it. Remove
	// annotations, or make the runtime smaller.
	ReasonTooLarge = "TooLarge"
)

// unansweredRetry is after which time the API server is asked again that could not say whether it takes a JobSet:
// without a webhook of JobSet or Kueue, say.
const unansweredRetry = 5 * time.Second

// verdicts is how many shapes of JobSets are remembered.
const verdicts = 4096

// Startable finds, before a TrainJob is queued, what would keep it from having pods once it is admitted.
type Startable struct {
	client  client.Client
	reader  client.Reader
	builder *Builder
	gangs   *gang.Gangs
	clock   clock.PassiveClock
	// verdicts are what the API server has said of the JobSets of a shape, by what TrainJobs of that shape run. Of a
	// burst of them, one asks.
	verdicts *lru.Cache
	asking   singleflight.Group
}

// StartableConfig is what a Startable is made of.
type StartableConfig struct {
	// Client reads from a cache; Reader must not.
	Client  client.Client
	Reader  client.Reader
	Builder *Builder
	Gangs   *gang.Gangs
	Clock   clock.PassiveClock
}

// NewStartable returns a Startable.
func NewStartable(c StartableConfig) *Startable {
	return &Startable{
		client: c.Client, reader: c.Reader, builder: c.Builder, gangs: c.Gangs, clock: c.Clock, verdicts: lru.New(verdicts),
	}
}

// verdict is what the API server has said of a JobSet; nil where it would take it.
type verdict struct {
	refused error
	at      time.Time
	pin     int // bytes of the runtime, pinned
}

// Startable implements integration.Placement. What it finds is an *admission.BlockedError; that the API server doesn't
// answer is an *admission.PendingError.
func (s *Startable) Startable(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) error {
	if err := s.gangs.Startable(ctx, job, runtime, effective); err != nil {
		return err
	}
	if err := checkNames(job, effective.ReplicatedJobs); err != nil {
		return &admission.BlockedError{Reason: ReasonInvalidJobSet, Err: err}
	}
	if err := s.checkTaken(ctx, job, effective.ReplicatedJobs); err != nil {
		return err
	}
	if err := s.checkClaims(ctx, job, runtime); err != nil {
		return err
	}
	v, err := s.judge(ctx, job, runtime, effective)
	if err != nil {
		return err
	}
	if v.refused != nil {
		return &admission.BlockedError{Reason: ReasonInvalidJobSet, RetryAfter: refusedRetry, Err: fmt.Errorf(
			"what is built of %s and the TrainJob is refused, so that the TrainJob would never have pods: %w; change one of "+
				"the two", store.Describe(job), v.refused)}
	}
	return checkRoom(job, v.pin)
}

// ReplicatedJobs implements trial.Trainer.
func (s *Startable) ReplicatedJobs(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, _ *overrides.Effective,
) ([]jobset.ReplicatedJob, error) {
	_, built, err := s.builder.Build(ctx, job, runtime)
	if err != nil {
		return nil, err
	}
	o, err := objectOf(built)
	if err != nil {
		return nil, err
	}
	var js jobset.JobSet
	if err := machineryruntime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &js); err != nil {
		return nil, fmt.Errorf("the JobSet that is built: %w", err)
	}
	return js.Spec.ReplicatedJobs, nil
}

// checkRoom refuses a TrainJob whose annotations have no room for the pinned runtime.
func checkRoom(job *api.TrainJob, pin int) error {
	total := pin + len(store.PinAnnotation)
	for key, value := range job.Annotations {
		if key != store.PinAnnotation {
			total += len(key) + len(value)
		}
	}
	const limit = apimachineryvalidation.TotalAnnotationSizeLimitB - 4<<10 // a bit is for kubectl and others
	if total > limit {
		return &admission.BlockedError{Reason: ReasonTooLarge, Err: fmt.Errorf(
			"%s takes %d bytes, compressed, in annotation %s, and the TrainJob's annotations together may have %d; make the "+
				"runtime smaller, or take annotations away",
			store.Describe(job), pin, store.PinAnnotation, limit)}
	}
	return nil
}

// shape is what decides about a JobSet: what it runs, and who controls its TrainJob. Kueue's webhook for JobSets looks
// for their owners' owners.
type shape struct {
	of         weak.Pointer[overrides.Effective]
	controller string
}

func shapeOf(job *api.TrainJob, effective *overrides.Effective) shape {
	s := shape{of: weak.Make(effective)}
	if owner := metav1.GetControllerOf(job); owner != nil {
		s.controller = strings.Join([]string{job.Namespace, owner.APIVersion, owner.Kind, owner.Name, string(owner.UID)}, "/")
	}
	return s
}

// judge returns what the API server says of the JobSet of a TrainJob. It is asked once for each shape: TrainJobs that
// run the same share what they run.
func (s *Startable) judge(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) (*verdict, error) {
	shape := shapeOf(job, effective)
	v, err, _ := s.asking.Do(fmt.Sprintf("%p %s", effective, shape.controller), func() (any, error) {
		if known, found := s.verdicts.Get(shape); found {
			if v := known.(*verdict); v.refused == nil || s.clock.Since(v.at) < refusedRetry {
				return v, nil
			}
		}
		v, known, err := s.ask(ctx, job, runtime)
		if known {
			s.verdicts.Add(shape, v)
		}
		return v, err
	})
	if err != nil {
		return nil, err
	}
	return v.(*verdict), nil
}

// ask asks the API server. That it doesn't answer is an *admission.PendingError: a TrainJob whose JobSet may be refused
// isn't queued. A webhook that doesn't take part in dry runs is left to the start.
func (s *Startable) ask(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec,
) (v *verdict, known bool, err error) {
	v = &verdict{at: s.clock.Now()}
	pin, err := store.Pin(runtime)
	if err != nil {
		return nil, false, err
	}
	v.pin = len(pin)
	sideObjects, js, err := s.builder.Build(ctx, job, runtime)
	if err != nil {
		return nil, false, &admission.BlockedError{Reason: ReasonInvalidJobSet, Err: err}
	}
	var objects []any
	for _, claim := range claimsOf(job, runtime) {
		objects = append(objects, claim)
	}
	for _, a := range sideObjects {
		objects = append(objects, a)
	}
	for _, a := range append(objects, js) {
		o, err := objectOf(a)
		if err != nil {
			return nil, false, err
		}
		if isSecret(o) {
			continue // its form is fixed
		}
		switch err := s.dryRun(ctx, o); {
		case err == nil || store.SkipsDryRuns(err):
		case refuses(err):
			v.refused = fmt.Errorf("%s: %w", o.GetKind(), err)
			return v, true, nil
		default:
			return nil, false, s.unanswered(job, o, err)
		}
	}
	return v, true, nil
}

// dryRun creates a JobSet and keeps nothing. Its name is always the same, so that a message about it is; that one is
// there is found after all else. Fields that the installed JobSet doesn't have (volumeClaimPolicies before v0.11) are
// an error: without them, the TrainJob would be another than the runtime says.
func (s *Startable) dryRun(ctx context.Context, o *unstructured.Unstructured) error {
	o = o.DeepCopy()
	o.SetName("check")
	return client.IgnoreAlreadyExists(s.client.Create(ctx, o, client.DryRunAll, client.FieldOwner(fieldManager),
		client.FieldValidation(metav1.FieldValidationStrict)))
}

// unanswered is the error of a dry run that says nothing of the object.
func (s *Startable) unanswered(job *api.TrainJob, o *unstructured.Unstructured, err error) error {
	after := unansweredRetry
	if apierrors.IsNotFound(err) && s.clock.Since(job.CreationTimestamp.Time) < unansweredRetry {
		after = store.ConflictDelay // Kueue's webhook for JobSets looks for a new TrainJob in a cache
	}
	return &admission.PendingError{RetryAfter: after, Err: fmt.Errorf(
		"the API server doesn't say whether it would take %s %s: %w", o.GetKind(), o.GetName(), err)}
}

// refuses reports whether an error says that the object itself is invalid or forbidden.
func refuses(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsRequestEntityTooLargeError(err) || apimeta.IsNoMatchError(err)
}
