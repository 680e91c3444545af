package model

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// lives are the courses of two TrainJobs at each moment of which hostile steps are taken. A life follows the steps that
// must happen, and takes a step of its own after the first one of a name.
var lives = []struct {
	name, after string
	own         func(w *world) action
}{
	{"both end", "", nil},
	{"the first is preempted while it runs", "the scheduler binds first", func(w *world) action {
		w.budget.Preemptions = 1
		return w.named("Kueue preempts trainjob-first")
	}},
	{"the first fails while its pod runs", "the scheduler binds first", func(*world) action {
		return action{"the deadline of first passes", maybe, func(w *world) {
			w.clock.Step(2 * deadline)
			w.queue[names[0]] = true
		}}
	}},
}

// named returns the first step whose name begins so.
func (w *world) named(name string) action {
	all := w.actions()
	i := slices.IndexFunc(all, func(a action) bool { return strings.HasPrefix(a.name, name) })
	if i < 0 {
		panic("no step begins with " + name)
	}
	return all[i]
}

// TestEnds takes each hostile step at each moment in the lives of two TrainJobs, and then some random steps, among them
// another hostile one. Whatever it is: in every state the safety properties hold. In the end no quota is held, nothing
// of the first TrainJob runs, a condition says why it waits, and the second has ended. Then the hostile users take back
// what they did, and the first ends, or is gone.
func TestEnds(t *testing.T) {
	for life, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			work := make(chan func() int)
			var workers sync.WaitGroup
			var taken, steps atomic.Int64
			for range runtime.NumCPU() {
				workers.Go(func() {
					for walk := range work {
						if !t.Failed() {
							steps.Add(int64(walk()))
							taken.Add(1)
						}
					}
				})
			}
			s, moments, own := state{world: newWorld()}, 0, l.own
			for ; !t.Failed(); moments++ {
				s.budget.Hostile = 1
				hostile := s.hostileActions()
				s.budget.Hostile = 0
				for _, a := range hostile {
					for n := range *depth {
						seed := hash(life, moments, a.name, n)
						if seed%uint64(16**ends) != 0 {
							continue
						}
						from := state{s.clone(), s.path}
						work <- func() int { return from.misuse(t, a, n, seed) }
					}
				}
				a := next(s.world)
				if s.quiet() {
					break
				}
				if own != nil && s.path != nil && strings.HasPrefix(s.path.step, l.after) {
					a, own = own(s.world), nil
				}
				s.step(t, a)
			}
			close(work)
			workers.Wait()
			t.Logf("%s: %d moments, %d hostile steps, %d steps in all", l.name, moments, taken.Load(), steps.Load())
		})
	}
}

func hash(of ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, of...)
	return h.Sum64()
}

// quiet reports whether nothing must happen but what the manager waits for.
func (w *world) quiet() bool {
	return !slices.ContainsFunc(w.actions(), func(a action) bool { return a.when == surely })
}

// misuse takes a hostile step, so many random ones, and follows what must happen to the end. It returns how many steps
// it took.
func (s *state) misuse(t *testing.T, a action, walk int, seed uint64) (steps int) {
	random := rand.New(rand.NewPCG(seed, 0))
	s.budget.Hostile = 1
	if !s.try(t, a) {
		return 1
	}
	s.budget = budget{Faults: 1, Preemptions: 1, Hostile: 1}
	for range 6 * walk {
		all := slices.DeleteFunc(s.actions(), func(a action) bool { return a.when == later })
		must := slices.DeleteFunc(slices.Clone(all), func(a action) bool { return a.when == maybe })
		if random.IntN(8) > 0 && len(must) > 0 {
			all = must
		}
		if len(all) == 0 {
			break
		}
		if !s.try(t, all[random.IntN(len(all))]) {
			return steps + 1
		}
		steps++
	}
	s.budget = budget{}
	if walk == 0 {
		random = nil
	}
	for _, check := range []func(settled bool) string{s.whileHostile, s.whenHonest} {
		taken, settled := s.settle(t, random)
		if steps += taken; t.Failed() {
			return steps
		}
		if says := check(settled); says != "" {
			t.Errorf("in the end, %s, after%s\n%s", says, s.path, s.text())
			return steps
		}
		s.take(action{"the hostile users relent", surely, (*world).relents})
	}
	return steps
}

// settle takes steps that must happen, in a random order if there is one, until none is left or none changes anything,
// however late it is. It returns how many steps it took, and whether they have ended.
func (s *state) settle(t *testing.T, random *rand.Rand) (steps int, settled bool) {
	late, began := time.Duration(0), s.clock.Now()
	for ; steps < patience || steps < 2*patience && s.unfinished() != ""; steps++ {
		all := slices.DeleteFunc(s.actions(), func(a action) bool { return a.when == maybe })
		now := slices.DeleteFunc(slices.Clone(all), func(a action) bool { return a.when == later })
		switch {
		case len(all) == 0 || late > 48*time.Hour:
			return steps, true
		case len(now) > 0:
			a := now[0]
			if random != nil {
				a = now[random.IntN(len(now))]
			}
			if late = 0; !s.try(t, a) {
				return steps, false
			}
			continue
		}
		before := s.fingerprint()
		s.clock.Step(late)
		if !s.try(t, s.soonest()) {
			return steps, false
		}
		if late = max(2*late, time.Second); s.fingerprint() != before {
			late = 0
		}
	}
	if s.clock.Since(began) < 10*time.Minute {
		t.Errorf("%d steps within %s, after%s\n%s", steps, s.clock.Since(began), s.path, s.text())
	}
	return steps, false
}

// soonest returns the reconcile that is due first.
func (w *world) soonest() action {
	name := ""
	for _, n := range names {
		if at, due := w.again[n]; due && (name == "" || at.Before(w.again[name])) {
			name = n
		}
	}
	return w.named("time passes, and the manager reconciles " + name)
}

// whileHostile describes what should not be while hostile users keep what they can; "" if there is nothing. What can't
// run may be tried again forever, without quota in between.
func (s *state) whileHostile(settled bool) string {
	if says := s.unfinished(); says != "" {
		return says
	}
	if !settled {
		return ""
	}
	return s.unexplained()
}

// whenHonest does the same when they have taken that back.
func (s *state) whenHonest(settled bool) string {
	if !settled {
		return "steps remain forever"
	}
	for _, kind := range owning {
		for _, o := range s.all(kind) {
			if !o.GetDeletionTimestamp().IsZero() {
				return kind + " " + o.GetName() + " is never gone"
			}
		}
	}
	s.ledger.Harmed = false
	return s.ends(func(string) bool { return false })
}

// text is a world in short.
func (w *world) text() string {
	var b strings.Builder
	for _, kind := range owning {
		for _, o := range w.all(kind) {
			fmt.Fprintf(&b, "%s %s %s: labels %v, annotations %v, finalizers %v, deleted %v, owners %v", kind, o.GetName(),
				o.GetUID(), o.GetLabels(), slices.Sorted(maps.Keys(o.GetAnnotations())), o.GetFinalizers(),
				o.GetDeletionTimestamp(), o.GetOwnerReferences())
			switch o := o.(type) {
			case *api.TrainJob:
				fmt.Fprintf(&b, ", suspend %t, conditions %v", ptr.Deref(o.Spec.Suspend, false), o.Status.Conditions)
			case *kueue.Workload:
				fmt.Fprintf(&b, ", active %t, queue %s, conditions %v", workload.IsActive(o), o.Spec.QueueName, o.Status.Conditions)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
