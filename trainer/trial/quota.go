package trial

import (
	"context"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// exceeds returns which ResourceQuota of a namespace is smaller than what a TrainJob uses at a time; nil if none is.
// There is one pod for each ReplicatedJob, as the namespace would have it. What counts is the quota's status, which is
// what the API server enforces.
func (t *Trial) exceeds(
	ctx context.Context, namespace string, needs *Needs, pods []*corev1.Pod,
) (refused, err error) {
	var quotas corev1.ResourceQuotaList
	if err := t.live.List(ctx, &quotas, client.InNamespace(namespace)); err != nil {
		if mayNot(err) {
			return nil, nil // as of pods, which the log has
		}
		return nil, &admission.PendingError{RetryAfter: unansweredRetry, Err: fmt.Errorf(
			"listing the ResourceQuotas of namespace %s: %w", namespace, err)}
	}
	evaluator := core.NewPodEvaluator(nil, t.clock)
	for i := range quotas.Items {
		q := &quotas.Items[i]
		objects, err := usageOfObjects(q, needs)
		if err != nil {
			return nil, err
		}
		for _, together := range phases(needs.Fewest) {
			total := objects
			for j := range needs.Fewest {
				rj, pod := &needs.Fewest[j], pods[j].DeepCopy()
				corev1defaults.SetObjectDefaults_Pod(pod) // a refused dry run has returned nothing
				used, err := usageOf(evaluator, q, pod)
				if err != nil {
					return nil, fmt.Errorf("counting a pod of ReplicatedJob %s for ResourceQuota %s: %w", rj.Name, q.Name, err)
				}
				if !slices.Contains(together, j) {
					used = quota.Mask(used, []corev1.ResourceName{podObjects}) // those that have ended stay
				}
				total = quota.Add(total, times(used, int64(rj.Replicas)*int64(overrides.PodsPerJob(rj))))
			}
			total = quota.Mask(total, quota.ResourceNames(q.Status.Hard))
			if fits, over := quota.LessThanOrEqual(total, q.Status.Hard); !fits {
				return fmt.Errorf("ResourceQuota %s is smaller than what the TrainJob needs: %s", q.Name,
					numbers(over, total, q.Status.Hard)), nil
			}
		}
	}
	return nil, nil
}

// MorePods implements integration.Placement: it returns how many further pods of a started TrainJob's ReplicatedJob the
// ResourceQuotas of its namespace have room for beside what uses them, at most so many.
func (t *Trial) MorePods(ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob, most int32) (int32, error) {
	var quotas corev1.ResourceQuotaList
	err := t.live.List(ctx, &quotas, client.InNamespace(job.Namespace))
	if mayNot(err) || err == nil && len(quotas.Items) == 0 {
		return most, nil
	}
	if err != nil {
		return 0, fmt.Errorf("listing the ResourceQuotas of namespace %s: %w", job.Namespace, err)
	}
	pod, err := t.tryPod(ctx, job, rj)
	if isFull(err) {
		return 0, nil
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("trying a pod of ReplicatedJob %s: %w", rj.Name, err)
	}
	corev1defaults.SetObjectDefaults_Pod(pod)
	evaluator := core.NewPodEvaluator(nil, t.clock)
	for i := range quotas.Items {
		status := &quotas.Items[i].Status
		each, err := usageOf(evaluator, &quotas.Items[i], pod)
		if err != nil {
			return 0, fmt.Errorf("counting a pod for ResourceQuota %s: %w", quotas.Items[i].Name, err)
		}
		for name, free := range quota.SubtractWithNonNegativeResult(status.Hard, status.Used) {
			if one := each[name]; one.Sign() > 0 {
				most = int32(min(int64(most), podsets.Times(one, free)))
			}
		}
	}
	return most, nil
}

var podObjects = generic.ObjectCountQuotaResourceNameFor(corev1.Resource("pods"))

// usageOfObjects returns what a quota counts of the objects of a TrainJob, its Jobs and its Service among them. Jobs
// that have ended stay.
func usageOfObjects(q *corev1.ResourceQuota, needs *Needs) (corev1.ResourceList, error) {
	total := corev1.ResourceList{}
	if len(needs.Objects) == 0 {
		return total, nil
	}
	for i := range needs.Objects {
		used, err := usageOfObject(q, needs.Objects[i].Unstructured)
		if err != nil {
			return nil, fmt.Errorf("counting %s %s for ResourceQuota %s: %w", needs.Objects[i].GetKind(),
				needs.Objects[i].GetName(), q.Name, err)
		}
		total = quota.Add(total, used)
	}
	jobs := int64(0)
	for i := range needs.Fewest {
		jobs += int64(needs.Fewest[i].Replicas)
	}
	used, err := usageOf(generic.NewObjectCountEvaluator(batchv1.Resource("jobs"), nil, ""), q, nil)
	total = quota.Add(total, times(used, jobs))
	if err != nil || !needs.service() {
		return total, err
	}
	used, err = usageOf(core.NewServiceEvaluator(nil), q, &corev1.Service{}) // it has no ports and no load balancer
	return quota.Add(total, used), err
}

// service reports whether JobSet creates a Service for the pods' names.
func (n *Needs) service() bool {
	enabled, found, err := unstructured.NestedBool(n.Objects[len(n.Objects)-1].Object, "spec", "network",
		"enableDNSHostnames")
	return err != nil || !found || enabled
}

// usageOfObject returns what a quota counts of an object.
func usageOfObject(q *corev1.ResourceQuota, o *unstructured.Unstructured) (corev1.ResourceList, error) {
	plural, _ := apimeta.UnsafeGuessKindToResource(o.GroupVersionKind())
	if plural.GroupResource() == corev1.Resource("persistentvolumeclaims") {
		claim := &corev1.PersistentVolumeClaim{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, claim); err != nil {
			return nil, err
		}
		return usageOf(core.NewPersistentVolumeClaimEvaluator(nil), q, claim)
	}
	alias := ""
	if plural.Group == "" {
		alias = plural.Resource
	}
	return usageOf(generic.NewObjectCountEvaluator(plural.GroupResource(), nil, corev1.ResourceName(alias)), q, o)
}

// usageOf returns what a quota counts of an object, by Kubernetes' own evaluator of its kind.
func usageOf(evaluator quota.Evaluator, q *corev1.ResourceQuota, o runtime.Object) (corev1.ResourceList, error) {
	if matches, err := evaluator.Matches(q, o); err != nil || !matches {
		return nil, err
	}
	return evaluator.Usage(o)
}

// times returns a multiple of a list.
func times(list corev1.ResourceList, n int64) corev1.ResourceList {
	product := corev1.ResourceList{}
	for name, q := range list {
		q = q.DeepCopy()
		q.Mul(n)
		product[name] = q
	}
	return product
}

// phases returns the indexes of ReplicatedJobs that run at a time: those that wait for the end of others run after
// them.
func phases(jobs []jobset.ReplicatedJob) [][]int {
	var all [][]int
	at := map[string]int{}
	for i := range jobs { // JobSet takes dependencies on earlier ones alone
		phase := 0
		for _, d := range jobs[i].DependsOn {
			if d.Status == jobset.DependencyComplete {
				phase = max(phase, at[d.Name]+1)
			} else {
				phase = max(phase, at[d.Name])
			}
		}
		at[jobs[i].Name] = phase
		for len(all) <= phase {
			all = append(all, nil)
		}
		all[phase] = append(all[phase], i)
	}
	return all
}

// numbers says, for each resource, what is needed and what there is.
func numbers(names []corev1.ResourceName, needed, hard corev1.ResourceList) string {
	var all []string
	slices.Sort(names)
	for _, name := range names {
		all = append(all, fmt.Sprintf("%s of %s, of %s", ptr.To(needed[name]).String(), name, ptr.To(hard[name]).String()))
	}
	return strings.Join(all, "; ")
}
