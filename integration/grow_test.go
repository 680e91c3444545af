package integration_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Most implements integration.Room.
func (h *harness) Most(_ context.Context, _ *kueue.Workload, _ kueue.PodSetReference, least int32) (int32, error) {
	if h.room < 0 {
		return 0, integration.ErrRoomBusy
	}
	if h.room < least {
		return 0, nil
	}
	return h.room, nil
}

func grows(c *configapi.Configuration) {
	c.Grow = configapi.Grow{Enabled: true, Every: metav1.Duration{Duration: 30 * time.Minute}, Policy: "guard"}
}

func growsAtCheckpoint(c *configapi.Configuration) {
	grows(c)
	c.Preemption.CheckpointWithin.Duration = time.Hour
}

// growing is a harness with a TrainJob that runs since half an hour with three of its eight nodes, and saved a moment
// ago.
func growing(t *testing.T, config func(*configapi.Configuration), change ...func(*api.TrainJob)) *harness {
	h := newHarness(t, dialect.Bundled, config)
	h.create(&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "guard"}})
	h.queueIs(func(cq *kueue.ClusterQueue) {
		cq.Spec.ResourceGroups = []kueue.ResourceGroup{{Flavors: []kueue.FlavorQuotas{{Name: "a",
			Resources: []kueue.ResourceQuota{{Name: gpu, NominalQuota: resource.MustParse("100")}}}}}}
	})
	job := sized(8, "2")
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.GrowAnnotation, "true")
	for _, c := range change {
		c(job)
	}
	h.create(job)
	h.settle("job")
	h.admitInPart(3)
	h.clock.Step(11 * time.Second)
	h.settle("job")
	h.runsPods()
	h.clock.Step(30 * time.Minute)
	h.saves("100")
	h.room, h.pods.more = 8, 100
	return h
}

// runsPods is what the Trainer and JobSet make of a TrainJob that is started.
func (h *harness) runsPods() *jobset.JobSet {
	h.t.Helper()
	js := h.build("job")
	h.pod(js)
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Ready: 1, Active: 1}}
	h.updateStatus(js)
	return js
}

// stops is what they make of one that is stopped.
func (h *harness) stopsPods() {
	h.t.Helper()
	js := &jobset.JobSet{}
	h.must(h.store.Get(h.t.Context(), client.ObjectKey{Namespace: team, Name: "job"}, js))
	h.collect(js)
	h.must(h.store.DeleteAllOf(h.t.Context(), &corev1.Pod{}, client.InNamespace(team)))
}

// the two Workloads of a TrainJob that grows; nil for one that isn't there.
func (h *harness) old() *kueue.Workload   { return h.which(false) }
func (h *harness) slice() *kueue.Workload { return h.which(true) }

func (h *harness) which(slice bool) *kueue.Workload {
	h.t.Helper()
	for _, wl := range h.workloads() {
		if (podsets.SliceOf(&wl) != nil) == slice {
			return &wl
		}
	}
	return nil
}

// admitSlice is the first of Kueue's two writes when it admits the slice that waits, and finishOld the second.
func (h *harness) admitSlice() {
	h.t.Helper()
	for _, wl := range h.workloads() {
		if podsets.SliceOf(&wl) == nil || podsets.HoldsQuota(&wl) {
			continue
		}
		count := wl.Spec.PodSets[0].Count
		workload.SetQuotaReservation(&wl, &kueue.Admission{ClusterQueue: "queue",
			PodSetAssignments: []kueue.PodSetAssignment{{
				Name: wl.Spec.PodSets[0].Name, Count: &count,
				Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a"},
				ResourceUsage: corev1.ResourceList{gpu: *resource.NewQuantity(int64(count), resource.DecimalSI)},
			}}}, h.clock)
		workload.SyncAdmittedCondition(&wl, h.clock.Now())
		h.updateStatus(&wl)
		return
	}
	h.t.Fatal("no slice waits")
}

func (h *harness) finishOld() {
	h.t.Helper()
	wl := h.old()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadFinished,
		Status: metav1.ConditionTrue, Reason: kueue.WorkloadSliceReplaced, Message: "Replaced",
		LastTransitionTime: metav1.NewTime(h.clock.Now())})
	h.updateStatus(wl)
}

