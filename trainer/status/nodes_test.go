package status

import (
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
			status := Of(job, nil, c.workload, nil, time.Now())
			said := status.Condition(api.ConditionAdmitted)
			if said != nil && strings.HasSuffix(said.Message, ", with "+c.want+" nodes") != (c.want != "") {
				t.Errorf("%s: the condition says %q", c.reason, said.Message)
			}
		})
	}
}
