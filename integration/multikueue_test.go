package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/util/tas"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// withMultiKueue makes queue "away" lead to other clusters, "checked" to a check of another kind, "broken" to a
// ClusterQueue that isn't there.
func withMultiKueue(t *testing.T, listed bool) *harness {
	t.Helper()
	h := newHarness(t, dialect.Bundled, func(c *configapi.Configuration) { c.Kueue.MultiKueue = &listed })
	for name, controller := range map[string]string{
		"multikueue": kueue.MultiKueueControllerName, "zones": "example.com/z",
	} {
		check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}}
		check.Spec.ControllerName = controller
		h.create(check)
	}
	for queue, checks := range map[string][]kueue.AdmissionCheckReference{
		"away": {"missing", "zones", "multikueue"}, "checked": {"zones"}, "broken": nil, "queue": nil,
	} {
		lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: queue}}
		lq.Spec.ClusterQueue = kueue.ClusterQueueReference(queue)
		h.create(lq)
		if queue == "broken" || queue == "queue" {
			continue
		}
		cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
		for _, name := range checks {
			cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks,
				kueue.AdmissionCheckStrategyRule{Name: name})
		}
		h.create(cq)
	}
	return h
}

// away is a TrainJob of MultiKueue.
func away(queue string) *api.TrainJob {
	job := newTrainJob("job")
	job.Labels[constants.QueueLabel] = queue
	job.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
	return job
}

func TestRunsElsewhere(t *testing.T) {
	h := withMultiKueue(t, true)
	h.create(away("away"))
	h.settle("job")
	h.admit()
	h.settle("job")
	if !h.suspended("job") || h.blocked("job") != "" {
		t.Errorf("it is queued here and never started: blocked for %q", h.blocked("job"))
	}
	h = withMultiKueue(t, true)
	h.create(away("queue"))
	h.settle("job")
	if got := h.blocked("job"); got != integration.ReasonNotDispatched || len(h.workloads()) > 0 {
		t.Errorf("no cluster would run it: blocked for %q", got)
	}
}

// runsAway gives a TrainJob the status that Kueue copies from the cluster that runs it.
func (h *harness) runsAway(active int32) {
	h.t.Helper()
	job := h.trainJob("job")
	status := metav1.ConditionFalse
	if active == 0 {
		status = metav1.ConditionTrue
	}
	job.Status.Conditions = []metav1.Condition{
		{Type: trainerapi.TrainJobSuspended, Status: status, Reason: "Copied", LastTransitionTime: metav1.Now()},
		{Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: "Copied", LastTransitionTime: metav1.Now()},
	}
	job.Status.JobsStatus = []trainerapi.JobStatus{{Name: "node", Active: &active, Ready: &active}}
	h.updateStatus(job)
}

// A TrainJob that runs elsewhere keeps its status, and its quota until it has stopped there, or its cluster is lost.
func TestQuotaElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		active int32
		lost   bool
		held   bool
	}{
		"it still runs there":      {active: 1, held: true},
		"it has stopped there":     {active: 0},
		"its cluster can't answer": {active: 1, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := withMultiKueue(t, true)
			cluster := &kueue.MultiKueueCluster{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
			if !c.lost {
				cluster.Status.Conditions = []metav1.Condition{{Type: kueue.MultiKueueClusterActive, Status: metav1.ConditionTrue}}
			}
			h.create(cluster)
			h.create(away("away"))
			h.settle("job")
			h.admit()
			h.runsAway(c.active)
			h.settle("job")
			if h.blocked("job") != "Copied" || !h.suspended("job") {
				t.Errorf("the copied status was written over: blocked for %q", h.blocked("job"))
			}
			wl := h.workload()
			apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
				Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByPreemption})
			h.updateStatus(wl)
			h.settle("job")
			held := apimeta.IsStatusConditionTrue(h.workload().Status.Conditions, kueue.WorkloadQuotaReserved)
			if held != c.held {
				t.Errorf("quota held: %t, want %t", held, c.held)
			}
		})
	}
}

// Kueue may have missed a Workload that got quota while it connected to the workers.
func TestRedispatch(t *testing.T) {
	h := withMultiKueue(t, true)
	h.create(away("away"))
	h.settle("job")
	wl := h.workload()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadQuotaReserved,
		Status: metav1.ConditionTrue, Reason: "QuotaReserved", LastTransitionTime: metav1.NewTime(h.clock.Now())})
	wl.Status.Admission = &kueue.Admission{ClusterQueue: "away"}
	h.updateStatus(wl)
	wrote := 0
	for range 600 {
		if _, err := h.reconcile("job"); err != nil {
			t.Fatal(err)
		}
		wrote += h.wrote("patch Workload")
		h.clock.Step(time.Second)
	}
	if wrote != 6 { // after 15, 30, 60, 120, 240 and 480 s
		t.Errorf("Kueue was made to look %d times in ten minutes", wrote)
	}
}

