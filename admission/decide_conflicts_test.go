package admission

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

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
		"a later entry's affinity": {
			reason: "the list of terms after ours replaces it, and the broken node would be taken again",
			change: []func(*Input){
				func(in *Input) { in.KeepsOff = []string{"n1"} },
				withEntry(t, overrides.Manager, `{spec: {}}`),
				withEntry(t, "example.com/late", `{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
					{nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}}}`),
			},
			path: "spec.runtimePatches[example.com/late].trainingRuntimeSpec.template.spec.replicatedJobs[node]." +
				"template.spec.template.spec.affinity",
			says: "another", needs: "NotIn n1", source: "what its pods showed of nodes",
		},
		"an admission check against a flavor": {
			reason: "both can't be",
			change: []func(*Input){
				updates("zones", kueue.PodSetUpdate{Name: "node", NodeSelector: map[string]string{"gpu": "l4"}}),
			},
			path: "status.admissionChecks[zones].podSetUpdates[node].nodeSelector[gpu]",
			says: "l4", needs: "a100", source: "ResourceFlavor a100",
		},
		"a flavor against another": {
			reason: "no node has both labels",
			change: []func(*Input){func(in *Input) {
				in.Workload.Status.Admission.PodSetAssignments[0].Flavors["memory"] = "h100"
				in.Flavors["h100"] = kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpu": "h100"}}
			}},
			path: "ResourceFlavor h100 spec.nodeLabels[gpu]",
			says: "h100", needs: "a100", source: "ResourceFlavor a100",
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
					spec.Tolerations = append(spec.Tolerations,
						corev1.Toleration{Key: fmt.Sprintf("k%d", i), Operator: corev1.TolerationOpExists})
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
		"without a node": {"nothing would train", func(in *Input) {
			in.Dialect = dialect.Bundled
			in.Workload.Spec.PodSets[0].MinCount = ptr.To[int32](0)
			in.Workload.Status.Admission.PodSetAssignments[0].Count = ptr.To[int32](0)
		}, `status.admission.podSetAssignments[node].count is "0", but the bundled Trainer needs "1"; remove annotation`},
		"in part, beside Kubeflow Trainer": {"it would run all nodes", func(in *Input) {
			admitInPart(in)
			in.Dialect = dialect.Kubeflow23
		}, `[node].count is "3", but Kubeflow Trainer v2.3 needs "8"`},
		"in part, of something else": {"what runs is what was admitted", func(in *Input) {
			admitInPart(in)
			in.Job.Spec.Trainer.NumNodes = ptr.To[int32](9)
		}, `[node].count is "3", but a TrainJob of 4 nodes needs "4"`},
		"more pods": {"Kueue admits no more than there are", func(in *Input) {
			in.Workload.Status.Admission.PodSetAssignments[0].Count = ptr.To[int32](2)
		}, `admits 2 pods of PodSet "node", which has 1`},
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
	if !IsNeutral(dialect.Bundled.Own(job)) {
		t.Error("a TrainJob without our entry has nothing of an admission")
	}
	job.Spec.RuntimePatches = []trainerapi.RuntimePatch{start.Entry}
	if IsNeutral(dialect.Bundled.Own(job)) {
		t.Error("an entry of an admission is not neutral")
	}
	job.Spec.RuntimePatches = []trainerapi.RuntimePatch{Neutral(&start.Entry)}
	if !IsNeutral(dialect.Bundled.Own(job)) {
		t.Errorf("nothing of the admission is left in %+v", job.Spec.RuntimePatches[0])
	}
	rt := must[trainerapi.TrainingRuntimeSpec](t, runtimeYAML)
	with, err1 := dialect.Bundled.Compute(job, &rt, dialect.Bundled.Entries(job))
	without, err2 := dialect.Bundled.Compute(job, &rt, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(with.ReplicatedJobs[0].Template.Spec.Template.Spec,
		without.ReplicatedJobs[0].Template.Spec.Template.Spec) {
		t.Error("a neutral entry places pods as none does")
	}
	nothing := Neutral(&trainerapi.RuntimePatch{Manager: overrides.Manager})
	if len(nothing.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs) != 0 {
		t.Error("an entry of nothing stays one")
	}
}
