package integration_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func recording(c *configapi.Configuration) {
	c.Usage.Enabled, c.Usage.TeamLabel = true, "team"
}

// life is what happens to a TrainJob of one GPU. It is reconciled after each step.
type life []func(h *harness)

func pass(d time.Duration) func(*harness) { return func(h *harness) { h.clock.Step(d) } }

func submitted(h *harness) {
	job := newTrainJob("job")
	job.Labels["team"] = "vision"
	job.Annotations = map[string]string{api.UserAnnotation: "ann"}
	h.create(job)
}

func admitted(h *harness) { h.admit() }

func jobSetRuns(h *harness) {
	js := h.build("job")
	js.Finalizers = []string{metav1.FinalizerDeleteDependents}
	h.update(js)
	h.pod(js)
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Ready: 1, Active: 1}}
	h.updateStatus(js)
}

func savesNow(h *harness) { h.saves("100") }

func savesAgain(h *harness) { h.saves("200") }

// restarts is JobSet's restart after a failure.
func restarts(h *harness) {
	js := &jobset.JobSet{}
	h.must(h.store.Get(h.t.Context(), client.ObjectKey{Namespace: team, Name: "job"}, js))
	js.Status.Restarts++
	h.updateStatus(js)
}

// remade is a TrainJob that has lost its JobSet, and has another on the same quota.
func remade(h *harness) {
	podsEnd(h)
	jobSetRuns(h)
}

// podsEnd is the end of the pods of a TrainJob that was stopped or deleted, with the JobSet.
func podsEnd(h *harness) {
	js := &jobset.JobSet{}
	h.must(h.store.Get(h.t.Context(), client.ObjectKey{Namespace: team, Name: "job"}, js))
	var pods corev1.PodList
	h.must(h.store.List(h.t.Context(), &pods))
	for i := range pods.Items {
		h.remove(&pods.Items[i])
	}
	h.collect(js)
}

func evicted(h *harness) { h.evict(kueue.WorkloadEvictedByPreemption) }

func completes(h *harness) {
	h.end("job", trainerapi.TrainJobComplete)
	podsEnd(h)
}

func fails(h *harness) {
	h.end("job", trainerapi.TrainJobFailed)
	podsEnd(h)
}

func jobGone(h *harness) { h.remove(h.trainJob("job")) }

func workloadDeleted(h *harness) { h.remove(h.workload()) }

func userStops(h *harness) {
	job := h.trainJob("job")
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StopAnnotation, "")
	h.update(job)
}

func adminDeactivates(h *harness) {
	wl := h.workload()
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, "signalbox.dev/deactivate", "admin")
	h.update(wl)
}

// kueueDeactivates is what Kueue does with a Workload that isn't active.
func kueueDeactivates(h *harness) {
	if wl := h.workload(); !workload.IsActive(wl) {
		h.evict(kueue.WorkloadDeactivated)
	}
}

func leavesQueue(h *harness) {
	job := h.trainJob("job")
	job.Labels["kueue.x-k8s.io/queue-name"] = "another"
	h.update(job)
}

func unqueued(h *harness) {
	job := h.trainJob("job")
	delete(job.Labels, "kueue.x-k8s.io/queue-name")
	h.update(job)
}

// starts is a TrainJob that waits for 10 s for its pods, saves after 30 s and runs for 30 s more.
var starts = life{submitted, admitted, pass(10 * time.Second), jobSetRuns, pass(30 * time.Second), savesNow,
	pass(30 * time.Second)}

func then(l life, more ...func(*harness)) life { return slices.Concat(l, more) }

