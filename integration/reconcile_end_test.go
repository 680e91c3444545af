package integration_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func TestFinishes(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		h.settle("job")
		h.end("job", trainerapi.TrainJobComplete)
		h.reconcile("job")
		if workloadfinish.IsFinished(h.workload()) {
			t.Fatal("a pod that lingers holds quota")
		}
		h.remove(pod)
		h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
		if h.reconcile("job"); !workloadfinish.IsFinished(h.workload()) {
			t.Fatalf("it has finished: got %v", h.sent)
		}
		if wl := h.workload(); !slices.Contains(wl.Finalizers, kueue.ResourceInUseFinalizerName) {
			t.Error("the finalizer goes later")
		}
		wl := h.workload()
		apimeta.RemoveStatusCondition(&wl.Status.Conditions, kueue.WorkloadFinished)
		h.updateStatus(wl)
		if result, err := h.reconcile("job"); err != nil || len(h.sent) > 0 || result.RequeueAfter == 0 {
			t.Errorf("the cache may be late: got %v, %v", h.sent, err)
		}
		h.clock.Step(11 * time.Second)
		if h.reconcile("job"); !workloadfinish.IsFinished(h.workload()) {
			t.Error("an end that was overwritten is declared again")
		}
		h.clock.Step(11 * time.Minute)
		h.reconcile("job")
		if wl := h.workload(); slices.Contains(wl.Finalizers, kueue.ResourceInUseFinalizerName) {
			t.Error("in the end the finalizer goes")
		}
	})
}

func TestTrainJobDeleted(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		for _, kept := range []bool{false, true} {
			h.must(h.store.DeleteAllOf(t.Context(), &kueue.Workload{}, client.InNamespace(team)))
			for _, wl := range h.workloads() {
				wl.Finalizers = nil
				h.update(&wl)
			}
			h.run()
			js := h.build("job")
			pod := h.pod(js)
			h.settle("job")
			if job := h.trainJob("job"); kept {
				job.Finalizers = []string{"example.com/mine"}
				h.update(job)
			}
			h.remove(h.trainJob("job"))
			h.remove(h.workload()) // as the garbage collector does
			if _, err := h.reconcile("job"); err != nil || len(h.workloads()) != 1 {
				t.Fatalf("kept %t: its quota is held until the last pod has ended: %v", kept, err)
			}
			h.remove(pod)
			h.remove(js)
			h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
			if _, err := h.reconcile("job"); err != nil || len(h.workloads()) != 0 {
				t.Fatalf("kept %t: then it goes: %v, %v", kept, err, h.sent)
			}
		}
	})
}

func TestEarlierTrainJob(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	pod := h.pod(js)
	h.settle("job")
	h.remove(h.trainJob("job"))
	earlier := h.workload()
	h.remove(earlier)
	h.create(newTrainJob("job"))
	there := func() bool {
		return slices.ContainsFunc(h.workloads(), func(wl kueue.Workload) bool { return wl.UID == earlier.UID })
	}
	for range 3 {
		if _, err := h.reconcile("job"); err != nil || !there() {
			t.Fatalf("the earlier one's pod runs: got %v, %v", h.sent, err)
		}
	}
	h.remove(pod)
	h.remove(js)
	h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
	if h.reconcile("job"); there() {
		t.Error("its Workload goes after it")
	}
}

func TestStaleCaches(t *testing.T) {
	t.Run("TrainJob", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.queue()
		h.admit()
		h.freeze("TrainJob", &api.TrainJobList{})
		h.reconcile("job")
		if h.suspended("job") {
			t.Fatal("it starts")
		}
		result, err := h.reconcile("job")
		if err != nil || len(h.sent) > 0 || result.RequeueAfter != time.Second {
			t.Errorf("nothing is decided on an older version: got %v, %v, %v", h.sent, result, err)
		}
	})
	t.Run("Workload", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.create(newTrainJob("job"))
		h.freeze("Workload", &kueue.WorkloadList{})
		h.reconcile("job")
		if _, err := h.reconcile("job"); err != nil || h.wrote("create Workload") > 0 || len(h.workloads()) != 1 {
			t.Errorf("its Workload is read from the API server: got %v, %v", h.sent, err)
		}
	})
	t.Run("JobSet", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		h.freeze("JobSet", &jobset.JobSetList{})
		h.jobSets.Attempted(client.ObjectKeyFromObject(h.trainJob("job")))
		h.build("job")
		h.evict(kueue.WorkloadEvictedByPreemption)
		h.reconcile("job")
		h.reconcile("job")
		if !workload.HasQuotaReservation(h.workload()) {
			t.Error("a JobSet that may be there holds quota")
		}
	})
}