// nodes returns with how many nodes the TrainJob is started; 0 if it isn't.
func (h *harness) nodes() int32 {
	h.t.Helper()
	job := h.trainJob("job")
	if h.suspended("job") {
		return 0
	}
	if n := overrides.AdmittedNodes(dialect.Bundled.Own(job)); n > 0 {
		return n
	}
	return *job.Spec.Trainer.NumNodes
}

// TestGrows holds how a TrainJob grows: by a second Workload, which stands for it from its admission on, a stop, and a
// start in one write. It holds quota for all its pods at any moment.
func TestGrows(t *testing.T) {
	h := growing(t, grows)
	h.settle("job")
	slice := h.slice()
	if slice == nil || slice.Spec.PodSets[0].Count != 8 || slice.Spec.PodSets[0].MinCount != nil || h.nodes() != 3 {
		t.Fatalf("it gets a slice, and runs on: got %+v, %d nodes", slice, h.nodes())
	}
	elastic := slice.Annotations[workloadslicing.EnabledAnnotationKey]
	if got := *workloadslicing.ReplacementForKey(slice); got != workload.Key(h.old()) || elastic != "" {
		t.Errorf("it replaces %s, by annotations %v", got, slice.Annotations)
	}
	h.admitSlice()
	h.finishOld()
	events := h.settle("job")
	if !h.suspended("job") || !slices.Contains(events, "Grows") || h.old() != nil {
		t.Fatalf("it is stopped, and what was replaced is deleted: got events %v, %v", events, h.old())
	}
	h.stopsPods()
	h.clock.Step(11 * time.Second)
	for h.suspended("job") {
		if _, err := h.reconcile("job"); err != nil {
			t.Fatal(err)
		}
		if !podsets.HoldsQuota(h.slice()) {
			t.Fatal("it queues in between")
		}
	}
	if h.nodes() != 8 || h.wrote("patch TrainJob") != 1 {
		t.Errorf("it starts with all its nodes, in one write: got %d, %v", h.nodes(), h.sent)
	}
	h.runsPods()
	h.settle("job")
	h.clock.Step(time.Hour)
	if h.settle("job"); len(h.workloads()) != 1 || h.nodes() != 8 {
		t.Errorf("it has all, and grows no more: got %d Workloads, %d nodes", len(h.workloads()), h.nodes())
	}
}

// TestGrowsByPart holds that one which has grown to a part of its nodes runs with these, and grows again.
func TestGrowsByPart(t *testing.T) {
	h := growing(t, grows)
	for _, count := range []int32{5, 8} {
		h.room = count
		h.settle("job")
		h.admitSlice()
		h.clock.Step(3 * time.Second)
		h.settle("job")
		h.stopsPods()
		h.clock.Step(11 * time.Second)
		h.settle("job")
		if h.nodes() != count || len(h.workloads()) != 1 {
			t.Fatalf("got %d nodes and %d Workloads, want %d and one", h.nodes(), len(h.workloads()), count)
		}
		h.runsPods()
		h.settle("job")
		h.clock.Step(30 * time.Minute)
		h.saves(strconv.Itoa(int(count)))
	}
}

// TestGrowsAtCheckpoint holds that a TrainJob that has got its slice runs on until it saves.
func TestGrowsAtCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		then  func(h *harness)
		stops bool
	}{
		"nothing happens":  {func(*harness) {}, false},
		"it saves":         {func(h *harness) { h.saves("200") }, true},
		"the time is over": {func(h *harness) { h.clock.Step(time.Hour) }, true},
		"the manager starts again": {func(h *harness) {
			h.start(dialect.Bundled, growsAtCheckpoint)
		}, false},
		"the admin waits for none": {func(h *harness) { h.start(dialect.Bundled, grows) }, true},
		"growing is turned off":    {func(h *harness) { h.start(dialect.Bundled) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := growing(t, growsAtCheckpoint)
			h.settle("job")
			h.clock.Step(time.Second)
			h.admitSlice()
			h.finishOld()
			h.clock.Step(time.Minute)
			if h.settle("job"); h.suspended("job") {
				t.Fatal("it is stopped before its checkpoint")
			}
			c.then(h)
			if h.settle("job"); h.suspended("job") != c.stops {
				t.Errorf("it is stopped: got %t, want %t", h.suspended("job"), c.stops)
			}
		})
	}
}

