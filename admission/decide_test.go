package admission

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
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
		Job: job, Runtime: &rt, Dialect: overrides.Kubeflow23, Now: now,
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
			reason: "pods are gated until their node is assigned; the runtime's own gates stay",
			change: []func(*Input){func(in *Input) {
				in.Features.TopologyAware = true
				in.Flavors["a100"] = kueue.ResourceFlavorSpec{}
				in.Workload.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{}
				in.Workload.Spec.PodSets[0].TopologyRequest = &kueue.PodSetTopologyRequest{Required: ptr.To("rack")}
			}},
			want: `{metadata: {labels: {from: runtime, kueue.x-k8s.io/podset: node}, annotations: {note: runtime, kueue.x-k8s.io/workload: wl}},
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

func TestDecideConflicts(t *testing.T) {
	cases := map[string]struct {
		reason string
		change []func(*Input)
		path   string
		says   string
		needs  string
		source string
	}{
		"node selector of an entry": {
			reason: "the job must not start on the wrong hardware",
			change: []func(*Input){withEntry(t, "example.com/team", `{spec: {nodeSelector: {gpu: h100}}}`)},
			path: "spec.runtimePatches[example.com/team].trainingRuntimeSpec.template.spec.replicatedJobs[node]." +
				"template.spec.template.spec.nodeSelector[gpu]",
			says: "h100", needs: "a100", source: "ResourceFlavor a100",
		},
		"node selector of the runtime": {
			reason: "the runtime is named where no entry is to blame",
			change: []func(*Input){func(in *Input) {
				in.Runtime.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.NodeSelector["gpu"] = "v100"
			}},
			path: "runtime torch: replicatedJobs[node].template.spec.template.spec.nodeSelector[gpu]",
			says: "v100", needs: "a100", source: "ResourceFlavor a100",
		},
		"label": {
			reason: "Kueue finds pods by its labels",
			change: []func(*Input){withEntry(t, "example.com/team", `{metadata: {labels: {kueue.x-k8s.io/podset: mine}}}`)},
			path: "spec.runtimePatches[example.com/team].trainingRuntimeSpec.template.spec.replicatedJobs[node]." +
				"template.spec.template.metadata.labels[kueue.x-k8s.io/podset]",
			says: "mine", needs: "node", source: "Kueue",
		},
		"annotation": {
			reason: "Kueue finds Workloads by its annotation",
			change: []func(*Input){
				func(in *Input) { in.Features.TopologyAware = true },
				withEntry(t, "example.com/team", `{metadata: {annotations: {kueue.x-k8s.io/workload: other}}}`),
			},
			path: "spec.runtimePatches[example.com/team].trainingRuntimeSpec.template.spec.replicatedJobs[node]." +
				"template.spec.template.metadata.annotations[kueue.x-k8s.io/workload]",
			says: "other", needs: "wl", source: "Kueue",
		},
		"a later entry's tolerations": {
			reason: "a list after ours replaces it, and the flavor's toleration would be lost",
			change: []func(*Input){
				withEntry(t, overrides.Manager, `{spec: {}}`),
				withEntry(t, "example.com/late", `{spec: {tolerations: [{key: late, operator: Exists}]}}`),
			},
			path: "spec.runtimePatches[example.com/late].trainingRuntimeSpec.template.spec.replicatedJobs[node]." +
				"template.spec.template.spec.tolerations",
		},
		"an admission check against a flavor": {
			reason: "both can't be",
			change: []func(*Input){
				updates("zones", kueue.PodSetUpdate{Name: "node", NodeSelector: map[string]string{"gpu": "l4"}}),
			},
			path: "status.admissionChecks[zones].podSetUpdates[node].nodeSelector[gpu]",
			says: "l4", needs: "a100", source: "ResourceFlavor a100",
		},
		"an admission check against another": {
			reason: "both can't be",
			change: []func(*Input){
				updates("first", kueue.PodSetUpdate{Name: "node", NodeSelector: map[string]string{"zone": "a"}}),
				updates("second", kueue.PodSetUpdate{Name: "node", NodeSelector: map[string]string{"zone": "b"}}),
			},
			path: "status.admissionChecks[second].podSetUpdates[node].nodeSelector[zone]",
			says: "b", needs: "a", source: "AdmissionCheck first",
		},
		"an admission check against an entry": {
			reason: "the check is named as who needs it",
			change: []func(*Input){
				updates("zones", kueue.PodSetUpdate{Name: "node", NodeSelector: map[string]string{"zone": "east"}}),
				withEntry(t, "example.com/team", `{spec: {nodeSelector: {zone: west}}}`),
			},
			path: "spec.runtimePatches[example.com/team].trainingRuntimeSpec.template.spec.replicatedJobs[node]." +
				"template.spec.template.spec.nodeSelector[zone]",
			says: "west", needs: "east", source: "AdmissionCheck zones",
		},
		"too many tolerations": {
			reason: "the CRD takes 128",
			change: []func(*Input){func(in *Input) {
				spec := &in.Runtime.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
				for i := range maxTolerations {
					spec.Tolerations = append(
						spec.Tolerations,
						corev1.Toleration{Key: fmt.Sprintf("k%d", i), Operator: corev1.TolerationOpExists},
					)
				}
			}},
			path: "the entry of kueue.x-k8s.io/manager for replicatedJob node",
			says: "130 tolerations and 0 scheduling gates", needs: "at most 128 and 16", source: "a complete entry",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Decide(input(t, c.change...))
			var conflict *ConflictError
			if !errors.As(err, &conflict) {
				t.Fatalf("%s: got %v", c.reason, err)
			}
			if conflict.Path != c.path ||
				c.says != "" && (conflict.Says != c.says || conflict.Needs != c.needs || conflict.Source != c.source) {
				t.Errorf("%s: got %+v", c.reason, conflict)
			}
			if conflict.WayOut == "" || !strings.Contains(err.Error(), conflict.WayOut) {
				t.Error("an error says the way out")
			}
		})
	}
}

func TestDecideRefuses(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*Input)
		want   string
	}{
		"not admitted": {
			"there is nothing to start on", func(in *Input) { in.Workload.Status.Admission = nil }, "is not admitted",
		},
		"unknown flavor": {
			"a flavor that can't be read is not an empty one", func(in *Input) { in.Flavors = nil }, `ResourceFlavor "a100"`,
		},
		"in part": {"a TrainJob has no smaller size", func(in *Input) {
			in.Workload.Spec.PodSets[0].MinCount, in.Workload.Status.Admission.PodSetAssignments[0].Count = ptr.To[int32](
				0,
			), ptr.To[int32](
				0,
			)
		}, "admits 0 of the 1 pods"},
		"unknown PodSet": {
			"an assignment is for a PodSet of the Workload",
			func(in *Input) { in.Workload.Status.Admission.PodSetAssignments[0].Name = "other" }, `assigns PodSet "other"`,
		},
		"another shape": {
			"every ReplicatedJob needs its assignment",
			func(in *Input) { in.Workload.Status.Admission.PodSetAssignments = nil }, "0 PodSets, but the TrainJob has 1",
		},
		"other names": {"a PodSet is found by its name", func(in *Input) {
			in.Workload.Spec.PodSets[0].Name, in.Workload.Status.Admission.PodSetAssignments[0].Name = "other", "other"
		}, `without a PodSet for ReplicatedJob "node"`},
		"a broken runtime": {
			"what overrides refuses is refused", func(in *Input) { in.Runtime.Template.Spec.ReplicatedJobs = nil },
			"has no replicatedJobs",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Decide(input(t, c.change)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want it to say %q", c.reason, err, c.want)
			}
		})
	}
}

func TestNeutral(t *testing.T) {
	start, err := Decide(input(t))
	if err != nil {
		t.Fatal(err)
	}
	job := &api.TrainJob{}
	if !IsNeutral(overrides.Bundled.Own(job)) {
		t.Error("a TrainJob without our entry has nothing of an admission")
	}
	job.Spec.RuntimePatches = []trainerapi.RuntimePatch{start.Entry}
	if IsNeutral(overrides.Bundled.Own(job)) {
		t.Error("an entry of an admission is not neutral")
	}
	job.Spec.RuntimePatches = []trainerapi.RuntimePatch{Neutral(&start.Entry)}
	if !IsNeutral(overrides.Bundled.Own(job)) {
		t.Errorf("nothing of the admission is left in %+v", job.Spec.RuntimePatches[0])
	}
	rt := must[trainerapi.TrainingRuntimeSpec](t, runtimeYAML)
	with, err1 := overrides.Bundled.Compute(job, &rt, overrides.Bundled.Entries(job))
	without, err2 := overrides.Bundled.Compute(job, &rt, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(
		with.ReplicatedJobs[0].Template.Spec.Template.Spec,
		without.ReplicatedJobs[0].Template.Spec.Template.Spec,
	) {
		t.Error("a neutral entry places pods as none does")
	}
	if builtin := (trainerapi.RuntimePatch{Manager: overrides.Manager}); len(
		Neutral(&builtin).TrainingRuntimeSpec.Template.Spec.ReplicatedJobs,
	) != 0 {
		t.Error("an entry of nothing stays one")
	}
}

func TestRunning(t *testing.T) {
	suspended := func(s bool) *api.TrainJob {
		return &api.TrainJob{Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{Suspend: &s}}}
	}
	js := func(suspend bool, generation int64, condition metav1.ConditionStatus, active int32) *jobset.JobSet {
		j := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Generation: generation}, Spec: jobset.JobSetSpec{Suspend: &suspend}}
		if condition != "" {
			j.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetSuspended), Status: condition}}
		}
		j.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Active: active}}
		return j
	}
	left := []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}
	cases := map[string]struct {
		reason string
		job    *api.TrainJob
		js     *jobset.JobSet
		pods   []corev1.Pod
		want   string
	}{
		"not suspended": {
			"it may start pods at any time", suspended(false), nil, nil, "the TrainJob is not suspended",
		},
		"no children": {"nothing runs", suspended(true), nil, nil, ""},
		"pods left": {
			"a pod holds its GPUs until it is gone", suspended(true), nil, left, "pod p has not ended",
		},
		"JobSet runs on": {
			"Trainer has not suspended it yet", suspended(true), js(false, 2, "", 0), nil, "the JobSet is not suspended",
		},
		"active Jobs": {
			"JobSet has not counted them down yet", suspended(true), js(true, 2, metav1.ConditionTrue, 1), nil,
			"ReplicatedJob node has active Jobs",
		},
		"JobSet about to suspend": {
			"its Jobs may still start pods", suspended(true), js(true, 2, metav1.ConditionFalse, 0), nil,
			"the JobSet has not suspended its Jobs",
		},
		"JobSet without a word": {
			"a JobSet that has changed says when its Jobs are suspended", suspended(true), js(true, 2, "", 0), nil,
			"the JobSet has not suspended its Jobs",
		},
		"born suspended": {
			"a JobSet that was made suspended has run nothing", suspended(true), js(true, 1, "", 0), nil, "",
		},
		"quiet": {"all is said and done", suspended(true), js(true, 3, metav1.ConditionTrue, 0), nil, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Running(c.job, c.js, c.pods); got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
}

// TestDecideForLists holds what a list that is not keyed by manager carries of an admission, and what it can't.
func TestDecideForLists(t *testing.T) {
	on := func(d overrides.Dialect) func(*Input) { return func(in *Input) { in.Dialect = d } }
	check := func(labels map[string]string) func(*Input) {
		return func(in *Input) {
			in.Workload.Status.AdmissionChecks = []kueue.AdmissionCheckState{
				{
					Name: "zones",
					PodSetUpdates: []kueue.PodSetUpdate{
						{Name: "node", Labels: labels, NodeSelector: map[string]string{"zone": "east"}},
					},
				},
			}
		}
	}
	topology := func(in *Input) {
		in.Features.TopologyAware = true
		in.Workload.Status.Admission.PodSetAssignments[0].TopologyAssignment = &kueue.TopologyAssignment{}
	}
	remote := func(in *Input) { in.Workload.Labels = map[string]string{kueue.MultiKueueOriginLabel: "a"} }
	said := func(in *Input) {
		in.Job.Spec.PodSpecOverrides = []api.PodSpecOverride{
			{TargetJobs: []api.TargetJob{{Name: "node"}}, NodeSelector: map[string]string{"disk": "slow"}},
		}
	}
	nothing := func(in *Input) { in.Flavors["a100"] = kueue.ResourceFlavorSpec{} }
	cases := map[string]struct {
		reason   string
		change   []func(*Input)
		elements string // of the Record; "" is a refusal
		refusal  []string
	}{
		"v2.1": {
			"labels, selector and tolerations",
			[]func(*Input){on(overrides.Kubeflow21), topology, check(map[string]string{"a": "b"})},
			`metadata:map[annotations:map[kueue.x-k8s.io/podset-unconstrained-topology:true kueue.x-k8s.io/workload:wl note:runtime] labels:map[a:b from:runtime kueue.x-k8s.io/podset:node]] spec:map[nodeSelector:map[disk:fast gpu:a100 zone:east] schedulingGates:[map[name:example.com/mine] map[name:kueue.x-k8s.io/topology]] tolerations:[map[key:spot operator:Exists] map[key:gpu value:a100]]] targetJobs:[map[name:node]]`, nil},
		"v2.0": {
			"selector and tolerations; labels that only inform are left out",
			[]func(*Input){on(overrides.Kubeflow20), check(nil)},
			`nodeSelector:map[disk:fast gpu:a100 zone:east] targetJobs:[map[name:node]] tolerations:[map[key:spot operator:Exists] map[key:gpu value:a100]]`,
			nil,
		},
		"v2.0, a topology": {
			"its pods have to carry labels", []func(*Input){on(overrides.Kubeflow20), topology}, "",
			[]string{
				"spec.podSpecOverrides is",
				"the topology assignment needs",
				"the pods of node",
				"upgrade Kubeflow Trainer to v2.1 or later",
			},
		},
		"v2.0, a check that wants labels": {
			"the check is named", []func(*Input){on(overrides.Kubeflow20), check(map[string]string{"a": "b"})}, "",
			[]string{"AdmissionCheck zones needs"},
		},
		"v2.0, MultiKueue": {
			"its label is needed", []func(*Input){on(overrides.Kubeflow20), remote}, "", []string{"MultiKueue needs"},
		},
		"v2.0, a user's element": {
			"each ReplicatedJob has one in the whole list", []func(*Input){on(overrides.Kubeflow20), said}, "",
			[]string{"spec.podSpecOverrides[0] is", "one element for each replicatedJob", "move what it says to the runtime"},
		},
		"v2.0, not in the way": {
			"where admission has nothing to say, users may", []func(*Input){on(overrides.Kubeflow20), said, nothing}, "none",
			nil,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			start, err := Decide(input(t, c.change...))
			if c.elements == "" {
				var conflict *ConflictError
				if !errors.As(err, &conflict) {
					t.Fatalf("%s: got %v", c.reason, err)
				}
				for _, words := range c.refusal {
					if !strings.Contains(err.Error(), words) {
						t.Errorf("%s: got %v, want it to say %q", c.reason, err, words)
					}
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", c.reason, err)
			}
			want := "[map[" + c.elements + "]]"
			if c.elements == "none" {
				want = "[]"
			}
			if got := fmt.Sprint(start.Record.Own); got != want || start.Record.Time == nil {
				t.Errorf("%s: got %s, want %s", c.reason, got, want)
			}
		})
	}
}
