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
	// pending are the TrainJobs whose status differs from what is written, and crowds how many of them each namespace has:
	// no user waits longer for what happens in another's.
	pending map[types.NamespacedName]pendingStatus
	crowds  map[string]int
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
		pending: map[types.NamespacedName]pendingStatus{}, crowds: map[string]int{},
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
	p, known := m.pending[key]
	if !known {
		p.since = now
		m.crowds[key.Namespace]++
	}
	others := m.crowds[key.Namespace] - 1
	p.others = max(p.others, others)
	m.pending[key] = p
	return p
}

func (m *memory) drop(key types.NamespacedName) {
	if _, known := m.pending[key]; !known {
		return
	}
	delete(m.pending, key)
	if m.crowds[key.Namespace]--; m.crowds[key.Namespace] == 0 {
		delete(m.crowds, key.Namespace)
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
