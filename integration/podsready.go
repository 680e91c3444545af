package integration

import (
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
)

// podsReadyAfter is how long after its admission a Workload has condition PodsReady if Kueue waits for pods by default
// only. It must be far less than Kueue's half hour; TrainJobs that end before it cost no write.
const podsReadyAfter = 5 * time.Minute

// podsReadiness says when Workloads have condition PodsReady.
type podsReadiness int

const (
	// podsReadyNever: Kueue doesn't read it.
	podsReadyNever podsReadiness = iota
	// podsReadyLate: Kueue reads it by default, to evict TrainJobs whose pods never get ready.
	podsReadyLate
	// podsReadyAlways: Kueue is configured to wait for pods.
	podsReadyAlways
)

// podsReadinessOf reads a setting that was adopted from Kueue.
func podsReadinessOf(setting *bool) podsReadiness {
	switch {
	case setting == nil:
		return podsReadyLate
	case *setting:
		return podsReadyAlways
	}
	return podsReadyNever
}

// due returns after how long the Workload of a TrainJob gets condition PodsReady: 0 if it is due, and false if it isn't
// to have one.
func (p podsReadiness) due(wl *kueue.Workload, now time.Time) (time.Duration, bool) {
	switch p {
	case podsReadyAlways:
		return 0, true
	case podsReadyNever:
		return 0, false
	case podsReadyLate:
	}
	if wl == nil {
		return 0, false
	}
	if apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPodsReady) != nil {
		return 0, true // it must not stay as it was before an eviction
	}
	if !workload.IsAdmitted(wl) {
		return 0, false
	}
	if wl.Status.RequeueState != nil {
		return 0, true // Kueue may have evicted it for this, after a shorter time than is known here
	}
	admitted := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
	return max(podsReadyAfter-now.Sub(admitted.LastTransitionTime.Time), 0), true
}
