package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
)

// tooLarge is how the API server rejects what etcd doesn't store.
var tooLarge = apierrors.NewInternalError(errors.New("etcdserver: request is too large"))

// invalid is how a webhook or a CRD rejects a TrainJob.
var invalid = apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, "job", errors.New("no"))

// TestMadeUpOwner holds that nothing is asked about an owner that a TrainJob's user has made up: jobframework would look
// for it in a cache that has no such kind, and wait for ever.
func TestMadeUpOwner(t *testing.T) {
	for _, kind := range []string{"ReplicaSet", "Deployment", "Pod", "Unknown"} {
		for _, queued := range []bool{false, true} {
			h := newHarness(t, overrides.Bundled)
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
		"a wrong record":          annotate(overrides.RecordAnnotation, "{"),
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
			wl.Annotations = map[string]string{integration.DeactivateAnnotation: "admin"}
			h.update(wl)
		},
	}
	for name, change := range changes {
		for _, d := range []overrides.Dialect{overrides.Bundled, overrides.Kubeflow23} {
			t.Run(name+" beside "+d.Name(), func(t *testing.T) {
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

// TestNamespaceLeaves holds that a TrainJob that holds quota is managed until it is free, although its namespace isn't any
// more.
func TestNamespaceLeaves(t *testing.T) {
	t.Run("while it runs", func(t *testing.T) {
		h := newHarness(t, overrides.Bundled)
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
		h := newHarness(t, overrides.Bundled)
		h.queue()
		h.leaves()
		if h.settle("job"); len(h.workloads()) != 0 {
			t.Errorf("Kueue would admit it: got %+v", h.workloads()[0].Status)
		}
	})
	t.Run("while it is admitted", func(t *testing.T) {
		h := newHarness(t, overrides.Bundled)
		h.queue()
		h.admit()
		h.leaves()
		if h.settle("job"); len(h.workloads()) != 0 || !h.suspended("job") {
			t.Errorf("it doesn't start, and holds no quota: got %d Workloads", len(h.workloads()))
		}
	})
}

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
				h := newHarness(t, overrides.Bundled)
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
	wl.Annotations = map[string]string{integration.DeactivateAnnotation: "admin"}
	h.update(wl)
}

// TestStartRejected holds that a start that is rejected is repeated after longer and longer times, without quota, and at
// once when the TrainJob is another.
func TestStartRejected(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
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
	if h.settle("job"); h.blocked("job") != "" {
		t.Errorf("it is another: got %q", h.blocked("job"))
	}
	h.admit()
	if h.settle("job"); h.suspended("job") {
		t.Error("it starts")
	}
}

// TestEndNotWritten holds that the quota of a TrainJob whose JobSet has ended is free, although its Trainer doesn't write
// that.
func TestEndNotWritten(t *testing.T) {
	for _, d := range []overrides.Dialect{overrides.Bundled, overrides.Kubeflow23} {
		for end, reason := range map[jobset.JobSetConditionType]string{
			jobset.JobSetCompleted: kueue.WorkloadFinishedReasonSucceeded, jobset.JobSetFailed: kueue.WorkloadFinishedReasonFailed,
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

// TestKeptChildren holds that what others keep from being deleted holds no quota once nothing of it runs, and lets pods
// run on no longer.
func TestKeptChildren(t *testing.T) {
	gone := func(h *harness) { h.remove(h.trainJob("job")) }
	t.Run("a JobSet of a deleted TrainJob", func(t *testing.T) {
		h := newHarness(t, overrides.Bundled)
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
		h := newHarness(t, overrides.Bundled)
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
		h := newHarness(t, overrides.Bundled)
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
		h := newHarness(t, overrides.Bundled)
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
		h := newHarness(t, overrides.Bundled)
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

// TestSecondWorkload holds that a Workload that another client makes for a TrainJob doesn't stand for it.
func TestSecondWorkload(t *testing.T) {
	for _, name := range []string{"a-first-by-name", "zz-last-by-name"} {
		h := newHarness(t, overrides.Bundled)
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
	h := newHarness(t, overrides.Bundled)
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

// TestStepsWithoutPods holds that each step of a TrainJob has limits.podsWithin for its pods, and that it must have all of
// them.
func TestStepsWithoutPods(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
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
	if !h.suspended("job") || c == nil || c.Reason != integration.ReasonNoPods ||
		!strings.Contains(c.Message, "1 of the 2 pods of ReplicatedJob second") {
		t.Errorf("its quota is held by one of two pods: got %+v", c)
	}
}

// TestForeignPods holds that pods of a TrainJob's name that never were its own keep it from nothing.
func TestForeignPods(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
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
