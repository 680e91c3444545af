package integration_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

func TestStopOverdue(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	pod := h.pod(js)
	pod.Finalizers = []string{"example.com/mine"}
	h.update(pod)
	h.settle("job")
	h.remove(pod)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settle("job")
	h.clock.Step(2 * time.Minute)
	events := h.settle("job")
	is := func() bool {
		return apimeta.IsStatusConditionTrue(h.trainJob("job").Status.Conditions, api.ConditionStopOverdue)
	}
	if !is() || !slices.Contains(events, "StopOverdue") {
		t.Errorf("a pod that runs on is said: got %v", events)
	}
	h.must(h.store.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	pod.Finalizers = nil
	h.update(pod)
	if h.settle("job"); is() {
		t.Error("until it has ended")
	}
}

func TestGated(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	pod := h.pod(js)
	pod.Spec.SchedulingGates, pod.Spec.NodeName = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}, ""
	h.update(pod)
	h.clock.Step(configapi.Default().Limits.PodsWithin.Duration)
	h.reconcile("job")
	if !h.suspended("job") || h.blocked("job") != admission.ReasonGated ||
		!slices.Contains(h.events, admission.ReasonGated) {
		t.Errorf("a pod that nothing schedules gives its quota back: got %q, %v", h.blocked("job"), h.events)
	}
}

func TestLastRunKept(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	js.Finalizers = []string{"example.com/mine"}
	h.update(js)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settle("job")
	h.remove(js)
	for range 3 {
		h.clock.Step(time.Minute)
		h.reconcile("job")
	}
	if h.blocked("job") != integration.ReasonLastRunKept {
		t.Errorf("a JobSet that a finalizer keeps holds no quota: got %q", h.blocked("job"))
	}
}

func TestAnotherTrainer(t *testing.T) {
	for name, to := range map[string]*dialect.Dialect{"bundled": dialect.Bundled, "v2.3": dialect.Kubeflow23} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Kubeflow21)
			h.run()
			h.start(to)
			if _, err := h.reconcile("job"); err != nil || !h.suspended("job") {
				t.Fatalf("a start that the present Trainer knows nothing of is recalled: got %v, %v", h.sent, err)
			}
			migrated := false
			for range 5 {
				if _, err := h.reconcile("job"); err != nil {
					t.Fatal(err)
				}
				h.clock.Step(time.Minute)
				migrated = migrated || h.trainJob("job").Annotations[legacy.RecordAnnotation] == ""
			}
			if !migrated {
				t.Error("what it said to the Trainer of before is brought to the present one")
			}
		})
	}
}

// TestMigrationRejected holds that quota isn't held by a TrainJob of which the API server rejects what its start waits
// for.
func TestMigrationRejected(t *testing.T) {
	h := newHarness(t, dialect.Kubeflow21)
	h.run()
	h.start(dialect.Bundled)
	h.reconcile("job")
	h.fail["patch TrainJob"] = invalid
	for range 6 {
		h.reconcile("job")
		h.clock.Step(20 * time.Second)
	}
	if got := h.blocked("job"); got != integration.ReasonStartRejected {
		t.Errorf("blocked %q, want %q", got, integration.ReasonStartRejected)
	}
}

func TestOutdatedJobSet(t *testing.T) {
	h := newHarness(t, dialect.Kubeflow23)
	h.queue()
	build := func() {
		js := h.build("job")
		js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Name = "other"
		h.update(js)
	}
	build()
	if h.reconcile("job"); h.wrote("delete JobSet") != 1 {
		t.Errorf("a JobSet of an earlier runtime is built anew: got %v", h.sent)
	}
	build()
	if h.reconcile("job"); h.wrote("delete JobSet") != 0 {
		t.Errorf("once: got %v", h.sent)
	}
}

