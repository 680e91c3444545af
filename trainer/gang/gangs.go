package gang

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
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
	// ReasonUnavailable: gang scheduling is required, and the cluster doesn't serve the API for it, or not all that it takes.
	ReasonUnavailable = "GangSchedulingUnavailable"
	// ReasonInvalid: the annotations have values that don't exist, or gang scheduling can't go with what else is asked for.
	ReasonInvalid = "InvalidGangScheduling"
)

// partLabel is on all objects that are made here, and says which they are.
const (
	partLabel    = "signalbox.dev/gang-part"
	partWorkload = "workload"
	partFirst    = "first" // a PodGroup whose pods come at once
	partLater    = "later" // a PodGroup whose pods come after others
)

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

	// probing is held by the one who looks what the API server serves; the two below are his.
	probing sync.Mutex
	watched *served   // whose cache may not be in step yet
	named   time.Time // when JobSet's pod templates were seen to be able to name a group

	mu      sync.Mutex
	checked time.Time // zero before the first look
	why     error     // that groups can't be made; nil where they can
	served  *served   // nil where they can't be looked at either

	// made are PodGroups, by types.NamespacedName, that this process has made and that the cache doesn't show yet; removed are
	// objects, by types.UID, that it has deleted and that the cache still shows.
	made, removed sync.Map
}

// NewGangs returns Gangs. newCache makes a cache of the objects that Selector selects; it is made when the API is served,
// which may be later than now, and lives as long as ctx. reader must not be a cache.
func NewGangs(ctx context.Context, c client.Client, reader client.Reader, d discovery.DiscoveryInterface, newCache func() (cache.Cache, error), recorder events.EventRecorder, clk clock.PassiveClock, mode api.GangMode, policy api.GangPolicy) *Gangs {
	return &Gangs{
		client: c, reader: reader, discovery: d, newCache: newCache, recorder: recorder, clock: clk,
		defaults: Setting{Mode: mode, Policy: policy, From: "the manager's configuration, trainer.gangScheduling.mode"},
		changed:  make(chan event.GenericEvent), life: ctx,
	}
}

// Changed sends the TrainJobs whose groups have changed.
func (g *Gangs) Changed() <-chan event.GenericEvent { return g.changed }

// Startable refuses a TrainJob that asks for groups which can't be made: it is not to be queued as it is. The error is an
// *admission.BlockedError; any other is to be tried again.
func (g *Gangs) Startable(ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective) error {
	spec := &jobset.JobSetSpec{ReplicatedJobs: effective.ReplicatedJobs, StartupPolicy: runtime.Template.Spec.StartupPolicy}
	_, err := g.decide(ctx, job, runtime, spec, effective.Annotations)
	return err
}

// Elsewhere is beside an installed Kubeflow Trainer, whose JobSets are not ours to build: a pod's group can't be set once
// its JobSet is made, and Kubeflow Trainer makes that before the TrainJob is admitted.
type Elsewhere struct{}

// Startable refuses a TrainJob that requires groups; one that prefers them does without.
func (Elsewhere) Startable(_ context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, _ *overrides.Effective) error {
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

// decision is how the pods of a TrainJob are placed.
type decision struct {
	setting Setting
	plan    *plan // nil: one by one
	served  *served
	without error // why, where the TrainJob prefers groups and does without
}

// decide returns how the pods of a TrainJob are placed, by its setting. spec and annotations are its JobSet's.
func (g *Gangs) decide(ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, spec *jobset.JobSetSpec, annotations map[string]string) (decision, error) {
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
		err = errors.New("the runtime has a podGroupPolicy, and the pods would be in the groups of two schedulers; take it out of the runtime")
	}
	if err != nil {
		if setting.Mode == api.GangPreferred {
			d.without = err
			return d, nil
		}
		return d, &admission.BlockedError{Reason: ReasonInvalid, Err: fmt.Errorf("%s, but the pods can't be put into groups: %w, or set it to %s", setting.asks(), err, api.GangOff)}
	}
	switch d.served, err = g.api(ctx, checkEvery); {
	case notServed(err) && setting.Mode == api.GangPreferred:
		d.without = err
	case notServed(err):
		return d, &admission.BlockedError{
			Reason: ReasonUnavailable, RetryAfter: retryEvery,
			Err: fmt.Errorf("%s, but %w; or set it to %s or %s", setting.asks(), err, api.GangPreferred, api.GangOff),
		}
	case err != nil:
		return d, err
	case len(groups) > 0:
		d.plan = newPlan(job, setting.Policy, groups)
	}
	return d, nil
}

