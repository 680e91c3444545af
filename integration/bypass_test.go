package integration_test

import (
	"fmt"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission/boost"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// label sets a label of the TrainJob.
func (h *harness) label(name, value string) {
	h.t.Helper()
	job := h.trainJob("job")
	metav1.SetMetaDataLabel(&job.ObjectMeta, name, value)
	h.update(job)
}

// TestNoPriorityClass holds that a priority class that doesn't exist keeps nothing from being evicted or finished.
func TestNoPriorityClass(t *testing.T) {
	high := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 100}
	running := func(t *testing.T, h *harness) *jobset.JobSet {
		h.create(high.DeepCopy())
		job := newTrainJob("job")
		job.Labels[constants.WorkloadPriorityClassLabel] = "high"
		h.create(job)
		h.settle("job")
		h.admit()
		h.clock.Step(31 * time.Second)
		if h.settle("job"); h.suspended("job") {
			t.Fatal("it was not started")
		}
		js := h.build("job")
		h.label(constants.WorkloadPriorityClassLabel, "nonesuch")
		return js
	}
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		running(t, h)
		h.evict(kueue.WorkloadEvictedByPreemption)
		if h.settle("job"); !h.suspended("job") || h.workload().Spec.PriorityClassRef.Name != "high" {
			t.Errorf("it is evicted, and keeps its priority: got %v", h.workload().Spec.PriorityClassRef)
		}
	})
	t.Run("ended", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.remove(running(t, h))
		h.end("job", trainerapi.TrainJobComplete)
		if h.settle("job"); !workloadfinish.IsFinished(h.workload()) {
			t.Error("its quota is free")
		}
	})
	t.Run("new", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		job := newTrainJob("job")
		job.Labels[constants.WorkloadPriorityClassLabel] = "high"
		h.create(job)
		if h.settle("job"); len(h.workloads()) > 0 || h.blocked("job") != integration.ReasonNoPriorityClass {
			t.Fatalf("it says why it isn't queued: got %q", h.blocked("job"))
		}
		if result, err := h.reconcile("job"); err != nil || result.RequeueAfter == 0 {
			t.Errorf("it is looked at again: got %v, %v", result, err)
		}
		h.create(high.DeepCopy())
		if h.settle("job"); h.blocked("job") != "" || h.workload().Spec.PriorityClassRef.Name != "high" {
			t.Errorf("it is queued: got %q", h.blocked("job"))
		}
	})
}

// TestPriorityClassDeleted holds that a TrainJob says so that can't get the Workload that it needs.
func TestPriorityClassDeleted(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	high := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 100}
	h.create(high)
	job := newTrainJob("job")
	job.Labels[constants.WorkloadPriorityClassLabel] = "high"
	h.create(job)
	h.settle("job")
	h.remove(high)
	if h.settle("job"); h.blocked("job") != "" {
		t.Fatalf("its Workload stands for it: got %q", h.blocked("job"))
	}
	job = h.trainJob("job")
	job.Spec.Trainer.NumNodes = ptr.To[int32](3)
	h.update(job)
	if h.settle("job"); h.blocked("job") != integration.ReasonNoPriorityClass {
		t.Errorf("another can't be made: got %q", h.blocked("job"))
	}
}

// TestPrebuiltKeepsQuota holds that a prebuilt Workload needs neither the class of the TrainJob nor its queue.
func TestPrebuiltKeepsQuota(t *testing.T) {
	for _, label := range []string{constants.WorkloadPriorityClassLabel, constants.QueueLabel} {
		t.Run(label, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.queue()
			h.admit()
			wl := h.workload()
			wl.OwnerReferences = nil
			h.update(wl)
			h.label(constants.PrebuiltWorkloadLabel, wl.Name)
			h.label(label, "nonesuch")
			h.clock.Step(11 * time.Second)
			h.settle("job")
			h.clock.Step(11 * time.Second)
			if h.settle("job"); !workload.HasQuotaReservation(h.workload()) || h.suspended("job") {
				t.Errorf("it runs on its quota: got %v, blocked %q", h.workload().Status.Conditions, h.blocked("job"))
			}
		})
	}
}

// TestPrebuiltBoost holds that a prebuilt Workload brings no boost, nor what was written of one: whoever made it may
// have set both while another object controlled it.
func TestPrebuiltBoost(t *testing.T) {
	for name, origin := range map[string]string{"a user's": "", "one that says that MultiKueue has made it": "origin"} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, tenMinutes)
			prebuilt := h.fromOrigin(h.podSets())
			prebuilt.Annotations = map[string]string{boost.Annotation: "1000", "example.com/any": "1",
				boost.MarkAnnotation: "3 2099-01-01T00:00:00Z"}
			h.update(prebuilt)
			h.label(kueue.MultiKueueOriginLabel, origin)
			h.settle("job")
			wl := h.workload()
			if value, mark := h.boosted(); value+mark != "" || !metav1.IsControlledBy(wl, h.trainJob("job")) ||
				wl.Annotations["example.com/any"] != "1" {
				t.Errorf("got %v, %v", wl.Annotations, wl.OwnerReferences)
			}
			h.admit()
			h.clock.Step(11 * time.Second)
			h.settle("job")
			h.wantBoost("4")
		})
	}
}

