package integration_test

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// finish ends the only Workload, as Kueue copies it from a worker.
func (h *harness) finish(reason, message string) {
	h.t.Helper()
	wl := h.workload()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadFinished,
		Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(h.clock.Now())})
	h.updateStatus(wl)
}

// reserve gives the only Workload quota, and leaves its admission check in a state.
func (h *harness) reserve(state kueue.CheckState, message string) {
	h.t.Helper()
	wl := h.workload()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadQuotaReserved,
		Status: metav1.ConditionTrue, Reason: "QuotaReserved", Message: "Quota reserved",
		LastTransitionTime: metav1.NewTime(h.clock.Now())})
	wl.Status.Admission = &kueue.Admission{ClusterQueue: "away"}
	wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "multikueue", State: state, Message: message}}
	h.updateStatus(wl)
}

// deactivate evicts the only Workload as Kueue does if an admission check is rejected.
func (h *harness) deactivate(message string) {
	h.t.Helper()
	wl := h.workload()
	wl.Spec.Active = ptr.To(false)
	h.update(wl)
	wl = h.workload()
	wl.Status.Admission = nil
	for kind, status := range map[string]metav1.ConditionStatus{
		kueue.WorkloadEvicted: metav1.ConditionTrue, kueue.WorkloadQuotaReserved: metav1.ConditionFalse,
		kueue.WorkloadAdmitted: metav1.ConditionFalse,
	} {
		apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kind, Status: status,
			Reason: kueue.WorkloadDeactivated, Message: message, LastTransitionTime: metav1.NewTime(h.clock.Now())})
	}
	h.updateStatus(wl)
}