func TestNoPods(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter == 0 {
		t.Fatalf("it is looked at again: %v, %v", result, err)
	}
	h.clock.Step(configapi.Default().Limits.PodsWithin.Duration)
	if _, err := h.reconcile("job"); err != nil || h.blocked("job") != admission.ReasonNoPods || !h.suspended("job") ||
		!slices.Contains(h.events, admission.ReasonNoPods) {
		t.Fatalf("what has no pods gives its quota back: got %q, %v, %v", h.blocked("job"), h.events, err)
	}
	h.reconcile("job")
	if result, err := h.reconcile("job"); err != nil || h.blocked("job") != admission.ReasonNoPods ||
		result.RequeueAfter == 0 {
		t.Errorf("and is kept out of its queue: got %q, %v, %v", h.blocked("job"), result, err)
	}
	h.clock.Step(7 * 24 * time.Hour)
	if h.settle("job"); h.blocked("job") != "" {
		t.Errorf("for a time: got %q", h.blocked("job"))
	}
}

// TestPodsLost holds that a TrainJob that has run for hours and loses all its pods has time for others, as after a
// start.
func TestPodsLost(t *testing.T) {
	within := configapi.Default().Limits.PodsWithin.Duration
	for name, c := range map[string]struct {
		lose  func(h *harness, js *jobset.JobSet)
		after time.Duration
	}{
		"with their node": {func(h *harness, js *jobset.JobSet) {
			js.Status.ReplicatedJobsStatus[0].Ready = 0
			h.updateStatus(js)
		}, within},
		"with their node, and one has failed": {func(h *harness, js *jobset.JobSet) {
			js.Status.ReplicatedJobsStatus[0].Ready = 0
			h.updateStatus(js)
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: js.Name + "-node-0"}}
			h.must(h.store.Get(h.t.Context(), client.ObjectKeyFromObject(job), job))
			job.Status.Failed = 1
			h.updateStatus(job)
		}, within + 10*time.Minute},
		"with their JobSet": {(*harness).collect, within},
	} {
		for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
			t.Run(name+" beside "+d.Name, func(t *testing.T) {
				h := newHarness(t, d)
				h.run()
				js := h.build("job")
				pod := h.pod(js)
				js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Ready: 1, Active: 1}}
				h.updateStatus(js)
				h.settle("job")
				h.clock.Step(2 * time.Hour)
				h.settle("job")
				h.remove(pod)
				c.lose(h, js)
				h.settle("job")
				h.clock.Step(c.after - time.Second)
				if h.settle("job"); h.suspended("job") || h.blocked("job") != "" {
					t.Fatalf("it has time for others: got %q", h.blocked("job"))
				}
				h.clock.Step(2 * time.Second)
				if h.settle("job"); !h.suspended("job") || h.blocked("job") != admission.ReasonNoPods {
					t.Errorf("not for ever: got %q", h.blocked("job"))
				}
			})
		}
	}
}

func TestReadsFail(t *testing.T) {
	broken := errors.New("the API server doesn't answer")
	for _, read := range []string{
		"get TrainJob", "list Workload", "get JobSet", "get Namespace", "get ClusterTrainingRuntime",
		"get ResourceFlavor",
	} {
		t.Run(read, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.queue()
			h.admit()
			h.fail[read] = broken
			if _, err := h.reconcile("job"); !errors.Is(err, broken) || !h.suspended("job") || h.wrote("patch TrainJob ") > 0 {
				t.Errorf("what can't be read starts nothing: got %v, %v", h.sent, err)
			}
			delete(h.fail, read)
			if h.settle("job"); h.suspended("job") {
				t.Error("it starts once it can be read")
			}
		})
	}
}
