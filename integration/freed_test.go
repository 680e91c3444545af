package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/util/tas"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// waitsForNode is a pod of a started TrainJob that the scheduler has no node for.
func (h *harness) waitsForNode() *jobset.JobSet {
	h.t.Helper()
	js := h.build("job")
	pod := h.pod(js)
	pod.Spec.NodeName = ""
	h.update(pod)
	pod.Status.Phase = corev1.PodPending
	h.updateStatus(pod)
	return js
}

// another is a further pod of a JobSet.
func (h *harness) another(js *jobset.JobSet, node string, phase corev1.PodPhase) {
	h.t.Helper()
	var pods corev1.PodList
	h.must(h.store.List(h.t.Context(), &pods, client.InNamespace(team),
		client.MatchingLabels{jobset.JobSetNameKey: js.Name}))
	pod := pods.Items[0].DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: team, Name: pod.Name + "-more", Labels: pod.Labels,
		OwnerReferences: pod.OwnerReferences}
	pod.Spec.NodeName, pod.Status.Phase = node, phase
	h.create(pod)
}

// minutes has a started TrainJob looked at for so long, and returns the events.
func (h *harness) minutes(n int) (events []string) {
	h.t.Helper()
	for range n {
		events = append(events, h.settle("job")...)
		if h.suspended("job") {
			return events
		}
		h.clock.Step(61 * time.Second)
	}
	return events
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
			if events := h.minutes(3); h.suspended("job") || slices.Contains(events, "NodesFreed") {
				t.Fatal("none is free")
			}
			if result, err := h.reconcile("job"); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
				t.Errorf("it is looked at again in time: got %v, %v", result, err)
			}
			if c.change(h); h.suspended("job") {
				t.Fatal("it was stopped before")
			}
			if events := h.minutes(3); !h.suspended("job") || !slices.Contains(events, "NodesFreed") {
				t.Fatalf("it is started again: got %v", events)
			}
			h.stopsPods()
			h.clock.Step(11 * time.Second)
			h.settle("job")
			h.wantOff(name, "a1.host a2.host", c.want)
			if h.suspended("job") || h.workload().UID != uid {
				t.Error("it keeps its quota")
			}
			h.waitsForNode()
			if events := h.minutes(3); h.suspended("job") || slices.Contains(events, "NodesFreed") {
				t.Error("it is started again once")
			}
		})
	}
}

