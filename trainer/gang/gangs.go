// Package gang assigns the pods of a started TrainJob to PodGroups of Kubernetes' Workload and PodGroup API
// (scheduling.k8s.io, KEP-4671, decoupled form), so that kube-scheduler places all pods of a group or none.
//
//   - setting.go reads whether and how a TrainJob uses groups; group.go derives the groups from a JobSet, and plan.go
//     names their objects.
//   - version.go has what distinguishes the versions of the API; to support another, add it to versions (discovery.go).
//   - discovery.go finds the version that the API server serves, prober.go remembers it, and served.go caches the
//     objects.
//   - gangs.go decides and creates the groups at a start (create.go); keep.go restores and deletes them later,
//     release.go lets the rest of a gang be placed that can't be placed again, and condition.go reports on them.
package gang

import (
	"context"
	"errors"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store/events"
)

// Startable returns an *admission.BlockedError if the TrainJob needs groups that can't be created. Any other error is
// temporary.
func (g *Gangs) Startable(ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec,
	effective *overrides.Effective) error {
	spec := &jobset.JobSetSpec{
		ReplicatedJobs: effective.ReplicatedJobs, StartupPolicy: runtime.Template.Spec.StartupPolicy,
	}
	_, err := g.decide(ctx, job, runtime, spec, effective.Annotations)
	return err
}

// decision is how the pods of a TrainJob are placed.
type decision struct {
	setting Setting
	// plan is nil if the pods are placed one by one.
	plan *plan
	// version is set if plan is.
	version *version
	// skipped is why a TrainJob that prefers groups starts without them; nil otherwise.
	skipped error
}

// decide returns how the pods of a TrainJob are placed. spec and annotations are its JobSet's.
func (g *Gangs) decide(ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec,
	spec *jobset.JobSetSpec, annotations map[string]string) (decision, error) {
	setting, err := SettingOf(job, runtime, g.defaults)
	if err != nil {
		return decision{}, &admission.BlockedError{Reason: ReasonInvalid, Err: err}
	}
	d := decision{setting: setting}
	if setting.Mode == api.GangOff {
		return d, nil
	}
	groups, err := groupsOf(spec, annotations)
	if err == nil && runtime.PodGroupPolicy != nil {
		err = errors.New("the runtime has a podGroupPolicy, and the pods would be in the groups of two schedulers; " +
			"take it out of the runtime")
	}
	if err != nil {
		return d.invalid(err)
	}
	found := g.prober.result(ctx, startMaxAge)
	if found.err != nil {
		return d, found.err
	}
	if err := found.unavailable; err != nil {
		return d.without(err, &admission.BlockedError{Reason: ReasonUnavailable, RetryAfter: retryEvery, Err: fmt.Errorf(
			"%s, but %w; or set it to %s or %s", setting.request(), err, api.GangPreferred, api.GangOff)})
	}
	for _, group := range groups {
		if err := found.served.version.refuses(group); err != nil {
			return d.invalid(err)
		}
	}
	if len(groups) > 0 {
		d.plan, d.version = newPlan(job, setting.Policy, groups), found.served.version
	}
	return d, nil
}

// invalid returns the decision for a TrainJob whose pods can't be put into groups.
func (d decision) invalid(reason error) (decision, error) {
	return d.without(reason, &admission.BlockedError{Reason: ReasonInvalid, Err: fmt.Errorf(
		"%s, but the pods can't be put into groups: %w, or set it to %s", d.setting.request(), reason, api.GangOff)})
}

// without returns the decision for a TrainJob that can't have groups: blocked, unless it only prefers them.
func (d decision) without(reason error, blocked *admission.BlockedError) (decision, error) {
	if d.setting.Mode != api.GangPreferred {
		return d, blocked
	}
	d.skipped = reason
	return d, nil
}

// Make creates the groups of a TrainJob that starts, and sets their names in js, the JobSet that is created next. spec
// is the JobSet's. If the TrainJob prefers groups and can't have them, skipped is why, for Skipped.
func (g *Gangs) Make(ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec,
	spec *jobset.JobSetSpec, js *jobsetac.JobSetApplyConfiguration) (skipped, err error) {
	d, err := g.decide(ctx, job, runtime, spec, js.Annotations)
	if err != nil {
		return nil, err
	}
	delete(js.Annotations, baseAnnotation) // only Signalbox sets it; a runtime may carry it by mistake
	if d.plan == nil {
		return d.skipped, nil
	}
	objects := &groupObjects{Gangs: g, version: d.version, job: job, plan: d.plan}
	for n := range d.plan.groups {
		err := objects.create(ctx, n, d.plan.policy)
		if d.setting.Mode == api.GangPreferred && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
			return err, nil // Keep deletes the groups before this one, because the JobSet doesn't name them
		}
		if err != nil {
			return nil, err
		}
	}
	d.plan.applyTo(js)
	return nil, nil
}

// Skipped records that a TrainJob was started without groups, and why.
func (g *Gangs) Skipped(job *api.TrainJob, why error) {
	gangsSkipped.Inc()
	g.recorder.Send(job, events.GangSchedulingSkipped.Of(why))
}
