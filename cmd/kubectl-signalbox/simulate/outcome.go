package simulate

import (
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/boost"
)

// Outcome is what Kueue decides, when nothing starts or ends meanwhile: the cluster with all Workloads that have not
// finished, as they are then.
type Outcome struct {
	*Cluster
	// Admitted are those that got quota, in the order of Workloads.
	Admitted []types.NamespacedName
	// Preempted are those that lost it, in the order in which they did.
	Preempted []Preemption
}

// Preemption is a Workload that was preempted.
type Preemption struct {
	Victim types.NamespacedName
	// By is the UID of the Workload that was made room for.
	By types.UID
}

// Preemptor returns the UID of the Workload that Kueue's message about a preemption names; "" if it names none
// (Kueue v0.19.2, pkg/scheduler/preemption: "Preempted to accommodate a workload (UID: …, JobUID: …) due to …").
func Preemptor(message string) types.UID {
	_, rest, _ := strings.Cut(message, "(UID: ")
	uid, _, _ := strings.Cut(rest, ", ")
	return types.UID(strings.TrimSuffix(uid, ")"))
}

// release takes the quota from an evicted Workload and queues it again.
func release(wl *kueue.Workload, conditions []metav1.Condition, now time.Time) {
	wl.Status.Conditions = conditions
	workload.UnsetQuotaReservationWithCondition(wl, "Pending", "Evicted", now)
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kueue.WorkloadRequeued, Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByPreemption,
		LastTransitionTime: metav1.NewTime(now),
	})
	wl.Status.AdmissionChecks, wl.Status.RequeueState = nil, nil
	unboost(wl, now)
}

// unboost takes from a Workload the boost that Signalbox takes from it, too: it has no quota, or its minimum runtime is
// over.
func unboost(wl *kueue.Workload, now time.Time) {
	mark, ours := boost.Of(wl)
	over := mark.Value == boost.Highest && boost.ProtectedUntil(wl, now).IsZero()
	if ours && (over || !holdsQuota(wl)) {
		delete(wl.Annotations, boost.Annotation)
		delete(wl.Annotations, boost.MarkAnnotation)
	}
}

// victimsOf returns those that a Workload has preempted.
func (o *Outcome) victimsOf(uid types.UID) []types.NamespacedName {
	var victims []types.NamespacedName
	for _, p := range o.Preempted {
		if p.By == uid {
			victims = append(victims, p.Victim)
		}
	}
	return victims
}
