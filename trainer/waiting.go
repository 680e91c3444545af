package trainer

import (
	"context"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// A TrainJob that waits for quota gets an event that says why: the Kubeflow SDK and `kubectl describe` show the events
// of a TrainJob, but not those of its Workload. One is sent for each time that it waits, and there is a limit for all
// TrainJobs together, because in a large queue nobody reads them and each is a write.
const (
	waitingAfter = 30 * time.Second // the queue decides most in that time
	waitingRate  = 10.0 / 60        // a second
	waitingBurst = 20
)

// waitings are the TrainJobs that have got their event. They are guarded by the Reconciler's lock.
type waitings struct {
	limit flowcontrol.PassiveRateLimiter
	since map[types.NamespacedName]metav1.Time // since when each waits
}

func newWaitings() waitings {
	return waitings{
		flowcontrol.NewTokenBucketPassiveRateLimiter(waitingRate, waitingBurst), map[types.NamespacedName]metav1.Time{},
	}
}

// waits returns the condition that says why a TrainJob waits for quota; nil if it doesn't.
func waits(status *api.TrainJobStatus) *metav1.Condition {
	if api.StateOf(&status.TrainJobStatus) != api.StateQueued {
		return nil
	}
	return apimeta.FindStatusCondition(status.Conditions, api.ConditionQuotaReserved)
}

// toldWaiting reports whether a TrainJob has had the event since it waits. It forgets one that doesn't wait.
func (r *Reconciler) toldWaiting(key types.NamespacedName, c *metav1.Condition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c == nil {
		delete(r.waiting.since, key)
		return true
	}
	told, known := r.waiting.since[key]
	return known && told.Equal(&c.LastTransitionTime)
}

// tellWaiting sends the event, if the limit allows it.
type tellWaiting struct{ condition metav1.Condition }

func (s tellWaiting) do(_ context.Context, r *Reconciler, o *observed) error {
	r.mu.Lock()
	r.waiting.since[o.key()] = s.condition.LastTransitionTime
	allowed := r.waiting.limit.TryAccept()
	r.mu.Unlock()
	if allowed {
		r.recorder.Send(o.job, events.Waiting.Of(s.condition.Message))
	}
	return nil
}
