package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueindexer "sigs.k8s.io/kueue/pkg/controller/core/indexer"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// observed is all that one reconcile knows of a TrainJob. observe reads it once; afterwards nobody changes it.
type observed struct {
	key   types.NamespacedName
	job   *api.TrainJob
	now   time.Time
	stage stage
	// jobSet and workload are the cache's own and must not be changed; nil if there is none.
	jobSet   *jobset.JobSet
	workload *kueue.Workload
	shownByPods
	// groups of pods; nil if there are none to keep.
	groups *gang.Groups
	// unread is why lostPod or groups aren't known; nil if they are. It delays no stop and no end.
	unread error
	// failed is set if the integration's reconcile before this one failed.
	failed bool
}

// shownByPods is what the pods of a TrainJob that runs show.
type shownByPods struct {
	// lostPod is a pod that its JobSet has lost; nil for none, or if it is restarted for one.
	lostPod *corev1.Pod
	// blamed are nodes that its pods show to be broken, and that it is to keep off from now on.
	blamed []api.AvoidedNode
	// undecided is set if that depends on pods that haven't started yet.
	undecided bool
}

// stage is where a TrainJob is in its life.
type stage int

const (
	// stageGone: the TrainJob doesn't exist, or is for another controller.
	stageGone stage = iota
	// stageBehind: the cache has an older version than this process has written. Nothing can be decided.
	stageBehind
	// stageDeleting: the TrainJob is being deleted, and a finalizer keeps it.
	stageDeleting
	// stageLive: any other.
	stageLive
)

// suspended reports whether spec.suspend is true.
func (o *observed) suspended() bool { return ptr.Deref(o.job.Spec.Suspend, false) }

// ended reports whether the end of the TrainJob has been written.
func (o *observed) ended() bool { return trainjobutil.IsTrainJobFinished(o.job.Upstream()) }

// running reports whether the TrainJob was started and has not ended.
func (o *observed) running() bool { return !o.ended() && !o.suspended() }

// jobSetStays reports whether there is a JobSet that is not being deleted.
func (o *observed) jobSetStays() bool { return o.jobSet != nil && o.jobSet.DeletionTimestamp.IsZero() }

// observe reads all that is needed to decide about a TrainJob. It writes nothing.
func (r *Reconciler) observe(ctx context.Context, key types.NamespacedName) (*observed, error) {
	o := &observed{key: key, job: &api.TrainJob{}, now: r.Clock.Now()}
	if err := r.Client.Get(ctx, key, o.job); apierrors.IsNotFound(err) {
		return o, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading the TrainJob: %w", err)
	}
	switch {
	case trainjobutil.IsManagedByExternalController(o.job.Upstream()):
		return o, nil
	case !o.job.DeletionTimestamp.IsZero():
		o.stage = stageDeleting
	case r.Store.Writer.Behind(o.job):
		o.stage = stageBehind
		return o, nil
	default:
		o.stage = stageLive
	}
	var err error
	if o.jobSet, err = r.Store.JobSets.Of(ctx, o.job); err != nil || o.stage == stageDeleting {
		return o, err
	}
	o.unread = errors.Join(r.observeLoss(ctx, o), r.observeBroken(ctx, o), r.observeGroups(ctx, o))
	o.workload, err = r.workloadOf(ctx, o.job)
	return o, err
}

// observeLoss reads which pod the JobSet has lost, unless the TrainJob is restarted for one already.
func (r *Reconciler) observeLoss(ctx context.Context, o *observed) (err error) {
	lost := o.job.Status.Lost
	restarts := o.jobSet != nil && lost != nil && lost.JobSet == o.jobSet.UID && lost.Restarting
	if o.running() && o.jobSet != nil && !restarts {
		o.lostPod, err = r.Store.Pods.Lost(ctx, o.jobSet)
	}
	return err
}

// observeBroken reads which nodes the pods of a TrainJob that runs show to be broken.
func (r *Reconciler) observeBroken(ctx context.Context, o *observed) error {
	if !r.Avoid.On() || !o.running() || o.jobSet == nil {
		return nil
	}
	broken, all, err := r.Store.Pods.Broken(ctx, o.jobSet)
	if err == nil && len(broken) > 0 {
		o.blamed = r.Avoid.Blame(broken, all, o.job.Status.Avoided, o.now)
		o.undecided = avoid.Undecided(broken, all)
	}
	return err
}

// observeGroups reads the groups of pods. A TrainJob whose end isn't written keeps them: what became of them is written
// with it.
func (r *Reconciler) observeGroups(ctx context.Context, o *observed) (err error) {
	var pods []corev1.Pod
	if o.running() && o.jobSet != nil && gang.Has(o.jobSet) {
		if pods, err = r.Store.Pods.Named(ctx, o.jobSet); err != nil {
			return err
		}
	}
	o.groups, err = r.Gangs.Observe(ctx, o.job, o.jobSet, pods, o.running())
	return err
}

// trainJobKind is the kind by which Kueue indexes Workloads.
var trainJobKind = trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)

// workloadOf returns the Workload that stands for the TrainJob as the cache has it; it must not be changed. It is nil
// if there is none.
func (r *Reconciler) workloadOf(ctx context.Context, job *api.TrainJob) (*kueue.Workload, error) {
	var list kueue.WorkloadList
	err := r.Client.List(ctx, &list, client.InNamespace(job.Namespace),
		kueueindexer.OwnerReferenceIndexFieldMatcher(trainJobKind, job.Name), client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the TrainJob's Workloads: %w", err)
	}
	var own []*kueue.Workload
	for i := range list.Items {
		if wl := &list.Items[i]; metav1.IsControlledBy(wl, job) && wl.DeletionTimestamp.IsZero() {
			own = append(own, wl)
		}
	}
	if own, _ = podsets.Counts(own); len(own) == 0 {
		return nil, nil
	}
	return own[0], nil
}