var lives = map[string]struct {
	life life
	want usageapi.Held // in seconds
	runs int64
}{
	"completes": {then(starts, completes), usageapi.Held{Idle: 10, Useful: 60}, 1},
	"fails":     {then(starts, fails), usageapi.Held{Idle: 10, Useful: 30, Lost: 30}, 1},
	"fails, and its other pods take long": {
		then(starts, func(h *harness) { h.end("job", trainerapi.TrainJobFailed) }, pass(20*time.Second), podsEnd),
		usageapi.Held{Idle: 10, Useful: 30, Lost: 50}, 1},
	"is preempted, and its pods take long": {then(starts, evicted, pass(20*time.Second), podsEnd),
		usageapi.Held{Idle: 10, Useful: 30, Lost: 50}, 1},
	"is preempted, and completes": {
		then(starts, evicted, podsEnd, pass(time.Hour), admitted, pass(5*time.Second), jobSetRuns, pass(time.Minute),
			completes),
		usageapi.Held{Idle: 15, Useful: 90, Lost: 30}, 2},
	"is preempted before it starts": {life{submitted, admitted, pass(7 * time.Second), evicted},
		usageapi.Held{Idle: 7}, 1},
	"never saves": {
		life{submitted, admitted, pass(10 * time.Second), jobSetRuns, pass(time.Minute), evicted, podsEnd},
		usageapi.Held{Idle: 10, Unknown: 60}, 1},
	"is deleted while it runs": {then(starts, jobGone, pass(5*time.Second), podsEnd),
		usageapi.Held{Idle: 10, Useful: 30, Lost: 35}, 1},
	"is deleted while it waits": {life{submitted, admitted, pass(time.Second), jobGone}, usageapi.Held{Idle: 1}, 1},
	"loses its Workload": {then(starts, workloadDeleted, pass(5*time.Second), podsEnd),
		usageapi.Held{Idle: 10, Useful: 30, Lost: 35}, 1},
	"is stopped by its user": {then(starts, userStops, pass(5*time.Second), podsEnd),
		usageapi.Held{Idle: 10, Useful: 30, Lost: 35}, 1},
	"is deactivated": {then(starts, adminDeactivates, pass(5*time.Second), podsEnd, kueueDeactivates),
		usageapi.Held{Idle: 10, Useful: 30, Lost: 35}, 1},
	"changes its queue before it starts": {
		life{submitted, admitted, pass(time.Second), userStops, leavesQueue}, usageapi.Held{Idle: 1}, 1},
	"restarts, saves again and completes": {
		then(starts, restarts, pass(30*time.Second), savesAgain, pass(10*time.Second), completes),
		usageapi.Held{Idle: 10, Useful: 70, Lost: 30}, 1},
	"restarts twice, and saves once more": {
		then(starts, restarts, pass(20*time.Second), remade, pass(30*time.Second), savesAgain, pass(10*time.Second), evicted,
			podsEnd),
		usageapi.Held{Idle: 10, Useful: 60, Lost: 60}, 1},
	"reports nothing, restarts and completes": {
		life{submitted, admitted, pass(10 * time.Second), jobSetRuns, pass(time.Minute), restarts, pass(30 * time.Second),
			completes},
		usageapi.Held{Idle: 10, Useful: 90}, 1},
	"leaves its queue": {then(starts, evicted, unqueued, pass(5*time.Second), podsEnd),
		usageapi.Held{Idle: 10, Useful: 30, Lost: 35}, 1},
}

// live has a life happen.
func (h *harness) live(l life) {
	for _, happens := range l {
		happens(h)
		for range 12 {
			if _, err := h.reconcile("job"); err == nil && len(h.sent) == 0 {
				break
			}
		}
	}
}

// recorded returns the sums of all records, in seconds, and how many runs began.
func (h *harness) recorded() (sum usageapi.Held, runs int64) {
	h.t.Helper()
	var list usageapi.QuotaUsageList
	h.must(h.store.List(h.t.Context(), &list))
	for _, record := range list.Items {
		runs += record.Runs
		for _, row := range record.Rows {
			if row.Team != "vision" || row.User != "ann" || row.ClusterQueue != "queue" || row.Flavor != "a" ||
				row.Resource != string(gpu) || record.Namespace != team || record.Queue != "queue" {
				h.t.Errorf("whose is it? %+v of %s", row, record.Queue)
			}
			sum.Useful, sum.Lost = sum.Useful+row.Useful/1000, sum.Lost+row.Lost/1000
			sum.Idle, sum.Unknown = sum.Idle+row.Idle/1000, sum.Unknown+row.Unknown/1000
		}
	}
	return sum, runs
}

