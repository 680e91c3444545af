package overrides_test

import (
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TestInitializers holds that what an initializer is doesn't depend on who asks, nor on the integration's entry.
func TestInitializers(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	job := jobOf(t, "{}")
	first := dialect.Bundled.Initializers(job, &rt)
	if len(first) != 1 || len(first["dataset-initializer"]) != 16 {
		t.Fatalf("the node isn't one: got %v", first)
	}
	job.Spec.RuntimePatches = entries(t, `[{manager: kueue.x-k8s.io/manager, trainingRuntimeSpec: {template: {spec: {
  replicatedJobs: [{name: dataset-initializer, template: {spec: {template: {spec: {nodeSelector: {gpu: a100}}}}}}]}}}}]`)
	if again := dialect.Bundled.Initializers(job, &rt); again["dataset-initializer"] != first["dataset-initializer"] {
		t.Error("the flavor is no change")
	}
	job.Spec.RuntimePatches = entries(t, `[{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {
  replicatedJobs: [{name: missing}]}}}}]`)
	if got := dialect.Bundled.Initializers(job, &rt); got != nil {
		t.Errorf("it can't be computed: got %v", got)
	}
	none := must[trainerapi.TrainingRuntimeSpec](t, mpiRuntime)
	if got := dialect.Bundled.Initializers(job, &none); got != nil {
		t.Errorf("there are none: got %v", got)
	}
}

// TestDone holds what counts as done: what an initializer was is compared where it is known, and else the time of the
// entries.
func TestDone(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	other := rt.DeepCopy()
	other.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "other"
	stop := metav1.Date(2026, 11, 23, 11, 0, 0, 0, time.UTC)
	edited := func(job *api.TrainJob) {
		job.Spec.RuntimePatches = []trainerapi.RuntimePatch{
			{Manager: "a.com/a", Time: ptr.To(metav1.NewTime(stop.Add(time.Hour)))}}
	}
	forgotten := func(job *api.TrainJob) { job.Status.Initializers = nil }
	uncomputable := func(job *api.TrainJob) {
		job.Spec.RuntimePatches = entries(t, `[{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {
  replicatedJobs: [{name: missing}]}}}}]`)
	}
	cases := map[string]struct {
		runtime *trainerapi.TrainingRuntimeSpec
		change  []func(*api.TrainJob)
		want    int32
	}{
		"the same":                   {&rt, nil, 1},
		"another":                    {other, nil, 0},
		"an entry of nothing":        {&rt, []func(*api.TrainJob){edited}, 1},
		"no runtime":                 {nil, []func(*api.TrainJob){edited}, 1},
		"not known what it was":      {other, []func(*api.TrainJob){forgotten}, 1},
		"not known, an entry edited": {&rt, []func(*api.TrainJob){forgotten, edited}, 0},
		"not known what it is":       {&rt, []func(*api.TrainJob){uncomputable}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobOf(t, "{}")
			job.Status.Initializers = dialect.Bundled.Initializers(job, &rt)
			job.Status.JobsStatus = []trainerapi.JobStatus{{Name: "dataset-initializer", Succeeded: ptr.To[int32](1)}}
			job.Status.Conditions = []metav1.Condition{
				{Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionTrue, LastTransitionTime: stop}}
			for _, change := range c.change {
				change(job)
			}
			if got := *dialect.Bundled.Done(job, c.runtime)[0].Succeeded; got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
			if *job.Status.JobsStatus[0].Succeeded != 1 {
				t.Error("the TrainJob's status was changed")
			}
		})
	}
}
