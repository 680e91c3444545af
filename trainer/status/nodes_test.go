package status

import (
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// TestKeepsOff holds that a TrainJob that waits says which nodes it keeps off: they may be all that would fit.
func TestKeepsOff(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		remembers bool
		reserved  metav1.ConditionStatus
		want      string
	}{
		"it waits": {true, metav1.ConditionFalse,
			"no topology fits; it is queued off nodes that it remembers in status.avoided: n1, n2"},
		"it has quota":        {true, metav1.ConditionTrue, "no topology fits"},
		"its runtime's hosts": {false, metav1.ConditionFalse, "no topology fits"},
	} {
		job, wl := &api.TrainJob{}, &kueue.Workload{}
		job.Spec.Suspend = ptr.To(true)
		if c.remembers {
			job.Status.Avoided = []api.AvoidedNode{{Name: "n1", Time: metav1.NewTime(now)}}
		}
		wl.Spec.PodSets = make([]kueue.PodSet, 1)
		wl.Spec.PodSets[0].Template.Spec.Affinity = avoid.With(nil, []string{"n1", "n2"})
		wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: c.reserved,
			Reason: "Inadmissible", Message: "no topology fits"}}
		got := Of(job, nil, wl, Running{}, now).Condition(api.ConditionQuotaReserved)
		if got == nil || got.Message != c.want {
			t.Errorf("%s: got %+v, want %q", name, got, c.want)
		}
	}
}

func TestNodesOf(t *testing.T) {
	admitted := func(least *int32, pods int32) *kueue.Workload {
		wl := &kueue.Workload{}
		wl.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 7, MinCount: least}}
		wl.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{{Name: "node", Count: &pods}}}
		wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadAdmitted, Status: metav1.ConditionTrue,
			Reason: "Admitted", Message: "The workload is admitted"}}
		return wl
	}
	cases := map[string]struct {
		reason, want string
		nodes        *int32
		workload     *kueue.Workload
	}{
		"in part":        {"the user sees with how many", "4 of 7", ptr.To[int32](7), admitted(ptr.To[int32](2), 4)},
		"the runtime's":  {"it is the PodSet's count", "4 of 7", nil, admitted(ptr.To[int32](2), 4)},
		"MPI's launcher": {"it is a node too", "5 of 8", ptr.To[int32](8), admitted(ptr.To[int32](2), 4)},
		"all":            {"there is nothing to say", "", ptr.To[int32](7), admitted(ptr.To[int32](2), 7)},
		"reclaimed":      {"they have ended", "", ptr.To[int32](7), admitted(nil, 4)},
		"waiting":        {"nothing is admitted", "", ptr.To[int32](7), &kueue.Workload{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{}
			job.Spec.Trainer = &trainerapi.Trainer{NumNodes: c.nodes}
			if got := nodesOf(job, c.workload); got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
			status := Of(job, nil, c.workload, Running{}, time.Now())
			said := status.Condition(api.ConditionAdmitted)
			if said != nil && strings.HasSuffix(said.Message, ", with "+c.want+" nodes") != (c.want != "") {
				t.Errorf("%s: the condition says %q", c.reason, said.Message)
			}
		})
	}
}

// TestNodesOfGrowing holds that a TrainJob whose slice holds quota has the nodes that it runs with until it is started
// again.
func TestNodesOfGrowing(t *testing.T) {
	count := int32(5)
	slice := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		workloadslicing.WorkloadSliceReplacementFor: "ns/first",
		podsets.SliceAnnotation:                     podsets.Slice{PodSet: "node", From: 1, Of: 5}.String(),
	}}}
	slice.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: count}}
	slice.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{{Name: "node", Count: &count}}}
	for name, c := range map[string]struct {
		reason, entry, want string
		suspended           bool
	}{
		"until its checkpoint":  {"one node runs", "1", "1 of 5", false},
		"while its pods end":    {"it is started with all", "1", "", true},
		"started with the rest": {"all run", "", "", false},
	} {
		job := &api.TrainJob{}
		job.Spec.Suspend, job.Spec.Trainer = &c.suspended, &trainerapi.Trainer{NumNodes: &count}
		entry := trainerapi.RuntimePatch{Manager: overrides.Manager,
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{}}
		if c.entry != "" {
			rj := trainerapi.ReplicatedJobPatch{Name: "node", Template: &trainerapi.JobTemplatePatch{
				Metadata: &metav1.ObjectMeta{Annotations: map[string]string{overrides.NodesAnnotation: c.entry}}}}
			entry.TrainingRuntimeSpec.Template = &trainerapi.JobSetTemplatePatch{
				Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{rj}}}
		}
		job.Spec.RuntimePatches = []trainerapi.RuntimePatch{entry}
		if got := nodesOf(job, slice); got != c.want {
			t.Errorf("%s: %s: got %q, want %q", name, c.reason, got, c.want)
		}
	}
}
