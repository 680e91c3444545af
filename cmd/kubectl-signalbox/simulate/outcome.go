package simulate

import (
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
)

// Outcome is what Kueue decides, when nothing starts or ends meanwhile.
type Outcome struct {
	// Workloads are all that have not finished, as they are then.
	Workloads []kueue.Workload
	// Admitted are those that got quota, in the order of Workloads.
	Admitted []types.NamespacedName
	// Preempted are those that lost it, in the order in which they did.
	Preempted []Preemption
}

// Preemption is a Workload that was preempted.
type Preemption struct {
	Victim types.NamespacedName
	// Admission is what the victim had.
	Admission *kueue.Admission
	// By is the UID of the Workload that was made room for.
	By types.UID
	// Message is Kueue's.
	Message string
}

// Workload returns a Workload of the outcome; nil if there is none of the name.
func (o *Outcome) Workload(key types.NamespacedName) *kueue.Workload {
	for i := range o.Workloads {
		if keyOf(&o.Workloads[i]) == key {
			return &o.Workloads[i]
		}
	}
	return nil
}

func holders(workloads []kueue.Workload) map[types.NamespacedName]bool {
	all := map[types.NamespacedName]bool{}
	for i := range workloads {
		if holdsQuota(&workloads[i]) {
			all[keyOf(&workloads[i])] = true
		}
	}
	return all
}

func admittedSince(before map[types.NamespacedName]bool, workloads []kueue.Workload) []types.NamespacedName {
	var admitted []types.NamespacedName
	for i := range workloads {
		if key := keyOf(&workloads[i]); holdsQuota(&workloads[i]) && !before[key] {
			admitted = append(admitted, key)
		}
	}
	return admitted
}

// preemptionOf returns the preemption of a Workload. Kueue's message has the UID of the Workload that it makes room
// for.
func preemptionOf(victim, written *kueue.Workload) Preemption {
	p := Preemption{Victim: keyOf(victim), Admission: victim.Status.Admission.DeepCopy()}
	if c := apimeta.FindStatusCondition(written.Status.Conditions, kueue.WorkloadEvicted); c != nil {
		p.Message, p.By = c.Message, Preemptor(c.Message)
	}
	return p
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
}

// victimsOf returns those that a Workload has preempted, and that didn't get quota again elsewhere.
func (o *Outcome) victimsOf(uid types.UID) []Preemption {
	var victims []Preemption
	for _, p := range o.Preempted {
		if p.By == uid {
			victims = append(victims, p)
		}
	}
	return victims
}
