package gang

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Group is the pods of the ReplicatedJobs that start together.
type Group struct {
	// Name of its template, and the end of its PodGroup's: its first ReplicatedJob's.
	Name           string
	ReplicatedJobs []string
	// Pods is how many come: for each ReplicatedJob parallelism × replicas.
	Pods int32
	// Later tells that they don't come at once, but after others.
	Later bool
}

func (g Group) String() string {
	if g.Pods == 1 {
		return fmt.Sprintf("gang %s (1 pod)", g.Name)
	}
	return fmt.Sprintf("gang %s (%d pods)", g.Name, g.Pods)
}

// groupsOf returns the groups of a JobSet, in the order of its ReplicatedJobs. ReplicatedJobs start together that wait
// for the same others by dependsOn; with startupPolicy InOrder each starts by itself. A group that waited for pods that
// come later would wait for ever. What can't be put into groups is an error that names the path. annotations are the
// JobSet's.
func groupsOf(spec *jobset.JobSetSpec, annotations map[string]string) ([]Group, error) {
	var groups []Group
	byStart, scheduler := map[string]int{}, map[string]string{}
	inOrder := spec.StartupPolicy != nil && spec.StartupPolicy.StartupPolicyOrder == jobset.InOrder
	for i := range spec.ReplicatedJobs {
		rj := &spec.ReplicatedJobs[i]
		if err := fits(rj, annotations); err != nil {
			return nil, err
		}
		pods := rj.Replicas * overrides.PodsPerJob(rj)
		if pods == 0 {
			continue
		}
		start := startOf(rj)
		if inOrder {
			start = rj.Name
		}
		n, found := byStart[start]
		if !found {
			n = len(groups)
			byStart[start], scheduler[start] = n, rj.Template.Spec.Template.Spec.SchedulerName
			groups = append(groups, Group{Name: rj.Name, Later: start != "" && (!inOrder || n > 0)})
		}
		if other := rj.Template.Spec.Template.Spec.SchedulerName; other != scheduler[start] {
			return nil, fmt.Errorf("replicatedJobs[%s].template.spec.template.spec.schedulerName is %q, but that of replicatedJobs[%s], which starts with it, is %q, and one scheduler places a whole group; give both the same",
				rj.Name, other, groups[n].Name, scheduler[start])
		}
		groups[n].ReplicatedJobs = append(groups[n].ReplicatedJobs, rj.Name)
		groups[n].Pods += pods
	}
	return groups, nil
}

// startOf says what a ReplicatedJob waits for; two that wait for the same start together.
func startOf(rj *jobset.ReplicatedJob) string {
	var waits []string
	for _, d := range rj.DependsOn {
		waits = append(waits, fmt.Sprintf("%s/%s", d.Name, d.Status))
	}
	slices.Sort(waits)
	return strings.Join(slices.Compact(waits), " ")
}

// fits refuses a ReplicatedJob whose pods can't be a part of a group.
func fits(rj *jobset.ReplicatedJob, annotations map[string]string) error {
	job := &rj.Template.Spec
	if job.BackoffLimitPerIndex != nil {
		return fmt.Errorf("replicatedJobs[%s].template.spec.backoffLimitPerIndex is %d: an index that has failed for good doesn't come again, and a pod of another that does would wait for it; use backoffLimit",
			rj.Name, *job.BackoffLimitPerIndex)
	}
	// JobSet v0.12 refuses the pods of a Job until its first is placed (its pod webhook), which waits for the others.
	for _, has := range []map[string]string{rj.Template.Annotations, annotations} {
		topology, exclusive := has[jobset.ExclusiveKey]
		if _, otherwise := has[jobset.NodeSelectorStrategyKey]; exclusive && !otherwise && overrides.PodsPerJob(rj) > 1 {
			return fmt.Errorf("annotation %s of the JobSet or of replicatedJobs[%s] is %q: JobSet lets the pods of a Job come only when its first is placed, which waits for the others; take it out, use annotation %s, or gang scheduling with policy %s",
				jobset.ExclusiveKey, rj.Name, topology, jobset.NodeSelectorStrategyKey, api.GangPolicyBasic)
		}
	}
	if parallelism := ptr.Deref(job.Parallelism, 1); job.Completions != nil && *job.Completions > parallelism {
		return fmt.Errorf("replicatedJobs[%s].template.spec.completions is %d, more than its parallelism %d, so that its last pods would come when too few others are left to make up the group; give both the same",
			rj.Name, *job.Completions, parallelism)
	}
	if g := job.Template.Spec.SchedulingGroup; g != nil {
		return fmt.Errorf("replicatedJobs[%s].template.spec.template.spec.schedulingGroup.podGroupName is %q, and a pod is in one group only; take it out of the runtime",
			rj.Name, ptr.Deref(g.PodGroupName, ""))
	}
	return nil
}

