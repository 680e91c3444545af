package gang

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Reasons of the condition Blocked.
const (
	ReasonUnavailable = "GangSchedulingUnavailable"
	ReasonInvalid     = "InvalidGangScheduling"
)

// managedBy is the label, and its value, of all objects that are made here.
const managedByLabel, managedBy = "app.kubernetes.io/managed-by", "signalbox"

// Gangs makes the groups of TrainJobs that start, keeps them while they run, and removes them.
type Gangs struct {
	client    client.Client // for writes alone
	reader    client.Reader // reads from the API server itself
	discovery discovery.DiscoveryInterface
	newCache  func() (cache.Cache, error)
	recorder  events.EventRecorder
	clock     clock.PassiveClock
	defaults  Setting
	changed   chan event.GenericEvent
	life      context.Context // the process's

	mu      sync.Mutex
	checked time.Time
	why     error // what the last check has found in the way
	served  *served
	// made are PodGroups that this process has made and that the cache doesn't show yet.
	made map[types.NamespacedName]bool
}

// NewGangs returns Gangs. newCache makes a cache of the objects that are labelled with Selector; it is made when the API
// is served, which may be later than now, and lives as long as ctx. reader must not be a cache.
func NewGangs(ctx context.Context, c client.Client, reader client.Reader, d discovery.DiscoveryInterface, newCache func() (cache.Cache, error), recorder events.EventRecorder, clk clock.PassiveClock, mode api.GangMode, policy api.GangPolicy) *Gangs {
	return &Gangs{
		client: c, reader: reader, discovery: d, newCache: newCache, recorder: recorder, clock: clk,
		defaults: Setting{Mode: mode, Policy: policy, From: "the manager's configuration, trainer.gangScheduling.mode"},
		changed:  make(chan event.GenericEvent), life: ctx, made: map[types.NamespacedName]bool{},
	}
}

// Changed sends the TrainJobs whose groups have changed.
func (g *Gangs) Changed() <-chan event.GenericEvent { return g.changed }

// Startable refuses a TrainJob that asks for groups which can't be made: it is not to be queued as it is. The error is an
// *admission.BlockedError; any other is to be tried again.
func (g *Gangs) Startable(ctx context.Context, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, effective *overrides.Effective) error {
	_, _, err := g.groups(ctx, job, runtime, &jobset.JobSetSpec{ReplicatedJobs: effective.ReplicatedJobs, StartupPolicy: runtime.Template.Spec.StartupPolicy})
	return err
}

// Elsewhere is beside an installed Kubeflow Trainer, whose JobSets are not ours to build: a pod's group can't be set once
// its JobSet is made, and Kubeflow Trainer makes that before the TrainJob is admitted.
type Elsewhere struct{}

// Startable refuses a TrainJob that requires groups; one that prefers them does without.
func (Elsewhere) Startable(_ context.Context, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, _ *overrides.Effective) error {
	setting, err := SettingOf(job, runtime, Setting{Mode: api.GangOff})
	if err != nil {
		return &admission.BlockedError{Reason: ReasonInvalid, Err: err}
	}
	if setting.Mode != api.GangRequired {
		return nil
	}
	return &admission.BlockedError{Reason: ReasonUnavailable, Err: fmt.Errorf(
		"%s, but the JobSets of an installed Kubeflow Trainer are not Signalbox's to build, so that their pods can't be put into groups; use the bundled Trainer, or set it to %s or %s", setting.asks(), api.GangPreferred, api.GangOff)}
}

// skipped says why a TrainJob that prefers groups runs without.
type skipped struct{ why error }

// groups returns the groups of a TrainJob, by its setting; none, and why, where it can do without.
func (g *Gangs) groups(ctx context.Context, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, spec *jobset.JobSetSpec) (*plan, *skipped, error) {
	setting, err := SettingOf(job, runtime, g.defaults)
	if err != nil {
		return nil, nil, &admission.BlockedError{Reason: ReasonInvalid, Err: err}
	}
	if setting.Mode == api.GangOff {
		return nil, nil, nil
	}
	groups, err := groupsOf(spec)
	if err == nil && runtime.PodGroupPolicy != nil {
		err = errors.New("the runtime has a podGroupPolicy, and the pods would be in the groups of two schedulers; take it out of the runtime")
	}
	if err != nil {
		if setting.Mode == api.GangPreferred {
			return nil, &skipped{err}, nil
		}
		return nil, nil, &admission.BlockedError{Reason: ReasonInvalid, Err: fmt.Errorf("%s, but the pods can't be put into groups: %w, or set it to %s", setting.asks(), err, api.GangOff)}
	}
	if _, err := g.api(ctx); notServed(err) {
		if setting.Mode == api.GangPreferred {
			return nil, &skipped{err}, nil
		}
		return nil, nil, &admission.BlockedError{
			Reason: ReasonUnavailable, RetryAfter: checkEvery,
			Err: fmt.Errorf("%s, but %w; or set it to %s or %s", setting.asks(), err, api.GangPreferred, api.GangOff),
		}
	} else if err != nil {
		return nil, nil, err
	}
	if len(groups) == 0 {
		return nil, nil, nil
	}
	return newPlan(job, setting.Policy, groups), nil, nil
}

