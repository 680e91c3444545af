package gang

import (
	"cmp"
	"context"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Groups is what was read of a TrainJob's groups.
type Groups struct {
	version *version
	job     *api.TrainJob
	jobSet  *jobset.JobSet
	now     time.Time
	// plan is that of the JobSet; nil if none of the groups is needed.
	plan *plan
	// objects are all that exist. PodGroups are first: the garbage collector would log an error about a PodGroup without
	// its Workload.
	objects []client.Object
	// states are those of the PodGroups, and counted the pods of those that are needed, by their names.
	states  map[string]podGroupState
	counted map[string]gangPods
	// pods are those of the JobSet, by the names of their PodGroups.
	pods map[string][]*corev1.Pod
}

// Observe reads the groups of a TrainJob, with its JobSet and the pods of that. It writes nothing. The result is nil if
// the API server serves no groups, or while a start creates them.
func (g *Gangs) Observe(
	ctx context.Context, job *api.TrainJob, js *jobset.JobSet, pods []corev1.Pod, running bool,
) (*Groups, error) {
	s, err := g.prober.existing(ctx)
	if err != nil || s == nil {
		return nil, err
	}
	seen := &Groups{
		version: s.version, job: job, jobSet: js, pods: byPodGroup(pods), now: g.config.Clock.Now(),
		states: map[string]podGroupState{}, counted: map[string]gangPods{},
	}
	if running {
		if js == nil || !js.DeletionTimestamp.IsZero() {
			return nil, nil // a start creates the groups before their JobSet
		}
		seen.plan = planOf(js)
	}
	podGroups, workloads := &unstructured.UnstructuredList{}, &metav1.PartialObjectMetadataList{}
	podGroups.SetGroupVersionKind(s.version.WithKind("PodGroupList"))
	workloads.SetGroupVersionKind(s.version.WithKind("WorkloadList"))
	if err := cmp.Or(s.list(ctx, job, podGroups), s.list(ctx, job, workloads)); err != nil {
		return nil, err
	}
	for i := range podGroups.Items {
		podGroup := &podGroups.Items[i]
		seen.objects, seen.states[podGroup.GetName()] = append(seen.objects, podGroup), s.version.read(podGroup)
	}
	for i := range workloads.Items {
		seen.objects = append(seen.objects, &workloads.Items[i])
	}
	if seen.plan == nil {
		return seen, nil
	}
	return seen, g.count(ctx, seen)
}

// count counts the pods of the groups. Of a group that lacks pods it asks the API server how many have succeeded.
func (g *Gangs) count(ctx context.Context, seen *Groups) error {
	for _, group := range seen.plan.groups {
		name := seen.plan.podGroup(group)
		state, found := seen.states[name]
		if !found {
			continue
		}
		counted := countPods(seen.pods[name], seen.now)
		if counted.lacks(state, group.Pods) {
			jobs, err := g.config.JobsOf(ctx, seen.jobSet)
			if err != nil {
				return err
			}
			counted.succeeded = max(counted.succeeded, succeededOf(jobs, group))
		}
		seen.counted[name] = counted
	}
	return nil
}

// succeededOf returns how many pods of a group have succeeded, by the status of its Jobs: a succeeded pod is deleted
// with its node. A Job that is being deleted is one of the JobSet's last attempt.
func succeededOf(jobs []batchv1.Job, group Group) (count int32) {
	for i := range jobs {
		if jobs[i].DeletionTimestamp.IsZero() &&
			slices.Contains(group.ReplicatedJobs, jobs[i].Labels[jobset.ReplicatedJobNameKey]) {
			count += jobs[i].Status.Succeeded
		}
	}
	return count
}
