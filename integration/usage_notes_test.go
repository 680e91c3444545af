package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/usage"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
)

// TestNotes holds what is written to a Workload, and that nothing is where nobody asks for it.
func TestNotes(t *testing.T) {
	for _, on := range []bool{true, false} {
		h := newHarness(t, dialect.Bundled, func(c *configapi.Configuration) {
			if on {
				recording(c)
			}
		})
		h.live(starts)
		n := usage.NoteOf(h.workload())
		want := usage.Note{Team: "vision", User: "ann", Run: usage.Reserved(h.workload()), Running: h.clock.Now().UTC()}
		want.Running = want.Running.Add(-time.Minute)
		if !on {
			want = usage.Note{}
		}
		if !n.Run.Equal(want.Run) || !n.Running.Equal(want.Running) || n.Team != want.Team || n.User != want.User {
			t.Errorf("recorded: %t; got %+v, want %+v", on, n, want)
		}
		if h.live(life{completes}); on != h.did["create QuotaUsage"] {
			t.Errorf("recorded: %t; got %v", on, h.did)
		}
	}
}

// TestNoteRejected holds that what can't be noted keeps no TrainJob from running, and is noted later.
func TestNoteRejected(t *testing.T) {
	h := newHarness(t, dialect.Bundled, recording)
	h.live(life{submitted, admitted, pass(10 * time.Second)})
	h.fail["patch Workload"] = invalid
	if h.live(life{jobSetRuns}); h.suspended("job") || usage.Began(h.workload()) {
		t.Fatal("it runs")
	}
	delete(h.fail, "patch Workload")
	if h.live(life{pass(time.Second)}); !usage.Began(h.workload()) {
		t.Error("it is noted when it can be")
	}
}

// TestRestartRejected holds that a restart that can't be noted counts once, and not at each look at the TrainJob.
func TestRestartRejected(t *testing.T) {
	h := newHarness(t, dialect.Bundled, recording)
	h.live(starts)
	h.fail["patch Workload"] = invalid
	h.live(life{restarts, pass(30 * time.Second), savesAgain, pass(10 * time.Second)})
	delete(h.fail, "patch Workload")
	h.live(life{pass(time.Second), completes})
	want := usageapi.Held{Idle: 10, Useful: 71, Lost: 30}
	if sum, runs := h.recorded(); runs != 1 || sum != want {
		t.Errorf("got %d runs of %+v, want %+v", runs, sum, want)
	}
}

// TestDispatchedElsewhere holds that the cluster that dispatches a TrainJob counts nothing for it.
func TestDispatchedElsewhere(t *testing.T) {
	for _, gone := range []bool{true, false} {
		h := newHarness(t, dialect.Bundled, recording)
		job := newTrainJob("job")
		h.create(job)
		h.settle("job")
		h.admit()
		wl := h.workload()
		wl.Status.ClusterName = ptr.To("worker")
		h.updateStatus(wl)
		if gone {
			h.live(life{pass(time.Second), jobGone})
		} else {
			job = h.trainJob("job")
			job.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
			h.update(job)
			h.live(life{pass(time.Second), workloadDeleted, pass(time.Minute)})
		}
		if sum, runs := h.recorded(); runs > 0 || sum != (usageapi.Held{}) {
			t.Errorf("gone: %t; got %d runs of %+v", gone, runs, sum)
		}
	}
}

// TestStaleCache holds that a cache that doesn't have the end of a run counts nothing twice.
func TestStaleCache(t *testing.T) {
	h := newHarness(t, dialect.Bundled, recording)
	h.live(starts)
	h.live(life{evicted})
	podsEnd(h)
	h.freeze("Workload", &kueue.WorkloadList{})
	for range 5 {
		h.reconcile("job") // each decides on a Workload that holds quota
	}
	h.thaw("Workload")
	h.live(life{pass(time.Second)})
	want := usageapi.Held{Idle: 10, Useful: 30, Lost: 30}
	if sum, runs := h.recorded(); runs != 1 || sum != want {
		t.Errorf("got %d runs of %+v, want %+v", runs, sum, want)
	}
}

