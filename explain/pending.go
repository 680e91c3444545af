package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// quota is about a TrainJob that Kueue considers and doesn't admit. Kueue's message is of its last look; the numbers
// are of now.
func (f *Facts) quota(flavors []Flavor) Cause {
	c := f.condition(kueue.WorkloadQuotaReserved)
	cause := Cause{
		Code:  CodeUnknown,
		Text:  "Kueue has not considered it yet",
		Since: since(f.Workload.CreationTimestamp),
	}
	if c != nil {
		cause.Text, cause.Since = c.Message, since(c.LastTransitionTime)
	}
	for _, known := range messages {
		if strings.Contains(cause.Text, known.part) {
			cause.Code, cause.Do = known.code, known.do
			break
		}
	}
	if slices.Contains(byMessage, cause.Code) || len(flavors) == 0 {
		return cause
	}
	return f.byNumbers(cause, flavors)
}

// byMessage are the causes that only Kueue's message shows.
var byMessage = []Code{
	CodePreempting,
	CodeTopology,
	CodeNamespace,
	CodeInvalid,
	CodeNoResource,
	CodeNoQueue,
	CodeNoCQ,
	CodeCQInactive,
	CodeCQStopped,
}

// messages are parts of Kueue v0.19.2's messages (pkg/scheduler, pkg/cache/scheduler, pkg/workload), in the order in
// which they count: a message may have several, one for each flavor.
var messages = []struct {
	part string
	code Code
	do   []string
}{
	{
		"Pending the preemption of",
		CodePreempting,
		[]string{"wait until the pods of those that are preempted have ended"},
	},
	{"overlapping preemption targets", CodePreempting, nil},
	{"doesn't match ClusterQueue selector", CodeNamespace, []string{
		"your batch admin has to allow the namespace in the ClusterQueue's namespaceSelector"}},
	{"LimitRange", CodeInvalid, []string{
		"change spec.trainer.resourcesPerNode to what the namespace's LimitRange allows"}},
	{"resources validation failed", CodeInvalid, []string{"requests must not be above limits"}},
	{"LocalQueue", CodeNoQueue, nil},
	{"is stopped", CodeCQStopped, []string{"ask your batch admin, or use another queue"}},
	{"is inactive", CodeCQInactive, []string{"ask your batch admin"}},
	{"is terminating or missing", CodeNoCQ, []string{"ask your batch admin"}},
	{"unavailable in ClusterQueue", CodeNoResource, []string{
		"the ClusterQueue has no quota for a resource that the pods ask for; drop it from resourcesPerNode or ask your " +
			"batch admin"}},
	{"opology", CodeTopology, []string{
		"ask for a wider level of the topology, or for preferred in the place of required, or for fewer nodes"}},
	{"insufficient unused quota", CodeShort, nil},
	{"maximum capacity", CodeTooLarge, nil},
	{"doesn't match node affinity", CodeNoFlavor, nil},
	{"untolerated taint", CodeNoFlavor, nil},
	{"no longer fits after processing another", CodeBehind, nil},
}

// byNumbers finds out which of the limits of a quota it is. The pods need a flavor of each resource group, so that the
// group counts in which least fits; of the same, the first.
func (f *Facts) byNumbers(cause Cause, rows []Flavor) Cause {
	worst, gravity := Cause{}, -1
	for len(rows) > 0 {
		same := func(r Flavor) bool { return r.group == rows[0].group }
		of := slices.DeleteFunc(slices.Clone(rows), func(r Flavor) bool { return !same(r) })
		if c, g := f.inGroup(cause, of); g > gravity {
			worst, gravity = c, g
		}
		rows = rows[len(of):]
	}
	return worst
}

// How grave it is what keeps a TrainJob from fitting into a resource group.
const (
	fits = iota
	lacksQuota
	neverFits
	noFlavorSuits
)

// inGroup finds out which of the limits of a resource group it is, and how grave it is. All resources of one flavor
// have to fit, so that of each flavor the resource counts of which the largest part is missing.
func (f *Facts) inGroup(cause Cause, rows []Flavor) (Cause, int) {
	suitable := slices.DeleteFunc(slices.Clone(rows), func(r Flavor) bool { return r.Unsuitable != "" })
	if len(suitable) == 0 {
		cause.Code, cause.Text = CodeNoFlavor, "no flavor suits its pods: "+eachUnsuitable(rows)
		cause.Do = []string{"take the node selector out of the TrainJob's overrides, or use a queue that has such nodes"}
		return cause, noFlavorSuits
	}
	names := flavorsOf(suitable)
	possible := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(suitable, func(r Flavor) bool { return r.Name == name && r.needed.Cmp(r.most) > 0 })
	})
	if len(possible) == 0 {
		row := shortest(suitable, func(r Flavor) float64 { return part(minus(r.needed, r.most), r.needed) })
		cause.Code = CodeTooLarge
		cause.Text = fmt.Sprintf("it asks for %s of %s, and its queue never has more than %s in flavor %s", row.Needed,
			row.Resource, row.Most, row.Name)
		cause.Do = []string{"kubectl signalbox simulate " + f.Job.Name + " shows how many nodes would fit, and where"}
		return cause, neverFits
	}
	row := f.best(suitable, possible)
	switch {
	case row.Short == "" && cause.Code == CodeNoFlavor: // Kueue has read flavors that the user may not read
		return cause, fits
	case row.Short == "":
		cause.Code, cause.Text = CodeBehind, "there is quota, and others are considered before it: "+cause.Text
		return cause, fits
	}
	return f.shortOf(cause, row), lacksQuota
}