// Make makes the groups of a TrainJob that has been started, and puts their names into the JobSet, which is made after
// them. spec is the JobSet's.
func (g *Gangs) Make(ctx context.Context, job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec, spec *jobset.JobSetSpec, js *jobsetac.JobSetApplyConfiguration) error {
	p, without, err := g.groups(ctx, job, runtime, spec)
	if err != nil {
		return err
	}
	if without != nil {
		gangsSkipped.Inc()
		g.recorder.Eventf(job, nil, corev1.EventTypeWarning, "GangSchedulingSkipped", "Starting", "Its pods are placed one by one: %s", admission.Note(without.why.Error()))
	}
	if p == nil {
		return nil
	}
	s, err := g.api(ctx)
	if err != nil {
		return err
	}
	if err := g.create(ctx, s.version, job, p); err != nil {
		return err
	}
	p.into(js)
	return nil
}

// create makes the objects of a plan that don't exist. A PodGroup is refused whose Workload doesn't exist, so that it
// comes second; a pod waits for its PodGroup, but must not come into an older one of that name.
func (g *Gangs) create(ctx context.Context, v version, job *api.TrainJob, p *plan) error {
	owner := *metav1.NewControllerRef(job, trainer.GroupVersion.WithKind(trainer.TrainJobKind))
	meta := func(name string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: job.Namespace, Name: name, Labels: map[string]string{managedByLabel: managedBy}, OwnerReferences: owners}
	}
	for from := 0; from < len(p.groups); from += maxTemplates {
		groups := p.groups[from:min(from+maxTemplates, len(p.groups))]
		workload := v.workload(meta(p.workload(from), owner), job, p.policy, groups)
		if _, err := g.ensure(ctx, v, job, workload, "Workload"); err != nil {
			return err
		}
		anchor := metav1.OwnerReference{APIVersion: v.groupVersion().String(), Kind: "Workload", Name: workload.GetName(), UID: workload.GetUID()}
		for _, group := range groups {
			podGroup := v.podGroup(meta(p.podGroup(group), owner, anchor), workload.GetName(), p.policy, group)
			g.expect(client.ObjectKeyFromObject(podGroup), true)
			created, err := g.ensure(ctx, v, job, podGroup, "PodGroup")
			if created {
				gangsMade.WithLabelValues(string(p.policy)).Inc()
			} else {
				g.expect(client.ObjectKeyFromObject(podGroup), false)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ensure makes an object, or takes the one that is there where it is the TrainJob's own.
func (g *Gangs) ensure(ctx context.Context, v version, job *api.TrainJob, o client.Object, kind string) (created bool, err error) {
	err = g.client.Create(ctx, o)
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		g.doubt() // it may no longer be served
		return false, fmt.Errorf("making %s %s: %w", kind, o.GetName(), err)
	}
	there := &metav1.PartialObjectMetadata{}
	there.SetGroupVersionKind(v.groupVersion().WithKind(kind))
	if err := g.reader.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
		return false, fmt.Errorf("reading %s %s: %w", kind, o.GetName(), err)
	}
	if !metav1.IsControlledBy(there, job) {
		return false, fmt.Errorf("there is a %s %s already that is not the TrainJob's; delete it", kind, client.ObjectKeyFromObject(o))
	}
	if !there.DeletionTimestamp.IsZero() {
		return false, fmt.Errorf("%s %s of before is not gone yet", kind, o.GetName())
	}
	o.SetUID(there.UID)
	return false, nil
}

func (g *Gangs) expect(key types.NamespacedName, made bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if made {
		g.made[key] = true
	} else {
		delete(g.made, key)
	}
}

func (g *Gangs) expected(key types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.made[key]
}
