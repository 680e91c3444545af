package trainer

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var avoiding = avoid.Policy{For: time.Hour, FailedWithin: time.Minute, AtMost: 8}

// podOn puts a pod of the TrainJob's JobSet on a node, as the cache has it. reason is what it shows of the node.
func (h *harness) podOn(name, node string, phase corev1.PodPhase, reason string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{
			jobset.JobSetNameKey: "job", jobset.JobSetUIDKey: "jobset"}, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "batch/v1", Kind: "Job", Name: "job-node-0", UID: "gone", Controller: new(true)}}},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
	}
	if reason != "" {
		pod.Status.Conditions = []corev1.PodCondition{{Type: avoid.Condition, Reason: reason, Message: "ItsReason",
			LastTransitionTime: metav1.NewTime(h.clock.Now())}}
	}
	h.put(pod)
}

// TestBroken holds which nodes are remembered, in which write, and which restart follows.
func TestBroken(t *testing.T) {
	const (
		told  = "patch TrainJob/status job"
		ended = "status: {conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}"
	)
	used := started + "\nstatus: {lost: {jobSet: jobset, pod: x, restarts: 3}}"
	for name, c := range map[string]struct {
		nodes   *avoid.Policy
		job, js string
		alone   bool // it has no Workload
		pods    func(*harness)
		sent    []string
		events  []string
		avoided string
		lost    *api.Loss
		failed  bool
	}{
		"rejected": {pods: func(h *harness) { h.podOn("a", "n1", corev1.PodFailed, avoid.Rejected) }, sent: []string{told},
			avoided: "n1 Rejected", lost: &api.Loss{JobSet: "jobset", Pod: "a", Restarts: 1, Restarting: true},
			events: []string{"Warning NodeAvoided It keeps off node n1 for 1h0m0s, from its next start on, unless it " +
				"needs the node: pod a was rejected " +
				"by its kubelet (ItsReason)", "Warning NodeRestarting Pod a can't run on node n1; restart 1 of 3"}},
		"an image, others run": {pods: func(h *harness) {
			h.podOn("a", "n1", corev1.PodPending, avoid.NotStarted)
			h.podOn("b", "n2", corev1.PodRunning, "")
		}, sent: []string{told}, avoided: "n1 NotStarted", events: []string{"NodeAvoided", "Restarting"},
			lost: &api.Loss{JobSet: "jobset", Pod: "a", Restarts: 1, Restarting: true}},
		"an image, all wait": {pods: func(h *harness) {
			h.podOn("a", "n1", corev1.PodPending, avoid.NotStarted)
			h.podOn("b", "n2", corev1.PodPending, avoid.NotStarted)
		}},
		"failed early, and its JobSet has, too": {js: ended, pods: func(h *harness) {
			h.podOn("a", "n1", corev1.PodFailed, avoid.FailedEarly)
			h.podOn("b", "n2", corev1.PodRunning, "")
		}, sent: []string{told}, avoided: "n1 FailedEarly", events: []string{"NodeAvoided", "Restarting"},
			lost: &api.Loss{JobSet: "jobset", Pod: "a", Restarts: 1, Restarting: true}},
		"all failed early": {js: ended, pods: func(h *harness) {
			h.podOn("a", "n1", corev1.PodFailed, avoid.FailedEarly)
			h.podOn("b", "n2", corev1.PodFailed, avoid.FailedEarly)
		}, sent: []string{told}, failed: true},
		"lost": {pods: func(h *harness) { h.podOn("a", "n1", corev1.PodRunning, avoid.Lost) }, sent: []string{told},
			avoided: "n1 Lost", events: []string{"NodeAvoided"}},
		"the budget is used up": {job: used, pods: func(h *harness) { h.podOn("a", "n1", corev1.PodFailed, avoid.Rejected) },
			sent: []string{told}, avoided: "n1 Rejected", events: []string{"NodeAvoided"},
			lost: &api.Loss{JobSet: "jobset", Pod: "x", Restarts: 3}},
		"it has no quota": {alone: true, pods: func(h *harness) { h.podOn("a", "n1", corev1.PodFailed, avoid.Rejected) },
			sent: []string{told}, avoided: "n1 Rejected", events: []string{"NodeAvoided"}},
		"off": {nodes: &avoid.Policy{}, pods: func(h *harness) { h.podOn("a", "n1", corev1.PodFailed, avoid.Rejected) }},
		"a pod of nobody": {pods: func(h *harness) {
			h.podOn("a", "n1", corev1.PodFailed, avoid.Rejected)
			pod := &corev1.Pod{}
			h.get(pod, "a")
			h.remove(&corev1.Pod{}, "a")
			pod.OwnerReferences, pod.ResourceVersion = nil, ""
			h.put(pod)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(o *options) {
				if o.nodes = avoiding; c.nodes != nil {
					o.nodes = *c.nodes
				}
			})
			if c.job == "" {
				c.job = started
			}
			if c.js == "" {
				c.js = "{}"
			}
			job := h.pinned(h.trainJob("torch", c.job))
			h.put(job, jobSetOf(t, job, c.js))
			if !c.alone {
				h.put(workloadOf(t, job, admitted))
			}
			h.reconcileQuietly()
			c.pods(h)
			h.reconcile("job")
			h.wantRequests("one write, if any", c.sent...)
			h.wantEvents("each once", c.events...)
			after, got := h.job("job"), ""
			for _, n := range after.Status.Avoided {
				got = strings.TrimSpace(got + " " + n.Name + " " + n.Reason)
			}
			if got != c.avoided || hasFailed(after) != c.failed {
				t.Errorf("got %q, failed %t; want %q, %t", got, hasFailed(after), c.avoided, c.failed)
			}
			if lost := after.Status.Lost; (lost == nil) != (c.lost == nil) || lost != nil && *lost != *c.lost {
				t.Errorf("got %+v, want %+v", lost, c.lost)
			}
			if c.avoided != "" {
				h.reconcile("job")
				h.wantEvents("once")
			}
		})
	}
}

