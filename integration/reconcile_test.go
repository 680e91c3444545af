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
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

var trainers = map[string]overrides.Dialect{
	"bundled": overrides.Bundled, "v2.3": overrides.Kubeflow23, "v2.2": overrides.Kubeflow22,
	"v2.1": overrides.Kubeflow21, "v2.0": overrides.Kubeflow20,
}

// forEach runs a test beside each Trainer.
func forEach(t *testing.T, test func(t *testing.T, h *harness, d overrides.Dialect)) {
	for name, d := range trainers {
		t.Run(name, func(t *testing.T) { test(t, newHarness(t, d), d) })
	}
}

// queue brings a TrainJob into its queue.
func (h *harness) queue() {
	h.t.Helper()
	h.create(newTrainJob("job"))
	h.settle("job")
}

// run starts a TrainJob that has been queued; after what the Trainer takes to settle.
func (h *harness) run() {
	h.t.Helper()
	h.queue()
	h.admit()
	if h.dialect == overrides.Bundled {
		h.clock.Step(11 * time.Second)
	} else {
		h.clock.Step(31 * time.Second) // Trainer's JobSet is not settled
	}
	h.settle("job")
	if h.suspended("job") {
		h.t.Fatal("it was not started")
	}
}

func TestQueues(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ overrides.Dialect) {
		h.create(newTrainJob("job"))
		if _, err := h.reconcile("job"); err != nil || h.wrote("create Workload") != 1 {
			t.Fatalf("a new TrainJob gets one Workload: got %v, %v", h.sent, err)
		}
		h.settle("job")
		wl := h.workload()
		if len(wl.Spec.PodSets) != 1 || wl.Spec.PodSets[0].Count != 1 || wl.Spec.QueueName != "queue" || !h.suspended("job") {
			t.Errorf("its Workload stands for what it runs: got %+v", wl.Spec)
		}
		if h.reconcile("job"); len(h.sent) > 0 || len(h.events) > 0 {
			t.Errorf("nothing is written twice: got %v, %v", h.sent, h.events)
		}
	})
}

func TestBlocked(t *testing.T) {
	runtimeWith := func(h *harness, change func(*api.ClusterTrainingRuntime)) {
		rt := &api.ClusterTrainingRuntime{}
		h.must(h.store.Get(h.t.Context(), client.ObjectKey{Name: "torch"}, rt))
		change(rt)
		h.update(rt)
	}
	cases := map[string]struct {
		reason string
		given  func(*harness, *api.TrainJob)
		want   string
		retry  time.Duration
	}{
		"no runtime": {"there is nothing to compute from",
			func(_ *harness, j *api.TrainJob) { j.Spec.RuntimeRef.Name = "none" }, integration.ReasonRuntimeNotFound, 0},
		"another kind": {"a runtime of a kind that nobody knows can't be read",
			func(_ *harness, j *api.TrainJob) { j.Spec.RuntimeRef.Kind = ptr.To("Other") }, integration.ReasonInvalidRuntime, 0},
		"record": {"what another Trainer was told can't be read",
			func(_ *harness, j *api.TrainJob) { j.Annotations = map[string]string{overrides.RecordAnnotation: "{"} },
			integration.ReasonInvalidOverrides, 0},
		"limit": {"more pods than one TrainJob may have",
			func(_ *harness, j *api.TrainJob) { j.Spec.Trainer.NumNodes = ptr.To[int32](1 << 30) },
			integration.ReasonLimitExceeded, 0},
		"PodSets": {"a Workload has no room for so many", func(h *harness, _ *api.TrainJob) {
			runtimeWith(h, func(rt *api.ClusterTrainingRuntime) {
				for i := range 20 {
					rj := node()
					rj.Name, rj.Template.Labels = "extra-"+string(rune('a'+i)), nil
					rt.Spec.Template.Spec.ReplicatedJobs = append(rt.Spec.Template.Spec.ReplicatedJobs, rj)
				}
			})
		}, integration.ReasonTooManyPodSets, 0},
		"placement": {"it says when to look again", func(h *harness, _ *api.TrainJob) {
			h.refusal = &admission.BlockedError{Reason: "Elsewhere", RetryAfter: time.Minute, Err: errors.New("no room")}
		}, "Elsewhere", time.Minute},
	}
	for trainer, d := range trainers {
		for name, c := range cases {
			t.Run(trainer+"/"+name, func(t *testing.T) {
				h := newHarness(t, d)
				job := newTrainJob("job")
				c.given(h, job)
				h.create(job)
				result, err := h.reconcile("job")
				if err != nil || h.blocked("job") != c.want || len(h.workloads()) > 0 || !slices.Equal(h.events, []string{c.want}) {
					t.Errorf("%s: got %q, events %v, error %v, requests %v", c.reason, h.blocked("job"), h.events, err, h.sent)
				}
				if result.RequeueAfter != c.retry {
					t.Errorf("%s: looked at again after %s, want %s", c.reason, result.RequeueAfter, c.retry)
				}
				if _, err := h.reconcile("job"); err != nil || len(h.sent) > 0 || len(h.events) > 0 {
					t.Errorf("it is said once: got %v, %v, %v", h.sent, h.events, err)
				}
			})
		}
	}
}

