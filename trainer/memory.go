package trainer

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
)

// memory is what this process remembers of TrainJobs. It can be lost.
type memory struct {
	mu sync.Mutex
	// pending are the TrainJobs whose status differs from what is written, by namespace and name: no user waits longer
	// for what happens in another's.
	pending map[string]map[string]pendingStatus
	// announced is since when those TrainJobs wait that have got the event about it.
	announced map[types.NamespacedName]metav1.Time
	limit     flowcontrol.PassiveRateLimiter
}

// pendingStatus is a status that differs from what is written.
type pendingStatus struct {
	since  time.Time
	others int // the most others at a time that have been pending meanwhile
}

// Events of TrainJobs that wait have a limit for all TrainJobs together: each is a write, and in a large queue they are
// not read.
const (
	waitingRate  = 10.0 / 60 // a second
	waitingBurst = 20
)

func newMemory() *memory {
	return &memory{
		pending:   map[string]map[string]pendingStatus{},
		announced: map[types.NamespacedName]metav1.Time{},
		limit:     flowcontrol.NewTokenBucketPassiveRateLimiter(waitingRate, waitingBurst),
	}
}

// recall returns since when the status of a TrainJob differs from what is written, and the largest number of others of
// its namespace that had a pending status meanwhile. The number doesn't shrink with the burst: its last TrainJobs are
// about to change again. It drops what is remembered of a status that doesn't differ, and of a TrainJob that doesn't
// wait.
func (m *memory) recall(key types.NamespacedName, now time.Time, differs, waits bool) (p pendingStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !waits {
		delete(m.announced, key)
	}
	if !differs {
		m.drop(key)
		return p
	}
	crowd := m.pending[key.Namespace]
	if crowd == nil {
		crowd = map[string]pendingStatus{}
		m.pending[key.Namespace] = crowd
	}
	p, known := crowd[key.Name]
	if !known {
		p.since = now
		crowd[key.Name] = p
	}
	p.others = max(p.others, len(crowd)-1)
	crowd[key.Name] = p
	return p
}

func (m *memory) drop(key types.NamespacedName) {
	if delete(m.pending[key.Namespace], key.Name); len(m.pending[key.Namespace]) == 0 {
		delete(m.pending, key.Namespace)
	}
}

// written drops a status that no longer differs.
func (m *memory) written(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(key)
}

// announce reports whether a TrainJob that waits since a time gets the event about it: it gets one, if the limit allows
// it then.
func (m *memory) announce(key types.NamespacedName, since metav1.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if announced, known := m.announced[key]; known && announced.Equal(&since) {
		return false
	}
	m.announced[key] = since
	return m.limit.TryAccept()
}
