package simulate

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Verdict is what becomes of a Workload.
type Verdict string

const (
	// Running means that it has quota already.
	Running Verdict = "Running"
	// Admitted means that it gets quota now.
	Admitted Verdict = "Admitted"
	// Preempts means that it gets quota when others have been preempted.
	Preempts Verdict = "Preempts"
	// Waits means that it gets quota when others have ended.
	Waits Verdict = "Waits"
	// Stuck means that it would get quota, but others wait in front of it that never get any.
	Stuck Verdict = "Stuck"
	// Never means that it doesn't get quota even if nobody else asks for any.
	Never Verdict = "Never"
)

// Answer is what Kueue would do with a Workload.
type Answer struct {
	Verdict Verdict
	// Admission is what it gets, now or later; nil for Never.
	Admission *kueue.Admission
	// Victims are those that it preempts.
	Victims []types.NamespacedName
	// After are those that have to end before, in the order in which they are expected to.
	After []types.NamespacedName
	// Ahead are those that wait, and are admitted before it; for Stuck, those that wait in front of it forever.
	Ahead []types.NamespacedName
	// Message is Kueue's about why it isn't admitted now.
	Message string
	// Changes are what would have it admitted now, the smallest first.
	Changes []Change
}

// Change is a change of a Workload with which Kueue would admit it.
type Change struct {
	// Nodes is a smaller number of pods of the largest PodSet; 0 for no change of it.
	Nodes int32
	// Queue is another LocalQueue; "" for no change of it.
	Queue string
	// Selector are node labels to take out of the pods' node selector.
	Selector []string
	// Admission is what it would get.
	Admission *kueue.Admission
}

// Lengths returns when a Workload is expected to end that has had quota since a time.
type Lengths func(wl *kueue.Workload, since time.Time) time.Time
