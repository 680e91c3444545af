package integration_test

import (
	"errors"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// TestEndFreesQuota holds that a TrainJob that has ended gives its quota back when its last pod has ended, whatever its
// user changes meanwhile.
func TestEndFreesQuota(t *testing.T) {
	relabel := func(name, value string) func(*harness) {
		return func(h *harness) {
			job := h.trainJob("job")
			if delete(job.Labels, name); value != "" {
				job.Labels[name] = value
			}
			h.update(job)
		}
	}
	annotate := func(name, value string) func(*harness) {
		return func(h *harness) {
			job := h.trainJob("job")
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, name, value)
			h.update(job)
		}
	}
	changes := map[string]func(*harness){
		"nothing":                 func(*harness) {},
		"no queue":                relabel(constants.QueueLabel, ""),
		"another queue":           relabel(constants.QueueLabel, "other"),
		"no priority class":       relabel(constants.WorkloadPriorityClassLabel, "nonesuch"),
		"a maximum time":          relabel(constants.MaxExecTimeSecondsLabel, "7"),
		"a wrong maximum time":    relabel(constants.MaxExecTimeSecondsLabel, "x"),
		"a prebuilt Workload":     relabel(constants.PrebuiltWorkloadLabel, "other"),
		"stopped":                 annotate(api.StopAnnotation, ""),
		"elastic":                 annotate("kueue.x-k8s.io/elastic-job", "true"),
		"a wrong record":          annotate(legacy.RecordAnnotation, "{"),
		"a wrong minimum":         annotate(overrides.MinParallelismAnnotation, "-1"),
		"suspended":               func(h *harness) { suspend(h, true) },
		"no queue, and suspended": func(h *harness) { relabel(constants.QueueLabel, "")(h); suspend(h, true) },
		"a namespace that Kueue doesn't manage": func(h *harness) {
			namespace := &corev1.Namespace{}
			h.must(h.store.Get(h.t.Context(), client.ObjectKey{Name: team}, namespace))
			namespace.Labels["kubernetes.io/metadata.name"] = "kube-system"
			h.update(namespace)
		},
		"a runtime that is gone": func(h *harness) {
			h.remove(&api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch"}})
		},
		"a deactivated Workload": func(h *harness) {
			wl := h.workload()
			wl.Annotations = map[string]string{api.DeactivateAnnotation: "admin"}
			h.update(wl)
		},
	}
	for name, change := range changes {
		for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
			t.Run(name+" beside "+d.Name, func(t *testing.T) {
				h := newHarness(t, d)
				h.run()
				js := h.build("job")
				pod := h.pod(js)
				h.end("job", trainerapi.TrainJobFailed)
				h.settle("job")
				change(h)
				h.settle("job")
				if wl := h.workload(); workloadfinish.IsFinished(wl) || !workload.HasQuotaReservation(wl) {
					t.Fatalf("its pod runs, and holds its quota: got %+v", wl.Status.Conditions)
				}
				h.remove(pod)
				h.collect(js)
				h.clock.Step(time.Minute)
				if h.settle("job"); !workloadfinish.IsFinished(h.workload()) {
					t.Errorf("nothing runs: got %+v", h.workload().Status.Conditions)
				}
			})
		}
	}
}

func suspend(h *harness, suspended bool) {
	job := h.trainJob("job")
	job.Spec.Suspend = &suspended
	h.update(job)
}

// leaves takes the TrainJob's namespace out of those that Kueue manages.
func (h *harness) leaves() {
	namespace := &corev1.Namespace{}
	h.must(h.store.Get(h.t.Context(), client.ObjectKey{Name: team}, namespace))
	namespace.Labels["kubernetes.io/metadata.name"] = "kube-system"
	h.update(namespace)
}

// TestNamespaceLeaves holds that a TrainJob that holds quota is managed until it is free, although its namespace isn't
// any more.
func TestNamespaceLeaves(t *testing.T) {
	t.Run("while it runs", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		h.leaves()
		if h.settle("job"); h.suspended("job") || !workload.IsAdmitted(h.workload()) {
			t.Fatal("it runs on the quota that it has")
		}
		h.evict(kueue.WorkloadEvictedByPreemption)
		if h.settle("job"); !h.suspended("job") || !workload.HasQuotaReservation(h.workload()) {
			t.Fatal("it is preempted as any other")
		}
		h.remove(pod)
		h.collect(js)
		if h.settle("job"); len(h.workloads()) != 0 {
			t.Errorf("it isn't queued again: got %+v", h.workloads()[0].Status)
		}
	})
	t.Run("while it waits", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.queue()
		h.leaves()
		if h.settle("job"); len(h.workloads()) != 0 {
			t.Errorf("Kueue would admit it: got %+v", h.workloads()[0].Status)
		}
	})
	t.Run("while it is admitted", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.queue()
		h.admit()
		h.leaves()
		if h.settle("job"); len(h.workloads()) != 0 || !h.suspended("job") {
			t.Errorf("it doesn't start, and holds no quota: got %d Workloads", len(h.workloads()))
		}
	})
}