// Make makes the groups of a TrainJob that has been started, and puts their names into the JobSet, which is made after
// them. spec is the JobSet's. It returns why the TrainJob does without where it prefers them, for Skipped.
func (g *Gangs) Make(ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, spec *jobset.JobSetSpec, js *jobsetac.JobSetApplyConfiguration) (skipped, err error) {
	d, err := g.decide(ctx, job, runtime, spec, js.Annotations)
	if err != nil {
		return nil, err
	}
	delete(js.Annotations, baseAnnotation) // a runtime's own would not be ours
	if d.plan == nil {
		return d.without, nil
	}
	for n := range d.plan.groups {
		err := g.create(ctx, d.served.version, job, d.plan, n, d.plan.policy)
		if d.setting.Mode == api.GangPreferred && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
			return err, nil // what has been made goes when the JobSet is seen to name none of it
		}
		if err != nil {
			return nil, err
		}
	}
	d.plan.into(js)
	return nil, nil
}

// Skipped tells that a TrainJob was started without groups, and why.
func (g *Gangs) Skipped(job *api.TrainJob, why error) {
	gangsSkipped.Inc()
	g.recorder.Eventf(job, nil, corev1.EventTypeWarning, "GangSchedulingSkipped", "Starting", "Its pods are placed one by one: %s", admission.Note(why.Error()))
}

// create makes the nth group's PodGroup, and its Workload first, without which it would be refused. What is there stays.
func (g *Gangs) create(ctx context.Context, v version, job *api.TrainJob, p *plan, n int, policy api.GangPolicy) error {
	owner := *metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	meta := func(name, part string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: job.Namespace, Name: name, Labels: map[string]string{partLabel: part}, OwnerReferences: owners}
	}
	if p.anchors[p.workload(n)] == "" {
		workload := v.workload(meta(p.workload(n), partWorkload, owner), job, p.policy, p.chunk(n))
		if _, err := g.ensure(ctx, v, job, workload, "Workload"); err != nil {
			return err
		}
		if p.anchors == nil {
			p.anchors = map[string]types.UID{}
		}
		p.anchors[p.workload(n)] = workload.GetUID()
	}
	group, part := p.groups[n], partFirst
	if group.Later {
		part = partLater
	}
	anchor := metav1.OwnerReference{APIVersion: v.groupVersion().String(), Kind: "Workload", Name: p.workload(n), UID: p.anchors[p.workload(n)]}
	podGroup := v.podGroup(meta(p.podGroup(group), part, owner, anchor), p.workload(n), policy, group)
	key := client.ObjectKeyFromObject(podGroup)
	g.made.Store(key, nil)
	created, err := g.ensure(ctx, v, job, podGroup, "PodGroup")
	if created {
		gangsMade.WithLabelValues(string(policy)).Inc()
	} else {
		g.made.Delete(key)
	}
	return err
}

// ensure makes an object, or takes the one that is there where it is the TrainJob's own; either way it gives it its UID.
func (g *Gangs) ensure(ctx context.Context, v version, job *api.TrainJob, o client.Object, kind string) (created bool, err error) {
	err = g.client.Create(ctx, o)
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		if apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err) {
			g.doubt() // it may no longer be served
		}
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
