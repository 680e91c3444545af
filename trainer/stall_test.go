package trainer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainerac "github.com/kubeflow/trainer/v2/pkg/client/applyconfiguration/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const (
	jobPatch = "patch TrainJob job"
	admitted = "status: {conditions: [{type: Admitted, status: 'True'}, {type: QuotaReserved, status: 'True'}]}"
)

// watching is a harness with a TrainJob that runs, whose pods became ready two seconds ago and can report, and whose
// annotation signalbox.dev/stalled-after has a value. wl is its Workload; "" for none.
func watching(t *testing.T, value, wl string) *harness {
	h := newHarness(t, func(o *options) { o.reports = true })
	job := h.pinned(h.trainJob("torch", started))
	if value != "" {
		job.Annotations[api.StalledAfterAnnotation] = value
	}
	js := jobSetOf(t, job, "spec: {replicatedJobs: [{name: node, replicas: 1}]}\n"+
		"status: {replicatedJobsStatus: [{name: node, active: 1, ready: 1}]}")
	js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "node", Env: []corev1.EnvVar{{Name: "KUBEFLOW_TRAINER_SERVER_URL"}}}}
	js.Finalizers = []string{"foregroundDeletion"} // as the API server does
	h.put(job, js)
	if wl != "" {
		h.put(workloadOf(t, job, wl))
	}
	h.reconcile("job")
	h.clock.Step(2 * time.Second)
	h.reconcile("job")
	h.wantRequests("its state is written, and condition Stalled with it", statusPatch)
	h.wantEvents("nothing has happened")
	return h
}

// reports is a report that arrives.
func (h *harness) reports(progress int32) {
	h.t.Helper()
	job := h.job("job")
	job.Status.TrainerStatus = &trainerapi.TrainerStatus{
		ProgressPercentage: &progress, LastUpdatedTime: metav1.NewTime(h.clock.Now()),
	}
	if err := h.store.Status().Update(h.t.Context(), job); err != nil {
		h.t.Fatal(err)
	}
}

// stalls returns condition Stalled in short, such as "True/NoReport since 12:00:02"; "" for none.
func (h *harness) stalls() string {
	h.t.Helper()
	job := h.job("job")
	c := job.Status.Condition(api.ConditionStalled)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason + " since " + c.LastTransitionTime.UTC().Format(time.TimeOnly)
}

func (h *harness) wantStall(reason, want string) {
	h.t.Helper()
	if got := h.stalls(); got != want {
		h.t.Errorf("%s: got %q, want %q", reason, got, want)
	}
}

// TestStalls holds that a TrainJob that reports nothing gets a condition and an event, once, that a report takes the
// condition away, and that reports cost no write.
func TestStalls(t *testing.T) {
	h := watching(t, "30m", admitted)
	h.wantStall("it is ready", "False/Reports since 12:00:02")
	for i := range int32(5) {
		h.clock.Step(20 * time.Minute)
		h.reports(i)
		if result := h.reconcile("job"); result.RequeueAfter != 30*time.Minute {
			t.Errorf("it is looked at when it will have stalled: got %+v", result)
		}
	}
	h.wantRequests("a report costs no write of ours")
	h.clock.Step(30*time.Minute - time.Second)
	if result := h.reconcile("job"); result.RequeueAfter != time.Second {
		t.Errorf("a second is left: got %+v", result)
	}
	h.clock.Step(time.Second)
	h.reconcile("job")
	h.wantRequests("it is written at once", statusPatch)
	h.wantStall("its time is that of the last report", "True/NoReport since 13:40:02")
	h.wantEvents("it is said", "Warning Stalled its training process has reported nothing since 2026-11-23T13:40:02Z")
	if job := h.job("job"); len(job.Status.Conditions) > 0 || job.Status.State != api.StateRunning {
		t.Errorf("the Kubeflow SDK asks the pods of a TrainJob without conditions alone: got %+v", job.Status)
	}
	for range 3 {
		h.clock.Step(time.Hour)
		h.restart()
		h.reconcile("job")
	}
	h.wantRequests("once")
	h.wantEvents("once")
	h.reports(50)
	h.clock.Step(2 * time.Second)
	h.reconcile("job")
	h.clock.Step(2 * time.Second)
	h.reconcile("job")
	h.wantRequests("a report ends it", statusPatch)
	h.wantStall("a report ends it", "False/Reports since 17:10:02")
	h.clock.Step(30 * time.Minute)
	h.reconcile("job")
	h.wantEvents("it stalls again", "Warning Stalled")
}