// TestDispatchedSaysWhy holds that a dispatched TrainJob has a state in the cluster that it is from, and a condition
// with the reason, whatever keeps it from running in a worker.
func TestDispatchedSaysWhy(t *testing.T) {
	const rejected = "The workload is deactivated due to Admission check(s): [multikueue]. Previously: Pending"
	lost := &kueue.MultiKueueCluster{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	lost.Status.Conditions = []metav1.Condition{{Type: kueue.MultiKueueClusterActive, Status: metav1.ConditionFalse,
		Message: "connection refused"}}
	for name, c := range map[string]struct {
		happens    func(*harness)
		state      api.TrainJobState
		kind, says string
	}{
		"it waits for quota": {func(*harness) {}, api.StateQueued, api.ConditionQuotaReserved, "waits in LocalQueue away"},
		"no worker has room": {func(h *harness) { h.reserve(kueue.CheckStatePending, "") }, api.StateQuotaReserved,
			api.ConditionAdmitted, "admission check multikueue is Pending: no worker has admitted it"},
		"no worker can be reached": {func(h *harness) { h.create(lost.DeepCopy()); h.reserve(kueue.CheckStatePending, "") },
			api.StateQuotaReserved, api.ConditionAdmitted, "cluster worker can't be reached: connection refused"},
		"its check is rejected": {func(h *harness) { h.deactivate(rejected) }, api.StateBlocked, api.ConditionBlocked,
			"Admission check(s): [multikueue]"},
		"rejected after it had quota": {func(h *harness) {
			h.reserve(kueue.CheckStateRejected, "No multikueue adapter found")
			h.deactivate(rejected)
		}, api.StateBlocked, api.ConditionBlocked, "No multikueue adapter found"},
		"rejected after it had run": {func(h *harness) {
			h.admit()
			h.settle("job")
			h.runsAway(1)
			h.runsAway(0)
			h.deactivate(rejected)
		}, api.StateBlocked, api.ConditionBlocked, "set spec.active of Workload"},
		"the runtimes differ": {func(h *harness) { h.reserve("", ""); h.finish("RuntimesDiffer", "here, image differs") },
			api.StateBlocked, api.ConditionBlocked, "here, image differs"},
		"a worker can't start it": {func(h *harness) {
			h.admit()
			h.settle("job")
			h.finish("FailedToStart", "nodeSelector[gpu] conflicts")
		}, api.StateBlocked, api.ConditionBlocked, "nodeSelector[gpu] conflicts"},
		"its worker is lost": {func(h *harness) {
			h.create(lost.DeepCopy())
			h.admit()
			h.settle("job")
			h.runsAway(1)
			h.evict(kueue.WorkloadEvictedByAdmissionCheck)
		}, api.StateQueued, api.ConditionEvicted, "evicted"},
	} {
		t.Run(name, func(t *testing.T) {
			h := withMultiKueue(t, true)
			h.create(away("away"))
			h.settle("job")
			c.happens(h)
			h.pass(time.Minute)
			job := h.trainJob("job")
			said := conditionOf(job, c.kind)
			if job.Status.State != c.state || said == nil || !strings.Contains(said.Message, c.says) {
				t.Errorf("got state %q and %+v, want %s and %s that says %q", job.Status.State, job.Status.Conditions, c.state,
					c.kind, c.says)
			}
			h.start(dialect.Bundled, func(c *configapi.Configuration) { c.Kueue.MultiKueue = new(true) })
			if h.settle("job"); h.trainJob("job").Status.State != c.state {
				t.Errorf("after a restart of the manager: %s", h.trainJob("job").Status.State)
			}
		})
	}
}

// TestDispatchedByNobody holds that nothing is written of a TrainJob that is MultiKueue's and in no queue.
func TestDispatchedByNobody(t *testing.T) {
	h := withMultiKueue(t, true)
	job := away("away")
	job.Labels, job.Spec.Suspend = nil, ptr.To(false)
	h.create(job)
	h.pass(time.Minute)
	if got := h.trainJob("job").Status.Conditions; len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

// TestDispatchedAgain holds that a TrainJob which a worker has refused is dispatched again when it has been corrected,
// and after an hour.
func TestDispatchedAgain(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"its runtime is corrected": func(h *harness) {
			rt := &api.ClusterTrainingRuntime{}
			h.must(h.store.Get(h.t.Context(), types.NamespacedName{Name: "torch"}, rt))
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "example.com/other:1"
			h.update(rt)
		},
		"it is stopped and resumed": func(h *harness) {
			h.annotate(api.StopAnnotation, "")
			h.settle("job")
			h.annotate(api.StopAnnotation, "-")
		},
		"its Workload is deleted": func(h *harness) { h.remove(h.workload()) },
		"an hour passes":          func(h *harness) { h.clock.Step(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			h := withMultiKueue(t, true)
			h.create(away("away"))
			h.settle("job")
			h.admit()
			h.settle("job")
			h.finish("RuntimesDiffer", "here, image differs")
			h.pass(time.Minute)
			before := h.workload().UID
			change(h)
			for range 5 {
				h.pass(time.Minute)
			}
			job := h.trainJob("job")
			if wl := h.workload(); wl.UID == before || job.Status.State != api.StateQueued || h.blocked("job") != "" {
				t.Errorf("it isn't queued again: %s, conditions %+v", job.Status.State, job.Status.Conditions)
			}
		})
	}
}

// annotate sets an annotation of TrainJob job; "-" removes it.
func (h *harness) annotate(key, value string) {
	h.t.Helper()
	job := h.trainJob("job")
	if value == "-" {
		delete(job.Annotations, key)
	} else {
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, key, value)
	}
	h.update(job)
}

// TestFailureEndsElsewhere holds that a dispatched TrainJob, whose status is Kueue's to write then, no longer says
// what has failed when nothing fails any more.
func TestFailureEndsElsewhere(t *testing.T) {
	h := withMultiKueue(t, true)
	h.create(away("away"))
	h.settle("job")
	h.admit()
	h.fail["list Workload"] = apierrors.NewServiceUnavailable("down")
	if h.pass(time.Minute); h.blocked("job") != integration.ReasonReconcileFailed {
		t.Fatalf("got %q", h.blocked("job"))
	}
	delete(h.fail, "list Workload")
	h.fail["patch TrainJob/status"] = apierrors.NewServiceUnavailable("down")
	h.pass(time.Minute)
	delete(h.fail, "patch TrainJob/status")
	if h.pass(time.Minute); h.blocked("job") != "" {
		t.Errorf("got %q", h.blocked("job"))
	}
}
