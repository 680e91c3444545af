package integration_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// waitsForNode is a pod of a started TrainJob that the scheduler has no node for.
func (h *harness) waitsForNode() {
	h.t.Helper()
	pod := h.pod(h.build("job"))
	pod.Spec.NodeName = ""
	h.update(pod)
	pod.Status.Phase = corev1.PodPending
	h.updateStatus(pod)
}

// TestNodesFreed holds that a TrainJob whose pods wait for nodes is started again, on its quota, when the time of one
// that they keep off is over, or nodes aren't kept off any more.
func TestNodesFreed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *harness)
		want   string
	}{
		"its time is over": {func(h *harness) { h.clock.Step(31 * time.Minute) }, "a2.host"},
		"turned off":       {func(h *harness) { h.start(dialect.Bundled) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := avoiding(t, "a1")
			h.settle("job")
			h.clock.Step(30 * time.Minute)
			h.remembers("a2")
			h.settle("job")
			h.starts()
			h.waitsForNode()
			uid := h.workload().UID
			for range 2 { // soon after its start, and later
				if events := h.settle("job"); h.suspended("job") || slices.Contains(events, "NodesFreed") {
					t.Fatal("none is free")
				}
				if result, err := h.reconcile("job"); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > time.Hour {
					t.Errorf("it is looked at again in time: got %v, %v", result, err)
				}
				h.clock.Step(11 * time.Second)
			}
			if c.change(h); h.suspended("job") {
				t.Fatal("it was stopped before")
			}
			if events := h.settle("job"); !h.suspended("job") || !slices.Contains(events, "NodesFreed") {
				t.Fatalf("it is started again: got %v", events)
			}
			h.stopsPods()
			h.clock.Step(11 * time.Second)
			h.settle("job")
			h.wantOff(name, "a1.host a2.host", c.want)
			if h.suspended("job") || h.workload().UID != uid {
				t.Error("it keeps its quota")
			}
			h.clock.Step(20 * time.Second)
			if events := h.settle("job"); h.suspended("job") || slices.Contains(events, "NodesFreed") {
				t.Error("it is started again once")
			}
		})
	}
}

// TestRunsOffNodes holds that a TrainJob isn't started again whose pods have nodes.
func TestRunsOffNodes(t *testing.T) {
	h := avoiding(t, "a1")
	h.settle("job")
	h.starts()
	h.pod(h.build("job"))
	h.clock.Step(2 * time.Hour)
	if events := h.settle("job"); h.suspended("job") || slices.Contains(events, "NodesFreed") {
		t.Errorf("all its pods have nodes: got %v", events)
	}
}

// TestKeepsOffOthers holds that a start keeps off what others of its namespace remember, that what waits isn't queued
// for that, and that a place on such a node is taken.
func TestKeepsOffOthers(t *testing.T) {
	for name, c := range map[string]struct {
		namespace, reason string
		change            []func(*kueue.PodSetAssignment)
		want              string
	}{
		"rejected":          {team, avoid.Rejected, nil, "a1.host"},
		"failed early":      {team, avoid.FailedEarly, nil, ""},
		"another namespace": {"other", avoid.Rejected, nil, ""},
		"placed there":      {team, avoid.Rejected, []func(*kueue.PodSetAssignment){onA1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := avoiding(t)
			other := newTrainJob("other")
			other.Namespace, other.Spec.Suspend = c.namespace, ptr.To(true)
			h.create(other)
			other.Status.Avoided = []api.AvoidedNode{{Name: "a1", Reason: c.reason, Pod: "p",
				Time: metav1.NewTime(h.clock.Now())}}
			h.updateStatus(other)
			h.settle("job")
			h.starts(c.change...)
			h.wantOff("it is started", "", c.want)
		})
	}
}
