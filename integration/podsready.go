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

// awaitsPods reports whether the Workload gets condition PodsReady now, and if it gets one later, after how long.
// configured is whether Kueue reads the condition; nil if it does so by default only, to evict TrainJobs whose pods
// never get ready.
func awaitsPods(configured *bool, o *situation) (now bool, later time.Duration) {
	switch wl := o.match(); {
	case configured != nil:
		return *configured, 0
	case wl == nil || o.ended():
		return false, 0
	case apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPodsReady) != nil:
		return true, 0 // it must not stay as it was before an eviction
	case !workload.IsAdmitted(wl):
		return false, 0
	case wl.Status.RequeueState != nil:
		return true, 0 // Kueue may have evicted it for this, after a shorter time than is known here
	default:
		admitted := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
		later = max(podsReadyAfter-o.now.Sub(admitted.LastTransitionTime.Time), 0)
		return later == 0, later
	}
}