func TestBlockedLater(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
	h.queue()
	h.admit()
	h.refusal = &admission.BlockedError{Reason: "Elsewhere", Err: errors.New("no room")}
	h.settle("job")
	if h.blocked("job") != "Elsewhere" || !h.suspended("job") || workload.IsActive(h.workload()) &&
		workload.HasQuotaReservation(h.workload()) &&
		!apimeta.IsStatusConditionTrue(h.workload().Status.Conditions, kueue.WorkloadEvicted) &&
		!workload.IsOnHold(h.workload()) {
		t.Errorf("what can't start holds no quota: got %+v", h.workload().Status)
	}
	h.refusal = nil
	h.settle("job")
	if h.blocked("job") != "" || workload.IsOnHold(h.workload()) {
		t.Errorf("once it can, it queues again: got %q, %+v", h.blocked("job"), h.workload().Status)
	}
}

func TestStarts(t *testing.T) {
	t.Run("bundled", func(t *testing.T) {
		h := newHarness(t, overrides.Bundled)
		h.queue()
		h.admit()
		if _, err := h.reconcile("job"); err != nil || h.wrote("patch TrainJob ") != 1 {
			t.Fatalf("it starts by one patch: got %v, %v", h.sent, err)
		}
		body := strings.Join(h.bodies, "\n")
		for _, part := range []string{`"/spec/suspend"`, overrides.Manager,
			store.PinAnnotation[strings.Index(store.PinAnnotation, "/")+1:]} {
			if !strings.Contains(body, part) {
				t.Errorf("the patch has %s: got %s", part, body)
			}
		}
		job := h.trainJob("job")
		if h.suspended("job") || overrides.Bundled.Own(job) == nil || job.Annotations[store.PinAnnotation] == "" {
			t.Errorf("its entry, its pin and suspend are written: got %+v", job)
		}
		if h.reconcile("job"); h.wrote("patch TrainJob ") > 0 {
			t.Errorf("it starts once: got %v", h.sent)
		}
	})
	for name, writes := range map[string]int{"v2.3": 1, "v2.2": 1, "v2.1": 2, "v2.0": 2} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, trainers[name])
			h.queue()
			h.admit()
			result, err := h.reconcile("job")
			if err != nil || !h.suspended("job") || result.RequeueAfter != 10*time.Second {
				t.Fatalf("it waits for Trainer's JobSet: got %v, %v, %v", result, err, h.sent)
			}
			h.clock.Step(31 * time.Second)
			if _, err := h.reconcile("job"); err != nil || h.suspended("job") || !slices.Contains(h.events, "NotSettled") {
				t.Fatalf("it starts in the end: got %v, %v", h.events, err)
			}
			if got := h.wrote("patch TrainJob "); got != writes {
				t.Errorf("got %d writes, want %d: %v", got, writes, h.sent)
			}
			if trainers[name].Own(h.trainJob("job")) == nil {
				t.Error("it has an entry")
			}
		})
	}
	t.Run("v2.2.0", func(t *testing.T) {
		h := newHarness(t, overrides.Kubeflow22)
		h.queue()
		h.admit()
		h.clock.Step(31 * time.Second)
		h.fail["patch TrainJob"] = apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, "job",
			errors.New("spec.runtimePatches: Forbidden: RuntimePatches can only be modified when the TrainJob is suspended"))
		if _, err := h.reconcile("job"); err == nil || h.wrote("patch TrainJob ") != 2 {
			t.Errorf("the refused start is tried in two writes: got %v, %v", h.sent, err)
		}
		delete(h.fail, "patch TrainJob")
		if _, err := h.reconcile("job"); err != nil || h.wrote("patch TrainJob ") != 2 || h.suspended("job") {
			t.Errorf("the refusal is remembered: got %v, %v", h.sent, err)
		}
	})
}

