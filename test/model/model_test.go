// Package model explores the interleavings of two TrainJobs that want a quota for one. The reconcilers are the real
// ones. The API server is a fake client. Watches, Kueue, JobSet, the garbage collector, the kubelet and users are
// actors that may take their next step at any time. The manager may crash after any of its writes, and may lose the
// response to one.
//
// The search visits every order of steps up to a depth (make model DEPTH=…). In every state, no pod runs without an
// admitted Workload, no quota is used twice, and no TrainJob is started without an admission or with another
// admission's flavor. From every sampled state, when faults stop, every TrainJob finishes and no Workload keeps its
// quota.
package model

import (
	"flag"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	depth = flag.Int("depth", 3, "steps of each interleaving")
	ends  = flag.Int("ends", 8, "check liveness from one of this many states")
)

// patience bounds the steps from a state to the end.
const patience = 400

// most bounds the steps of a path that are printed.
const most = 60

// path is the list of steps to a state.
type path struct {
	before *path
	step   string
}

func (p *path) String() string {
	var steps []string
	for ; p != nil; p = p.before {
		steps = append(steps, p.step)
	}
	slices.Reverse(steps)
	if len(steps) > most {
		steps = slices.Concat(steps[:most/2], []string{"…"}, steps[len(steps)-most/2:])
	}
	return "\n  " + strings.Join(steps, "\n  ")
}

// state is a world and its path.
type state struct {
	*world
	path *path
}

// TestInterleavings explores every order of steps from a few situations, and checks liveness from a sample of the
// states.
func TestInterleavings(t *testing.T) {
	for _, s := range []struct {
		name   string
		budget budget
		lead   int // steps taken in order before the search starts
		features
	}{
		{"submitted", budget{Faults: 1, Preemptions: 1, Deletions: 1, Creations: 1}, 0, features{}},
		{"queued", budget{Faults: 1, Preemptions: 1, Deactivations: 1}, 4, features{}},
		{"admitted", budget{Faults: 1, Preemptions: 1, Deletions: 1, Creations: 1}, 8, features{}},
		{"started", budget{Faults: 1, Preemptions: 1, Deletions: 1, Creations: 1}, 11, features{}},
		{"running", budget{Faults: 1, Preemptions: 1, Deactivations: 1, Deletions: 1, Creations: 1}, 15, features{}},
		{"saving", budget{Faults: 1, Preemptions: 1, Deactivations: 1, Deletions: 1, Checkpoints: 1}, 15, features{}},
		{"boosted", budget{Faults: 1, Preemptions: 1, Deactivations: 1, Deletions: 1}, 11, features{minimum: time.Hour}},
		{"growing", budget{Faults: 1, Preemptions: 1, Deactivations: 1, Deletions: 1, Slices: 1}, 15,
			features{records: true}},
		{"avoiding", budget{Faults: 1, Expiries: 1}, 6, features{avoids: true}},
		{"after", budget{Faults: 1, Preemptions: 1}, 15, features{after: true}},
		{"finishing", budget{Faults: 1, Preemptions: 1, Deletions: 1, Creations: 1}, 24, features{}},
		{"recorded", budget{Faults: 1, Preemptions: 1, Deactivations: 1, Deletions: 1}, 15,
			features{minimum: time.Hour, records: true}},
	} {
		t.Run(s.name, func(t *testing.T) {
			w := newWorldOf(s.features)
			first := state{world: w}
			if s.budget.Slices > 0 {
				w.grows()
			}
			for range s.lead {
				first.step(t, next(w))
			}
			w.budget = s.budget
			if w.avoids {
				w.keepsOff(t)
			}
			if s.budget.Checkpoints > 0 {
				w.saved(t)
			}
			t.Logf("from%s", first.path)
			states, followed := search(t, first)
			t.Logf("%s: %d states at depth %d, liveness checked from %d", s.name, states, *depth, followed)
		})
	}
}

// next returns the first step that must happen.
func next(w *world) action {
	for _, a := range w.actions() {
		if a.when != maybe {
			return a
		}
	}
	return action{}
}

// step takes a step and fails the test if it violates safety.
func (s *state) step(t *testing.T, a action) {
	t.Helper()
	s.take(a)
	if wrong := s.wrong(); wrong != "" {
		t.Fatalf("%s, after%s", wrong, s.path)
	}
}

// take takes a step and appends it to the path, with the error of the reconcile.
func (s *state) take(a action) {
	s.failed = nil
	a.do(s.world)
	name := a.name
	if s.failed != nil {
		name += " (" + s.failed.Error() + ")"
	}
	s.path = &path{s.path, name}
}

// search explores every order of steps from a state; equal states once.
func search(t *testing.T, first state) (states, followed int) {
	seen := map[uint64]bool{first.fingerprint(): true}
	frontier := []state{first}
	var mu sync.Mutex
	for level := 0; level < *depth && len(frontier) > 0 && !t.Failed(); level++ {
		var after []state
		work := make(chan state)
		var workers sync.WaitGroup
		for range runtime.NumCPU() {
			workers.Go(func() {
				for s := range work {
					if t.Failed() {
						continue
					}
					for _, a := range s.actions() {
						c := state{s.clone(), s.path}
						if !c.try(t, a) {
							break
						}
						print := c.fingerprint()
						mu.Lock()
						fresh := !seen[print]
						seen[print] = true
						if fresh {
							after = append(after, c)
						}
						mu.Unlock()
						if fresh && print%uint64(*ends) == 0 {
							if !c.follow(t) {
								break
							}
							mu.Lock()
							followed++
							mu.Unlock()
						}
					}
				}
			})
		}
		for _, s := range frontier {
			if t.Failed() {
				break
			}
			work <- s
		}
		close(work)
		workers.Wait()
		frontier = after
	}
	return len(seen), followed
}

// try is step for a worker goroutine, which must not call FailNow.
func (s *state) try(t *testing.T, a action) bool {
	s.take(a)
	if wrong := s.wrong(); wrong != "" {
		t.Errorf("%s, after%s", wrong, s.path)
		return false
	}
	return true
}

// follow takes steps until none is left, and checks the result.
func (s *state) follow(t *testing.T) bool {
	c := state{s.clone(), s.path}
	for range patience {
		a := next(c.world)
		if a.do == nil {
			if says := c.unfinished(); says != "" {
				t.Errorf("no step is left, but %s, after%s", says, c.path)
				return false
			}
			return true
		}
		if !c.try(t, a) {
			return false
		}
	}
	t.Errorf("steps remain after %d, after%s", patience, c.path)
	return false
}
