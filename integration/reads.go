package integration

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// reads are what is asked about a TrainJob, of caches and of the API server.
type reads struct {
	managed.Queues
	client    client.Client // reads from the cache; only jobframework gets it as more than a client.Reader
	live      client.Reader // the API server
	policy    policy
	store     *store.Store
	placement Placement
}

// resolver decides what follows for a TrainJob, and asks what depends on that.
type resolver struct {
	reads
	memo *overrides.Memo
}

// unlessGone returns the error of a request with what was done, and nil if the object of the request doesn't exist.
func unlessGone(err error, doing string) error {
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// workloadsOf returns the Workloads of TrainJobs of a name. They are the cache's own: they must not be changed.
func (r reads) workloadsOf(ctx context.Context, key types.NamespacedName) ([]*kueue.Workload, error) {
	var list kueue.WorkloadList
	err := r.client.List(ctx, &list, client.InNamespace(key.Namespace),
		jobframework.OwnerReferenceIndexFieldMatcher(managed.Kind, key.Name), client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the Workloads of TrainJob %s: %w", key, err)
	}
	workloads := make([]*kueue.Workload, len(list.Items))
	for i := range list.Items {
		workloads[i] = &list.Items[i]
	}
	return workloads, nil
}

// drained reports whether the queue of a Workload with quota is drained. One that can't be read counts as drained: what
// depends on it may as well happen now.
func (r reads) drained(ctx context.Context, wl *kueue.Workload) bool {
	admitted := ptr.Deref(wl.Status.Admission, kueue.Admission{}) // none is not to be expected
	var lq kueue.LocalQueue
	var cq kueue.ClusterQueue
	err := errors.Join(
		r.client.Get(ctx, client.ObjectKey{Namespace: wl.Namespace, Name: string(wl.Spec.QueueName)}, &lq),
		r.live.Get(ctx, client.ObjectKey{Name: string(admitted.ClusterQueue)}, &cq),
	)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("The queue of a preempted TrainJob isn't known; it is stopped now", "reason", err.Error())
	}
	return err != nil || ptr.Deref(lq.Spec.StopPolicy, kueue.None) == kueue.HoldAndDrain ||
		ptr.Deref(cq.Spec.StopPolicy, kueue.None) == kueue.HoldAndDrain
}

// counting reads what Kueue's count of PodSets of a namespace depends on. RuntimeClasses are read from the API server:
// few pods name one.
func (r reads) counting(ctx context.Context, namespace string, podSets []kueue.PodSet) (podsets.Counting, error) {
	c := podsets.Counting{Resources: r.policy.kueue.Resources}
	var ranges corev1.LimitRangeList
	if err := r.client.List(ctx, &ranges, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return c, fmt.Errorf("listing the LimitRanges of namespace %s: %w", namespace, err)
	}
	c.LimitRanges = ranges.Items
	for _, name := range podsets.RuntimeClasses(podSets) {
		var class nodev1.RuntimeClass
		if err := r.live.Get(ctx, client.ObjectKey{Name: name}, &class); client.IgnoreNotFound(err) != nil {
			return c, fmt.Errorf("reading RuntimeClass %s: %w", name, err)
		} else if err == nil {
			c.RuntimeClasses = append(c.RuntimeClasses, class)
		}
	}
	return c, nil
}

// over reports whether a TrainJob has no pods and gets no more, by the API server: no unfinished Job, and then no
// running pod. The JobSet, if there is one, limits the Jobs to its own. The caches can't answer this: the watch of pods
// may be behind those of Jobs and JobSets. No event follows when a Job finishes.
func (r reads) over(ctx context.Context, owner store.Owner) (bool, error) {
	if owner.JobSet == nil || !jobSetSuspended(owner.JobSet) {
		ended, err := r.store.Pods.JobsEnded(ctx, owner.NamespacedName, store.OfJobSet(owner.JobSet))
		if err != nil || !ended {
			return false, err
		}
	}
	pods, err := r.store.Pods.RunningNow(ctx, owner)
	return err == nil && len(pods) == 0, err
}

// earlierRuns reports whether pods of an earlier TrainJob of the same name have not ended.
func (r reads) earlierRuns(ctx context.Context, o *observed) (bool, error) {
	own, err := r.store.JobSets.Of(ctx, o.job)
	if err != nil {
		return false, err
	}
	named := &api.TrainJob{} // the JobSet that exists may be the earlier one's
	named.Namespace, named.Name = o.job.Namespace, o.job.Name
	present, err := r.store.JobSets.Left(ctx, named)
	if err != nil {
		return false, err
	}
	earlier := func(uid types.UID) bool { return own == nil || uid != own.UID }
	if present != nil && earlier(present.UID) && !isKept(present, o.now) {
		return true, nil // JobSet may create its Jobs until the garbage collector deletes it
	}
	ended, err := r.store.Pods.JobsEnded(ctx, o.key(), earlier)
	if err != nil || !ended {
		return !ended, err
	}
	pods, err := r.store.Pods.RunningNow(ctx, store.Owner{NamespacedName: o.key(), JobSet: present})
	for i := range pods {
		if earlier(types.UID(pods[i].Labels[jobset.JobSetUIDKey])) {
			return true, err
		}
	}
	return false, err
}