func TestStartRefused(t *testing.T) {
	resource := schema.GroupResource{Group: "trainer.kubeflow.org", Resource: "trainjobs"}
	cases := map[string]struct {
		reason string
		answer error
		again  time.Duration
		failed bool
	}{
		"conflict": {"it was decided on an older version", apierrors.NewConflict(resource, "job",
			errors.New("modified")), store.ConflictDelay, false},
		"forbidden": {"somebody has to look", apierrors.NewForbidden(resource, "job", errors.New("no")), 0, true},
		"invalid":   {"the same", apierrors.NewInvalid(schema.GroupKind{Kind: "TrainJob"}, "job", nil), 0, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, overrides.Bundled)
			h.queue()
			h.admit()
			h.fail["patch TrainJob"] = c.answer
			result, err := h.reconcile("job")
			retried := c.failed || result.RequeueAfter == c.again || apierrors.IsConflict(err)
			if !c.failed && !retried || c.failed && err == nil || !h.suspended("job") {
				t.Errorf("%s: got %v, %v", c.reason, result, err)
			}
			delete(h.fail, "patch TrainJob")
			if h.settle("job"); h.suspended("job") {
				t.Error("it starts once it can")
			}
		})
	}
}

func TestNotStarted(t *testing.T) {
	mismatch := func(change func(*kueue.PodSetAssignment)) func(*harness) { return func(h *harness) { h.admit(change) } }
	cases := map[string]struct {
		reason string
		given  func(*harness)
		event  string
	}{
		"another PodSet": {"it was admitted for something else",
			mismatch(func(a *kueue.PodSetAssignment) { a.Name = "other" }), "AdmissionMismatch"},
		"another usage": {"it uses more than it was given", mismatch(func(a *kueue.PodSetAssignment) {
			a.ResourceUsage = corev1.ResourceList{gpu: resource.MustParse("0")}
		}), "AdmissionMismatch"},
		"inactive": {"Kueue counts nothing of it", func(h *harness) {
			h.admit()
			wl := h.workload()
			wl.Spec.Active = ptr.To(false)
			h.update(wl)
		}, ""},
		"to be deactivated": {"its quota is about to go", func(h *harness) {
			h.admit()
			wl := h.workload()
			wl.Annotations = map[string]string{integration.DeactivateAnnotation: "user"}
			h.update(wl)
		}, ""},
		"JobSet of the last run": {"its pods may run still", func(h *harness) { h.build("job"); h.admit() }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, overrides.Bundled)
			h.queue()
			c.given(h)
			_, err := h.reconcile("job")
			if err != nil || !h.suspended("job") {
				t.Errorf("%s: got %v, %v", c.reason, h.sent, err)
			}
			if c.event != "" && (!slices.Contains(h.events, c.event) || h.wrote("delete Workload") != 1) {
				t.Errorf("%s: got %v, %v", c.reason, h.events, h.sent)
			}
		})
	}
	t.Run("conflicting entry", func(t *testing.T) {
		h := newHarness(t, overrides.Bundled)
		job := newTrainJob("job")
		rj := trainerapi.ReplicatedJobPatch{Name: "node"}
		rj.Template = &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{
			Spec: &trainerapi.PodSpecPatch{NodeSelector: map[string]string{"pool": "b"}}}}}
		job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: "example.com/user",
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
				Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{
					ReplicatedJobs: []trainerapi.ReplicatedJobPatch{rj}}}}}}
		h.create(job)
		h.settle("job")
		h.admit()
		events := h.settle("job")
		if !h.suspended("job") || !workloadfinish.IsFinished(h.workload()) || !slices.Contains(events, "FailedToStart") {
			t.Errorf("what contradicts its admission never starts: got %v, %+v", events, h.workload().Status)
		}
	})
}