// told holds that a TrainJob's status says the same as the records, unless it is gone.
func (h *harness) told(sum usageapi.Held, runs int64) {
	h.t.Helper()
	var jobs api.TrainJobList
	h.must(h.store.List(h.t.Context(), &jobs))
	for i := range jobs.Items {
		u := jobs.Items[i].Status.Usage
		if u == nil || len(u.Resources) != 1 {
			h.t.Errorf("its status says %+v", u)
			continue
		}
		held := u.Resources[0].Held
		if u.Runs != runs || held.Useful/1000 != sum.Useful || held.Lost/1000 != sum.Lost || held.Idle/1000 != sum.Idle ||
			held.Unknown/1000 != sum.Unknown {
			h.t.Errorf("its status says %+v, and the records %+v of %d runs", u, sum, runs)
		}
	}
}

// TestRecorded holds that whatever happens to a TrainJob, what it held is recorded once: also if any request fails
// once, and if the manager is killed before any of its writes.
func TestRecorded(t *testing.T) {
	for name, c := range lives {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, recording)
			writes := 0
			h.dies = func() error { writes++; return nil }
			h.live(c.life)
			if sum, runs := h.recorded(); sum != c.want || runs != c.runs {
				t.Fatalf("got %d runs of %+v, want %d of %+v", runs, sum, c.runs, c.want)
			}
			h.told(c.want, c.runs)
			for request := range maps.Keys(h.did) {
				if verb, kind, _ := strings.Cut(request, " "); (verb == "get" || verb == "list") && !counts[kind] {
					continue
				}
				again := newHarness(t, dialect.Bundled, recording)
				again.live(failing(c.life, request))
				if sum, runs := again.recorded(); sum != c.want || runs != c.runs {
					t.Errorf("%s fails once: got %d runs of %+v, want %d of %+v", request, runs, sum, c.runs, c.want)
				}
				again.told(c.want, c.runs)
			}
			for kill := range writes {
				again := newHarness(t, dialect.Bundled, recording)
				again.live(killed(c.life, kill))
				if sum, runs := again.recorded(); !sameTotal(sum, c.want) || runs != c.runs {
					t.Errorf("killed before write %d: got %d runs of %+v, want %d of %+v", kill, runs, sum, c.runs, c.want)
				}
				again.told(c.want, c.runs)
			}
		})
	}
}

// counts are the kinds that what is recorded depends on.
var counts = map[string]bool{"TrainJob": true, "Workload": true, "QuotaUsage": true}

var errKilled = errors.New("the manager is killed")

// failing is a life in which a kind of request fails when it is first sent after each step.
func failing(l life, request string) life {
	var all life
	for _, happens := range l {
		all = append(all, func(h *harness) {
			happens(h)
			h.fail[request] = errors.New("no connection")
			h.reconcile("job")
			delete(h.fail, request)
		})
	}
	return all
}

// killed is a life in which the manager is killed before its n-th write, and starts again.
func killed(l life, n int) life {
	left, dead := n, false
	var all life
	for _, happens := range l {
		all = append(all, func(h *harness) {
			h.dies = func() error {
				if left--; left < 0 && !dead {
					dead = true
				}
				if dead {
					return errKilled
				}
				return nil
			}
			happens(h)
			for range 12 {
				if h.reconcile("job"); dead || len(h.sent) == 0 {
					break
				}
			}
			if dead {
				h.start(dialect.Bundled, recording)
				dead, left = false, 1<<30
			}
		})
	}
	return all
}

// sameTotal reports whether two sums are of the same time: what was saved of a TrainJob that is gone isn't known any
// more after a restart.
func sameTotal(a, b usageapi.Held) bool {
	return a.Idle == b.Idle && a.Useful+a.Lost+a.Unknown == b.Useful+b.Lost+b.Unknown && (a.Unknown > 0 || a == b)
}