// TestEndNotWritten holds that the quota of a TrainJob whose JobSet has ended is free, although its Trainer doesn't
// write that.
func TestEndNotWritten(t *testing.T) {
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
		for end, reason := range map[jobset.JobSetConditionType]string{
			jobset.JobSetCompleted: kueue.WorkloadFinishedReasonSucceeded,
			jobset.JobSetFailed:    kueue.WorkloadFinishedReasonFailed,
		} {
			h := newHarness(t, d)
			h.run()
			js := h.build("job")
			pod := h.pod(js)
			js.Status.Conditions = []metav1.Condition{{Type: string(end), Status: metav1.ConditionTrue, Reason: "R",
				LastTransitionTime: metav1.NewTime(h.clock.Now())}}
			h.updateStatus(js)
			result, err := h.reconcile("job")
			if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > time.Minute {
				t.Errorf("%s: it is looked at again: got %v, %v", end, result, err)
			}
			h.clock.Step(time.Minute)
			if h.settle("job"); workloadfinish.IsFinished(h.workload()) {
				t.Errorf("%s: its pod runs", end)
			}
			h.remove(pod)
			job := jobOf()
			h.must(h.store.Get(t.Context(), types.NamespacedName{Namespace: team, Name: "job-node-0"}, job))
			job.Status.Conditions = append(job.Status.Conditions, jobEnded)
			h.updateStatus(job)
			h.settle("job")
			c := finishedOf(h.workload())
			if c == nil || c.Reason != reason || h.suspended("job") {
				t.Errorf("%s: its quota is free, and it isn't stopped: got %+v", end, c)
			}
		}
	}
}

// TestEndWhileAway holds that a Trainer has its minute from when this process sees the end: it may restart the TrainJob
// after a loss, and couldn't while this process, which may be its own, was away or had no answers.
func TestEndWhileAway(t *testing.T) {
	for name, away := range map[string]func(*harness){
		"another process": func(h *harness) { h.start(dialect.Bundled) },
		"no answers":      func(*harness) {},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.run()
			js := h.build("job")
			h.settle("job")
			js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetFailed), Status: metav1.ConditionTrue,
				Reason: "R", LastTransitionTime: metav1.NewTime(h.clock.Now())}}
			h.updateStatus(js)
			h.clock.Step(10 * time.Minute)
			away(h)
			if h.settle("job"); workloadfinish.IsFinished(h.workload()) {
				t.Fatal("the Trainer hasn't been asked yet")
			}
			h.clock.Step(time.Minute)
			if h.settle("job"); !workloadfinish.IsFinished(h.workload()) {
				t.Error("nothing runs, and the end isn't written")
			}
		})
	}
}

// TestEndNotWrittenOfStopped holds what becomes of the quota of a TrainJob that is suspended when the end of its JobSet
// isn't written: it is free, unless the Trainer restarts the TrainJob.
func TestEndNotWrittenOfStopped(t *testing.T) {
	for name, c := range map[string]struct {
		stop func(*api.TrainJob, *jobset.JobSet)
		free bool
	}{
		"suspended": {func(*api.TrainJob, *jobset.JobSet) {}, true},
		"out of its queue": {func(job *api.TrainJob, _ *jobset.JobSet) {
			delete(job.Labels, constants.QueueLabel)
		}, true},
		"restarted after a loss": {func(job *api.TrainJob, js *jobset.JobSet) {
			job.Status.Lost = &api.Loss{JobSet: js.UID, Restarting: true}
		}, false},
		"restarted after a stall, and succeeded": {func(job *api.TrainJob, js *jobset.JobSet) {
			job.Status.Lost = &api.Loss{JobSet: js.UID, Restarting: true}
			js.Status.Conditions[0].Type = string(jobset.JobSetCompleted)
		}, true},
		"restarted after a loss, cut short": {func(job *api.TrainJob, js *jobset.JobSet) {
			job.Status.Lost = &api.Loss{JobSet: js.UID, Pod: "a", Restarting: true}
			js.Status.Conditions[0].Type = string(jobset.JobSetCompleted)
		}, false},
	} {
		for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
			t.Run(name+" beside "+d.Name, func(t *testing.T) {
				h := newHarness(t, d)
				h.run()
				js := h.build("job")
				js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetFailed), Status: metav1.ConditionTrue,
					Reason: "R", LastTransitionTime: metav1.NewTime(h.clock.Now())}}
				job := h.trainJob("job")
				job.Spec.Suspend = ptr.To(true)
				c.stop(job, js)
				h.updateStatus(js)
				status := job.Status
				h.update(job)
				job.Status = status
				h.updateStatus(job)
				for range 4 {
					h.reconcile("job")
					h.clock.Step(30 * time.Second)
				}
				free := len(h.workloads()) == 0 || workloadfinish.IsFinished(h.workload())
				if free != c.free {
					t.Errorf("its quota is free: %t, want %t", free, c.free)
				}
			})
		}
	}
}

// TestEndSeenIsRemembered holds that what was observed before a request failed is remembered: the quota of a TrainJob
// whose end isn't written is free a minute after this process has seen the end.
func TestEndSeenIsRemembered(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	h.settle("job")
	js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetFailed), Status: metav1.ConditionTrue,
		Reason: "R", LastTransitionTime: metav1.NewTime(h.clock.Now())}}
	h.updateStatus(js)
	h.fail["get Namespace"] = errors.New("it doesn't answer")
	if _, err := h.reconcile("job"); err == nil {
		t.Fatal("a request fails")
	}
	delete(h.fail, "get Namespace")
	h.clock.Step(time.Minute)
	if h.settle("job"); !workloadfinish.IsFinished(h.workload()) {
		t.Error("it has been a minute")
	}
}
