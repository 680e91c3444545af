package integration_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TestMadeUpOwner holds that nothing is asked about an owner that a TrainJob's user has made up: jobframework would
// look for it in a cache that has no such kind, and wait forever.
func TestMadeUpOwner(t *testing.T) {
	for _, kind := range []string{"ReplicaSet", "Deployment", "Pod", "Unknown"} {
		for _, queued := range []bool{false, true} {
			h := newHarness(t, dialect.Bundled)
			h.fail["get "+kind] = errors.New("it is asked about a " + kind)
			job := newTrainJob("job")
			job.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: kind, Name: "any", UID: "any", Controller: ptr.To(true),
			}}
			if !queued {
				job.Labels = nil
			}
			answer := h.ask("/mutate-trainjob", "user", "", encoded(t, job))
			if !answer.Allowed {
				t.Errorf("%s: got %v", kind, answer.Result)
			}
			h.create(job)
			h.settle("job")
			if made := len(h.workloads()); (made == 1) != queued {
				t.Errorf("%s, queued %t: it has %d Workloads", kind, queued, made)
			}
		}
	}
}

// TestSecondWorkload holds that a Workload that another client makes for a TrainJob doesn't stand for it.
func TestSecondWorkload(t *testing.T) {
	for _, name := range []string{"a-first-by-name", "zz-last-by-name"} {
		h := newHarness(t, dialect.Bundled)
		h.run()
		first := h.workload()
		second := first.DeepCopy()
		second.ObjectMeta = metav1.ObjectMeta{Namespace: team, Name: name, OwnerReferences: first.OwnerReferences}
		second.Status = kueue.WorkloadStatus{}
		h.create(second)
		for range 3 {
			h.reconcile("job")
		}
		all := h.workloads()
		if len(all) != 1 || all[0].UID != first.UID || !workload.IsAdmitted(&all[0]) || h.suspended("job") {
			t.Errorf("%s: got %d Workloads, suspended %t", name, len(all), h.suspended("job"))
		}
	}
}

// TestElasticAnnotation holds that the annotation of elastic jobs makes no TrainJob one, whenever it is added.
func TestElasticAnnotation(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	job := newTrainJob("job")
	job.Annotations = map[string]string{"kueue.x-k8s.io/elastic-job": "true"}
	h.create(job)
	h.settle("job")
	h.admit()
	h.clock.Step(31 * time.Second)
	if h.settle("job"); h.suspended("job") {
		t.Fatal("it starts as any other")
	}
	h.evict(kueue.WorkloadEvictedByPreemption)
	if h.settle("job"); !h.suspended("job") || workload.HasQuotaReservation(h.workload()) {
		t.Error("it is stopped as any other")
	}
}

// TestStepsWithoutPods holds that each step of a TrainJob has limits.podsWithin for its pods, and that it must have all
// of them.
func TestStepsWithoutPods(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	second := node()
	second.Name, second.DependsOn = "second", []jobset.DependsOn{{Name: "node", Status: jobset.DependencyComplete}}
	second.Template.Spec.Parallelism = ptr.To[int32](2)
	js.Spec.ReplicatedJobs = append(js.Spec.ReplicatedJobs, second)
	h.update(js)
	pod := h.pod(js)
	h.clock.Step(time.Hour)
	if h.settle("job"); h.suspended("job") {
		t.Fatal("the second waits for the first")
	}
	pod.Status.Phase = corev1.PodSucceeded
	h.updateStatus(pod)
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Succeeded: 1}}
	h.updateStatus(js)
	one := pod.DeepCopy()
	one.ObjectMeta = metav1.ObjectMeta{Namespace: team, Name: "job-second-0-0", Labels: map[string]string{
		jobset.JobSetNameKey: "job", jobset.JobSetUIDKey: string(js.UID), jobset.ReplicatedJobNameKey: "second"}}
	one.Status.Phase = corev1.PodRunning
	h.create(one)
	h.settle("job")
	h.clock.Step(4 * time.Minute)
	if h.settle("job"); h.suspended("job") {
		t.Fatal("it has five minutes")
	}
	h.clock.Step(2 * time.Minute)
	h.settle("job")
	c := conditionOf(h.trainJob("job"), api.ConditionBlocked)
	if !h.suspended("job") || c == nil || c.Reason != admission.ReasonNoPods ||
		!strings.Contains(c.Message, "1 of the 2 pods of ReplicatedJob second") {
		t.Errorf("its quota is held by one of two pods: got %+v", c)
	}
}

// TestForeignPods holds that pods of a TrainJob's name that never were its own keep it from nothing.
func TestForeignPods(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	forged := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "forged", Labels: map[string]string{
		jobset.JobSetNameKey: "job", jobset.JobSetUIDKey: "made-up"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job-node-0", UID: "made-up",
			Controller: ptr.To(true)}}}}
	forged.Spec.NodeName = "node"
	h.create(forged)
	h.queue()
	h.admit()
	if h.settle("job"); h.suspended("job") {
		t.Error("it is queued and starts")
	}
}