func TestStops(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, d overrides.Dialect) {
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		h.settle("job")
		h.clock.Step(time.Second)
		h.evict(kueue.WorkloadEvictedByPreemption)
		if _, err := h.reconcile("job"); err != nil || !h.suspended("job") || h.wrote("patch TrainJob ") != 1 {
			t.Fatalf("an evicted TrainJob is suspended: got %v, %v", h.sent, err)
		}
		h.reconcile("job")
		if !workload.HasQuotaReservation(h.workload()) || neutral(d, h.trainJob("job")) {
			t.Error("its quota and its entry are kept while a pod runs")
		}
		h.remove(pod)
		h.remove(js)
		h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
		for range 5 {
			h.clock.Step(time.Minute)
			if _, err := h.reconcile("job"); err != nil {
				t.Fatal(err)
			}
		}
		if workload.HasQuotaReservation(h.workload()) || !neutral(d, h.trainJob("job")) {
			t.Errorf("both go after it: got %+v", h.workload().Status)
		}
	})
}

func TestWorkloadDeleted(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
	h.run()
	js := h.build("job")
	pod := h.pod(js)
	h.settle("job")
	h.remove(h.workload())
	h.reconcile("job")
	if !h.suspended("job") || !slices.Contains(h.workload().Finalizers, kueue.ResourceInUseFinalizerName) {
		t.Fatalf("its Workload stays until its pods have ended: got %v", h.sent)
	}
	before := h.workload().UID
	h.remove(pod)
	h.remove(js)
	for range 4 {
		h.reconcile("job")
	}
	for _, wl := range h.workloads() {
		if wl.UID == before {
			t.Error("it is let go when nothing runs")
		}
	}
}

func TestDeactivated(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
	h.run()
	js := h.build("job")
	h.settle("job")
	wl := h.workload()
	wl.Annotations = map[string]string{integration.DeactivateAnnotation: "user"}
	h.update(wl)
	h.settle("job")
	if !h.suspended("job") || !workload.IsActive(h.workload()) {
		t.Error("it is stopped first")
	}
	h.remove(js)
	h.settle("job")
	if wl := h.workload(); workload.IsActive(wl) || wl.Annotations[integration.DeactivateAnnotation] != "" {
		t.Error("and its Workload deactivated at the end")
	}
}

func TestFinishes(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ overrides.Dialect) {
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
	forEach(t, func(t *testing.T, h *harness, _ overrides.Dialect) {
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
	h := newHarness(t, overrides.Bundled)
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
		h := newHarness(t, overrides.Bundled)
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
		h := newHarness(t, overrides.Bundled)
		h.create(newTrainJob("job"))
		h.freeze("Workload", &kueue.WorkloadList{})
		h.reconcile("job")
		if _, err := h.reconcile("job"); err != nil || h.wrote("create Workload") > 0 || len(h.workloads()) != 1 {
			t.Errorf("its Workload is read from the API server: got %v, %v", h.sent, err)
		}
	})
	t.Run("JobSet", func(t *testing.T) {
		h := newHarness(t, overrides.Bundled)
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
	h := newHarness(t, overrides.Bundled)
	h.run()
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter == 0 {
		t.Fatalf("it is looked at again: %v, %v", result, err)
	}
	h.clock.Step(configapi.Default().Limits.PodsWithin.Duration)
	if _, err := h.reconcile("job"); err != nil || h.blocked("job") != integration.ReasonNoPods || !h.suspended("job") ||
		!slices.Contains(h.events, integration.ReasonNoPods) {
		t.Fatalf("what has no pods gives its quota back: got %q, %v, %v", h.blocked("job"), h.events, err)
	}
	h.reconcile("job")
	if result, err := h.reconcile("job"); err != nil || h.blocked("job") != integration.ReasonNoPods ||
		result.RequeueAfter == 0 {
		t.Errorf("and is kept out of its queue: got %q, %v, %v", h.blocked("job"), result, err)
	}
	h.clock.Step(7 * 24 * time.Hour)
	if h.settle("job"); h.blocked("job") != "" {
		t.Errorf("for a time: got %q", h.blocked("job"))
	}
}

func TestReadsFail(t *testing.T) {
	broken := errors.New("the API server doesn't answer")
	for _, read := range []string{
		"get TrainJob", "list Workload", "get JobSet", "list Pod", "get Namespace", "get ClusterTrainingRuntime",
		"get ResourceFlavor",
	} {
		t.Run(read, func(t *testing.T) {
			h := newHarness(t, overrides.Bundled)
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