func TestFailsElsewhere(t *testing.T) {
	for reason, told := range map[string]bool{kueue.WorkloadFinishedReasonSucceeded: false, "RuntimesDiffer": true} {
		h := withMultiKueue(t, true)
		h.create(away("away"))
		h.settle("job")
		wl := h.workload()
		apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
			Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, Reason: reason, Message: "it ended"})
		h.updateStatus(wl)
		if got := slices.Contains(h.settle("job"), "FailedToStart"); got != told {
			t.Errorf("finished elsewhere as %s: event %t, want %t", reason, got, told)
		}
	}
}

// fromOrigin is a TrainJob that MultiKueue has created, and the Workload that it has created before.
func (h *harness) fromOrigin(podSets []kueue.PodSet) *kueue.Workload {
	h.t.Helper()
	prebuilt := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "prebuilt"}}
	prebuilt.Spec.QueueName, prebuilt.Spec.PodSets = "queue", podSets
	h.create(prebuilt)
	job := newTrainJob("job")
	job.Labels[kueue.MultiKueueOriginLabel], job.Labels[constants.PrebuiltWorkloadLabel] = "origin", "prebuilt"
	h.create(job)
	return prebuilt
}

// podSets are those of a TrainJob in another cluster.
func (h *harness) podSets() []kueue.PodSet {
	h.t.Helper()
	h.create(newTrainJob("model"))
	h.settle("model")
	podSets := h.workload().DeepCopy().Spec.PodSets
	h.remove(h.trainJob("model"))
	h.remove(h.workload())
	h.settle("model")
	return podSets
}

// onA1 places a Workload's pods on a node.
func onA1(a *kueue.PodSetAssignment) {
	a.TopologyAssignment = tas.V1Beta2From(&tas.TopologyAssignment{Levels: []string{corev1.LabelHostname},
		Domains: []tas.TopologyDomainAssignment{{Values: []string{"a1.host"}, Count: 1}}})
}

// TestReceivedKeepsOff holds that what MultiKueue has sent keeps off a node by its start alone, and not off the place
// that its Workload has: its pods would wait there, and hold quota.
func TestReceivedKeepsOff(t *testing.T) {
	for want, place := range map[string]func(*kueue.PodSetAssignment){
		"a1.host": func(*kueue.PodSetAssignment) {}, "": onA1,
	} {
		h := newHarness(t, dialect.Bundled, avoidsForAnHour)
		h.fromOrigin(h.podSets())
		h.settle("job")
		for _, name := range []string{"a1", "a2"} {
			h.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				"pool": "a", corev1.LabelHostname: name + ".host"}},
				Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{gpu: resource.MustParse("8")}}})
		}
		h.remembers("a1")
		h.starts(place)
		if got := h.startedOff(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRuntimesDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*kueue.PodSet)
		says   string
	}{
		"the same": {func(*kueue.PodSet) {}, ""},
		"count":    {func(p *kueue.PodSet) { p.Count = 3 }, "podSets[node].count is 1, not 3"},
		"image": {func(p *kueue.PodSet) { p.Template.Spec.Containers[0].Image = "example.com/other" },
			"podSets[node].template.spec.containers differs"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			podSets := h.podSets()
			c.change(&podSets[0])
			h.fromOrigin(podSets)
			h.settle("job")
			said := ""
			if c := apimeta.FindStatusCondition(h.trainJob("job").Status.Conditions, api.ConditionBlocked); c != nil {
				said = c.Message
			}
			if (said == "") != (c.says == "") || !strings.Contains(said, c.says) {
				t.Errorf("got %q, want it to say %q", said, c.says)
			}
			if got := h.workload().Finalizers; c.says == "" && !slices.Contains(got, kueue.ResourceInUseFinalizerName) {
				t.Errorf("nothing would hold the quota of a deleted TrainJob: finalizers %v", got)
			}
			if got := workloadfinish.IsFinished(h.workload()); got != (c.says != "") {
				t.Errorf("finished, which the other cluster sees: %t", got)
			}
		})
	}
}
