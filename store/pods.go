package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/constants"

	"github.com/signalbox-dev/signalbox/podsets"
)

// PodIndex finds the pods that carry a JobSet's name; whoever makes the cache registers it.
const PodIndex = "jobSet"

// PodIndexOf returns the value of PodIndex for a pod.
func PodIndexOf(o client.Object) []string { return []string{o.GetLabels()[jobset.JobSetNameKey]} }

// RetainPod returns what a cache must keep of a pod for Pods: its identity, its controller, the JobSet and the
// ReplicatedJob that it names, its node, its phase, whether it was lost, and the scheduling gates that Kueue doesn't
// open.
func RetainPod(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels: map[string]string{
				jobset.JobSetNameKey: pod.Labels[jobset.JobSetNameKey], jobset.JobSetUIDKey: pod.Labels[jobset.JobSetUIDKey],
				jobset.ReplicatedJobNameKey: pod.Labels[jobset.ReplicatedJobNameKey],
			},
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, gate := range pod.Spec.SchedulingGates {
		if !strings.HasPrefix(gate.Name, podsets.KueueGates) {
			kept.Spec.SchedulingGates = append(kept.Spec.SchedulingGates, gate)
		}
	}
	if PodLost(pod) {
		kept.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	}
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*controller}
	}
	return kept
}

// PodEnded reports whether a pod uses nothing and never will. Its containers have ended: its phase says so, or the
// kubelet has deleted it with no grace period left and a finalizer keeps it. Or it is being deleted and was never bound
// to a node: the API server binds no pod that is being deleted.
func PodEnded(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !pod.DeletionTimestamp.IsZero() &&
		(pod.Spec.NodeName == "" || ptr.Deref(pod.DeletionGracePeriodSeconds, -1) == 0)
}

// knownJobs is how many Jobs Pods remembers the controllers of.
const knownJobs = 8192

// Pods finds the pods of TrainJobs by ownership: pod, Job, JobSet, each by the UID of its controller. Labels only
// narrow the search, because anybody who may create pods may set them.
type Pods struct {
	cache, live client.Reader
	// jobs holds the UID of the JobSet that controls a Job, "" for none, by the Job's UID. A Job is created with its
	// controller.
	jobs *lru.Cache
	// lost holds lost pods by the UID of the JobSet that they name: they may be gone when that is asked for.
	lost *lru.Cache
	// MaxGraceSeconds is the longest grace period that a pod of a TrainJob may have; 0 for any. One with a longer period
	// and without a Job isn't a TrainJob's.
	MaxGraceSeconds int64
}

// NewPods returns Pods. cache indexes pods by PodIndex; live must not be a cache.
func NewPods(cache, live client.Reader) *Pods {
	return &Pods{cache: cache, live: live, jobs: lru.New(knownJobs), lost: lru.New(knownJobs)}
}

// Named returns the pods that carry the JobSet's name and its UID, as the cache keeps them. They must not be changed.
func (p *Pods) Named(ctx context.Context, js *jobset.JobSet) ([]corev1.Pod, error) {
	pods, err := p.list(ctx, client.ObjectKeyFromObject(js))
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
		return pod.Labels[jobset.JobSetUIDKey] != string(js.UID)
	}), err
}

// Owner is the TrainJob whose pods Pods finds.
type Owner struct {
	types.NamespacedName
	// UID of the TrainJob. It is "" for a TrainJob that is gone: then the pods are those of any TrainJob of the name.
	UID types.UID
	// JobSet is the TrainJob's present one; nil if it has none.
	JobSet *jobset.JobSet
}

// Running returns the pods of a TrainJob that have not ended, of its present JobSet and of those that were deleted
// before their pods. They must not be changed.
func (p *Pods) Running(ctx context.Context, owner Owner) ([]corev1.Pod, error) {
	pods, err := p.list(ctx, owner.NamespacedName)
	if err != nil {
		return nil, err
	}
	return p.running(ctx, pods, owner)
}

// RunningNow returns what Running does, by the API server instead of the cache. Quota is released on its result only:
// the watch of pods may be behind those of their owners.
func (p *Pods) RunningNow(ctx context.Context, owner Owner) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := p.live.List(ctx, &pods, named(owner.NamespacedName)...); err != nil {
		return nil, fmt.Errorf("listing the pods: %w", err)
	}
	return p.running(ctx, pods.Items, owner)
}

// named selects what carries a JobSet's name.
func named(key types.NamespacedName) []client.ListOption {
	return []client.ListOption{client.InNamespace(key.Namespace), client.MatchingLabels{jobset.JobSetNameKey: key.Name}}
}