// TestRecordedBesideEachTrainer holds that what a TrainJob held is recorded whichever Trainer runs it.
func TestRecordedBesideEachTrainer(t *testing.T) {
	for name, d := range trainers {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, d, recording)
			h.run()
			js := h.build("job")
			pod := h.pod(js)
			h.settle("job")
			h.clock.Step(time.Minute)
			h.end("job", trainerapi.TrainJobComplete)
			h.remove(pod)
			h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
			h.settle("job")
			var list usageapi.QuotaUsageList
			h.must(h.store.List(t.Context(), &list))
			if len(list.Items) != 1 || list.Items[0].Runs != 1 || len(list.Items[0].Rows) != 1 ||
				list.Items[0].Rows[0].Useful != 60_000 {
				t.Errorf("got %+v", list.Items)
			}
		})
	}
}

// TestRecordedWithBoosts holds that a boost, written to the same Workload, changes nothing of what is recorded.
func TestRecordedWithBoosts(t *testing.T) {
	for name, c := range lives {
		h := newHarness(t, dialect.Bundled, recording, tenMinutes)
		boosted := false
		var l life
		for _, happens := range c.life {
			l = append(l, happens, func(h *harness) { boosted = boosted || h.anyBoost() })
		}
		h.live(l)
		if sum, runs := h.recorded(); sum != c.want || runs != c.runs || !boosted {
			t.Errorf("%s: got %d runs of %+v, want %d of %+v; boosted: %t", name, runs, sum, c.runs, c.want, boosted)
		}
		h.told(c.want, c.runs)
	}
}

// anyBoost reports whether a Workload has a boost.
func (h *harness) anyBoost() bool {
	var list kueue.WorkloadList
	h.must(h.store.List(h.t.Context(), &list))
	return slices.ContainsFunc(list.Items, func(wl kueue.Workload) bool {
		return wl.Annotations[boost.Annotation] != ""
	})
}

// TestRelabelled holds that a run is its team's at the beginning: nobody has another pay for what has been used.
func TestRelabelled(t *testing.T) {
	h := newHarness(t, dialect.Bundled, recording)
	h.live(then(starts, func(h *harness) {
		job := h.trainJob("job")
		job.Labels["team"] = "another"
		h.update(job)
	}, completes))
	if sum, runs := h.recorded(); runs != 1 || sum.Useful != 60 { // for team vision
		t.Errorf("got %d runs of %+v", runs, sum)
	}
}

// TestStatusFails holds that quota doesn't wait for long until a TrainJob's status says what it has used: a webhook may
// take part in that write, and be down.
func TestStatusFails(t *testing.T) {
	h := newHarness(t, dialect.Bundled, recording)
	h.live(starts)
	h.fail["patch TrainJob/status"] = apierrors.NewInternalError(errors.New("failed calling webhook"))
	h.live(life{completes})
	if !podsets.HoldsQuota(h.workload()) {
		t.Fatal("it is tried again")
	}
	h.live(life{pass(30 * time.Second), pass(30 * time.Second)})
	if podsets.HoldsQuota(h.workload()) {
		t.Error("it holds quota for a status")
	}
	if sum, runs := h.recorded(); runs != 1 || sum.Useful != 60 {
		t.Errorf("got %d runs of %+v", runs, sum)
	}
}

// TestRecordMissing holds that a record that can't be found keeps quota for a minute, and isn't taken for a Workload
// that is gone.
func TestRecordMissing(t *testing.T) {
	for name, fails := range map[string]error{
		"its kind":      apierrors.NewNotFound(schema.GroupResource{Resource: "quotausages"}, ""),
		"not permitted": apierrors.NewForbidden(schema.GroupResource{Resource: "quotausages"}, "", errors.New("quota")),
	} {
		h := newHarness(t, dialect.Bundled, recording)
		h.live(starts)
		h.fail["create QuotaUsage"], h.fail["get QuotaUsage"] = fails, fails
		if h.live(life{completes}); !podsets.HoldsQuota(h.workload()) {
			t.Errorf("%s: it is tried for a minute", name)
		}
		if _, err := h.reconcile("job"); err == nil {
			t.Errorf("%s: nothing has it tried again", name)
		}
		if h.live(life{pass(time.Minute)}); podsets.HoldsQuota(h.workload()) {
			t.Errorf("%s: it holds quota for a record", name)
		}
	}
}