// TestWaitsOn holds what isn't started again although the time of the node is over that it keeps off: it would lose
// something, or gain nothing.
func TestWaitsOn(t *testing.T) {
	ofNode := func(change func(*corev1.Node)) func(*harness, *jobset.JobSet) {
		return func(h *harness, _ *jobset.JobSet) {
			n := &corev1.Node{}
			h.must(h.store.Get(h.t.Context(), client.ObjectKey{Name: "a1"}, n))
			change(n)
			h.update(n)
		}
	}
	ofJob := func(change func(*api.TrainJob)) func(*harness, *jobset.JobSet) {
		return func(h *harness, _ *jobset.JobSet) {
			job := h.trainJob("job")
			change(job)
			h.update(job)
		}
	}
	fails := func(what string) func(*harness, *jobset.JobSet) {
		return func(h *harness, _ *jobset.JobSet) { h.fail[what] = context.DeadlineExceeded }
	}
	for name, c := range map[string]struct {
		place  func(*kueue.PodSetAssignment)
		change func(*harness, *jobset.JobSet)
	}{
		"a pod has a node": {change: func(h *harness, js *jobset.JobSet) { h.another(js, "a2", corev1.PodRunning) }},
		"a pod has ended":  {change: func(h *harness, js *jobset.JobSet) { h.another(js, "a2", corev1.PodSucceeded) }},
		"quota was given back": {change: func(h *harness, _ *jobset.JobSet) {
			wl := h.workload()
			wl.Status.ReclaimablePods = []kueue.ReclaimablePod{{Name: "node", Count: 1}}
			h.updateStatus(wl)
		}},
		"it has a place": {place: func(a *kueue.PodSetAssignment) {
			a.TopologyAssignment = tas.V1Beta2From(&tas.TopologyAssignment{Levels: []string{corev1.LabelHostname},
				Domains: []tas.TopologyDomainAssignment{{Values: []string{"a2.host"}, Count: 1}}})
		}, change: func(*harness, *jobset.JobSet) {}},
		"the node isn't ready": {change: ofNode(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		})},
		"the node is cordoned": {change: ofNode(func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"the node is gone": {change: func(h *harness, _ *jobset.JobSet) {
			h.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a1"}})
		}},
		"it left its queue":   {change: ofJob(func(job *api.TrainJob) { delete(job.Labels, constants.QueueLabel) })},
		"it is of another":    {change: ofJob(func(job *api.TrainJob) { job.Labels[constants.QueueLabel] = "other" })},
		"nobody can read it":  {change: fails("list TrainJob")},
		"nodes can't be read": {change: fails("list Node")},
		"others remember it": {change: func(h *harness, _ *jobset.JobSet) {
			h.anotherRemembers(team, avoid.Rejected, "a1")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := avoiding(t, "a1")
			h.settle("job")
			if c.place == nil {
				h.starts()
			} else {
				h.starts(c.place)
			}
			js := h.waitsForNode()
			h.minutes(2)
			h.clock.Step(2 * time.Hour)
			c.change(h, js)
			if events := h.minutes(3); slices.Contains(events, "NodesFreed") {
				t.Errorf("it waits on: got %v", events)
			}
		})
	}
}

// TestStoppedOnce holds that who is stopped for another reason is stopped by one write, and told that alone.
func TestStoppedOnce(t *testing.T) {
	for name, change := range map[string]func(h *harness){
		"its user": func(h *harness) {
			job := h.trainJob("job")
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StopAnnotation, "true")
			h.update(job)
		},
		"an admin": func(h *harness) {
			wl := h.workload()
			metav1.SetMetaDataAnnotation(&wl.ObjectMeta, api.DeactivateAnnotation, "true")
			h.update(wl)
		},
		"a preemption": func(h *harness) { h.evict(kueue.WorkloadEvictedByPreemption) },
		"a preemption, while nothing can be read": func(h *harness) {
			h.evict(kueue.WorkloadEvictedByPreemption)
			for _, what := range []string{"get Job", "list Node", "list TrainJob"} {
				h.fail[what] = context.DeadlineExceeded
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := avoiding(t, "a1")
			h.settle("job")
			h.starts()
			h.waitsForNode()
			h.minutes(2)
			change(h)
			h.clock.Step(2 * time.Hour)
			var events []string
			writes := 0
			for range 5 {
				if _, err := h.reconcile("job"); err != nil {
					t.Fatal(err)
				}
				events, writes = append(events, h.events...), writes+h.wrote("patch TrainJob job")
				if h.suspended("job") {
					break
				}
				h.clock.Step(time.Second)
			}
			if !h.suspended("job") || slices.Contains(events, "NodesFreed") || writes != 1 {
				t.Errorf("it is stopped: got events %v, %d writes", events, writes)
			}
		})
	}
}

// TestDisplaced holds that a node is not free because others of the namespace, or the TrainJob itself, remember as many
// later ones as may be kept off.
func TestDisplaced(t *testing.T) {
	h := avoiding(t)
	h.start(dialect.Bundled, func(c *configapi.Configuration) { avoidsForAnHour(c); c.Nodes.AtMost = 1 })
	h.anotherRemembers(team, avoid.Rejected, "a1")
	h.settle("job")
	h.starts()
	h.wantOff("it is started", "", "a1.host")
	h.waitsForNode()
	h.minutes(2)
	h.anotherRemembers(team, avoid.Rejected, "a2")
	h.remembers("a3")
	if events := h.minutes(5); h.suspended("job") || slices.Contains(events, "NodesFreed") {
		t.Errorf("the time of a1 isn't over: got %v", events)
	}
}

// TestReceivedFreed holds that a TrainJob that MultiKueue has sent here is started again, too, off what its Workload
// keeps off.
func TestReceivedFreed(t *testing.T) {
	h := newHarness(t, dialect.Bundled, avoidsForAnHour)
	h.fromOrigin(h.podSets())
	h.settle("job")
	h.addNodes("a1", "a2")
	h.remembers("a1")
	h.starts()
	h.wantOff("it is started", "", "a1.host")
	h.waitsForNode()
	h.minutes(2)
	h.clock.Step(2 * time.Hour)
	if events := h.minutes(2); !h.suspended("job") || !slices.Contains(events, "NodesFreed") {
		t.Errorf("it is started again: got %v", events)
	}
}
