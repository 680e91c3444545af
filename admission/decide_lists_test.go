package admission

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

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
	on := func(d *dialect.Dialect) func(*Input) { return func(in *Input) { in.Dialect = d } }
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
			[]func(*Input){on(dialect.Kubeflow21), topology, check(map[string]string{"a": "b"})},
			`metadata:map[annotations:map[kueue.x-k8s.io/podset-unconstrained-topology:true kueue.x-k8s.io/workload:wl note:runtime] labels:map[a:b from:runtime kueue.x-k8s.io/podset:node]] spec:map[nodeSelector:map[disk:fast gpu:a100 zone:east] schedulingGates:[map[name:example.com/mine] map[name:kueue.x-k8s.io/topology]] tolerations:[map[key:spot operator:Exists] map[key:gpu value:a100]]] targetJobs:[map[name:node]]`, nil},
		"v2.0": {
			"selector and tolerations; labels that only inform are left out",
			[]func(*Input){on(dialect.Kubeflow20), check(nil)},
			`nodeSelector:map[disk:fast gpu:a100 zone:east] targetJobs:[map[name:node]] tolerations:[map[key:spot operator:Exists] map[key:gpu value:a100]]`,
			nil,
		},
		"v2.0, a topology": {
			"its pods have to carry labels", []func(*Input){on(dialect.Kubeflow20), topology}, "",
			[]string{
				"spec.podSpecOverrides is",
				"the topology assignment needs",
				"the pods of node",
				"upgrade Kubeflow Trainer to v2.1 or later",
			},
		},
		"v2.0, a check that wants labels": {
			"the check is named", []func(*Input){on(dialect.Kubeflow20), check(map[string]string{"a": "b"})}, "",
			[]string{"AdmissionCheck zones needs"},
		},
		"v2.0, MultiKueue": {
			"its label is needed", []func(*Input){on(dialect.Kubeflow20), remote}, "", []string{"MultiKueue needs"},
		},
		"v2.0, a user's element": {
			"each ReplicatedJob has one in the whole list", []func(*Input){on(dialect.Kubeflow20), said}, "",
			[]string{"spec.podSpecOverrides[0] is", "one element for each replicatedJob", "move its fields to the runtime"},
		},
		"v2.0, not in the way": {
			"where admission has nothing to say, users may", []func(*Input){on(dialect.Kubeflow20), said, nothing}, "none",
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