// best returns the row that says most about what is short: of the possible flavor that lacks least.
func (f *Facts) best(rows []Flavor, possible []string) Flavor {
	lacks := func(r Flavor) float64 { return part(r.short, r.needed) }
	var best *Flavor
	for _, name := range possible {
		of := slices.DeleteFunc(slices.Clone(rows), func(r Flavor) bool { return r.Name != name })
		row := shortest(of, lacks)
		if best == nil || lacks(row) < lacks(*best) {
			best = &row
		}
	}
	return *best
}

// shortest returns the row of which the largest part is missing.
func shortest(rows []Flavor, missing func(Flavor) float64) Flavor {
	return slices.MaxFunc(rows, func(a, b Flavor) int { return cmp.Compare(missing(a), missing(b)) })
}

// part returns which part of a quantity another is. Resources differ in their units.
func part(of, whole resource.Quantity) float64 {
	return of.AsApproximateFloat64() / whole.AsApproximateFloat64()
}

// shortOf says why the quota of a flavor is short.
func (f *Facts) shortOf(cause Cause, row Flavor) Cause {
	lack := fmt.Sprintf("%s of %s are missing in flavor %s: it asks for %s, and %s are free", row.Short, row.Resource,
		row.Name, row.Needed, row.Free)
	cause.Do = []string{"kubectl signalbox simulate " + f.Job.Name + " --until shows when it may start"}
	switch lower := f.lowerHolders(row); {
	case row.borrowed.Sign() > 0 && row.needed.Cmp(minus(row.nominal, row.used)) <= 0: // its own quota would do
		cause.Code = CodeBorrowed
		cause.Text = lack + "; other queues of the cohort have borrowed " + row.borrowed.String()
		cause.Do = append(cause.Do, "reclaimWithinCohort of the ClusterQueue decides whether it may take that back")
	case lower != "":
		cause.Code, cause.Text = CodeNoPreempt, lack+"; "+lower
	case row.limited:
		cause.Code, cause.Text = CodeLimit, lack+"; the queue's borrowingLimit is reached"
	case row.needed.Cmp(row.nominal) > 0:
		cause.Code, cause.Text = CodeCohort, lack+"; it has to borrow, and the cohort has no more to lend"
	default:
		cause.Code, cause.Text = CodeShort, lack
	}
	if len(row.Holders) > 0 {
		cause.Text += "; held by " + holdersText(row.Holders)
	}
	return cause
}

// lowerHolders says that Workloads of lower priority hold enough, and that the ClusterQueue may not preempt them.
func (f *Facts) lowerHolders(row Flavor) string {
	cq := f.clusterQueue()
	policy := kueue.PreemptionPolicyNever
	if cq.Spec.Preemption != nil && cq.Spec.Preemption.WithinClusterQueue != "" {
		policy = cq.Spec.Preemption.WithinClusterQueue
	}
	if policy != kueue.PreemptionPolicyNever {
		return ""
	}
	var sum resource.Quantity
	var names []string
	for _, h := range row.Holders {
		if h.ClusterQueue == cq.Name && h.Priority < ptr.Deref(f.Workload.Spec.Priority, 0) {
			sum.Add(h.amount)
			names = append(names, h.Name)
		}
	}
	if sum.Cmp(row.short) < 0 || len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(
		"%s of lower priority hold %s, but ClusterQueue %s preempts nobody (withinClusterQueue is Never)",
		list(names),
		sum.String(),
		cq.Name,
	)
}

func minus(a, b resource.Quantity) resource.Quantity {
	a = a.DeepCopy()
	a.Sub(b)
	return a
}

func flavorsOf(rows []Flavor) []string {
	var names []string
	for _, r := range rows {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

func eachUnsuitable(rows []Flavor) string {
	var parts []string
	for _, r := range rows {
		if part := r.Name + ": " + r.Unsuitable; !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "; ")
}

func holdersText(holders []Holder) string {
	const most = 5
	var parts []string
	for i, h := range holders {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(holders)-most))
			break
		}
		parts = append(parts, fmt.Sprintf("%s/%s (%s)", h.Namespace, h.Name, h.Amount))
	}
	return strings.Join(parts, ", ")
}