// TestShrinks holds that an eviction gives a TrainJob that has grown its minimum back.
func TestShrinks(t *testing.T) {
	h := growing(t, grows)
	h.settle("job")
	h.growsBySlice()
	h.runsPods()
	wl := h.slice()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadEvicted,
		Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByPreemption, Message: "evicted"})
	h.updateStatus(wl)
	if h.settle("job"); !h.suspended("job") || !podsets.HoldsQuota(h.slice()) {
		t.Fatal("it is stopped, on its quota")
	}
	h.stopsPods()
	h.settle("job")
	wl = h.workload()
	if podsets.SliceOf(wl) != nil || wl.Spec.PodSets[0].Count != 8 || ptr.Deref(wl.Spec.PodSets[0].MinCount, 0) != 2 ||
		podsets.HoldsQuota(wl) {
		t.Errorf("it queues with its minimum: got %+v", wl)
	}
}

// TestGrowsWhenNotBusy holds that a TrainJob asks soon again if another one's growth is being decided.
func TestGrowsWhenNotBusy(t *testing.T) {
	h := growing(t, grows)
	h.room = -1
	result, err := h.reconcile("job")
	if err != nil || h.slice() != nil || result.RequeueAfter == 0 || result.RequeueAfter > 5*time.Second {
		t.Fatalf("got %+v, %v", result, err)
	}
	h.room = 8
	h.clock.Step(result.RequeueAfter)
	if h.settle("job"); h.slice() == nil {
		t.Error("it gets its slice")
	}
}

// TestNotGrown holds that a TrainJob that can't grow says so once, and that one that doesn't ask pays nothing.
func TestNotGrown(t *testing.T) {
	for name, c := range map[string]struct {
		config func(*configapi.Configuration)
		job    func(*api.TrainJob)
		before func(h *harness)
		says   bool
		reads  bool
	}{
		"off":         {config: func(*configapi.Configuration) {}},
		"doesn't ask": {config: grows, job: func(job *api.TrainJob) { delete(job.Annotations, api.GrowAnnotation) }},
		"no room":     {config: grows, before: func(h *harness) { h.room = 0 }, reads: true},
		"no quota": {config: grows, reads: true, before: func(h *harness) {
			h.queueIs(func(cq *kueue.ClusterQueue) { cq.Spec.ResourceGroups = nil })
		}},
		"its namespace takes no more": {config: grows, reads: true, before: func(h *harness) { h.pods.more = 0 }},
		"no policy": {config: grows, reads: true, before: func(h *harness) {
			h.remove(&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "guard"}})
		}},
		"no answer": {config: grows, reads: true, before: func(h *harness) {
			h.fail["get ClusterQueue"] = errors.New("no answer")
		}},
		"in a cohort": {config: grows, says: true, reads: true, before: func(h *harness) {
			h.queueIs(func(cq *kueue.ClusterQueue) { cq.Spec.CohortName = "all" })
		}},
		"placed by a topology": {config: grows, says: true, before: func(h *harness) {
			wl := h.workload()
			wl.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{Levels: []string{"rack"}}
			h.updateStatus(wl)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*api.TrainJob)
			if c.job != nil {
				change = append(change, c.job)
			}
			h := growing(t, c.config, change...)
			if c.before != nil {
				c.before(h)
			}
			h.did = map[string]bool{}
			events := h.settle("job")
			h.clock.Step(10 * time.Minute)
			events = append(events, h.settle("job")...)
			told := 0
			for _, e := range events {
				if e == "NotGrown" {
					told++
				}
			}
			if says := told == 1; says != c.says || told > 1 || h.slice() != nil || h.did["get ClusterQueue"] != c.reads {
				t.Errorf("got events %v, slice %v, reads %v", events, h.slice(), h.did)
			}
		})
	}
}
