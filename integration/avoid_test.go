package integration_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func avoidsForAnHour(c *configapi.Configuration) { c.Nodes.AvoidFor.Duration = time.Hour }

// avoiding is a harness with nodes of two flavors that the queue has, and with a TrainJob that remembers some.
func avoiding(t *testing.T, remembered ...string) *harness {
	h := newHarness(t, dialect.Bundled, avoidsForAnHour)
	for _, name := range []string{"a1", "a2", "a3", "a4", "b1", "b2"} {
		h.create(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				"pool": name[:1], corev1.LabelHostname: name + ".host"}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{gpu: resource.MustParse("8")}},
		})
	}
	h.create(&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": "b"}}})
	cq := &kueue.ClusterQueue{}
	h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "queue"}, cq))
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{gpu},
		Flavors: []kueue.FlavorQuotas{{Name: "a"}, {Name: "b"}}}}
	h.update(cq)
	h.create(&kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "queue"},
		Spec: kueue.LocalQueueSpec{ClusterQueue: "queue"}})
	job := newTrainJob("job")
	h.create(job)
	h.remembers(remembered...)
	return h
}

// remembers is the Trainer's write of what it has seen.
func (h *harness) remembers(names ...string) {
	h.t.Helper()
	job := h.trainJob("job")
	for _, name := range names {
		job.Status.Avoided = append(job.Status.Avoided, api.AvoidedNode{
			Name: name, Reason: avoid.Rejected, Pod: "of-" + name, Time: metav1.NewTime(h.clock.Now())})
	}
	h.updateStatus(job)
}

// starts has an admitted TrainJob started.
func (h *harness) starts(change ...func(*kueue.PodSetAssignment)) (events []string) {
	h.t.Helper()
	h.admit(change...)
	h.clock.Step(11 * time.Second)
	events = h.settle("job")
	if h.suspended("job") {
		h.t.Fatal("it was not started")
	}
	return events
}

// restarts has a TrainJob stopped as the Trainer does, with its pods gone.
func (h *harness) restarts() {
	h.t.Helper()
	job := h.trainJob("job")
	job.Spec.Suspend = ptr.To(true)
	h.update(job)
	h.clock.Step(time.Second)
	h.settle("job")
}

// queuedOff returns the hosts that the only Workload keeps off.
func (h *harness) queuedOff() string {
	return strings.Join(avoid.Written(h.workload().Spec.PodSets), " ")
}

// startedOff returns those of the entry.
func (h *harness) startedOff() string {
	h.t.Helper()
	own := dialect.Bundled.Own(h.trainJob("job"))
	_, spec := overrides.PodPatch(own.TrainingRuntimeSpec, "node")
	pod := kueue.PodSet{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Affinity: spec.Affinity}}}
	return strings.Join(avoid.Written([]kueue.PodSet{pod}), " ")
}

func (h *harness) wantOff(reason, queued, started string) {
	h.t.Helper()
	if got := h.queuedOff(); got != queued {
		h.t.Errorf("%s: it is queued off %q, want %q", reason, got, queued)
	}
	if h.suspended("job") {
		return
	}
	if got := h.startedOff(); got != started {
		h.t.Errorf("%s: it runs off %q, want %q", reason, got, started)
	}
}

// TestKeepsOff holds that a TrainJob is queued and started off the nodes that it remembers, by the write that happens
// anyway, and that the end of their time neither stops it nor changes its Workload.
func TestKeepsOff(t *testing.T) {
	h := avoiding(t, "a1", "gone")
	h.settle("job")
	h.wantOff("before it is queued", "a1.host gone", "")
	events := h.starts()
	h.wantOff("it runs", "a1.host gone", "a1.host gone")
	if !slices.Contains(events, "KeepsOff") {
		t.Errorf("it is said: got %v", events)
	}
	wl := h.workload()
	h.pod(h.build("job"))
	h.settle("job")
	h.clock.Step(2 * time.Hour)
	h.settle("job")
	if again := h.workload(); h.suspended("job") || again.UID != wl.UID || h.queuedOff() != "a1.host gone" {
		t.Error("it runs on, on the Workload that it has")
	}
}