// plan is the groups of one start, with the names of their objects.
type plan struct {
	policy api.GangPolicy
	groups []Group
	// base is what all names begin with.
	base string
	// anchors are the UIDs of the Workloads that have been made or found, by name.
	anchors map[string]types.UID
}

// newPlan names the groups of a start. A TrainJob's generation is another at each start and stays while it runs, so that
// the names are the same whenever they are computed for one start, and others for the next.
func newPlan(job *api.TrainJob, policy api.GangPolicy, groups []Group) *plan {
	data, _ := json.Marshal([]any{job.UID, job.Generation, policy, groups}) // of strings and numbers: it can't fail
	sum := sha256.Sum256(data)
	return &plan{policy: policy, groups: groups, base: job.Name + "-" + hex.EncodeToString(sum[:5])}
}

func (p *plan) podGroup(g Group) string { return p.base + "-" + g.Name }

// workload names the Workload of the nth group. Each holds as many templates as it may; it is but an anchor, so that
// several do for a start of more groups.
func (p *plan) workload(n int) string {
	if n < maxTemplates {
		return p.base
	}
	return fmt.Sprintf("%s-%d", p.base, n/maxTemplates+1)
}

// has tells whether an object is of this start; nil has none.
func (p *plan) has(name string) bool {
	if p == nil {
		return false
	}
	for n, g := range p.groups {
		if name == p.workload(n) || name == p.podGroup(g) {
			return true
		}
	}
	return false
}

// into puts the groups' names into the pod templates of a JobSet that is about to be made: they can't be set later.
func (p *plan) into(js *jobsetac.JobSetApplyConfiguration) {
	for _, g := range p.groups {
		for i := range js.Spec.ReplicatedJobs {
			if rj := &js.Spec.ReplicatedJobs[i]; slices.Contains(g.ReplicatedJobs, ptr.Deref(rj.Name, "")) {
				rj.Template.Spec.Template.Spec.WithSchedulingGroup(corev1ac.PodSchedulingGroup().WithPodGroupName(p.podGroup(g)))
			}
		}
	}
	js.WithAnnotations(map[string]string{api.GangPolicyAnnotation: string(p.policy), baseAnnotation: p.base})
}

// chunk returns the groups whose templates are in the nth group's Workload.
func (p *plan) chunk(n int) []Group {
	from := n / maxTemplates * maxTemplates
	return p.groups[from:min(from+maxTemplates, len(p.groups))]
}

// baseAnnotation on a JobSet says that its groups are ours, and what their names begin with.
const baseAnnotation = "signalbox.dev/gang"

// Has tells whether a JobSet's pods are in groups of ours.
func Has(js *jobset.JobSet) bool { return js.Annotations[baseAnnotation] != "" }

// planOf reads the plan back from the JobSet that was made by it; nil where it has none.
func planOf(js *jobset.JobSet) *plan {
	base := js.Annotations[baseAnnotation]
	if base == "" {
		return nil
	}
	p := &plan{policy: api.GangPolicy(js.Annotations[api.GangPolicyAnnotation]), base: base}
	byName := map[string]int{}
	for i := range js.Spec.ReplicatedJobs {
		rj := &js.Spec.ReplicatedJobs[i]
		g := rj.Template.Spec.Template.Spec.SchedulingGroup
		if g == nil {
			continue
		}
		name := strings.TrimPrefix(ptr.Deref(g.PodGroupName, ""), base+"-")
		n, found := byName[name]
		if !found {
			n = len(p.groups)
			byName[name] = n
			p.groups = append(p.groups, Group{Name: name})
		}
		p.groups[n].ReplicatedJobs = append(p.groups[n].ReplicatedJobs, rj.Name)
		p.groups[n].Pods += rj.Replicas * overrides.PodsPerJob(rj)
	}
	return p
}
