package simulate

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler"
)

// round is Kueue's scheduler with caches of its own. It ends with the first cycle that evicts a Workload: what the
// eviction frees is decided by the next round.
type round struct {
	gate      *gate
	now       time.Time
	queues    *qcache.Manager
	cache     *schdcache.Cache
	requeuer  interface{ Start(context.Context) error }
	scheduler *scheduler.Scheduler

	mu      sync.Mutex
	written map[types.NamespacedName]*kueue.Workload // the last status of each Workload that was written
	considerations
}

// considerations are guarded by the lock of their round.
type considerations struct {
	// considered are the Workloads of the last cycle that still wait; seen are all since the number of those that hold
	// quota has changed.
	considered []types.NamespacedName
	seen       map[types.NamespacedName]bool
	holding    int
	// idle is for how many cycles nothing has been decided; retries bounds that.
	idle, retries int
}
