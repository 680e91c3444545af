package integration_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store/workqueue"
)

// saving is a harness with a TrainJob that runs and has reported that it has saved a step.
func saving(t *testing.T, within time.Duration) (*harness, *jobset.JobSet) {
	h := newHarness(t, dialect.Bundled, func(c *configapi.Configuration) {
		c.Preemption.CheckpointWithin.Duration = within
	})
	h.create(&kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "queue"}})
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "queue"}}
	if err := h.store.Get(t.Context(), client.ObjectKeyFromObject(cq), cq); err != nil {
		h.create(cq)
	}
	h.run()
	js := h.build("job")
	h.pod(js)
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Ready: 1, Active: 1}}
	h.updateStatus(js)
	h.saves("100")
	h.settle("job")
	h.clock.Step(time.Minute)
	return h, js
}

// saves is a training process's report, and what the bundled Trainer makes of it.
func (h *harness) saves(step string) {
	h.t.Helper()
	job := h.trainJob("job")
	job.Annotations[api.CheckpointMetricAnnotation] = "saved"
	h.update(job)
	job = h.trainJob("job")
	job.Status.TrainerStatus = &trainerapi.TrainerStatus{
		Metrics:         []trainerapi.Metric{{Name: "loss", Value: "0.1"}, {Name: "saved", Value: step}},
		LastUpdatedTime: metav1.NewTime(h.clock.Now().Add(time.Hour)), // it may say what it likes
	}
	job.Status.Checkpoint = checkpoint.Saved(job, nil, h.clock.Now())
	h.updateStatus(job)
}

// TestAwaitsCheckpoint holds that a preempted TrainJob that reports its checkpoints runs on until the next, on its
// quota, and for as long as the admin and its user say.
func TestAwaitsCheckpoint(t *testing.T) {
	const long, half = 5 * time.Minute, 30 * time.Second
	noPod := func(h *harness, js *jobset.JobSet) { h.ready(js, 0) }
	for name, c := range map[string]struct {
		within time.Duration
		before func(h *harness, js *jobset.JobSet) // the eviction
		after  func(h *harness, js *jobset.JobSet) // a minute after it
		reason string                              // of the eviction; default Preempted
		awaits bool                                // whether it runs on at first
		stops  bool                                // whether it is stopped after what is done
	}{
		"nothing is set":           {},
		"nothing is reported":      {within: long, before: reportsNothing},
		"no pod is ready":          {within: long, before: noPod},
		"another eviction":         {within: long, reason: kueue.WorkloadEvictedByPodsReadyTimeout},
		"deactivated":              {within: long, reason: kueue.WorkloadDeactivated},
		"its user waits for none":  {within: long, before: within("0s")},
		"its user's isn't a time":  {within: long, before: within("soon")},
		"its user has stopped it":  {within: long, before: stopped},
		"nothing happens":          {within: long, awaits: true},
		"the next is saved":        {within: long, awaits: true, stops: true, after: saves("200")},
		"the same is reported":     {within: long, awaits: true, after: saves("100")},
		"the time is over":         {within: long, awaits: true, stops: true, after: step(4 * time.Minute)},
		"the user's time is over":  {within: long, before: within("90s"), awaits: true, stops: true, after: step(half)},
		"the user wants more":      {within: time.Minute, before: within("2h"), awaits: true, stops: true},
		"its user stops it":        {within: long, awaits: true, stops: true, after: stopped},
		"it loses its pods":        {within: long, awaits: true, stops: true, after: noPod},
		"an admin deactivates it":  {within: long, awaits: true, stops: true, after: deactivated},
		"the manager starts again": {within: long, awaits: true, after: restarted(long)},
		"the admin allows no more": {within: long, awaits: true, stops: true, after: restarted(0)},
		"a minute is left":         {within: time.Hour, awaits: true, after: step(58 * time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			h, js := saving(t, c.within)
			if c.before != nil {
				c.before(h, js)
			}
			if c.reason == "" {
				c.reason = kueue.WorkloadEvictedByPreemption
			}
			h.evict(c.reason)
			events := h.settle("job")
			if h.suspended("job") == c.awaits {
				t.Fatalf("it runs on: got %t, want %t; events %v", !h.suspended("job"), c.awaits, events)
			}
			if told := slices.Contains(events, "AwaitsCheckpoint"); told != c.awaits {
				t.Errorf("an event says so: got %v", events)
			}
			if !c.awaits {
				return
			}
			if h.workload().Annotations[checkpoint.UntilAnnotation] == "" {
				t.Error("its Workload says until when")
			}
			h.clock.Step(time.Minute)
			if c.after != nil {
				c.after(h, js)
			}
			if events = h.settle("job"); h.suspended("job") != c.stops {
				t.Errorf("it is stopped: got %t, want %t; events %v", h.suspended("job"), c.stops, events)
			}
			if slices.Contains(events, "AwaitsCheckpoint") {
				t.Error("it is said once")
			}
		})
	}
}

// awaiting is a harness with a TrainJob that runs on after a preemption.
func awaiting(t *testing.T) *harness {
	h, _ := saving(t, time.Hour)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settle("job")
	h.clock.Step(time.Minute)
	return h
}

