package integration

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// overdueAfter is for how long after the end of its grace period a pod may still exist.
const overdueAfter = 30 * time.Second

// overdue returns for how long a pod has been overdue; before, it is negative. The deletion of a pod triggers no
// reconcile, so one that is not being deleted counts as if it had been deleted now without a grace period.
func overdue(pod *corev1.Pod, now time.Time) time.Duration {
	if pod.DeletionTimestamp.IsZero() {
		return -overdueAfter
	}
	// The API server sets the deletion timestamp to the end of the grace period.
	return now.Sub(pod.DeletionTimestamp.Time) - overdueAfter
}

// stopOverdue returns the message about a TrainJob whose pods run on after their grace period, "" if none does; and,
// until then, when to look again.
func stopOverdue(o *observed) (message string, again time.Duration) {
	for i := range o.left.pods {
		pod := &o.left.pods[i]
		late := overdue(pod, o.now)
		if late >= 0 {
			return fmt.Sprintf("pod %s on node %s should have ended by %s and has not; the TrainJob's quota is held until "+
				"it has. See whether the node's kubelet answers",
				pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp.UTC().Format(time.RFC3339)), 0
		}
		if again == 0 || -late < again {
			again = -late
		}
	}
	return "", again
}
