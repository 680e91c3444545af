package integration_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TestRefusedAgain holds that a TrainJob that a worker refuses whenever it is dispatched is dispatched three times at
// most in an hour, and once an hour then.
func TestRefusedAgain(t *testing.T) {
	h := withMultiKueue(t, true)
	h.create(away("away"))
	refused := 0
	for n := range 120 { // minutes
		h.label("n", fmt.Sprint(n))
		h.pass(time.Minute)
		if h.waitsForAdmission() {
			h.reserve(kueue.CheckStateReady, "")
			h.finish("RuntimesDiffer", "here, image differs")
			refused++
		}
	}
	if refused < 3 || refused > 5 {
		t.Errorf("dispatched %d times in two hours", refused)
	}
}

// TestFinishedWorkloadsDeleted holds that a TrainJob that can't be started is tried less and less often where Kueue
// deletes finished Workloads by itself (objectRetentionPolicies), as if its user asked for that.
func TestFinishedWorkloadsDeleted(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	job := newTrainJob("job")
	job.Spec.RuntimePatches = selecting("b")
	h.create(job)
	admitted := 0
	for range 3 * 240 {
		h.reconcile("job")
		if h.waitsForAdmission() {
			h.admit()
			admitted++
		}
		for _, wl := range h.workloads() {
			if workloadfinish.IsFinished(&wl) {
				h.remove(&wl)
			}
		}
		h.clock.Step(15 * time.Second)
	}
	if admitted < 3 || admitted > 10 {
		t.Errorf("admitted %d times in three hours", admitted)
	}
}

// TestTrainersBlockedStays holds that what the bundled Trainer says of a started TrainJob without a JobSet stays until
// there is one: it would say so again at once.
func TestTrainersBlockedStays(t *testing.T) {
	for _, queued := range []bool{true, false} {
		t.Run(fmt.Sprint("queued ", queued), func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			if queued {
				h.run()
			} else {
				job := newTrainJob("job")
				job.Labels, job.Spec.Suspend = nil, ptr.To(false)
				h.create(job)
			}
			job := h.trainJob("job")
			job.Status.Conditions = append(job.Status.Conditions, metav1.Condition{Type: api.ConditionBlocked,
				Status: metav1.ConditionTrue, Reason: "GangsUnavailable", LastTransitionTime: metav1.NewTime(h.clock.Now())})
			h.updateStatus(job)
			h.pass(time.Minute)
			if h.blocked("job") != "GangsUnavailable" {
				t.Errorf("without a JobSet: %q", h.blocked("job"))
			}
			h.pod(h.build("job"))
			if h.pass(time.Minute); h.blocked("job") != "" {
				t.Errorf("with a JobSet: %q", h.blocked("job"))
			}
		})
	}
}

// TestMismatchOfStaleWorkload holds that a Workload counts once as one that was admitted for something else, however
// often a cache shows it.
func TestMismatchOfStaleWorkload(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.queue()
	h.admit(usesNothing)
	h.freeze("Workload", &kueue.WorkloadList{})
	for range 3 {
		h.reconcile("job")
		h.clock.Step(time.Second)
	}
	h.thaw("Workload")
	h.settle("job")
	if h.blocked("job") != "" || len(h.workloads()) != 1 {
		t.Fatalf("got %q, %d Workloads", h.blocked("job"), len(h.workloads()))
	}
	h.admit()
	if h.settle("job"); h.suspended("job") {
		t.Errorf("it starts: %q", h.blocked("job"))
	}
}

// TestClearRejectedOnce holds that what is rejected before a start is tried again after ten seconds, as a start is.
func TestClearRejectedOnce(t *testing.T) {
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
		t.Run(d.Name, func(t *testing.T) {
			h := newHarness(t, d)
			h.run()
			h.evict(kueue.WorkloadEvictedByPreemption)
			if _, err := h.reconcile("job"); err != nil {
				t.Fatal(err)
			}
			if d != dialect.Bundled {
				h.clock.Step(time.Minute)
			}
			h.fail["patch TrainJob"] = invalid
			failed := 0
			for range 5 {
				if _, err := h.reconcile("job"); err != nil {
					failed++
				}
			}
			if failed == 0 || neutral(d, h.trainJob("job")) {
				t.Fatal("its entry is to be cleared")
			}
			delete(h.fail, "patch TrainJob")
			h.clock.Step(15 * time.Second)
			h.settle("job")
			if h.blocked("job") != "" || !neutral(d, h.trainJob("job")) {
				t.Errorf("got %q after %d failures", h.blocked("job"), failed)
			}
		})
	}
}

// TestStartedWithoutAnAnswer holds that a start whose answer was lost ends a setback, too.
func TestStartedWithoutAnAnswer(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.queue()
	h.admit()
	h.fail["patch TrainJob"] = invalid
	h.reconcile("job")
	h.reconcile("job")
	delete(h.fail, "patch TrainJob")
	h.clock.Step(11 * time.Second)
	h.lose["patch TrainJob"] = errors.New("the connection is lost")
	h.reconcile("job")
	delete(h.lose, "patch TrainJob")
	h.clock.Step(2 * time.Minute)
	if h.settle("job"); h.suspended("job") {
		t.Fatal("it was started")
	}
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settle("job")
	h.clock.Step(time.Minute)
	h.settle("job")
	h.admit()
	h.fail["patch TrainJob"] = invalid
	h.reconcile("job")
	delete(h.fail, "patch TrainJob")
	h.clock.Step(11 * time.Second)
	if h.settle("job"); h.suspended("job") {
		t.Errorf("what has failed before a start isn't counted after it: %q", h.blocked("job"))
	}
}

// TestUnqueuedIsNotBlocked holds that a TrainJob that was blocked, has left its queue and runs doesn't say that it is
// blocked.
func TestUnqueuedIsNotBlocked(t *testing.T) {
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
		t.Run(d.Name, func(t *testing.T) {
			h := newHarness(t, d)
			job := newTrainJob("job")
			job.Spec.RuntimePatches = selecting("b")
			h.create(job)
			h.settle("job")
			h.admit()
			h.clock.Step(time.Minute)
			h.settle("job")
			if h.blocked("job") != "FailedToStart" {
				t.Fatalf("got %q", h.blocked("job"))
			}
			job = h.trainJob("job")
			delete(job.Labels, constants.QueueLabel)
			h.update(job)
			h.settle("job")
			job = h.trainJob("job")
			job.Spec.Suspend = ptr.To(false)
			h.update(job)
			h.settle("job")
			h.pod(h.build("job"))
			h.settle("job")
			if h.blocked("job") != "" {
				t.Errorf("it runs: %q", h.blocked("job"))
			}
		})
	}
}

// TestPartOfAnotherElsewhere holds that a TrainJob that runs in another cluster is queued whoever controls it here: its
// copy there has no owners.
func TestPartOfAnotherElsewhere(t *testing.T) {
	h := withMultiKueue(t, true)
	owner := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "launcher",
		Labels: map[string]string{constants.QueueLabel: "queue"}}}
	h.create(owner)
	job := away("away")
	job.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
		batchv1.SchemeGroupVersion.WithKind("Job"))}
	h.create(job)
	if h.settle("job"); h.blocked("job") != "" || len(h.workloads()) != 1 {
		t.Errorf("got %q, %d Workloads", h.blocked("job"), len(h.workloads()))
	}
}
