package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// quota is about a TrainJob that Kueue considers and doesn't admit. The simulation says why, or else Kueue's message of
// its last look.
func (f *Facts) quota() Cause {
	c := f.condition(kueue.WorkloadQuotaReserved)
	cause := Cause{Code: CodeUnknown, Text: "Kueue has not considered it yet", Since: since(f.Workload.CreationTimestamp)}
	if c != nil {
		cause.Text, cause.Since = tidy(c.Message), since(c.LastTransitionTime)
	}
	d := f.Decision
	switch {
	case d != nil && (c == nil || !f.Assumed) && (d.Verdict != simulate.Never || d.Message != ""):
		f.decided(&cause, c)
	case c == nil:
		f.unsaid(&cause)
	default:
		f.reads(&cause, read(c.Message, f.Workload))
	}
	return cause
}

// Unsure reports whether only a simulation shows whether the TrainJob ever fits. Kueue's message depends on what the
// PodSets before have taken. It is about the first PodSet that doesn't fit now. One behind the head of a strict queue
// has none.
func (f *Facts) Unsure(c Cause) bool {
	switch c.Code {
	case CodeTooLarge, CodeNoFlavor, CodeTopology, CodeBehind, CodeUnknown:
		return f.Decision == nil
	case CodeShort:
		return f.Decision == nil && len(f.Workload.Spec.PodSets) > 1
	default:
		return false
	}
}

// unsaid is about a TrainJob of which Kueue has said nothing, to a user who can't see what is before it.
func (f *Facts) unsaid(cause *Cause) {
	if place, _ := f.Position(); place > 1 || f.Now.Sub(f.Workload.CreationTimestamp.Time) > silence {
		cause.Code = CodeBehind
		cause.Text = "Kueue has written no status of its Workload: others of its queue are considered before it"
	}
}

func (f *Facts) decided(cause *Cause, c *metav1.Condition) {
	d := f.Decision
	r := read(d.Message, nil)
	switch d.Verdict {
	case simulate.Preempts:
		cause.Code, cause.Text = CodePreempting, f.owners(d.Victims)+" are preempted for it"+f.awaited(d.Victims)
		cause.Do = messages[0].do
	case simulate.Never:
		cause.Text = tidy(d.Message)
		if r.Code == CodeShort {
			r.Code = CodeTooLarge
		}
		f.reads(cause, r)
	case simulate.Waits:
		if d.Behind {
			f.behind(cause)
			return
		}
		cause.Text = tidy(d.Message)
		if r.Code.Never() { // by how the PodSets before have been placed, and not in an empty queue
			r = reading{Code: CodeShort}
		}
		f.reads(cause, r)
	case simulate.Running, simulate.Admitted, simulate.Stuck:
		f.admissible(cause, c)
	}
}

// admissible is about a TrainJob that Kueue admits when it looks at it next.
func (f *Facts) admissible(cause *Cause, c *metav1.Condition) {
	if len(f.Decision.Ending) > 0 {
		cause.Code, cause.Text = CodePreempting, "it gets quota when the pods of "+
			f.owners(f.Decision.Ending)+" have ended"+f.awaited(f.Decision.Ending)
		cause.Do = messages[0].do
		return
	}
	if place, _ := f.Position(); place > 1 {
		f.behind(cause)
		return
	}
	if c != nil {
		cause.Code = CodeBehind
		cause.Text = "there is quota for it now, but others were considered before it; Kueue said last: " + cause.Text
	}
}

// behind is about a TrainJob that others keep from its quota that don't have any either.
func (f *Facts) behind(cause *Cause) {
	cause.Code, cause.Text = CodeBehind, "there is quota, and others are considered before it"
	if cq := f.clusterQueue(); cq != nil && cq.Spec.QueueingStrategy == kueue.StrictFIFO {
		cause.Text = "its queue is strict (StrictFIFO), and others are considered before it"
	}
	if ahead := f.ahead(1); len(ahead) > 0 {
		cause.Text += "; " + ahead[0].Namespace + "/" + ahead[0].Name + " is the first"
	}
}

