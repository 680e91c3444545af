package model

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/usage"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
	"github.com/signalbox-dev/signalbox/store"
)

// wrong describes a violated safety property; "" if there is none. The rules of `signalbox audit` are among them.
func (w *world) wrong() string {
	used, held := 0, map[types.UID]bool{}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if mark, ours := boost.Of(wl); ours && mark.Value != 0 && waits(wl) {
			return "Workload " + wl.Name + " has no quota, and would jump its queue by a boost"
		}
		if counts(wl) {
			if !w.replacing(wl) {
				used++
			}
			if owner := metav1.GetControllerOf(wl); owner != nil {
				held[owner.UID] = true
			}
		}
	}
	if used > 1 {
		return fmt.Sprintf("%d Workloads hold a quota for one", used)
	}
	running := map[types.UID]int{}
	for _, pod := range list[*corev1.Pod](w, "Pod") {
		uid := w.ledger.Pods[pod.UID]
		if uid == "" || pod.Spec.NodeName == "" || store.PodEnded(pod) {
			continue // a user's own, or none that runs
		}
		running[uid]++
		if !held[uid] {
			return "pod " + pod.Name + " runs, and no Workload of its TrainJob holds quota"
		}
		if running[uid] > 1 {
			return "two pods of one TrainJob run"
		}
	}
	if says := w.unrecorded(); says != "" {
		return says
	}
	for uid, starts := range w.ledger.Starts {
		if starts > w.ledger.Admissions[uid] {
			return fmt.Sprintf("a TrainJob was started %d times on %d admissions", starts, w.ledger.Admissions[uid])
		}
	}
	for _, f := range w.audit() {
		// Both are normal in passing.
		if f.Rule != audit.Idle && (f.Rule != audit.Doubled || !w.replaced(f)) {
			return f.String()
		}
	}
	return cmp.Or(w.oversized(), w.unfrozen(), w.early())
}

// unfrozen describes a TrainJob that was admitted twice, although nobody has evicted it: what it was admitted for
// didn't stay what it would run. It is "" if there is none. That none is started twice on an admission is above.
func (w *world) unfrozen() string {
	for uid, n := range w.ledger.Admissions {
		if w.avoids && n > 1 {
			return fmt.Sprintf("TrainJob %s was admitted %d times, and nobody has evicted it", uid, n)
		}
	}
	return ""
}

// keepsOff fails the test if the first TrainJob isn't admitted so that it keeps off the node.
func (w *world) keepsOff(t *testing.T) {
	t.Helper()
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if counts(wl) && slices.Equal(avoid.Written(wl.Spec.PodSets), []string{"gone"}) {
			return
		}
	}
	t.Fatal("nothing is admitted that keeps off the node")
}

// unrecorded describes a run that holds no quota any more and isn't in a record, or is in one twice; "" if there is
// none. What users do to the Workloads themselves isn't the manager's.
func (w *world) unrecorded() string {
	if !w.records || w.ledger.Hostile || w.ledger.Harmed {
		return ""
	}
	held, recorded := map[string]bool{}, map[string]int{}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		held[usage.Key(wl)] = true
	}
	for _, record := range list[*usageapi.QuotaUsage](w, "QuotaUsage") {
		for _, r := range record.Recent {
			recorded[r.Run]++
		}
		if int(record.Runs) != len(record.Recent) {
			return fmt.Sprintf("%d runs are recorded as %d", len(record.Recent), record.Runs)
		}
	}
	for run := range w.ledger.Runs {
		if n := recorded[run]; n > 1 || n == 0 && !held[run] {
			return fmt.Sprintf("run %s is over, and recorded %d times", run, n)
		}
	}
	return ""
}

// waits reports whether a Workload has no quota and may get some.
func waits(wl *kueue.Workload) bool {
	return !workload.HasQuotaReservation(wl) && !workloadfinish.IsFinished(wl) && wl.DeletionTimestamp.IsZero()
}

// audit returns the findings of `signalbox audit`. It reads labels of pods whose owners never were, and so finds those
// that users have made up.
func (w *world) audit() []audit.Finding {
	o := audit.Objects{
		TrainJobs: values[api.TrainJob](w, "TrainJob"), Workloads: values[kueue.Workload](w, "Workload"),
		JobSets: values[jobset.JobSet](w, "JobSet"), Jobs: values[batchv1.Job](w, "Job"),
		Flavors: values[kueue.ResourceFlavor](w, "ResourceFlavor"),
		Pods: slices.DeleteFunc(values[corev1.Pod](w, "Pod"), func(pod corev1.Pod) bool {
			return w.ledger.Pods[pod.UID] == ""
		}),
	}
	for _, node := range list[*corev1.Node](w, "Node") {
		o.Nodes = append(o.Nodes, metav1.PartialObjectMetadata{ObjectMeta: node.ObjectMeta})
	}
	return audit.Look(o)
}

func values[V any](w *world, kind string) []V {
	var all []V
	for _, o := range w.all(kind) {
		all = append(all, *any(o).(*V))
	}
	return all
}

// unfinished describes what should not remain when nothing happens any more; "" if there is nothing. No TrainJob holds
// quota, and nothing of one runs: pods end in time. Those with which nobody has meddled have ended.
func (w *world) unfinished() string { return w.ends(w.meddled) }

// ends does the same, except for TrainJobs that may have been kept from their ends.
func (w *world) ends(kept func(name string) bool) string {
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if counts(wl) {
			return "Workload " + wl.Name + " keeps its quota"
		}
		if wl.Annotations[boost.MarkAnnotation] != "" {
			return "Workload " + wl.Name + " keeps its boost"
		}
	}
	for _, pod := range list[*corev1.Pod](w, "Pod") {
		if w.ledger.Pods[pod.UID] != "" && !store.PodEnded(pod) {
			return "pod " + pod.Name + " still runs"
		}
	}
	for _, f := range w.audit() {
		return f.String()
	}
	inactive := w.inactive()
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		if !ended(tj) && !inactive[tj.UID] && !kept(tj.Name) {
			return fmt.Sprintf("TrainJob %s never finishes: %v", tj.Name, tj.Status.Conditions)
		}
	}
	return ""
}

// inactive returns the TrainJobs whose Workloads an admin has deactivated.
func (w *world) inactive() map[types.UID]bool {
	inactive := map[types.UID]bool{}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if owner := metav1.GetControllerOf(wl); owner != nil && !workload.IsActive(wl) {
			inactive[owner.UID] = true
		}
	}
	return inactive
}

// unexplained describes a TrainJob that waits forever without a condition that says why; "" if there is none.
func (w *world) unexplained() string {
	inactive := w.inactive()
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		_, stopped := tj.Annotations[api.StopAnnotation]
		if ended(tj) || inactive[tj.UID] || stopped || !tj.DeletionTimestamp.IsZero() || !w.queued(tj) ||
			w.rejects.Status {
			continue
		}
		if !apimeta.IsStatusConditionTrue(tj.Status.Conditions, api.ConditionBlocked) {
			return fmt.Sprintf("TrainJob %s waits (suspended: %t), and no condition says why: %v", tj.Name,
				ptr.Deref(tj.Spec.Suspend, false), tj.Status.Conditions)
		}
	}
	return ""
}

func ended(tj *api.TrainJob) bool {
	return apimeta.IsStatusConditionTrue(tj.Status.Conditions, "Complete") ||
		apimeta.IsStatusConditionTrue(tj.Status.Conditions, "Failed")
}