func (p *Pods) running(ctx context.Context, pods []corev1.Pod, owner Owner) ([]corev1.Pod, error) {
	pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return PodEnded(&pod) })
	if len(pods) == 0 {
		return nil, nil
	}
	present, err := JobSetNamed(ctx, p.cache, owner.NamespacedName)
	if err != nil {
		return nil, err
	}
	// A stale cache may have the TrainJob's own JobSet, which is deleted.
	foreign := func(jobSet types.UID) bool {
		return present != nil && present.UID == jobSet && (owner.JobSet == nil || owner.JobSet.UID != jobSet) &&
			!OfTrainJob(present, owner.Name, owner.UID)
	}
	running := pods[:0]
	for _, pod := range pods {
		controller, found, err := p.jobSetOf(ctx, &pod)
		if err != nil {
			return nil, err
		}
		if found && !foreign(controller) {
			running = append(running, pod)
		}
	}
	return running, nil
}

// OnQuota returns the TrainJob on whose quota a pod runs; "" if it runs on none, or has ended. It asks the API server,
// because a pod may be younger than the cache.
func (p *Pods) OnQuota(ctx context.Context, key types.NamespacedName) (trainJob string, err error) {
	var pods corev1.PodList
	named := client.MatchingFields{metav1.ObjectNameField: key.Name}
	if err := p.live.List(ctx, &pods, client.InNamespace(key.Namespace), named); err != nil {
		return "", fmt.Errorf("reading pod %s: %w", key.Name, err)
	}
	if len(pods.Items) == 0 || PodEnded(&pods.Items[0]) || pods.Items[0].Labels[constants.PodSetLabel] == "" {
		return "", nil
	}
	pod := &pods.Items[0]
	controller, found, err := p.jobSetOf(ctx, pod)
	if err != nil || !found {
		return "", err
	}
	name := pod.Labels[jobset.JobSetNameKey]
	present, err := JobSetNamed(ctx, p.cache, types.NamespacedName{Namespace: key.Namespace, Name: name})
	if err != nil || present != nil && present.UID == controller && !OfTrainJob(present, name, "") {
		return "", err
	}
	return name, nil
}

// list returns the pods that carry a JobSet's name. What they point to is the cache's own and must not be changed: a
// TrainJob may have thousands.
func (p *Pods) list(ctx context.Context, key types.NamespacedName) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := p.cache.List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingFields{PodIndex: key.Name},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the pods: %w", err)
	}
	return pods.Items, nil
}

// jobSetOf returns the UID of the JobSet that a pod's Job is of, and false if the pod is of no JobSet's Job. The
// garbage collector deletes the pods of a Job that is gone; until then the pod's label names the JobSet.
func (p *Pods) jobSetOf(ctx context.Context, pod *corev1.Pod) (types.UID, bool, error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "Job" || owner.APIVersion != batchv1.SchemeGroupVersion.String() {
		return "", false, nil
	}
	if uid, known := p.jobs.Get(owner.UID); known {
		return uid.(types.UID), uid != types.UID(""), nil
	}
	job := &metav1.PartialObjectMetadata{}
	job.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	err := p.live.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}, job)
	if apierrors.IsNotFound(err) || err == nil && job.UID != owner.UID {
		return types.UID(pod.Labels[jobset.JobSetUIDKey]), !p.isForeign(pod), nil
	}
	if err != nil {
		return "", false, fmt.Errorf("reading Job %s of pod %s: %w", owner.Name, pod.Name, err)
	}
	var uid types.UID
	if c := metav1.GetControllerOfNoCopy(job); isJobSet(c) {
		uid = c.UID
	}
	p.jobs.Add(owner.UID, uid)
	return uid, uid != "", nil
}

// isForeign reports whether a pod whose Job doesn't exist can't be of a TrainJob, because it may take longer to
// terminate than those. Of a Job that never existed, the garbage collector deletes such a pod, which then terminates
// for years.
func (p *Pods) isForeign(pod *corev1.Pod) bool {
	return p.MaxGraceSeconds > 0 && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) > p.MaxGraceSeconds
}

func isJobSet(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == "JobSet" && owner.APIVersion == jobset.SchemeGroupVersion.String()
}

// PodLost reports whether a pod was lost by no fault of its own. Its node was deleted, drained or is not ready, or
// another pod preempts it (k8s.io/api/core/v1, DisruptionTarget). Or its node was restarted and has lost its containers
// (the reasons are the kubelet's and containerd's).
func PodLost(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed && slices.ContainsFunc(pod.Status.ContainerStatuses, vanished) {
		return true
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

func vanished(c corev1.ContainerStatus) bool {
	ended := c.State.Terminated
	return ended != nil && (ended.Reason == "ContainerStatusUnknown" || ended.Reason == "Unknown")
}
