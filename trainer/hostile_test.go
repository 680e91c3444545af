package trainer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/overrides"
)

// entryText is the integration's entry of an admission, as YAML.
const entryText = "spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager, time: " +
	"'2026-11-23T11:59:30Z', trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: " +
	"{template: {spec: {nodeSelector: {gpu: a100}}}}}}]}}}}]}"

// TestNoPodsWithoutQuota holds that a started TrainJob gets no JobSet while its Workload has lost its quota: that it
// can't be suspended gets it no pods.
func TestNoPodsWithoutQuota(t *testing.T) {
	const admitted = "{type: QuotaReserved, status: 'True'}, {type: Admitted, status: 'True'}"
	for name, c := range map[string]struct {
		wl   string
		made bool
	}{
		"admitted":    {"status: {conditions: [" + admitted + "]}", true},
		"none":        {"", true}, // the integration stops it, or has failed
		"waits":       {"status: {conditions: [{type: QuotaReserved, status: 'False'}]}", false},
		"reserved":    {"status: {conditions: [{type: QuotaReserved, status: 'True'}]}", false},
		"evicted":     {"status: {conditions: [" + admitted + ", {type: Evicted, status: 'True'}]}", false},
		"finished":    {"status: {conditions: [" + admitted + ", {type: Finished, status: 'True'}]}", false},
		"deactivated": {"spec: {active: false}\nstatus: {conditions: [" + admitted + "]}", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			job := h.pinned(h.trainJob("torch", entryText))
			h.put(job)
			if c.wl != "" {
				h.put(workloadOf(t, job, c.wl))
			}
			h.reconcile("job")
			if made := h.get(&jobset.JobSet{}, "job"); made != c.made {
				t.Errorf("made %t, want %t: sent %v", made, c.made, h.requests())
			}
		})
	}
}

// TestPodsGoFirst holds that a JobSet is deleted after its Jobs and those after their pods, however it is deleted.
func TestPodsGoFirst(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("torch", started)))
	h.reconcile("job")
	js := &jobset.JobSet{}
	if !h.get(js, "job") || !slices.Equal(js.Finalizers, []string{metav1.FinalizerDeleteDependents}) {
		t.Errorf("got %v", js.Finalizers)
	}
}

// TestUnqueuedLimits holds that what nobody queues is within the limits of the configuration before it is built: its
// runtime may have grown since it was created.
func TestUnqueuedLimits(t *testing.T) {
	h := newHarness(t, func(o *options) { o.limits.SpecBytes = 256 << 10 })
	rt := h.runtime("large", "{torch: {}}")
	rt.Spec.Template.Annotations = map[string]string{"a": strings.Repeat("x", 300<<10)}
	h.put(rt, h.trainJob("large", started))
	if result := h.reconcile("job"); result.RequeueAfter == 0 {
		t.Errorf("it is looked at again: got %v", result)
	}
	h.wantRequests("it isn't pinned, and says why", "patch TrainJob/status job")
	h.wantEvents("its user reads why", "TrainJobResourcesCreationFailed")
}

// TestManyDashes holds that each TrainJob whose Jobs may have the same name is looked up once, and that nothing is
// unfolded for it.
func TestManyDashes(t *testing.T) {
	replicatedJobs := make([]jobset.ReplicatedJob, 18)
	for i := range replicatedJobs {
		replicatedJobs[i].Name = fmt.Sprintf("a-b-%d", i)
	}
	name := strings.TrimSuffix(strings.Repeat("a-", 20), "-")
	all := rivals(name, replicatedJobs)
	if want := 19 + 2*1 + 0; len(all) != want { // dashes of the name; of "a-b-0", two, which are the same for all
		t.Errorf("%d TrainJobs are looked up, want %d", len(all), want)
	}
	n := 0
	for _, theirs := range all {
		n += len(theirs)
	}
	if want := 18 * (19 + 2); n != want {
		t.Errorf("%d ReplicatedJobs are compared, want %d", n, want)
	}
	h := newHarness(t)
	job := jobOf(t, "torch", entryText)
	job.Annotations = map[string]string{"signalbox.dev/runtime": "not a pin"}
	got, err := stepsOf(t.Context(), h.cached(), job)
	if err != nil || len(got) != 1 || got[0] != "node" {
		t.Errorf("its entry says what it runs: got %v, %v", got, err)
	}
	job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager}}
	if got, err := stepsOf(t.Context(), h.cached(), job); err != nil || len(got) != 0 {
		t.Errorf("an entry of nothing: got %v, %v", got, err)
	}
}
