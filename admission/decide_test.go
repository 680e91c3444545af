package admission

import (
	"fmt"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func must[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

const runtimeYAML = `
mlPolicy: {numNodes: 1, torch: {}}
template:
  spec:
    replicatedJobs:
    - name: node
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec:
          template:
            metadata: {labels: {from: runtime}, annotations: {note: runtime}}
            spec:
              nodeSelector: {disk: fast}
              tolerations: [{key: spot, operator: Exists}]
              schedulingGates: [{name: example.com/mine}]
              containers: [{name: node, image: example.com/train:1}]
`

var now = metav1.NewTime(time.Unix(1_700_000_000, 0))

// input is an admission of one PodSet on flavor a100, changed.
func input(t testing.TB, change ...func(*Input)) Input {
	t.Helper()
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid", ResourceVersion: "7"}}
	job.Spec.RuntimeRef.Name = "torch"
	rt := must[trainerapi.TrainingRuntimeSpec](t, runtimeYAML)
	in := Input{
		Job: job, Runtime: &rt, Dialect: dialect.Kubeflow23, Now: now,
		Workload: &kueue.Workload{
			ObjectMeta: metav1.ObjectMeta{Name: "wl"},
			Spec:       kueue.WorkloadSpec{QueueName: "local", PodSets: []kueue.PodSet{{Name: "node", Count: 1}}},
			Status: kueue.WorkloadStatus{
				Admission: &kueue.Admission{ClusterQueue: "gpus", PodSetAssignments: []kueue.PodSetAssignment{{
					Name:    "node",
					Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"nvidia.com/gpu": "a100", "cpu": "a100"},
				}}},
			},
		},
		Flavors: map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec{
			"a100": {
				NodeLabels: map[string]string{"gpu": "a100"}, Tolerations: []corev1.Toleration{{Key: "gpu", Value: "a100"}},
			},
			"cpu": {
				NodeLabels:  map[string]string{"pool": "cpu"},
				Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "a100"}},
			},
		},
	}
	for _, c := range change {
		c(&in)
	}
	return in
}

func withEntry(t *testing.T, manager, pod string) func(*Input) {
	return func(in *Input) {
		in.Job.Spec.RuntimePatches = append(in.Job.Spec.RuntimePatches, must[trainerapi.RuntimePatch](t, fmt.Sprintf(
			`{manager: %s, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: %s}}}]}}}}`,
			manager,
			pod,
		)))
	}
}

func updates(check string, u ...kueue.PodSetUpdate) func(*Input) {
	return func(in *Input) {
		in.Workload.Status.AdmissionChecks = append(
			in.Workload.Status.AdmissionChecks,
			kueue.AdmissionCheckState{Name: kueue.AdmissionCheckReference(check), PodSetUpdates: u},
		)
	}
}

