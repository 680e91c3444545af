package trainer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// initialized is a TrainJob with something of each kind that can change what an initializer is.
const initialized = `
spec:
  suspend: false
  trainer: {numNodes: 2}
  runtimePatches:
  - manager: example.com/team
    trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: dataset-initializer,
      template: {spec: {template: {spec: {nodeSelector: {disk: ssd}}}}}}]}}}
  podTemplateOverrides:
  - targetJobs: [{name: dataset-initializer}]
    spec: {tolerations: [{key: spot, operator: Exists}]}
`

// run starts a TrainJob, lets the given ReplicatedJobs of its JobSet succeed, and stops it. It returns the names of all
// that the JobSet had.
func (h *harness) run(succeed ...string) string {
	h.t.Helper()
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
	h.reconcile("job")
	js := &jobset.JobSet{}
	if !h.get(js, "job") {
		h.t.Fatal("there is no JobSet")
	}
	names := make([]string, 0, len(js.Spec.ReplicatedJobs))
	for i := range js.Spec.ReplicatedJobs {
		name := js.Spec.ReplicatedJobs[i].Name
		names = append(names, name)
		s := jobset.ReplicatedJobStatus{Name: name}
		for _, done := range succeed {
			if done == name {
				s.Succeeded = 1
			}
		}
		js.Status.ReplicatedJobsStatus = append(js.Status.ReplicatedJobsStatus, s)
	}
	if err := h.store.Status().Update(context.Background(), js); err != nil {
		h.t.Fatal(err)
	}
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.clock.Step(time.Hour)
	h.reconcile("job")
	h.remove(&jobset.JobSet{}, "job")
	h.reconcile("job")
	h.clock.Step(time.Hour)
	h.reconcile("job")
	return strings.Join(names, " ")
}

// rerun pins the runtime as it is now, as a start does, and runs the TrainJob.
func (h *harness) rerun(succeed ...string) string {
	h.t.Helper()
	h.edit("job", func(j *api.TrainJob) { h.pinned(j) })
	return h.run(succeed...)
}

// TestInitializerChanged holds that a finished initializer runs again if it isn't what it was when it ran, whoever has
// changed it and however, and only then.
func TestInitializerChanged(t *testing.T) {
	const again, done = "dataset-initializer node launcher", "node launcher"
	own := `{manager: kueue.x-k8s.io/manager, time: '2027-01-01T00:00:00Z', trainingRuntimeSpec: {template: {spec:
  {replicatedJobs: [{name: dataset-initializer, template: {spec: {template: {spec: {nodeSelector: {gpu: a100},
    tolerations: [{key: a100, operator: Exists}], schedulingGates: [{name: example.com/gate}]}}}}}]}}}}`
	patch := func(text string) trainerapi.RuntimePatch { return *read[trainerapi.RuntimePatch](t, text) }
	cases := map[string]struct {
		change func(*api.TrainJob, *trainerapi.TrainingRuntimeSpec)
		want   string
	}{
		"nothing": {func(*api.TrainJob, *trainerapi.TrainingRuntimeSpec) {}, done},
		"another flavor": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			j.Spec.RuntimePatches = append(j.Spec.RuntimePatches, patch(own))
		}, done},
		"fewer nodes": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			j.Spec.Trainer.NumNodes = ptr.To[int32](1)
		}, done},
		"another image of the trainer": {func(_ *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec) {
			rt.Template.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec.Containers[0].Image = "other"
		}, done},
		"an entry for the trainer": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			j.Spec.RuntimePatches = append(j.Spec.RuntimePatches, patch(`{manager: a.com/a, time: '2027-01-01T00:00:00Z',
  trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec:
  {nodeSelector: {a: b}}}}}}]}}}}`))
		}, done},
		"annotations of the TrainJob": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			metav1.SetMetaDataAnnotation(&j.ObjectMeta, "a", "b")
		}, done},
		"an entry edited, without a time": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			rj := &j.Spec.RuntimePatches[0].TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0]
			rj.Template.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "hdd"}
		}, again},
		"an entry removed": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			j.Spec.RuntimePatches = nil
		}, again},
		"an override edited": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			j.Spec.PodTemplateOverrides[0].Spec.Tolerations[0].Key = "other"
		}, again},
		"an override removed": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			j.Spec.PodTemplateOverrides = nil
		}, again},
		"an initializer's source": {func(j *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec) {
			j.Spec.Initializer = &trainerapi.Initializer{
				Dataset: &trainerapi.DatasetInitializer{StorageUri: ptr.To("hf://other")}}
		}, again},
		"the runtime's image": {func(_ *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec) {
			rt.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "other"
		}, again},
		"the runtime's volume": {func(_ *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec) {
			rt.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "other"
		}, again},
		"how often it runs": {func(_ *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec) {
			rt.Template.Spec.ReplicatedJobs[0].Template.Spec.Parallelism = ptr.To[int32](2)
		}, again},
		"its labels": {func(_ *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec) {
			rt.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Labels = map[string]string{"a": "b"}
		}, again},
		"of an earlier release": {func(j *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec) {
			j.Status.Initializers = nil
			rt.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "other"
		}, done},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.put(h.pinned(h.trainJob("torch", initialized)))
			if got := h.run("dataset-initializer"); got != again {
				t.Fatalf("the first run has %s", got)
			}
			if len(h.job("job").Status.Initializers) != 1 {
				t.Fatalf("what has finished is kept: got %v", h.job("job").Status.Initializers)
			}
			rt := &api.TrainingRuntime{}
			h.get(rt, "torch")
			before := rt.DeepCopy()
			h.edit("job", func(j *api.TrainJob) { c.change(j, &rt.Spec) })
			if err := h.store.Update(t.Context(), rt); err != nil {
				t.Fatal(err)
			}
			if got := h.rerun(); got != c.want {
				t.Errorf("the second run has %s, want %s", got, c.want)
			}
			if c.want == done && len(h.job("job").Status.Initializers) != 1 {
				t.Error("what was left out is still done, and kept")
			}
			if name == "of an earlier release" {
				before.ResourceVersion = rt.ResourceVersion
				if err := h.store.Update(t.Context(), before); err != nil {
					t.Fatal(err)
				}
				if got := h.rerun(); got != again {
					t.Errorf("from the second start it is known what it was: got %s", got)
				}
			}
			if c.want == again && len(h.job("job").Status.Initializers) != 0 {
				t.Error("what runs again and hasn't finished isn't done")
			}
			if name == "an entry removed" {
				if got := h.rerun("dataset-initializer") + ", " + h.rerun(); got != again+", "+done {
					t.Errorf("it runs until it has finished: got %s", got)
				}
			}
		})
	}
}

