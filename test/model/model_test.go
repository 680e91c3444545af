package model

import (
	"flag"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	depth = flag.Int("depth", 5, "steps of every order that is tried")
	ends  = flag.Int("ends", 1, "of how many states one is followed to the end of all")
)

// patience is how many steps everything may take to its end.
const patience = 400

// most is how many steps of a path are told.
const most = 60

// path is how a state was reached.
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

// state is a world and how it came to be.
type state struct {
	*world
	path *path
}

// TestEveryOrder tries every order of steps from a few situations, and follows what it finds to the end.
func TestEveryOrder(t *testing.T) {
	for _, s := range []struct {
		name   string
		budget budget
		lead   int // steps that are taken in order, before all orders are tried
	}{
		{"submitted", budget{Faults: 1, Preemptions: 1, Deletions: 1, Creations: 1}, 0},
		{"queued", budget{Faults: 1, Preemptions: 1, Deactivations: 1}, 4},
		{"admitted", budget{Faults: 1, Preemptions: 1, Deletions: 1, Creations: 1}, 8},
		{"started", budget{Faults: 1, Preemptions: 1, Deletions: 1, Creations: 1}, 11},
		{"running", budget{Faults: 1, Preemptions: 1, Deactivations: 1, Deletions: 1, Creations: 1}, 15},
	} {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld()
			first := state{world: w}
			for range s.lead {
				first.step(t, next(w))
			}
			w.budget = s.budget
			t.Logf("from%s", first.path)
			states, followed := search(t, first)
			t.Logf("%s: %d states in %d steps, %d of them followed to the end", s.name, states, *depth, followed)
		})
	}
}

// next is the step that comes if nobody interferes: what must come, in order.
func next(w *world) action {
	for _, a := range w.actions() {
		if a.must {
			return a
		}
	}
	return action{}
}

// step takes a step, and fails where it leads to what must never be.
func (s *state) step(t *testing.T, a action) {
	t.Helper()
	s.take(a)
	if wrong := s.wrong(); wrong != "" {
		t.Fatalf("%s, after%s", wrong, s.path)
	}
}

// take takes a step, and keeps that it was taken, and what the manager failed with.
func (s *state) take(a action) {
	s.failed = nil
	a.do(s.world)
	name := a.name
	if s.failed != nil {
		name += " (" + s.failed.Error() + ")"
	}
	s.path = &path{s.path, name}
}

// search tries every order of steps from a state, each state once.
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

// try takes a step in a worker, which must not end the test.
func (s *state) try(t *testing.T, a action) bool {
	s.take(a)
	if wrong := s.wrong(); wrong != "" {
		t.Errorf("%s, after%s", wrong, s.path)
		return false
	}
	return true
}

// follow has everything come to its end, and looks at it.
func (s *state) follow(t *testing.T) bool {
	c := state{s.clone(), s.path}
	for range patience {
		a := next(c.world)
		if a.do == nil {
			if says := c.unfinished(); says != "" {
				t.Errorf("nothing more happens, and %s, after%s", says, c.path)
				return false
			}
			return true
		}
		if !c.try(t, a) {
			return false
		}
	}
	t.Errorf("it comes to no end in %d steps, after%s", patience, c.path)
	return false
}
