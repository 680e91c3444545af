package integration

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// memory is what this process knows of its own writes before its cache shows them, so that a stale read doesn't write
// them again, how many TrainJobs it has looked at, and since when they have no pods. It holds nothing that can't be
// lost: without it a write is tried twice, and refused by the API server, and limits.podsWithin begins again.
type memory struct {
	mu    sync.Mutex
	jobs  map[types.NamespacedName]record
	ended int       // of them
	since time.Time // when the first was looked at
}

// record is about one TrainJob.
type record struct {
	uid types.UID
	// ended is set when the TrainJob has been seen at its end.
	ended bool
	// workload that was made for it.
	workload string
	// finished is when its Workload was declared finished; zero if it wasn't.
	finished time.Time
	// reclaimed is when it last gave quota back; zero if it didn't.
	reclaimed time.Time
	// rebuilt is the state of runtime and entries for which its JobSet was deleted.
	rebuilt string
	// end is that of its JobSet.
	end seenEnd
	lacking
	rejections
	// started is when it was started, until its pods have been ready; only a metric is lost with it.
	started time.Time
}

// seenEnd is when the end of a JobSet was first seen whose TrainJob hadn't ended.
type seenEnd struct {
	jobSet types.UID
	at     time.Time
}

// lacking is since when a running TrainJob lacks what its pods need.
type lacking struct {
	// podless is since when pods are missing.
	podless shortage
	// waits is since when all wait for nodes, of a TrainJob that keeps off some.
	waits time.Time
}

// rejections are the stop that the API server rejects, the starts, and any requests that fail; and what was asked or
// told of a preemption.
type rejections struct {
	stopRejected rejection
	setback      setback
	failing      failing
	// announced is until when it was last said to run on after a preemption: its stop waits as long.
	announced time.Time
	// queueRead is when it was last read whether others wait for its quota.
	queueRead time.Time
	growing
}

// growing is when room for more nodes was last looked for, and why none is, as was told.
type growing struct {
	roomAsked time.Time
	neverTold string
}

func newMemory() *memory { return &memory{jobs: map[types.NamespacedName]record{}} }

func (m *memory) of(key types.NamespacedName, uid types.UID) record {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.jobs[key]; r.uid == uid {
		return r
	}
	return record{uid: uid}
}

func (m *memory) keep(key types.NamespacedName, uid types.UID, change func(*record)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.jobs[key]
	m.count(r, -1)
	if r.uid != uid {
		r = record{uid: uid}
	}
	change(&r)
	m.count(r, 1)
	m.jobs[key] = r
}

func (m *memory) count(r record, by int) {
	if r.ended {
		m.ended += by
	}
}

// recall returns what is remembered of a TrainJob, how many have not ended of those that this process has reconciled,
// and since when it reconciles.
func (m *memory) recall(key types.NamespacedName, uid types.UID, now time.Time) recollection {
	remembered := m.of(key, uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since.IsZero() {
		m.since = now
	}
	return recollection{record: remembered, unfinished: len(m.jobs) - m.ended, since: m.since}
}

func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(m.jobs[key], -1)
	delete(m.jobs, key)
}

// failing is since when the reconciles of a TrainJob fail; zero if they don't.
type failing struct {
	since time.Time
	told  time.Time // when it last said so, by a condition or an event
}

// shortage is since when pods of a running TrainJob are missing, and how many of the step that misses some there were
// when it was last looked at.
type shortage struct {
	since time.Time
	have  int32
}

// recollection is what this process remembers of a TrainJob and of the others.
type recollection struct {
	record
	unfinished int       // TrainJobs that have not ended
	since      time.Time // when the first was reconciled
}
