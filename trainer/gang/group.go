package gang

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Group is the pods of the ReplicatedJobs that start together.
type Group struct {
	// Name of the group's template, and the end of its PodGroup's name: the name of its first ReplicatedJob.
	Name           string
	ReplicatedJobs []string
	// Pods is the number of pods: the sum of parallelism × replicas of the ReplicatedJobs.
	Pods int32
	// Later is true if the pods are created after others, not at the start of the TrainJob.
	Later bool

	// priority is that of the pods, which the PodGroup has too; where they differ, it is the first ReplicatedJob's, and
	// mixed says which differ.
	priority priority
	mixed    error
}

// priority is what a pod template says of its pods' priority.
type priority struct {
	class      string
	preemption corev1.PreemptionPolicy
}

// differs returns an error that names the fields in which a ReplicatedJob's priority differs from its group's; nil if
// it doesn't.
func (p priority) differs(rj string, g *Group) error {
	const path = "replicatedJobs[%s].template.spec.template.spec.%s is %q, but that of replicatedJobs[%s], which starts " +
		"with it, is %q, and a whole group has one priority; give both the same"
	if p.class != g.priority.class {
		return fmt.Errorf(path, rj, "priorityClassName", p.class, g.Name, g.priority.class)
	}
	if p.preemption != g.priority.preemption {
		return fmt.Errorf(path, rj, "preemptionPolicy", p.preemption, g.Name, g.priority.preemption)
	}
	return nil
}

// add adds the pods of a ReplicatedJob.
func (g *Group) add(rj *jobset.ReplicatedJob) {
	pod := &rj.Template.Spec.Template.Spec
	own := priority{pod.PriorityClassName, ptr.Deref(pod.PreemptionPolicy, corev1.PreemptLowerPriority)}
	if len(g.ReplicatedJobs) == 0 {
		g.priority = own
	}
	if g.mixed == nil {
		g.mixed = own.differs(rj.Name, g)
	}
	g.ReplicatedJobs = append(g.ReplicatedJobs, rj.Name)
	g.Pods += rj.Replicas * overrides.PodsPerJob(rj)
}

// String returns the group's name and number of pods, for messages.
func (g Group) String() string {
	if g.Pods == 1 {
		return fmt.Sprintf("gang %s (1 pod)", g.Name)
	}
	return fmt.Sprintf("gang %s (%d pods)", g.Name, g.Pods)
}

// groupsOf returns the groups of a JobSet, in the order of its ReplicatedJobs. ReplicatedJobs are in the same group if
// they wait for the same others by dependsOn; with startupPolicy InOrder each is a group. A group with pods that are
// created later would wait for them forever. If the pods can't be in groups, the error names the path of the field.
// annotations are the JobSet's.
func groupsOf(spec *jobset.JobSetSpec, annotations map[string]string) ([]Group, error) {
	var groups []Group
	byStart, scheduler := map[string]int{}, map[string]string{}
	inOrder := spec.StartupPolicy != nil && spec.StartupPolicy.StartupPolicyOrder == jobset.InOrder
	for i := range spec.ReplicatedJobs {
		rj := &spec.ReplicatedJobs[i]
		if err := checkGroupable(rj, annotations); err != nil {
			return nil, err
		}
		if rj.Replicas*overrides.PodsPerJob(rj) == 0 {
			continue
		}
		start := dependenciesOf(rj)
		if inOrder {
			start = rj.Name
		}
		own := cmp.Or(rj.Template.Spec.Template.Spec.SchedulerName, corev1.DefaultSchedulerName)
		n, found := byStart[start]
		if !found {
			n = len(groups)
			byStart[start], scheduler[start] = n, own
			groups = append(groups, Group{Name: rj.Name, Later: start != "" && (!inOrder || n > 0)})
		}
		if own != scheduler[start] {
			return nil, fmt.Errorf("replicatedJobs[%s].template.spec.template.spec.schedulerName is %q, but that of "+
				"replicatedJobs[%s], which starts with it, is %q, and one scheduler places a whole group; give both the same",
				rj.Name, own, groups[n].Name, scheduler[start])
		}
		groups[n].add(rj)
	}
	return groups, nil
}

// dependenciesOf returns what a ReplicatedJob waits for by dependsOn, in a form that doesn't depend on its order.
func dependenciesOf(rj *jobset.ReplicatedJob) string {
	var waits []string
	for _, d := range rj.DependsOn {
		waits = append(waits, fmt.Sprintf("%s/%s", d.Name, d.Status))
	}
	slices.Sort(waits)
	return strings.Join(slices.Compact(waits), " ")
}

// checkGroupable returns an error if the pods of a ReplicatedJob can't be in a group. annotations are the JobSet's.
func checkGroupable(rj *jobset.ReplicatedJob, annotations map[string]string) error {
	job := &rj.Template.Spec
	if job.BackoffLimitPerIndex != nil {
		return fmt.Errorf("replicatedJobs[%s].template.spec.backoffLimitPerIndex is %d: an index that has failed for good "+
			"gets no new pod, and a new pod of another index would wait for it; use backoffLimit",
			rj.Name, *job.BackoffLimitPerIndex)
	}
	if err := checkExclusive(rj, annotations); err != nil {
		return err
	}
	if parallelism := ptr.Deref(job.Parallelism, 1); job.Completions != nil && *job.Completions > parallelism {
		return fmt.Errorf("replicatedJobs[%s].template.spec.completions is %d, more than its parallelism %d, so that its "+
			"last pods would come when too few others are left to make up the group; give both the same",
			rj.Name, *job.Completions, parallelism)
	}
	if g := job.Template.Spec.SchedulingGroup; g != nil {
		return fmt.Errorf("replicatedJobs[%s].template.spec.template.spec.schedulingGroup.podGroupName is %q, and a pod is "+
			"in one group only; take it out of the runtime", rj.Name, ptr.Deref(g.PodGroupName, ""))
	}
	return nil
}

// checkExclusive returns an error if JobSet's exclusive placement and the group would wait for each other. JobSet v0.12
// refuses the pods of a Job until the Job's first pod is placed (its pod webhook); that pod waits for the group.
func checkExclusive(rj *jobset.ReplicatedJob, annotations map[string]string) error {
	if overrides.PodsPerJob(rj) <= 1 {
		return nil
	}
	for _, has := range []map[string]string{rj.Template.Annotations, annotations} {
		topology, exclusive := has[jobset.ExclusiveKey]
		if _, bySelector := has[jobset.NodeSelectorStrategyKey]; exclusive && !bySelector {
			return fmt.Errorf("annotation %s of the JobSet or of replicatedJobs[%s] is %q: JobSet creates the pods of "+
				"a Job when its first is placed, which waits for the others; remove it, use annotation %s, or gang "+
				"scheduling with policy %s",
				jobset.ExclusiveKey, rj.Name, topology, jobset.NodeSelectorStrategyKey, api.GangPolicyBasic)
		}
	}
	return nil
}
