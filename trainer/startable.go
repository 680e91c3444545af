package trainer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/trial"
)

// Startable finds, before a TrainJob is queued, what would keep it from having pods once it is admitted. What has to be
// tried for that is trial's.
type Startable struct {
	// Client reads from a cache, Reader from the API server itself.
	Client  client.Client
	Reader  client.Reader
	Builder *Builder
	Gangs   *gang.Gangs
}

// Startable implements trial.Trainer.
func (s *Startable) Startable(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) (own trial.Own, needs func() (*trial.Needs, error), err error) {
	if err := s.Gangs.Startable(ctx, job, runtime, effective); err != nil {
		return own, nil, err
	}
	if err := checkNames(job, effective.ReplicatedJobs); err != nil {
		return own, nil, &admission.BlockedError{Reason: trial.ReasonInvalidJobSet, Err: err}
	}
	if err := checkTaken(ctx, s.Client, job, effective.ReplicatedJobs); err != nil {
		return own, nil, err
	}
	there, err := s.checkClaims(ctx, job, runtime)
	if err != nil {
		return own, nil, err
	}
	own.Claims, own.Done = strings.Join(there, ","), doneOf(job, runtime, effective)
	if owner := metav1.GetControllerOf(job); owner != nil {
		own.Controller = strings.Join([]string{owner.APIVersion, owner.Kind, owner.Name, string(owner.UID)}, "/")
	}
	return own, func() (*trial.Needs, error) { return s.needs(ctx, job, runtime, there) }, nil
}

// doneOf returns the names of the ReplicatedJobs that a TrainJob's JobSet is built without, separated by commas.
func doneOf(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective) string {
	if len(job.Status.JobsStatus) == 0 {
		return ""
	}
	spec := runtime.Template.Spec
	spec.ReplicatedJobs = effective.ReplicatedJobs
	return strings.Join(slices.Sorted(maps.Keys(overrides.Outlived(&spec, dialect.Bundled.Done(job, runtime)))), ",")
}

// needs returns what a TrainJob needs when it is admitted; the claims of the templates that are there are not tried.
func (s *Startable) needs(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, there []string,
) (*trial.Needs, error) {
	pin, err := store.Pin(runtime)
	if err != nil {
		return nil, err
	}
	children, err := s.Builder.Build(ctx, job, runtime)
	if err != nil {
		return nil, &admission.BlockedError{Reason: trial.ReasonInvalidJobSet, Err: err}
	}
	needs := &trial.Needs{Pin: len(pin), ReplicatedJobs: children.Spec.ReplicatedJobs}
	if needs.Fewest, err = s.fewest(ctx, job, runtime, needs.ReplicatedJobs); err != nil {
		return nil, err
	}
	for _, claim := range children.Claims {
		o, err := objectOf(claim)
		if err != nil {
			return nil, err
		}
		needs.Objects = append(needs.Objects, trial.Object{Unstructured: o,
			Untried: slices.Contains(there, templateOf(job, claim))})
	}
	for _, o := range children.SideObjects {
		needs.Objects = append(needs.Objects, trial.Object{Unstructured: o, Untried: isSecret(o)})
	}
	jobSet, err := objectOf(children.JobSet)
	needs.Objects = append(needs.Objects, trial.Object{Unstructured: jobSet})
	return needs, err
}

// fewest returns the ReplicatedJobs of a TrainJob's JobSet with the fewest nodes that it may be admitted with; all are
// those with all its nodes.
func (s *Startable) fewest(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, all []jobset.ReplicatedJob,
) ([]jobset.ReplicatedJob, error) {
	least, err := overrides.MinNodes(job, runtime)
	if err != nil || least >= overrides.Nodes(job, runtime) {
		return all, nil // an invalid minimum is rejected elsewhere
	}
	children, err := s.Builder.Build(ctx, overrides.WithNodes(job, least), runtime)
	if err != nil {
		return nil, &admission.BlockedError{Reason: trial.ReasonInvalidJobSet, Err: err}
	}
	return children.Spec.ReplicatedJobs, nil
}

// CreatesJobSets implements trial.Trainer.
func (*Startable) CreatesJobSets() bool { return true }

// checkClaims refuses a TrainJob whose claims would have the names of others, or that are being deleted. It returns the
// templates of those that are there.
func (s *Startable) checkClaims(
	ctx context.Context, job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec,
) (templates []string, err error) {
	for _, claim := range claimsOf(job, spec) {
		there, err := existing(ctx, s.Reader, claim)
		switch {
		case err != nil:
			return nil, &admission.PendingError{RetryAfter: unansweredRetry, Err: err}
		case there == nil || ofJobSet(there, job):
		case !there.DeletionTimestamp.IsZero():
			return nil, &admission.BlockedError{Reason: ReasonNameTaken, RetryAfter: takenRetry, Err: fmt.Errorf(
				"PersistentVolumeClaim %s is being deleted, and stays while a pod uses it or a finalizer keeps it (%v); the "+
					"TrainJob is queued when it is gone", claim.Name, there.Finalizers)}
		case !belongsTo(there, job):
			return nil, nameTaken(claim.Kind, claim.Name)
		default:
			templates = append(templates, templateOf(job, claim))
		}
	}
	return templates, nil
}