// TestStopsMeanwhile holds that what would have evicted the TrainJob stops it, too, though Kueue evicts none twice.
func TestStopsMeanwhile(t *testing.T) {
	status := func(change func(*kueue.Workload, time.Time)) func(*harness) {
		return func(h *harness) {
			wl := h.workload()
			change(wl, h.clock.Now())
			h.updateStatus(wl)
		}
	}
	checked := func(state kueue.CheckState) func(*harness) {
		return status(func(wl *kueue.Workload, now time.Time) {
			wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{
				{Name: "budget", State: state, LastTransitionTime: metav1.NewTime(now)},
			}
		})
	}
	drained := ptr.To(kueue.HoldAndDrain)
	for name, meanwhile := range map[string]func(*harness){
		"its LocalQueue is drained": func(h *harness) {
			lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "queue"}}
			h.must(h.store.Get(t.Context(), client.ObjectKeyFromObject(lq), lq))
			lq.Spec.StopPolicy = drained
			h.update(lq)
		},
		"its ClusterQueue is drained": func(h *harness) {
			cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "queue"}}
			h.must(h.store.Get(t.Context(), client.ObjectKeyFromObject(cq), cq))
			cq.Spec.StopPolicy = drained
			h.update(cq)
		},
		"its admission is gone":        status(func(wl *kueue.Workload, _ time.Time) { wl.Status.Admission = nil }),
		"its ClusterQueue isn't known": func(h *harness) { h.fail["get ClusterQueue"] = errors.New("no answer") },
		"a check rejects it":           checked(kueue.CheckStateRejected),
		"a check wants it again":       checked(kueue.CheckStateRetry),
		"it is to be deactivated": status(func(wl *kueue.Workload, _ time.Time) {
			apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
				Type: kueue.WorkloadDeactivationTarget, Status: metav1.ConditionTrue, Reason: "Late"})
		}),
		"its quota is gone": status(func(wl *kueue.Workload, now time.Time) {
			workload.UnsetQuotaReservationWithCondition(wl, "Pending", "gone", now)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			h := awaiting(t)
			meanwhile(h)
			if h.settle("job"); !h.suspended("job") {
				t.Error("it runs on")
			}
		})
	}
}

// TestAwaitingHolds holds that a TrainJob that runs on isn't looked at last: others wait for its quota.
func TestAwaitingHolds(t *testing.T) {
	result, err := awaiting(t).reconcile("job")
	if result = workqueue.Placed(result, err); err != nil || ptr.Deref(result.Priority, 0) <= 0 {
		t.Errorf("got priority %d, %v", ptr.Deref(result.Priority, 0), err)
	}
}

// TestAnnouncement holds that what is told of a TrainJob that runs on is told once, is withdrawn at the stop, and keeps
// nothing from being stopped in time where it can't be told.
func TestAnnouncement(t *testing.T) {
	h := awaiting(t)
	h.saves("200")
	if h.settle("job"); !h.suspended("job") || !checkpoint.Announced(h.workload(), h.clock.Now()).IsZero() {
		t.Errorf("it is stopped, and nothing is announced: got %v", h.workload().Annotations)
	}
	h, _ = saving(t, time.Minute)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.fail["patch Workload"] = apierrors.NewForbidden(schema.GroupResource{}, "it", nil)
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter == 0 || h.suspended("job") {
		t.Errorf("it is looked at when its time is over: got %v, %v", result, err)
	}
	h, _ = saving(t, 5*time.Minute)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.freeze("Workload", &kueue.WorkloadList{})
	_, first := h.reconcile("job")
	if _, err := h.reconcile("job"); first != nil || err != nil || slices.Contains(h.events, "AwaitsCheckpoint") {
		t.Errorf("it is said once, by a stale cache, too: got %v, %v, %v, %v", h.events, h.sent, first, err)
	}
}

// TestAwaitsUntil holds that a preempted TrainJob is looked at again when its time is over, and that what its Workload
// says doesn't extend it.
func TestAwaitsUntil(t *testing.T) {
	h, _ := saving(t, 5*time.Minute)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settle("job")
	h.clock.Step(2 * time.Minute)
	result, err := h.reconcile("job")
	if err != nil || len(h.sent) > 0 || result.RequeueAfter <= 0 || result.RequeueAfter > 3*time.Minute {
		t.Errorf("got %v, %v, requests %v", result, err, h.sent)
	}
	wl := h.workload()
	wl.Annotations[checkpoint.UntilAnnotation] = h.clock.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)
	h.update(wl)
	h.clock.Step(3 * time.Minute)
	if h.settle("job"); !h.suspended("job") {
		t.Error("it is stopped when its time is over, whatever its Workload says")
	}
}

func (h *harness) ready(js *jobset.JobSet, n int32) {
	h.t.Helper()
	js.Status.ReplicatedJobsStatus[0].Ready = n
	h.updateStatus(js)
}

func deactivated(h *harness, _ *jobset.JobSet) { deactivate(h) }

func reportsNothing(h *harness, _ *jobset.JobSet) {
	h.t.Helper()
	job := h.trainJob("job")
	job.Status.TrainerStatus, job.Status.Checkpoint = nil, nil
	h.updateStatus(job)
}

func within(d string) func(*harness, *jobset.JobSet) {
	return func(h *harness, _ *jobset.JobSet) {
		job := h.trainJob("job")
		job.Annotations[api.CheckpointWithinAnnotation] = d
		h.update(job)
	}
}

func stopped(h *harness, _ *jobset.JobSet) {
	job := h.trainJob("job")
	job.Annotations[api.StopAnnotation] = ""
	h.update(job)
}

func saves(value string) func(*harness, *jobset.JobSet) {
	return func(h *harness, _ *jobset.JobSet) { h.saves(value) }
}

func step(d time.Duration) func(*harness, *jobset.JobSet) {
	return func(h *harness, _ *jobset.JobSet) { h.clock.Step(d) }
}

func restarted(within time.Duration) func(*harness, *jobset.JobSet) {
	return func(h *harness, _ *jobset.JobSet) {
		h.start(dialect.Bundled, func(c *configapi.Configuration) { c.Preemption.CheckpointWithin.Duration = within })
	}
}
