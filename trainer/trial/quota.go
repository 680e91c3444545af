package trial

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	quota "k8s.io/apiserver/pkg/quota/v1"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides"
)

// exceeds returns which ResourceQuota of a namespace is smaller than what the pods of ReplicatedJobs use at a time; nil
// if none is. There is one pod for each ReplicatedJob, as the namespace would have it. What counts is the quota's
// status, which is what the API server enforces.
func (t *Trial) exceeds(
	ctx context.Context, namespace string, jobs []jobset.ReplicatedJob, pods []*corev1.Pod,
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
		for _, together := range phases(jobs) {
			total := corev1.ResourceList{}
			for _, j := range together {
				used, err := usage(evaluator, q, pods[j])
				if err != nil {
					return nil, fmt.Errorf("counting a pod of ReplicatedJob %s for ResourceQuota %s: %w", jobs[j].Name, q.Name,
						err)
				}
				total = quota.Add(total, times(used, int64(jobs[j].Replicas)*int64(overrides.PodsPerJob(&jobs[j]))))
			}
			total = quota.Mask(total, quota.ResourceNames(q.Status.Hard))
			if fits, over := quota.LessThanOrEqual(total, q.Status.Hard); !fits {
				return fmt.Errorf("ResourceQuota %s is smaller than what its pods need: %s", q.Name,
					numbers(over, total, q.Status.Hard)), nil
			}
		}
	}
	return nil, nil
}

// usage returns what a quota counts of a pod.
func usage(evaluator quota.Evaluator, q *corev1.ResourceQuota, pod *corev1.Pod) (corev1.ResourceList, error) {
	pod = pod.DeepCopy()
	corev1defaults.SetObjectDefaults_Pod(pod) // a refused dry run has returned nothing
	if matches, err := evaluator.Matches(q, pod); err != nil || !matches {
		return nil, err
	}
	return evaluator.Usage(pod)
}

// times returns a multiple of a list.
func times(list corev1.ResourceList, n int64) corev1.ResourceList {
	product := corev1.ResourceList{}
	for name, q := range list {
		if n == 0 {
			q = resource.Quantity{}
		} else if n > 1 {
			q = q.DeepCopy()
			q.Mul(n)
		}
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
