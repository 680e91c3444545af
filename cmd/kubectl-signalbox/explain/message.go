package explain

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilpodset "sigs.k8s.io/kueue/pkg/util/podset"
)

// reading is what a message of Kueue's scheduler means.
type reading struct {
	Code Code
	Do   []string
	// lack is what is missing, for CodeShort and CodeTooLarge; its flavor is "" if the message names none.
	lack
}

// lack is what one flavor lacks of one resource.
type lack struct {
	flavor, resource string
	// missing is by how much it is too little. For CodeTooLarge, asked and most are the request and the most that the
	// queue ever has.
	missing, asked, most resource.Quantity
}

// messages are parts of Kueue v0.19.2's messages that aren't about flavors (pkg/scheduler, pkg/cache/scheduler,
// pkg/workload), in the order in which they count.
var messages = []struct {
	part string
	code Code
	do   []string
}{
	{"Pending the preemption of", CodePreempting, []string{
		"wait until the pods of those that are preempted have ended"}},
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
	{"no longer fits after processing another", CodeBehind, nil},
	{"unavailable in ClusterQueue", CodeNoResource, []string{
		"the ClusterQueue has no quota for a resource that the pods ask for; drop it from resourcesPerNode or ask your " +
			"batch admin"}},
}

// The reasons of flavors (Kueue v0.19.2, pkg/scheduler/flavorassigner).
var (
	podSetPart = regexp.MustCompile(`couldn't assign flavors to pod set ([^\s:]+): `)
	tooLarge   = regexp.MustCompile(`insufficient quota for (\S+) in flavor (\S+), previously considered podsets requests ` +
		`\((\S+)\) \+ current podset request \((\S+)\) > maximum capacity \((\S+)\)`)
	short      = regexp.MustCompile(`insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed`)
	mismatches = regexp.MustCompile(`flavor \S+ doesn't match node affinity|flavor \S+ not found|` +
		`untolerated taint \{[^}]*\} in flavor [^\s,;]+|Flavor "[^"]+" (does not support|supports only) TopologyAwareScheduling`)
	placement = regexp.MustCompile(`topology "[^"]*" (doesn't allow|allows) to fit|topology level|topology domains|` +
		`slice topology`)
	taint = regexp.MustCompile(`\{(\S*) (\S*) (\S+) [^}]*\} in flavor`)
)

// tidy returns a message of Kueue with taints as kubectl writes them.
func tidy(message string) string {
	return taint.ReplaceAllStringFunc(message, func(text string) string {
		parts := taint.FindStringSubmatch(text)
		t := corev1.Taint{Key: parts[1], Value: parts[2], Effect: corev1.TaintEffect(parts[3])}
		return t.ToString() + " in flavor"
	})
}

// read interprets a message of Kueue about a Workload. Kueue assigns flavors to one PodSet after the other and stops at
// the first that gets none, so that the last PodSet of the message counts.
func read(message string, wl *kueue.Workload) reading {
	for _, known := range messages {
		if strings.Contains(message, known.part) {
			return reading{Code: known.code, Do: known.do}
		}
	}
	name, reasons := "", message
	if parts := podSetPart.FindAllStringSubmatchIndex(message, -1); len(parts) > 0 {
		last := parts[len(parts)-1]
		name, reasons = message[last[2]:last[3]], message[last[1]:]
	}
	large, lacks := largest(reasons, least(wl, name))
	best := leastLack(reasons, large)
	switch {
	case placement.MatchString(reasons):
		return reading{Code: CodeTopology, Do: []string{
			"ask for a wider level of the topology, or for preferred in the place of required, or for fewer nodes"}}
	case best != nil:
		return reading{Code: CodeShort, lack: *best}
	case lacks != nil:
		return reading{Code: CodeTooLarge, lack: *lacks}
	case len(large) > 0: // with the fewest pods it fits
		return reading{Code: CodeShort}
	case mismatches.MatchString(reasons):
		return reading{Code: CodeNoFlavor, Do: []string{
			"take the node selector or affinity out of the TrainJob's overrides, or use a queue that has such nodes"}}
	}
	return reading{Code: CodeUnknown}
}

// least returns which part of a PodSet's pods is enough: its minCount of its count.
func least(wl *kueue.Workload, podSet string) float64 {
	if wl == nil {
		return 1
	}
	p := utilpodset.FindPodSetByName(wl.Spec.PodSets, kueue.PodSetReference(podSet))
	if p == nil || p.Count == 0 {
		return 1
	}
	return float64(ptr.Deref(p.MinCount, p.Count)) / float64(p.Count)
}

// largest returns the flavors that can never have enough for all pods, and what the one lacks that comes nearest; nil
// if one has enough for the part of the pods that is enough.
func largest(reasons string, enough float64) (flavors map[string]bool, least *lack) {
	flavors = map[string]bool{}
	var lacks []*lack
	fits := false
	for _, m := range tooLarge.FindAllStringSubmatch(reasons, -1) {
		l := &lack{resource: m[1], flavor: m[2], most: quantity(m[5])}
		before, current := quantity(m[3]), quantity(m[4])
		if l.asked = current.DeepCopy(); current.Cmp(l.most) <= 0 { // what PodSets before have taken counts
			l.asked.Add(before)
		}
		l.missing = l.asked.DeepCopy()
		l.missing.Sub(l.most)
		flavors[l.flavor] = true
		lacks = append(lacks, l)
		fewest := before.AsApproximateFloat64() + current.AsApproximateFloat64()*enough
		fits = fits || enough < 1 && fewest <= l.most.AsApproximateFloat64()
	}
	if fits {
		return flavors, nil
	}
	return flavors, nearest(lacks, func(a, b *lack) int { return cmp.Compare(a.part(), b.part()) })
}

// leastLack returns what the flavor lacks that lacks least; nil if none has enough when nobody uses any.
func leastLack(reasons string, never map[string]bool) *lack {
	var lacks []*lack
	for _, m := range short.FindAllStringSubmatch(reasons, -1) {
		if !never[m[2]] {
			lacks = append(lacks, &lack{resource: m[1], flavor: m[2], missing: quantity(m[3])})
		}
	}
	return nearest(lacks, func(a, b *lack) int { return a.missing.Cmp(b.missing) })
}

// nearest returns what the flavor lacks that lacks least, the first one of several; nil for none. All resources of one
// flavor have to fit, so that of each flavor the resource counts that lacks most.
func nearest(lacks []*lack, compare func(a, b *lack) int) *lack {
	var most []*lack
	for _, l := range lacks {
		i := slices.IndexFunc(most, func(other *lack) bool { return other.flavor == l.flavor })
		if i < 0 {
			most = append(most, l)
		} else if compare(most[i], l) < 0 {
			most[i] = l
		}
	}
	if len(most) == 0 {
		return nil
	}
	return slices.MinFunc(most, compare)
}

// part returns which part of the request is missing. Resources differ in their units.
func (l *lack) part() float64 {
	return l.missing.AsApproximateFloat64() / l.asked.AsApproximateFloat64()
}

// quantity reads an amount of Kueue's messages; zero if it is none, such as "<unlimited>".
func quantity(text string) resource.Quantity {
	q, _ := resource.ParseQuantity(text)
	return q
}