// reconcileQuietly has everything written that isn't about pods.
func (h *harness) reconcileQuietly() {
	h.t.Helper()
	if c := h.jobSetEnds(); c {
		return
	}
	for range 2 {
		h.reconcile("job")
		h.clock.Step(3 * time.Minute)
	}
	h.reconcile("job")
	h.requests()
	h.events()
}

// jobSetEnds reports whether the JobSet has ended, so that the next reconcile writes that.
func (h *harness) jobSetEnds() bool {
	js := &jobset.JobSet{}
	return h.get(js, "job") && len(js.Status.Conditions) > 0
}

// TestBrokenTwice holds that the second run's broken node is added to the first's.
func TestBrokenTwice(t *testing.T) {
	h := newHarness(t, func(o *options) { o.nodes = avoiding })
	job := h.pinned(h.trainJob("torch", started))
	js := jobSetOf(t, job, "{}")
	h.put(job, js, workloadOf(t, job, admitted))
	h.podOn("a", "n1", corev1.PodFailed, avoid.Rejected)
	h.reconcile("job")
	h.reconcile("job")
	if job := h.job("job"); job.Spec.Suspend == nil || !*job.Spec.Suspend {
		t.Fatal("it is stopped, so that the integration starts it again")
	}
	h.remove(&jobset.JobSet{}, "job")
	h.remove(&corev1.Pod{}, "a")
	h.edit("job", func(job *api.TrainJob) {
		job.Spec.Suspend = new(bool)
		job.Status.Lost.JobSet = "the first"
	})
	h.put(js)
	h.podOn("b", "n2", corev1.PodFailed, avoid.Rejected)
	h.clock.Step(time.Minute)
	h.restart()
	h.reconcile("job")
	if got := h.job("job").Status; len(got.Avoided) != 2 || got.Avoided[1].Name != "n2" || got.Lost.Restarts != 2 {
		t.Errorf("got %+v, %+v", got.Avoided, got.Lost)
	}
}

// TestBrokenLater holds that a TrainJob is looked at again while a container doesn't start and the others may: no watch
// tells when they do.
func TestBrokenLater(t *testing.T) {
	h := newHarness(t, func(o *options) { o.nodes = avoiding })
	job := h.pinned(h.trainJob("torch", started))
	h.put(job, jobSetOf(t, job, "{}"), workloadOf(t, job, admitted))
	h.reconcileQuietly()
	if result := h.reconcile("job"); result.RequeueAfter > 0 {
		t.Fatalf("nothing is to be looked at: got %s", result.RequeueAfter)
	}
	h.podOn("a", "n1", corev1.PodPending, avoid.NotStarted)
	h.podOn("b", "n2", corev1.PodPending, "")
	if result := h.reconcile("job"); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("got %s", result.RequeueAfter)
	}
	h.remove(&corev1.Pod{}, "b")
	h.podOn("b", "n2", corev1.PodRunning, "")
	h.reconcile("job")
	if got := h.job("job").Status.Avoided; len(got) != 1 || got[0].Name != "n1" {
		t.Errorf("got %+v", got)
	}
}
