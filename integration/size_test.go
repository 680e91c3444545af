package integration_test

import (
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// sized is a TrainJob of so many nodes that may be started with fewer, "" for not.
func sized(nodes int32, least string) *api.TrainJob {
	job := newTrainJob("job")
	job.Spec.Trainer.NumNodes = &nodes
	if least != "" {
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, overrides.MinParallelismAnnotation, least)
	}
	return job
}

// admitInPart admits the Workload with so many pods.
func (h *harness) admitInPart(pods int32) {
	h.t.Helper()
	h.admit(func(a *kueue.PodSetAssignment) {
		a.Count = &pods
		a.ResourceUsage[gpu] = *resource.NewQuantity(int64(pods), resource.DecimalSI)
	})
}

func TestAdmittedInPart(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.create(sized(8, "2"))
	h.settle("job")
	if podSet := h.workload().Spec.PodSets[0]; podSet.Count != 8 || ptr.Deref(podSet.MinCount, 0) != 2 {
		t.Fatalf("its Workload says how few are enough: got %v", podSet)
	}
	h.admitInPart(3)
	h.clock.Step(11 * time.Second)
	h.settle("job")
	job := h.trainJob("job")
	rt := &api.ClusterTrainingRuntime{}
	h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "torch"}, rt))
	runs, err := dialect.Bundled.Compute(job, &rt.Spec, dialect.Bundled.Entries(job))
	h.must(err)
	if pods := overrides.PodsPerJob(&runs.ReplicatedJobs[0]); h.suspended("job") || pods != 3 {
		t.Fatalf("it runs what was admitted: got %d pods, suspended %t", pods, h.suspended("job"))
	}
	if *job.Spec.Trainer.NumNodes != 8 {
		t.Error("what the user asks for has changed")
	}

	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settle("job")
	wl := h.workload()
	wl.Status.Admission, wl.Status.Conditions = nil, nil
	h.updateStatus(wl)
	h.settle("job")
	if podSet := h.workload().Spec.PodSets[0]; podSet.Count != 8 || ptr.Deref(podSet.MinCount, 0) != 2 {
		t.Errorf("an evicted one queues for all again: got %v", podSet)
	}
	if !neutral(dialect.Bundled, h.trainJob("job")) {
		t.Error("the entry still says how many it had")
	}
}

func TestMinimum(t *testing.T) {
	cases := map[string]struct {
		reason, own, runtime, blocked string
		want                          *int32
	}{
		"none":          {reason: "it has to have all"},
		"its own":       {reason: "Kueue may admit fewer", own: "2", want: ptr.To[int32](2)},
		"the runtime's": {reason: "it is for all its TrainJobs", runtime: "3", want: ptr.To[int32](3)},
		"all":           {reason: "the runtime's is for larger ones", runtime: "8"},
		"no number":     {reason: "what is meant isn't known", runtime: "half", blocked: "InvalidMinimum"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			if c.runtime != "" {
				rt := &api.ClusterTrainingRuntime{}
				h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "torch"}, rt))
				metav1.SetMetaDataAnnotation(&rt.ObjectMeta, overrides.MinParallelismAnnotation, c.runtime)
				h.update(rt)
			}
			h.create(sized(8, c.own))
			h.settle("job")
			if got := h.blocked("job"); got != c.blocked {
				t.Fatalf("%s: blocked for %q", c.reason, got)
			}
			if c.blocked == "" && !ptr.Equal(h.workload().Spec.PodSets[0].MinCount, c.want) {
				t.Errorf("%s: got %v", c.reason, h.workload().Spec.PodSets[0])
			}
		})
	}
}

func TestResized(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.create(sized(8, ""))
	h.settle("job")
	before := h.workload()
	job := h.trainJob("job")
	job.Spec.Trainer.NumNodes = ptr.To[int32](2)
	h.update(job)
	h.settle("job")
	if after := h.workload(); after.UID != before.UID || after.Spec.PodSets[0].Count != 2 {
		t.Errorf("its Workload follows, and keeps its place: got %v of %v", after.Spec.PodSets[0], before.UID)
	}
}

func TestMinimumBesideKubeflow(t *testing.T) {
	h := newHarness(t, dialect.Kubeflow23)
	h.create(sized(8, "2"))
	h.settle("job")
	if got := h.blocked("job"); got != "InvalidMinimum" {
		t.Errorf("one that came by another way is blocked: got %q", got)
	}
}

func TestCheckTopology(t *testing.T) {
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		refused     string
	}{
		"one rack": {"Kueue takes it", map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"}, ""},
		"two levels": {"Kueue would take the first", map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack",
			kueue.PodSetPreferredTopologyAnnotation: "block"}, "must not contain more than one topology annotation"},
		"half a slice": {"Kueue would ignore it", map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "rack"},
			"podset-slice-size"},
		"a slice too large": {"it never fits", map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "rack",
			kueue.PodSetSliceSizeAnnotation: "16"}, "must not be greater than pod set count 8"},
		"a group of one": {"Kueue takes two", map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack",
			kueue.PodSetGroupName: "one"}, "groups of exactly 2 pod sets"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			rt := &api.ClusterTrainingRuntime{}
			h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "torch"}, rt))
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Annotations = c.annotations
			h.update(rt)
			h.create(sized(8, ""))
			h.settle("job")
			said := apimeta.FindStatusCondition(h.trainJob("job").Status.Conditions, api.ConditionBlocked)
			if (said == nil) != (c.refused == "") || said != nil && (said.Reason != integration.ReasonInvalidRuntime ||
				!strings.Contains(said.Message, c.refused) ||
				!strings.Contains(said.Message, "replicatedJobs[node].template.spec.template.metadata.annotations")) {
				t.Errorf("%s: got %v, want %q", c.reason, said, c.refused)
			}
		})
	}
}