// TestUnusedStall holds that who doesn't use it pays nothing.
func TestUnusedStall(t *testing.T) {
	h := watching(t, "", admitted)
	h.clock.Step(24 * time.Hour)
	if result := h.reconcile("job"); result.RequeueAfter != 0 {
		t.Errorf("no timer: got %+v", result)
	}
	h.wantStall("nothing asks for it", "")
	h.wantRequests("no write")
	h.wantEvents("no event")
	h = watching(t, "30m,stop", admitted)
	h.options.reports = false // trainer.progress is switched off
	h.restart()
	h.clock.Step(24 * time.Hour)
	h.reconcile("job")
	h.clock.Step(30 * time.Second)
	h.reconcile("job")
	h.wantStall("nothing can report", "")
	h.clock.Step(time.Hour)
	h.requests()
	h.reconcile("job")
	h.wantRequests("it isn't stopped")
}

// hasStalled is a harness with a TrainJob that has stalled, as its condition says.
func hasStalled(t *testing.T, value, wl string) *harness {
	h := watching(t, value, wl)
	h.clock.Step(time.Hour)
	h.reconcile("job")
	h.wantRequests("the condition first", statusPatch)
	h.wantStall("the condition first", "True/NoReport since 12:00:02")
	h.events()
	return h
}

// TestStopsStalled holds that a TrainJob that has stalled is stopped as by its user, once, and says how to resume it.
func TestStopsStalled(t *testing.T) {
	h := hasStalled(t, "30m,stop", admitted)
	h.reconcile("job")
	h.wantRequests("as its user would", jobPatch)
	job := h.job("job")
	if why := job.Annotations[api.StopAnnotation]; why != "stalled: it has reported nothing since 2026-11-23T12:00:02Z" {
		t.Errorf("got %q", why)
	}
	if ptr.Deref(job.Spec.Suspend, false) {
		t.Error("the integration suspends it, and puts its Workload on hold")
	}
	h.wantEvents("it is said", "Warning StalledStopped It is stopped, because it has reported nothing since "+
		"2026-11-23T12:00:02Z; kubectl signalbox resume job starts it again")
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.reconcile("job")
	h.wantStall("what is stopped hasn't stalled", "")
	h.clock.Step(time.Hour)
	h.reconcile("job")
	h.wantEvents("once")

	h = hasStalled(t, "30m,stop", "")
	h.edit("job",
		func(j *api.TrainJob) {
			j.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "a queue that isn't managed"}
		})
	h.reconcile("job")
	h.wantRequests("without a queue", jobPatch)
	if job := h.job("job"); !ptr.Deref(job.Spec.Suspend, false) || job.Annotations[api.StopAnnotation] != "" {
		t.Errorf("it is suspended, as its user would: got %+v", job.Spec)
	}
}

// TestRestartsStalled holds that a TrainJob that has stalled is restarted within the budget of restarts, wherever the
// manager is killed, and isn't stopped when that is used up.
func TestRestartsStalled(t *testing.T) {
	h := hasStalled(t, "30m,restart", admitted)
	js := &jobset.JobSet{}
	h.get(js, "job")
	for n := int32(1); n <= api.DefaultRestarts; n++ {
		h.reconcile("job")
		h.wantRequests("it is counted before it", statusPatch)
		h.wantEvents("it is said", "Warning StalledRestarting It has reported nothing since ")
		lost := h.job("job").Status.Lost
		if lost == nil || !lost.Restarting || lost.Restarts != n || lost.JobSet != js.UID {
			t.Fatalf("got %+v", lost)
		}
		h.restart()
		h.reconcile("job")
		h.wantRequests("it is suspended", jobPatch)
		h.reconcile("job")
		h.requests() // the JobSet is deleted
		h.wantStall("what is suspended hasn't stalled", "")
		h.remove(&jobset.JobSet{}, "job")
		h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
		js.UID, js.ResourceVersion = js.UID+"x", ""
		h.put(js)
		h.reconcile("job")
		h.clock.Step(2 * time.Second)
		h.reconcile("job") // it runs
		h.clock.Step(time.Hour)
		h.reconcile("job") // it has stalled
		h.requests()
		if events := h.events(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning Stalled ") {
			t.Fatalf("it stalls again: got %q", events)
		}
	}
	h.restart()
	h.clock.Step(time.Hour)
	h.reconcile("job")
	h.wantRequests("the budget is used up")
	job := h.job("job")
	if c := job.Status.Condition(api.ConditionStalled); !strings.Contains(c.Message, "are used up") {
		t.Errorf("its condition says so: got %q", c.Message)
	}
	h.edit("job", func(j *api.TrainJob) { j.Annotations[api.RestartsAnnotation] = "4" })
	h.reconcile("job")
	h.requests()
	if lost := h.job("job").Status.Lost; lost.Restarts != 4 {
		t.Errorf("its user has raised the budget: got %+v", lost)
	}
}