func TestJobsOfLastAdmission(t *testing.T) {
	h := newHarness(t, dialect.Kubeflow23)
	h.run()
	h.evict(kueue.WorkloadEvictedByPreemption)
	for range 4 {
		h.clock.Step(time.Minute)
		h.reconcile("job")
	}
	js := h.build("job")
	h.remove(h.pod(js))
	child := jobOf()
	h.must(h.store.Get(t.Context(), client.ObjectKey{Namespace: team, Name: "job-node-0"}, child))
	child.Spec.Suspend = ptr.To(true)
	child.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "b"}
	h.update(child)
	wl := h.workload()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadEvicted,
		Status: metav1.ConditionFalse, Reason: "Requeued"})
	h.updateStatus(wl)
	h.admit()
	h.clock.Step(31 * time.Second)
	child.ResourceVersion = ""
	for range 2 { // JobSet, from a stale cache, may create it from the template of the last admission
		if _, err := h.reconcile("job"); err != nil || h.wrote("delete Job ") != 1 || !h.suspended("job") {
			t.Fatalf("a Job of the last admission is replaced first: got %v, %v", h.sent, err)
		}
		if _, err := h.reconcile("job"); err != nil || h.wrote("patch TrainJob ") > 0 || !h.suspended("job") {
			t.Fatalf("its successor has to exist: got %v, %v", h.sent, err)
		}
		h.create(child.DeepCopy())
	}
	h.clock.Step(10 * time.Second)
	if _, err := h.reconcile("job"); err != nil || h.wrote("delete Job ") != 0 || h.suspended("job") {
		t.Errorf("40 seconds after the admission it starts all the same: got %v, %v", h.sent, err)
	}
}

// Kubeflow Trainer or JobSet may see a start only after the stop, from a stale cache, and run pods until it sees the
// stop.
func TestStoppedSoonAfterStart(t *testing.T) {
	stop := func(t *testing.T) (*harness, *jobset.JobSet) {
		h := newHarness(t, dialect.Kubeflow23)
		h.run()
		js := h.build("job")
		js.Spec.Suspend = ptr.To(true)
		h.update(js)
		h.clock.Step(2 * time.Second)
		h.evict(kueue.WorkloadEvictedByPreemption)
		h.settle("job")
		if !h.suspended("job") || !workload.HasQuotaReservation(h.workload()) {
			t.Fatalf("it is stopped and keeps its quota: got %+v", h.workload().Status)
		}
		return h, js
	}
	t.Run("neither follows", func(t *testing.T) {
		h, _ := stop(t)
		h.clock.Step(17 * time.Second)
		if h.settle("job"); !workload.HasQuotaReservation(h.workload()) {
			t.Error("its quota is kept for 20 seconds after the start")
		}
		h.clock.Step(2 * time.Second)
		if h.settle("job"); workload.HasQuotaReservation(h.workload()) {
			t.Error("then nobody acts on the start any more")
		}
	})
	t.Run("both follow", func(t *testing.T) {
		h, js := stop(t)
		js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetSuspended), Status: metav1.ConditionTrue,
			Reason: "Suspended", LastTransitionTime: metav1.NewTime(h.clock.Now())}}
		h.updateStatus(js)
		if h.settle("job"); !workload.HasQuotaReservation(h.workload()) {
			t.Error("Trainer has not followed the start yet")
		}
		h.end("job", trainerapi.TrainJobSuspended)
		if h.settle("job"); workload.HasQuotaReservation(h.workload()) {
			t.Error("both have followed the start, and its stop")
		}
	})
}

// TestInvalidOverridesNeedNoRuntime holds that overrides that can't be migrated are reported whatever the runtime is.
func TestInvalidOverridesNeedNoRuntime(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	job := newTrainJob("job")
	job.Annotations = map[string]string{legacy.RecordAnnotation: "{"}
	h.create(job)
	h.fail["get ClusterTrainingRuntime"] = errors.New("it doesn't answer")
	if _, err := h.reconcile("job"); err != nil || h.blocked("job") != integration.ReasonInvalidOverrides {
		t.Errorf("got %v, %q", err, h.blocked("job"))
	}
}