// TestOtherQueueWhileDeactivated holds that another queue doesn't undo what an admin has stopped.
func TestOtherQueueWhileDeactivated(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	pod := h.pod(js)
	wl := h.workload()
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, api.DeactivateAnnotation, "admin")
	h.update(wl)
	h.settle("job")
	h.label(constants.QueueLabel, "other")
	h.settle("job")
	h.remove(pod)
	h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
	h.remove(js)
	h.reconcile("job")
	if h.settle("job"); workload.IsActive(h.workload()) || !h.suspended("job") {
		t.Errorf("it stays stopped: got %v", h.workload().Spec)
	}
}

// TestReclaimedRunsAgain holds that pods whose quota was given back don't run again on the same admission.
func TestReclaimedRunsAgain(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	rt := &api.ClusterTrainingRuntime{}
	h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "torch"}, rt))
	first := jobset.ReplicatedJob{Name: "first", Replicas: 1}
	eight := corev1.ResourceList{gpu: resource.MustParse("8")}
	first.Template.Spec.Template.Spec.Containers = []corev1.Container{{
		Name: "first", Image: "example.com/first:1", Resources: corev1.ResourceRequirements{Requests: eight, Limits: eight}}}
	then := node()
	then.DependsOn = []jobset.DependsOn{{Name: "first", Status: jobset.DependencyComplete}}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{first, then}
	h.update(rt)
	h.queue()
	wl := h.workload()
	assignment := func(name kueue.PodSetReference, gpus string) kueue.PodSetAssignment {
		return kueue.PodSetAssignment{Name: name, Count: ptr.To[int32](1),
			Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a"},
			ResourceUsage: corev1.ResourceList{gpu: resource.MustParse(gpus)}}
	}
	workload.SetQuotaReservation(wl, &kueue.Admission{ClusterQueue: "queue",
		PodSetAssignments: []kueue.PodSetAssignment{assignment("first", "8"), assignment("node", "1")}}, h.clock)
	workload.SyncAdmittedCondition(wl, h.clock.Now())
	h.updateStatus(wl)
	h.clock.Step(11 * time.Second)
	h.settle("job")
	js := h.build("job")
	js.Spec.ReplicatedJobs = rt.Spec.Template.Spec.ReplicatedJobs
	h.update(js)
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{
		{Name: "first", Succeeded: 1}, {Name: "node", Active: 1, Ready: 1}}
	h.updateStatus(js)
	if h.settle("job"); h.suspended("job") || len(h.workload().Status.ReclaimablePods) != 1 {
		t.Fatalf("the quota of the first is given back: got %v", h.workload().Status.ReclaimablePods)
	}
	uid := h.workload().UID
	job := h.trainJob("job")
	job.Spec.Suspend = ptr.To(true) // as after the loss of a node
	h.update(job)
	h.remove(js)
	h.settle("job")
	h.clock.Step(time.Minute)
	if h.settle("job"); !h.suspended("job") {
		t.Fatal("the first would run again, and Kueue doesn't count it")
	}
	if wl := h.workload(); wl.UID == uid || workload.HasQuotaReservation(wl) {
		t.Error("it is queued again")
	}
}

// TestOtherQueue holds that a Workload with quota of one queue doesn't stand for a TrainJob in another.
func TestOtherQueue(t *testing.T) {
	for _, admitted := range []bool{true, false} {
		t.Run(fmt.Sprintf("admitted %t", admitted), func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.queue()
			wl := h.workload()
			one := kueue.PodSetAssignment{
				Name: "node", Count: ptr.To[int32](1), ResourceUsage: corev1.ResourceList{gpu: resource.MustParse("1")},
			}
			workload.SetQuotaReservation(wl, &kueue.Admission{
				ClusterQueue: "queue", PodSetAssignments: []kueue.PodSetAssignment{one}}, h.clock)
			if admitted {
				workload.SyncAdmittedCondition(wl, h.clock.Now())
			}
			h.updateStatus(wl)
			h.label(constants.QueueLabel, "other")
			h.clock.Step(time.Minute)
			h.reconcile("job") // jobframework deletes the Workload, and has the TrainJob looked at again by an error
			if h.settle("job"); !h.suspended("job") {
				t.Error("it runs on the quota of the queue that it has left")
			}
			if wl := h.workload(); wl.Spec.QueueName != "other" || workload.HasQuotaReservation(wl) {
				t.Errorf("it is in its queue: got %v", wl.Spec.QueueName)
			}
		})
	}
}

// TestNoRoom holds that a TrainJob that has no room for the integration's entry isn't queued.
func TestNoRoom(t *testing.T) {
	for entries, reason := range map[int]string{overrides.MaxEntries - 1: "", overrides.MaxEntries: "LimitExceeded"} {
		h := newHarness(t, dialect.Bundled)
		job := newTrainJob("job")
		for i := range entries {
			job.Spec.RuntimePatches = append(job.Spec.RuntimePatches,
				trainerapi.RuntimePatch{Manager: fmt.Sprintf("example.com/%d", i)})
		}
		h.create(job)
		if h.settle("job"); h.blocked("job") != reason || (len(h.workloads()) == 0) != (reason != "") {
			t.Errorf("with %d entries: got %q, %d Workloads", entries, h.blocked("job"), len(h.workloads()))
		}
	}
}