// TestStallRestart holds that nothing follows from what was reported while no manager was there: a process has as long
// to report again. Since when it has been silent isn't forgotten.
func TestStallRestart(t *testing.T) {
	h := watching(t, "30m,stop", admitted)
	h.clock.Step(2 * time.Hour) // there is no manager
	h.restart()
	h.reconcile("job")
	h.wantStall("it is said", "True/NoReport since 12:00:02")
	h.requests()
	if result := h.reconcile("job"); result.RequeueAfter != 30*time.Minute {
		t.Errorf("it is looked at then: got %+v", result)
	}
	h.wantRequests("it isn't stopped")
	h.clock.Step(30 * time.Minute)
	h.reconcile("job")
	h.wantRequests("it is stopped", jobPatch)
}

// TestStallUnready holds that the time counts from when the pods are ready again.
func TestStallUnready(t *testing.T) {
	h := watching(t, "30m", admitted)
	ready := func(n int32) {
		js := &jobset.JobSet{}
		h.get(js, "job")
		js.Status.ReplicatedJobsStatus[0].Ready = n
		if err := h.store.Status().Update(t.Context(), js); err != nil {
			t.Fatal(err)
		}
		h.reconcile("job")
		h.clock.Step(4 * time.Second)
		h.reconcile("job")
	}
	h.clock.Step(29 * time.Minute)
	ready(0)
	h.wantStall("a pod isn't ready", "")
	h.clock.Step(time.Hour)
	ready(1)
	h.wantStall("it is ready again", "False/Reports since 13:29:10")
	h.events()
	h.clock.Step(30*time.Minute - time.Second)
	h.reconcile("job")
	h.wantEvents("a second is left")
}

// statusWriter is an API server that notes what is applied.
type statusWriter struct {
	client.SubResourceWriter
	applied runtime.ApplyConfiguration
	err     error
}

func (w *statusWriter) Apply(
	_ context.Context, applied runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption,
) error {
	w.applied = applied
	return w.err
}

// TestStamping holds that the time of a report is when it arrived, whatever its sender says, and that a refusal is
// passed on.
func TestStamping(t *testing.T) {
	w := &statusWriter{err: errors.New("refused")}
	s := stampingStatus{w, clocktesting.NewFakePassiveClock(noon)}
	for name, said := range map[string]metav1.Time{
		"nothing": {}, "the past": metav1.NewTime(noon.Add(-time.Hour)),
		"the future": metav1.NewTime(noon.Add(time.Hour)),
	} {
		report := trainerac.TrainerStatus().WithProgressPercentage(42).WithLastUpdatedTime(said)
		err := s.Apply(t.Context(), trainerac.TrainJob("job", "ns").WithStatus(
			trainerac.TrainJobStatus().WithTrainerStatus(report)))
		got := w.applied.(*trainerac.TrainJobApplyConfiguration).Status.TrainerStatus
		if !errors.Is(err, w.err) || !got.LastUpdatedTime.Time.Equal(noon) || *got.ProgressPercentage != 42 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	if s.Apply(t.Context(), trainerac.TrainJob("job", "ns")) == nil || w.applied == nil {
		t.Error("what is no report is passed on")
	}
}
