package integration_test

import (
	"slices"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// saving is a harness with a TrainJob that runs and has reported that it has saved a step.
func saving(t *testing.T, within time.Duration) (*harness, *jobset.JobSet) {
	h := newHarness(t, overrides.Bundled, func(c *configapi.Configuration) {
		c.Preemption.CheckpointWithin.Duration = within
	})
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
		"the manager starts anew":  {within: long, awaits: true, after: restarted(long)},
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

// TestAwaitsUntil holds that a preempted TrainJob is looked at again when its time is over, and that what its Workload
// says of that decides nothing.
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
	until := wl.Annotations[checkpoint.UntilAnnotation]
	wl.Annotations[checkpoint.UntilAnnotation] = "2020-01-01T00:00:00Z"
	h.update(wl)
	if h.settle("job"); h.suspended("job") || h.workload().Annotations[checkpoint.UntilAnnotation] != until {
		t.Errorf("it runs on until %s: got %s", until, h.workload().Annotations[checkpoint.UntilAnnotation])
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
		h.start(overrides.Bundled, func(c *configapi.Configuration) { c.Preemption.CheckpointWithin.Duration = within })
	}
}