// TestKeepsOffHalf holds that a flavor keeps half of its nodes, which the event says.
func TestKeepsOffHalf(t *testing.T) {
	h := avoiding(t, "b1", "b2", "a1")
	h.settle("job")
	h.wantOff("one of b, the first by name of the same time", "a1.host b1.host", "")
	if events := h.starts(); !slices.Contains(events, "NodesTaken") {
		t.Errorf("it is said: got %v", events)
	}
}

// TestAvoidedExpires holds that a waiting TrainJob is looked at when a node's time is over, and then queued for it
// again, on the Workload that it has.
func TestAvoidedExpires(t *testing.T) {
	h := avoiding(t, "a1")
	h.settle("job")
	uid := h.workload().UID
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > time.Hour {
		t.Errorf("got %v, %v", result, err)
	}
	h.clock.Step(time.Hour)
	h.settle("job")
	if h.wantOff("its time is over", "", ""); h.workload().UID != uid {
		t.Error("it keeps its place")
	}
}

// TestRestartKeepsOff holds that a restart on the quota keeps off what this run has shown, too, and what it was queued
// for only until its time is over.
func TestRestartKeepsOff(t *testing.T) {
	h := avoiding(t, "a1")
	h.settle("job")
	h.starts()
	uid := h.workload().UID
	h.clock.Step(59 * time.Minute)
	h.remembers("a2")
	h.restarts()
	h.clock.Step(11 * time.Second)
	h.settle("job")
	h.wantOff("it runs again, on its quota", "a1.host", "a1.host a2.host")
	h.clock.Step(10 * time.Minute)
	h.remembers("b1")
	h.restarts()
	h.clock.Step(11 * time.Second)
	h.settle("job")
	h.wantOff("and again, when the time of one is over", "a1.host", "a2.host b1.host")
	if h.suspended("job") || h.workload().UID != uid {
		t.Error("it keeps its quota")
	}
}

// TestEvictedKeepsOff holds that what its run has shown is in what an evicted TrainJob is queued for, on the Workload
// that it has.
func TestEvictedKeepsOff(t *testing.T) {
	h := avoiding(t)
	h.settle("job")
	h.starts()
	h.wantOff("it remembers none", "", "")
	h.remembers("a1")
	h.evict(kueue.WorkloadEvictedByPodsReadyTimeout)
	for range 5 {
		h.clock.Step(11 * time.Second)
		h.settle("job")
	}
	wl := h.workload()
	if apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadQuotaReserved) {
		t.Fatal("its quota is free")
	}
	h.wantOff("it is queued again", "a1.host", "")
	h.starts()
	h.wantOff("it runs", "a1.host", "a1.host")
}

// TestPlacedKeepsOff holds that a TrainJob with a topology assignment is queued again if its place is the node.
func TestPlacedKeepsOff(t *testing.T) {
	h := avoiding(t)
	h.settle("job")
	h.starts(onA1)
	uid := h.workload().UID
	for _, other := range []string{"", "b1"} {
		h.clock.Step(time.Minute)
		if other != "" {
			h.remembers(other)
		}
		h.restarts()
		h.clock.Step(11 * time.Second)
		h.settle("job")
		if h.suspended("job") || h.workload().UID != uid {
			t.Fatalf("a restart for another reason, or another node (%s), keeps its place", other)
		}
	}
	h.remembers("a1")
	job := h.trainJob("job")
	job.Spec.Suspend = ptr.To(true)
	h.update(job)
	for range 3 {
		h.clock.Step(11 * time.Second)
		if _, err := h.reconcile("job"); err != nil && !strings.Contains(err.Error(), "no matching workloads") {
			t.Fatal(err) // jobframework says so of a Workload that it has deleted
		}
	}
	if h.wantOff("it is queued again", "a1.host b1.host", ""); h.workload().UID == uid || !h.suspended("job") {
		t.Error("it waits for another place")
	}
}