// TestPrebuiltSigned holds that a prebuilt Workload says whose it is as soon as a TrainJob has it.
func TestPrebuiltSigned(t *testing.T) {
	h := newHarness(t, dialect.Bundled, recording)
	h.fromOrigin(h.podSets())
	h.label(kueue.MultiKueueOriginLabel, "")
	job := h.trainJob("job")
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.UserAnnotation, "ann")
	h.update(job)
	h.settle("job")
	if n := usage.NoteOf(h.workload()); n.User != "ann" {
		t.Errorf("got %+v", n)
	}
}

// TestLongName holds that a name of any length is noted, in as little as a record has room for.
func TestLongName(t *testing.T) {
	h := newHarness(t, dialect.Bundled, recording)
	job := newTrainJob("job")
	job.Annotations = map[string]string{api.UserAnnotation: strings.Repeat("<", 60_000)}
	h.create(job)
	h.settle("job")
	if n := usage.NoteOf(h.workload()); len(n.User) != usage.MaxText {
		t.Errorf("%d bytes of a name", len(n.User))
	}
}

// TestReleasedByOthers holds that a run is recorded, too, whose quota Kueue itself releases, and no other once more.
func TestReleasedByOthers(t *testing.T) {
	unreserved := func(wl *kueue.Workload) {
		workload.UnsetQuotaReservationWithCondition(wl, "Pending", "the queue is stopped", time.Now())
	}
	for name, c := range map[string]struct {
		life   life // the Workload is looked at before the last step
		change func(*kueue.Workload)
		gone   bool
		want   usageapi.Held
	}{
		"the manager cluster takes it back": {life: then(starts, pass(5*time.Second)), gone: true,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 35}},
		"it is gone with its TrainJob": {life: then(starts, jobGone), gone: true,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 30}},
		"after a restart": {life: then(starts, restarts, pass(5*time.Second)), gone: true,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 35}},
		"its queue is stopped before it is admitted": {life: life{submitted, admitted, pass(7 * time.Second)},
			change: unreserved, want: usageapi.Held{Idle: 7}},
		"its boost changes": {life: then(starts, pass(5*time.Second)),
			change: func(wl *kueue.Workload) { wl.Annotations["a"] = "b" }},
		"it was released here": {life: then(starts, evicted, podsEnd), change: unreserved,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, recording)
			h.live(c.life[:len(c.life)-1])
			before := h.workload()
			h.live(c.life[len(c.life)-1:])
			later := before
			if c.change != nil {
				later = before.DeepCopy()
				c.change(later)
			}
			if c.gone {
				later = before
			}
			for range 2 {
				h.must(h.reconciler.Released(t.Context(), before, later))
			}
			wantRuns := int64(1)
			if c.want == (usageapi.Held{}) {
				wantRuns = 0
			}
			if sum, runs := h.recorded(); sum != c.want || runs != wantRuns {
				t.Errorf("got %d runs of %+v, want %+v", runs, sum, c.want)
			}
		})
	}
	h := newHarness(t, dialect.Bundled, recording)
	h.live(starts)
	elsewhere, others := h.workload(), h.workload()
	elsewhere.Status.ClusterName = ptr.To("worker")
	others.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Controller: ptr.To(true)}}
	jobGone(h)
	for _, wl := range []*kueue.Workload{elsewhere, others} {
		h.must(h.reconciler.Released(t.Context(), wl, wl))
	}
	if _, runs := h.recorded(); runs > 0 {
		t.Error("another cluster counts it, or it is no TrainJob's")
	}
}
