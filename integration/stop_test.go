package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// tooLarge is how the API server rejects what etcd doesn't store.
var tooLarge = apierrors.NewInternalError(errors.New("etcdserver: request is too large"))

// invalid is how a webhook or a CRD rejects a TrainJob.
var invalid = apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, "job", errors.New("no"))

// TestStopRejected holds that a TrainJob that can't be written is stopped all the same, and gives its quota back: its
// labels may have filled it.
func TestStopRejected(t *testing.T) {
	for name, rejection := range map[string]error{"too large": tooLarge, "by a webhook": invalid} {
		for how, stop := range map[string]func(*harness){
			"preempted":   func(h *harness) { h.evict(kueue.WorkloadEvictedByPreemption) },
			"deactivated": deactivate,
			"its Workload deleted": func(h *harness) {
				h.remove(h.workload())
			},
			"stopped by its user": func(h *harness) {
				job := h.trainJob("job")
				metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StopAnnotation, "")
				h.update(job)
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				h := newHarness(t, dialect.Bundled)
				h.run()
				js := h.build("job")
				js.Finalizers = []string{metav1.FinalizerDeleteDependents}
				h.update(js)
				pod := h.pod(js)
				stop(h)
				h.fail["patch TrainJob"] = rejection
				if _, err := h.reconcile("job"); err == nil || !slices.Contains(h.sent, "delete JobSet job") {
					t.Fatalf("its JobSet is deleted: got %v, %v", h.sent, err)
				}
				h.clock.Step(2 * time.Minute)
				if h.reconcile("job"); len(h.workloads()) != 1 || !workload.HasQuotaReservation(h.workload()) {
					t.Fatal("its pod holds its quota")
				}
				h.remove(pod)
				h.collect(js)
				for range 3 {
					h.reconcile("job")
				}
				if all := h.workloads(); len(all) > 0 && workload.HasQuotaReservation(&all[0]) &&
					!workloadfinish.IsFinished(&all[0]) {
					t.Fatalf("nothing runs: got %+v", all[0].Status.Conditions)
				}
				delete(h.fail, "patch TrainJob")
				if h.settle("job"); !h.suspended("job") {
					t.Error("it is suspended once it can be")
				}
			})
		}
	}
}

func deactivate(h *harness) {
	wl := h.workload()
	wl.Annotations = map[string]string{api.DeactivateAnnotation: "admin"}
	h.update(wl)
}

// TestStartRejected holds that a start that is rejected is repeated after longer and longer times, without quota, and
// at once when the TrainJob is another.
func TestStartRejected(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.queue()
	h.fail["patch TrainJob"] = invalid
	tried := 0
	for range 240 { // minutes
		if wl := h.workload(); !workload.HasQuotaReservation(wl) && !workload.IsOnHold(wl) {
			h.admit()
		}
		for range 3 {
			h.reconcile("job")
			tried += h.wrote("patch TrainJob job")
		}
		h.clock.Step(time.Minute)
	}
	if tried < 3 || tried > 20 {
		t.Errorf("it was tried %d times in four hours", tried)
	}
	if h.blocked("job") != integration.ReasonStartRejected || workload.HasQuotaReservation(h.workload()) {
		t.Errorf("its quota is free meanwhile, and a condition says why: got %q", h.blocked("job"))
	}
	delete(h.fail, "patch TrainJob")
	h.label("mended", "true")
	h.settle("job")
	h.clock.Step(10 * time.Second) // for which it says why its last start has failed
	if h.settle("job"); h.blocked("job") != "" {
		t.Errorf("it is another: got %q", h.blocked("job"))
	}
	h.admit()
	if h.settle("job"); h.suspended("job") {
		t.Error("it starts")
	}
}

// TestPodsThatNeedNoOthers holds that a TrainJob runs on of which pods are gone that no Job replaces: those that have
// succeeded are deleted with their node, or by the garbage collector of pods, and a failed index has none.
func TestPodsThatNeedNoOthers(t *testing.T) {
	for name, c := range map[string]struct {
		status  batchv1.JobStatus
		stopped bool
	}{
		"one has succeeded":   {batchv1.JobStatus{Active: 1, Succeeded: 1}, false},
		"an index has failed": {batchv1.JobStatus{Active: 1, Failed: 1, FailedIndexes: ptr.To("1")}, false},
		"indexes have failed": {batchv1.JobStatus{Active: 1, Failed: 9, FailedIndexes: ptr.To("1,3-5")}, false},
		"one terminates":      {batchv1.JobStatus{Active: 1, Terminating: ptr.To[int32](1)}, false},
		"one was never made":  {batchv1.JobStatus{Active: 1}, true},
		"one has failed":      {batchv1.JobStatus{Active: 1, Failed: 1}, true},
	} {
		for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
			t.Run(name+" beside "+d.Name, func(t *testing.T) {
				h := newHarness(t, d)
				h.run()
				js := h.build("job")
				js.Spec.ReplicatedJobs[0].Template.Spec.Parallelism = ptr.To[int32](2)
				js.Spec.ReplicatedJobs[0].Template.Spec.Completions = ptr.To[int32](2)
				h.update(js)
				h.pod(js) // of two
				job := jobOf()
				h.must(h.store.Get(t.Context(), types.NamespacedName{Namespace: team, Name: "job-node-0"}, job))
				job.Status = c.status
				job.Status.StartTime = &metav1.Time{Time: h.clock.Now()}
				h.updateStatus(job)
				for range 20 { // podsWithin, and the ten minutes of a pod that has failed
					h.settle("job")
					h.clock.Step(time.Minute)
				}
				want := ""
				if c.stopped {
					want = admission.ReasonNoPods
				}
				if h.suspended("job") != c.stopped || h.blocked("job") != want {
					t.Errorf("suspended %t, blocked %q, want %q", h.suspended("job"), h.blocked("job"), want)
				}
			})
		}
	}
}