// TestAdmittedBefore holds that a TrainJob keeps off a node from its next start on, although Kueue admitted it, or what
// it grows by, before it could be queued for that.
func TestAdmittedBefore(t *testing.T) {
	h := avoiding(t)
	h.settle("job")
	h.remembers("a1")
	h.clock.Step(time.Second)
	h.starts()
	h.wantOff("admitted meanwhile", "", "a1.host")

	h = growing(t, func(c *configapi.Configuration) { grows(c); avoidsForAnHour(c) })
	h.remembers("a1")
	h.clock.Step(time.Second)
	h.settle("job")
	h.growsBySlice()
	if h.wantOff("it grows", "", "a1"); h.nodes() != 8 {
		t.Errorf("it runs with %d nodes", h.nodes())
	}
}

// TestOwnTerms holds that what a runtime keeps off by itself is none of Signalbox's: it isn't in the entry.
func TestOwnTerms(t *testing.T) {
	h := avoiding(t)
	rt := &api.ClusterTrainingRuntime{}
	h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "torch"}, rt))
	rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Affinity = avoid.With(nil, []string{"a4.host"})
	h.update(rt)
	for _, config := range []func(*configapi.Configuration){func(*configapi.Configuration) {}, avoidsForAnHour} {
		h.start(dialect.Bundled, config)
		h.settle("job")
		h.starts()
		_, spec := overrides.PodPatch(dialect.Bundled.Own(h.trainJob("job")).TrainingRuntimeSpec, "node")
		if spec.Affinity != nil {
			t.Errorf("nobody needs it: got %+v", spec.Affinity)
		}
		h.evict(kueue.WorkloadEvictedByPreemption)
		for range 5 {
			h.clock.Step(11 * time.Second)
			h.settle("job")
		}
	}
	h.remembers("a1")
	h.settle("job")
	h.starts()
	h.wantOff("beside it", "a1.host", "a1.host")
}

// TestAvoidOff holds that without the setting nothing is read of nodes, whatever a status says, and that turning it off
// changes no admission.
func TestAvoidOff(t *testing.T) {
	h := avoiding(t, "a1")
	h.start(dialect.Bundled)
	h.did = map[string]bool{}
	h.settle("job")
	if h.wantOff("off", "", ""); h.did["list Node"] || h.did["get LocalQueue"] {
		t.Errorf("it reads nothing: got %v", h.did)
	}
	h.start(dialect.Bundled, avoidsForAnHour)
	h.settle("job")
	h.admit()
	uid := h.workload().UID
	h.start(dialect.Bundled)
	h.clock.Step(11 * time.Second)
	h.settle("job")
	if h.wantOff("turned off once admitted", "a1.host", ""); h.suspended("job") || h.workload().UID != uid {
		t.Error("it starts on what it was admitted for")
	}
}

// TestKeepsOffBeside holds that a runtime's own terms all keep off, and that a queue that can't be read keeps it from
// nothing.
func TestKeepsOffBeside(t *testing.T) {
	h := avoiding(t, "a1")
	rt := &api.ClusterTrainingRuntime{}
	h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "torch"}, rt))
	in := func(zone string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}
	}
	rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Affinity = &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{}, NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{in("x"), in("y")}}}}
	h.update(rt)
	h.fail["get ClusterQueue"] = context.DeadlineExceeded
	h.settle("job")
	h.wantOff("none of the nodes is in these zones", "a1.host", "")
	h.fail = map[string]error{}
	h.starts()
	_, spec := overrides.PodPatch(dialect.Bundled.Own(h.trainJob("job")).TrainingRuntimeSpec, "node")
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 2 || len(terms[0].MatchExpressions) != 2 || len(terms[1].MatchExpressions) != 2 ||
		spec.Affinity.PodAntiAffinity == nil {
		t.Errorf("the entry has the whole: got %+v", spec.Affinity)
	}
}

// TestUnreadableQueue holds that half of each flavor is left if it isn't known which ones the queue has.
func TestUnreadableQueue(t *testing.T) {
	h := avoiding(t, "b1", "b2")
	h.fail["get ClusterQueue"] = context.DeadlineExceeded
	h.settle("job")
	h.wantOff("the queue can't be read", "b1.host", "")
}
