package simulate

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
)

var replayed = flag.Int("replay", 60, "how many TrainJobs TestReplay replays")

// replay is a day of a cluster: TrainJobs of four runtimes come, wait, run and end.
type replay struct {
	*rand.Rand
	cluster *Cluster
	lengths map[types.NamespacedName]time.Duration // how long each will run
	since   map[types.NamespacedName]time.Time     // when each got its quota
	guesses map[types.NamespacedName]guess
	now     time.Time
}

// guess is when a TrainJob was expected to start, when it was submitted.
type guess struct{ by, naive time.Time }

// runtimes are the kinds of TrainJobs, with their mean lengths. Single runs differ by half.
var runtimes = []time.Duration{5 * time.Minute, 20 * time.Minute, time.Hour, 2 * time.Hour}

// TestReplay compares the expected starts with what happens then, and with the naive guess: the number of those that
// wait times the mean length.
func TestReplay(t *testing.T) {
	r := &replay{
		Rand: rand.New(rand.NewPCG(23, 42)), cluster: newCluster(), lengths: map[types.NamespacedName]time.Duration{},
		since: map[types.NamespacedName]time.Time{}, guesses: map[types.NamespacedName]guess{}, now: noon,
	}
	r.cluster.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 16}, flavorQuota{flavor: "b", nominal: 16})
	arrival := noon
	for n := range *replayed {
		arrival = arrival.Add(time.Duration(r.ExpFloat64() * float64(10*time.Minute)))
		r.until(t, arrival)
		r.submit(t, n)
	}
	var errs, naive []float64
	for key, g := range r.guesses {
		if started, known := r.since[key]; known {
			errs = append(errs, math.Abs(g.by.Sub(started).Minutes()))
			naive = append(naive, math.Abs(g.naive.Sub(started).Minutes()))
		}
	}
	slices.Sort(errs)
	slices.Sort(naive)
	at := func(of []float64, percent int) float64 { return of[(len(of)-1)*percent/100] }
	text := func(of []float64) string {
		return fmt.Sprintf("median %.1f, p75 %.1f, p90 %.1f min", at(of, 50), at(of, 75), at(of, 90))
	}
	t.Logf("%d TrainJobs, %d waited: error of the estimated start: %s; of the naive one: %s; ratio of the medians %.2f",
		*replayed, len(errs), text(errs), text(naive), at(errs, 50)/at(naive, 50))
	if len(errs) < *replayed/10 {
		t.Fatalf("only %d waited", len(errs))
	}
	if at(errs, 50) >= at(naive, 50) {
		t.Errorf("the median error is %.1f min, and that of the naive guess %.1f", at(errs, 50), at(naive, 50))
	}
}

// submit adds a TrainJob, and guesses when it starts.
func (r *replay) submit(t *testing.T, n int) {
	t.Helper()
	runtime := r.IntN(len(runtimes))
	wl := r.cluster.waits(fmt.Sprintf("job-%d", n), "q", 0, int32(1+r.IntN(4)), 2)
	wl.CreationTimestamp = metav1.NewTime(r.now)
	wl.Spec.PodSets[0].Template.Spec.Containers[0].Image = fmt.Sprintf("runtime-%d", runtime)
	key := keyOf(wl)
	r.lengths[key] = time.Duration(float64(runtimes[runtime]) * math.Exp(r.NormFloat64()/2))
	estimates := NewEstimates(r.cluster.Workloads, nil, r.now)
	f, err := Until(t.Context(), r.cluster, key, estimates.Mid(), r.now)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Ended) > 0 {
		waiting, mean := 0, time.Hour
		for i := range r.cluster.Workloads {
			if other := &r.cluster.Workloads[i]; !workloadfinish.IsFinished(other) && !holdsQuota(other) {
				waiting++
			}
		}
		if all := estimates.runs[kind{Source: All}]; len(all) > 0 {
			mean = 0
			for _, d := range all {
				mean += d / time.Duration(len(all))
			}
		}
		r.guesses[key] = guess{f.At, r.now.Add(time.Duration(waiting) * mean)}
	}
	r.settle(t)
}

// settle lets Kueue admit what fits.
func (r *replay) settle(t *testing.T) {
	t.Helper()
	outcome, err := Settle(t.Context(), r.cluster, r.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range outcome.Admitted {
		r.since[key] = r.now
		*r.cluster.Workload(key) = *outcome.Workload(key)
	}
}

// until lets TrainJobs end until a time.
func (r *replay) until(t *testing.T, end time.Time) {
	t.Helper()
	for {
		var next *kueue.Workload
		var at time.Time
		for i := range r.cluster.Workloads {
			wl := &r.cluster.Workloads[i]
			if ends := r.since[keyOf(wl)].Add(r.lengths[keyOf(wl)]); holdsQuota(wl) && (next == nil || ends.Before(at)) {
				next, at = wl, ends
			}
		}
		if next == nil || at.After(end) {
			r.now = end
			return
		}
		r.now = at
		next.Status.Conditions = append(next.Status.Conditions, metav1.Condition{
			Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(at),
		})
		r.settle(t)
	}
}