// TestStopsOnQuotaAlone holds that a TrainJob that holds quota, and whose queue Kueue manages no more, is stopped by
// its annotation as any other: nothing else releases the quota while it runs.
func TestStopsOnQuotaAlone(t *testing.T) {
	for name, leave := range map[string]func(*harness){
		"its label is gone": func(h *harness) {
			job := h.trainJob("job")
			delete(job.Labels, constants.QueueLabel)
			h.update(job)
		},
		"its namespace isn't selected": func(h *harness) {
			h.start(dialect.Bundled, func(c *configapi.Configuration) {
				c.Kueue.ManagedJobsNamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"none": "has"}}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.run()
			js := h.build("job")
			h.pod(js)
			h.settle("job")
			leave(h)
			if h.settle("job"); h.suspended("job") || !workload.HasQuotaReservation(h.workload()) {
				t.Fatal("it runs on")
			}
			job := h.trainJob("job")
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StopAnnotation, "me")
			h.update(job)
			if h.settle("job"); !h.suspended("job") {
				t.Error("it is stopped")
			}
			h.gone(js)
			h.settleN(3)
			if left := h.workloads(); len(left) > 0 {
				t.Errorf("its quota is free: got %v", left[0].Status.Conditions)
			}
		})
	}
}

// TestKeptChildren holds that what others keep from being deleted holds no quota once nothing of it runs, and lets pods
// run on no longer.
func TestKeptChildren(t *testing.T) {
	gone := func(h *harness) { h.remove(h.trainJob("job")) }
	t.Run("a JobSet of a deleted TrainJob", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		js.Finalizers = []string{"example.com/keep"}
		h.update(js)
		h.remove(js) // as the garbage collector does it in the background
		gone(h)
		h.reconcile("job")
		if !slices.Contains(h.sent, "delete JobSet job") {
			t.Fatalf("its pods would run on: got %v", h.sent)
		}
		h.clock.Step(time.Minute)
		if h.reconcile("job"); !workload.HasQuotaReservation(h.workload()) || workloadfinish.IsFinished(h.workload()) {
			t.Fatal("its pod runs")
		}
		h.remove(pod)
		h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
		h.reconcile("job")
		h.reconcile("job")
		if all := h.workloads(); len(all) > 0 && !workloadfinish.IsFinished(&all[0]) {
			t.Errorf("nothing runs: got %+v", all[0].Status.Conditions)
		}
	})
	t.Run("a Workload of a deleted TrainJob", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		wl := h.workload()
		wl.Finalizers = append(wl.Finalizers, "example.com/keep")
		h.update(wl)
		h.remove(wl)
		gone(h)
		h.reconcile("job")
		h.reconcile("job")
		if wl := h.workload(); !workloadfinish.IsFinished(wl) || slices.Contains(wl.Finalizers,
			kueue.ResourceInUseFinalizerName) {
			t.Errorf("Kueue counts it until it is finished: got %+v", wl.Status.Conditions)
		}
	})
	t.Run("a Workload", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		wl := h.workload()
		wl.Finalizers = append(wl.Finalizers, "example.com/keep")
		h.update(wl)
		h.remove(wl)
		h.settle("job")
		h.clock.Step(2 * time.Minute)
		h.settle("job")
		if wl := h.workload(); !workloadfinish.IsFinished(wl) || h.blocked("job") != integration.ReasonWorkloadKept {
			t.Errorf("its quota is free, and a condition names the finalizer: got %q, %+v", h.blocked("job"),
				wl.Status.Conditions)
		}
		if c := conditionOf(h.trainJob("job"), api.ConditionBlocked); c == nil || !strings.Contains(c.Message,
			"example.com/keep") {
			t.Errorf("got %+v", c)
		}
	})
	t.Run("a JobSet of a stopped TrainJob, by what names it as its owner", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		js.Finalizers = []string{metav1.FinalizerDeleteDependents}
		h.update(js)
		h.evict(kueue.WorkloadEvictedByPreemption)
		h.settle("job")
		h.remove(js)
		h.clock.Step(time.Minute)
		deleted := 0
		for range 3 {
			h.reconcile("job")
			deleted += h.wrote("delete JobSet")
		}
		if deleted == 0 || workload.HasQuotaReservation(h.workload()) {
			t.Errorf("its deletion doesn't wait for what may never go: got %d deletions", deleted)
		}
	})
	t.Run("a Job of a stopped TrainJob", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		job := jobOf()
		h.must(h.store.Get(t.Context(), types.NamespacedName{Namespace: team, Name: "job-node-0"}, job))
		job.Finalizers = []string{"example.com/keep"}
		h.update(job)
		h.evict(kueue.WorkloadEvictedByPreemption)
		h.settle("job")
		h.remove(pod)
		h.remove(job)
		h.remove(js)
		if h.settle("job"); workload.HasQuotaReservation(h.workload()) || h.blocked("job") != "" {
			t.Errorf("it has time to go: got %q", h.blocked("job"))
		}
		h.clock.Step(2 * time.Minute)
		if h.settle("job"); h.blocked("job") != integration.ReasonLastRunKept {
			t.Errorf("the Job's name is taken: got %q", h.blocked("job"))
		}
	})
}