// TestInitializerChangedAndBack holds that an initializer that is what it was again doesn't run again.
func TestInitializerChangedAndBack(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("torch", initialized)))
	h.run("dataset-initializer")
	patches := h.job("job").Spec.RuntimePatches
	h.edit("job", func(j *api.TrainJob) { j.Spec.RuntimePatches = nil })
	h.clock.Step(time.Hour)
	h.reconcile("job")
	h.edit("job", func(j *api.TrainJob) { j.Spec.RuntimePatches = patches })
	if got := h.rerun(); got != "node launcher" {
		t.Errorf("got %s", got)
	}
}

// inARow has two initializers after one another, one beside them, and a trainer that waits for all.
const inARow = `
mlPolicy: {numNodes: 1, torch: {}}
template:
  spec:
    replicatedJobs:
    - &init
      name: first
      replicas: 1
      template: {spec: {template: {spec: {
        volumes: [{name: data, persistentVolumeClaim: {claimName: data}}],
        containers: [{name: init, image: init, volumeMounts: [{name: data, mountPath: /data}]}]}}}}
    - {<<: *init, name: second, dependsOn: [{name: first, status: Complete}]}
    - {<<: *init, name: beside}
    - name: node
      replicas: 1
      dependsOn: [{name: second, status: Complete}, {name: beside, status: Complete}]
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: train}]}}}
`

// TestInitializersInARow holds that an initializer runs again if one that it waits for does, and no other.
func TestInitializersInARow(t *testing.T) {
	for changed, want := range map[string]string{
		"": "node", "first": "first second node", "second": "second node", "beside": "beside node", "node": "node",
	} {
		t.Run(changed, func(t *testing.T) {
			h := newHarness(t)
			rt := &api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "row"}}
			if err := yaml.Unmarshal([]byte(inARow), &rt.Spec); err != nil {
				t.Fatal(err)
			}
			h.put(rt)
			h.put(h.pinned(h.trainJob("row", "spec: {suspend: false}")))
			if got := h.run("first", "second", "beside"); got != "first second beside node" {
				t.Fatalf("the first run has %s", got)
			}
			h.get(rt, "row")
			for i := range rt.Spec.Template.Spec.ReplicatedJobs {
				if rj := &rt.Spec.Template.Spec.ReplicatedJobs[i]; rj.Name == changed {
					rj.Template.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
				}
			}
			if err := h.store.Update(t.Context(), rt); err != nil {
				t.Fatal(err)
			}
			if got := h.rerun(); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestInitializersOfTheJobSet holds that the JobSet says what its initializers were when it was built: an entry that is
// changed while they run isn't what they did.
func TestInitializersOfTheJobSet(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("torch", initialized)))
	h.reconcile("job")
	h.edit("job", func(j *api.TrainJob) { j.Spec.RuntimePatches = nil }) // after the stop, before its pods have ended
	h.run("dataset-initializer")
	if got := h.rerun(); got != "dataset-initializer node launcher" {
		t.Errorf("got %s", got)
	}
}

// TestEditedThenStarted holds that what an initializer has done for an earlier entry isn't taken for done, also if the
// TrainJob starts before its status says so.
func TestEditedThenStarted(t *testing.T) {
	const stopped = "spec: {suspend: true, runtimePatches: [{manager: a.com/a, time: '2026-11-23T%s:00Z'}]}\n" +
		"status: {conditions: [{type: Suspended, status: 'True', reason: X, lastTransitionTime: '2026-11-23T11:00:00Z'}], " +
		"jobsStatus: [{name: dataset-initializer, succeeded: 1, ready: 0, active: 0, failed: 0, suspended: 0}, " +
		"{name: node, succeeded: 0, ready: 0, active: 0, failed: 0, suspended: 0}]}"
	for edited, runsAgain := range map[string]bool{"10:30": false, "11:30": true} {
		h := newHarness(t)
		h.put(h.pinned(h.trainJob("torch", fmt.Sprintf(stopped, edited))))
		h.reconcile("job")
		h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
		h.reconcile("job")
		js := &jobset.JobSet{}
		if !h.get(js, "job") || (podsets.ReplicatedJob(js.Spec.ReplicatedJobs, "dataset-initializer") != nil) != runsAgain {
			t.Errorf("edited at %s: got %v", edited, js.Spec.ReplicatedJobs)
		}
	}
}