func TestDecide(t *testing.T) {
	cases := map[string]struct {
		reason string
		change []func(*Input)
		want   string // metadata and spec of the pods of "node" in the entry
	}{
		"a flavor": {
			reason: "the entry holds the whole of each field that it sets: the runtime's values and the flavor's",
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}},
				spec: {nodeSelector: {disk: fast, gpu: a100}, tolerations: [{key: spot, operator: Exists}, {key: gpu, value: a100}]}}`,
		},
		"other entries": {
			reason: "what other entries set belongs to the whole; a list of theirs has replaced the runtime's",
			change: []func(*Input){
				withEntry(
					t,
					"example.com/team",
					`{metadata: {labels: {team: x}}, spec: {nodeSelector: {rack: r1}, tolerations: [{key: team, operator: Exists}]}}`,
				),
			},
			want: `{metadata: {labels: {from: runtime, team: x, kueue.x-k8s.io/podset: node}},
				spec: {nodeSelector: {disk: fast, rack: r1, gpu: a100}, tolerations: [{key: team, operator: Exists}, {key: gpu, value: a100}]}}`,
		},
		"an entry of an earlier admission": {
			reason: "our own earlier values don't count: they are superseded",
			change: []func(*Input){
				withEntry(
					t,
					overrides.Manager,
					`{metadata: {labels: {kueue.x-k8s.io/podset: node}}, spec: {nodeSelector: {gpu: h100, old: "true"}, tolerations: [{key: old, operator: Exists}]}}`,
				),
			},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}},
				spec: {nodeSelector: {disk: fast, gpu: a100}, tolerations: [{key: spot, operator: Exists}, {key: gpu, value: a100}]}}`,
		},
		"two flavors": {
			reason: "a PodSet's resources may come from several flavors; the same toleration is not written twice",
			change: []func(*Input){func(in *Input) { in.Workload.Status.Admission.PodSetAssignments[0].Flavors["cpu"] = "cpu" }},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}},
				spec: {nodeSelector: {disk: fast, gpu: a100, pool: cpu}, tolerations: [{key: spot, operator: Exists}, {key: gpu, value: a100}]}}`,
		},
		"a flavor of nothing": {
			reason: "a field that admission doesn't need stays out of the entry",
			change: []func(*Input){func(in *Input) { in.Flavors["a100"] = kueue.ResourceFlavorSpec{} }},
			want:   `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}}, spec: {}}`,
		},
		"queue labels": {
			reason: "pods are labelled with their queues where Kueue's gate says so",
			change: []func(*Input){
				func(in *Input) { in.Features.QueueLabels = true; in.Flavors["a100"] = kueue.ResourceFlavorSpec{} },
			},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node, kueue.x-k8s.io/local-queue-name: local, kueue.x-k8s.io/cluster-queue-name: gpus}}, spec: {}}`,
		},
		"a ClusterQueue whose name is no label": {
			reason: "its label is left out, as Kueue does",
			change: []func(*Input){func(in *Input) {
				in.Features.QueueLabels = true
				in.Flavors["a100"] = kueue.ResourceFlavorSpec{}
				in.Workload.Status.Admission.ClusterQueue = "a.b"
			}},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node, kueue.x-k8s.io/local-queue-name: local}}, spec: {}}`,
		},
		"topology": {
			reason: "pods are gated until their node is assigned; the runtime's own gates stay, and Kueue finds the level",
			change: []func(*Input){func(in *Input) {
				in.Features.TopologyAware = true
				in.Flavors["a100"] = kueue.ResourceFlavorSpec{}
				in.Workload.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{}
				in.Workload.Spec.PodSets[0].TopologyRequest = &kueue.PodSetTopologyRequest{Required: ptr.To("rack")}
			}},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}, annotations: {note: runtime, kueue.x-k8s.io/workload: wl, kueue.x-k8s.io/podset-required-topology: rack}},
				spec: {schedulingGates: [{name: example.com/mine}, {name: kueue.x-k8s.io/topology}]}}`,
		},
		"implicit topology": {
			reason: "a PodSet that asks for no level is placed anywhere, which the pods say",
			change: []func(*Input){func(in *Input) {
				in.Features.TopologyAware = true
				in.Flavors["a100"] = kueue.ResourceFlavorSpec{}
				in.Workload.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{}
			}},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}, annotations: {note: runtime, kueue.x-k8s.io/workload: wl, kueue.x-k8s.io/podset-unconstrained-topology: "true"}},
				spec: {schedulingGates: [{name: example.com/mine}, {name: kueue.x-k8s.io/topology}]}}`,
		},
		"admission checks": {
			reason: "every field of a check's update is added; updates for other PodSets are not",
			change: []func(*Input){
				updates(
					"prov",
					kueue.PodSetUpdate{Name: "node", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
						NodeSelector: map[string]string{
							"zone": "1",
						}, Tolerations: []corev1.Toleration{{Key: "t", Operator: corev1.TolerationOpExists}}},
					kueue.PodSetUpdate{Name: "other", NodeSelector: map[string]string{"no": "no"}},
				),
				updates("second", kueue.PodSetUpdate{Name: "node", NodeSelector: map[string]string{"zone": "1"}}),
			},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node, l: "1"}, annotations: {note: runtime, a: "1"}},
				spec: {nodeSelector: {disk: fast, gpu: a100, zone: "1"}, tolerations: [{key: spot, operator: Exists}, {key: gpu, value: a100}, {key: t, operator: Exists}]}}`,
		},
		"reclaimed": {
			reason: "a PodSet whose pods have succeeded is assigned none, and starts as the others do",
			change: []func(*Input){func(in *Input) {
				in.Flavors["a100"] = kueue.ResourceFlavorSpec{}
				in.Workload.Status.Admission.PodSetAssignments[0].Count = ptr.To[int32](0)
			}},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}}, spec: {}}`,
		},
		"from another cluster": {
			reason: "pods of a MultiKueue worker say so",
			change: []func(*Input){func(in *Input) {
				in.Flavors["a100"] = kueue.ResourceFlavorSpec{}
				in.Workload.Labels = map[string]string{kueue.MultiKueueOriginLabel: "manager"}
			}},
			want: fmt.Sprintf(
				`{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node, %s: "%s"}}, spec: {}}`,
				kueue.MultiKueueWorkerWorkloadPodLabel,
				kueue.MultiKueueWorkerWorkloadPodValue,
			),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := input(t, c.change...)
			jobBefore, runtimeBefore, workloadBefore := in.Job.DeepCopy(), in.Runtime.DeepCopy(), in.Workload.DeepCopy()
			start, err := Decide(in)
			if err != nil {
				t.Fatal(err)
			}
			want := must[trainerapi.PodTemplatePatch](t, c.want)
			got := start.Entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template
			if !equality.Semantic.DeepEqual(got, &want) {
				t.Errorf("%s:\ngot  %+v %+v\nwant %+v %+v", c.reason, got.Metadata, got.Spec, want.Metadata, want.Spec)
			}
			if start.ResourceVersion != "7" || start.UID != "uid" || start.Key.String() != "ns/job" ||
				start.Entry.Manager != overrides.Manager ||
				!start.Entry.Time.Equal(&now) {
				t.Errorf("the start is of the TrainJob that it was decided on: got %+v", start)
			}
			if !equality.Semantic.DeepEqual(in.Job, jobBefore) || !equality.Semantic.DeepEqual(in.Runtime, runtimeBefore) ||
				!equality.Semantic.DeepEqual(in.Workload, workloadBefore) {
				t.Error("Decide changed what it was given")
			}
		})
	}
}
