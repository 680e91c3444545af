package integration

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

func jobSetSuspended(js *jobset.JobSet) bool { return ptr.Deref(js.Spec.Suspend, false) }

// jobSetEnd returns the condition by which JobSet declares an end; nil if it hasn't.
func jobSetEnd(js *jobset.JobSet) *metav1.Condition {
	if js == nil {
		return nil
	}
	return trueCondition(js.Status.Conditions, string(jobset.JobSetCompleted), string(jobset.JobSetFailed))
}

// keptAfter is how long after its deletion a JobSet of which nothing runs counts as kept by a finalizer.
const keptAfter = 30 * time.Second

// keptIn returns how long it takes until an object that is being deleted counts as kept by a finalizer; 0 if it isn't
// being deleted, or has been for as long.
func keptIn(o metav1.Object, now time.Time) time.Duration {
	deleted := o.GetDeletionTimestamp()
	if deleted.IsZero() {
		return 0
	}
	return max(keptAfter-now.Sub(deleted.Time), 0)
}

// isKept reports whether a JobSet or a Job is kept by a finalizer: its deletion takes long. Nothing is created for it
// any more.
func isKept(o metav1.Object, now time.Time) bool {
	return !o.GetDeletionTimestamp().IsZero() && keptIn(o, now) == 0
}