// reads takes over what a message means, with the numbers of the simulation.
func (f *Facts) reads(cause *Cause, r reading) {
	cause.Code, cause.Do = r.Code, r.Do
	switch r.Code {
	case CodeNoFlavor:
		cause.Text = "no flavor suits its pods: " + cause.Text
	case CodeTooLarge:
		if r.flavor != "" {
			cause.Text = fmt.Sprintf("it asks for %s of %s, and its queue never has more than %s in flavor %s",
				r.asked.String(), r.resource, r.most.String(), r.flavor)
		}
		cause.Do = []string{"kubectl signalbox simulate " + f.Job.Name + " shows how many nodes would fit, and where"}
	case CodeShort:
		cause.Do = []string{"kubectl signalbox simulate " + f.Job.Name + " --until shows when it may start"}
		if row := f.row(r.lack); row != nil {
			f.shortOf(cause, row)
		}
	default: // the message says it all
	}
}

// row returns the quota that is short: what the message names, or else what lacks least.
func (f *Facts) row(l lack) *simulate.Quota {
	if f.Decision == nil {
		return nil
	}
	rows := utilslices.Pick(f.Decision.Quota, func(q *simulate.Quota) bool {
		named := q.Flavor == l.flavor && q.Resource == l.resource
		return q.Short.Sign() > 0 && q.Unsuitable == "" && (named || l.flavor == "")
	})
	if len(rows) == 0 {
		return nil
	}
	return ptr.To(slices.MinFunc(rows, func(a, b simulate.Quota) int {
		return cmp.Compare(a.Short.AsApproximateFloat64(), b.Short.AsApproximateFloat64())
	}))
}

// shortOf says why the quota of a flavor is short.
func (f *Facts) shortOf(cause *Cause, q *simulate.Quota) {
	lack := fmt.Sprintf("%s of %s are missing in flavor %s: it asks for %s, and %s are free", q.Short.String(), q.Resource,
		q.Flavor, q.Needed.String(), q.Free.String())
	switch {
	case q.Borrowed.Sign() > 0 && q.Needed.Cmp(q.Unused) <= 0: // its own quota would do
		cause.Code, cause.Text = CodeBorrowed, lack+"; other queues of the cohort have borrowed "+q.Borrowed.String()
		cause.Do = append(cause.Do, "reclaimWithinCohort of the ClusterQueue decides whether it may take that back")
	case len(f.Decision.Lower) > 0:
		cause.Code = CodeNoPreempt
		cause.Text = fmt.Sprintf("%s; %s of lower priority would be enough, but ClusterQueue %s preempts no "+
			"Workload (withinClusterQueue is Never)", lack, f.owners(f.Decision.Lower), f.clusterQueueName())
	case q.Limited:
		cause.Code, cause.Text = CodeLimit, lack+"; the queue's borrowingLimit is reached"
	case q.Cohort && q.Needed.Cmp(q.Nominal) > 0:
		cause.Code, cause.Text = CodeCohort, lack+"; it has to borrow, and the cohort has no more to lend"
	default:
		cause.Text = lack
	}
	if len(q.Holders) > 0 {
		cause.Text += "; held by " + list(utilslices.Map(q.Holders, f.holderText))
	}
}

// owners returns the names of Workloads' jobs.
func (f *Facts) owners(keys []types.NamespacedName) string {
	return list(slices.Compact(f.Queues.Owners(keys)))
}

// awaited says which of the preempted run on until their next checkpoint, and until when at the latest; "" for none.
func (f *Facts) awaited(preempted []types.NamespacedName) string {
	var waiting []types.NamespacedName
	var last time.Time
	for _, key := range preempted {
		wl := f.Queues.Workload(key)
		if wl == nil {
			continue
		}
		if until := checkpoint.Announced(wl, f.Now); !until.IsZero() {
			waiting = append(waiting, key)
			if until.After(last) {
				last = until
			}
		}
	}
	if len(waiting) == 0 {
		return ""
	}
	return fmt.Sprintf("; until %s at the latest, for a checkpoint of %s", last.Local().Format(time.TimeOnly),
		f.owners(waiting))
}

// holderText says what one holds, and until when no equal preempts it.
func (f *Facts) holderText(h *simulate.Holder) string {
	text := fmt.Sprintf("%s/%s (%s", h.Namespace, h.Name, h.Amount.String())
	if wl := f.Queues.Workload(types.NamespacedName{Namespace: h.Namespace, Name: h.Workload}); wl != nil {
		if until := boost.ProtectedUntil(wl, f.Now); !until.IsZero() {
			text += ", within its minimum runtime until " + until.Local().Format(time.TimeOnly)
		}
	}
	return text + ")"
}
