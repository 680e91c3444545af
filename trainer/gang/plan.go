package gang

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// baseAnnotation on a JobSet holds the prefix of the names of its groups, and marks them as Signalbox's.
const baseAnnotation = "signalbox.dev/gang"

// plan is the groups of one start, with the names of their objects.
type plan struct {
	policy api.GangPolicy
	groups []Group
	// base is the prefix of all names.
	base string
}

// newPlan names the groups of a start. A TrainJob's generation changes at each start and stays while it runs: the names
// are the same whenever they are computed for one start, and differ for the next.
func newPlan(job *api.TrainJob, policy api.GangPolicy, groups []Group) *plan {
	data, _ := json.Marshal([]any{job.UID, job.Generation, policy, groups}) // strings and numbers can't fail
	sum := sha256.Sum256(data)
	return &plan{policy: policy, groups: groups, base: job.Name + "-" + hex.EncodeToString(sum[:5])}
}

// podGroup returns the name of a group's PodGroup.
func (p *plan) podGroup(g Group) string { return p.base + "-" + g.Name }

// workload returns the name of the nth group's Workload. A Workload holds maxTemplates groups. It only anchors their
// PodGroups, so that a start with more groups may have several Workloads.
func (p *plan) workload(n int) string {
	if n < maxTemplates {
		return p.base
	}
	return fmt.Sprintf("%s-%d", p.base, n/maxTemplates+1)
}

// chunk returns the groups whose templates are in the nth group's Workload.
func (p *plan) chunk(n int) []Group {
	from := n / maxTemplates * maxTemplates
	return p.groups[from:min(from+maxTemplates, len(p.groups))]
}

// has reports whether an object is of this start; nil has none.
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

// applyTo sets the groups' names in the pod templates of a JobSet before it is created; they can't be set later.
func (p *plan) applyTo(js *jobsetac.JobSetApplyConfiguration) {
	for _, g := range p.groups {
		for i := range js.Spec.ReplicatedJobs {
			rj := &js.Spec.ReplicatedJobs[i]
			if slices.Contains(g.ReplicatedJobs, ptr.Deref(rj.Name, "")) {
				group := corev1ac.PodSchedulingGroup().WithPodGroupName(p.podGroup(g))
				rj.Template.Spec.Template.Spec.WithSchedulingGroup(group)
			}
		}
	}
	js.WithAnnotations(map[string]string{api.GangPolicyAnnotation: string(p.policy), baseAnnotation: p.base})
}

// Has reports whether a JobSet's pods are in groups that Signalbox created.
func Has(js *jobset.JobSet) bool { return js.Annotations[baseAnnotation] != "" }

// planOf returns the plan that a JobSet was created with; nil if it has none.
func planOf(js *jobset.JobSet) *plan {
	base := js.Annotations[baseAnnotation]
	if base == "" {
		return nil
	}
	p := &plan{policy: api.GangPolicy(js.Annotations[api.GangPolicyAnnotation]), base: base}
	for i := range js.Spec.ReplicatedJobs {
		rj := &js.Spec.ReplicatedJobs[i]
		g := rj.Template.Spec.Template.Spec.SchedulingGroup
		if g == nil {
			continue
		}
		name := strings.TrimPrefix(ptr.Deref(g.PodGroupName, ""), base+"-")
		n := slices.IndexFunc(p.groups, func(g Group) bool { return g.Name == name })
		if n < 0 {
			n = len(p.groups)
			p.groups = append(p.groups, Group{Name: name})
		}
		p.groups[n].add(rj)
	}
	return p
}
