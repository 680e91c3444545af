package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func TestRow(t *testing.T) {
	condition := func(kind string) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Message: "why"}}
	}
	suspended := func() *trainerapi.TrainJob {
		return &trainerapi.TrainJob{Spec: trainerapi.TrainJobSpec{Suspend: ptr.To(true)}}
	}
	running, finished := &trainerapi.TrainJob{}, &trainerapi.TrainJob{}
	finished.Status.Conditions = condition(trainerapi.TrainJobComplete)
	queued, evicted, admitted := &kueue.Workload{}, &kueue.Workload{}, &kueue.Workload{}
	queued.Status.Conditions = condition(kueue.WorkloadQuotaReserved)
	evicted.Status.Conditions = condition(kueue.WorkloadEvicted)
	evicted.Status.SchedulingStats = &kueue.SchedulingStats{Evictions: []kueue.WorkloadSchedulingStatsEviction{
		{Reason: kueue.WorkloadEvictedByPreemption, Count: 1}, {Reason: "Other", Count: 1},
	}}
	admitted.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{
		{Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a100"}},
	}}
	r := &row{}
	for _, step := range []struct {
		job           *trainerapi.TrainJob
		workload      *kueue.Workload
		state, reason string
		starts        int
	}{
		{suspended(), nil, "Queued", "", 0},
		{suspended(), queued, "Queued", "why", 0},
		{suspended(), admitted, "Starting", "", 0},
		{running, admitted, "Running", "", 1},
		{running, admitted, "Running", "", 1},
		{suspended(), evicted, "Preempted", "why", 1},
		{running, evicted, "Running", "", 2},
		{finished, evicted, "Finished", "", 2},
	} {
		r.update(step.job, step.workload)
		if r.state != step.state || r.reason != step.reason || r.starts != step.starts {
			t.Errorf("got %s, %q, %d starts; want %+v", r.state, r.reason, r.starts, step)
		}
	}
	if r.preempted != 1 {
		t.Errorf("only preemptions count: got %d", r.preempted)
	}
	quick := &row{}
	if quick.update(finished, nil); quick.starts != 1 {
		t.Errorf("a start between two reads counts: got %d", quick.starts)
	}
}

func TestSummarize(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	write := func(user, verb, name string) string {
		return `{"stage":"ResponseComplete","verb":"` + verb + `","user":{"username":"` + user +
			`"},"objectRef":{"resource":"trainjobs","name":"` + name + `"},"responseStatus":{"code":200}}` + "\n"
	}
	content := write("manager", "patch", "a") + write("user", "patch", "a") + write("manager", "get", "a") +
		write("manager", "patch", "b") + write("manager", "update", "b") + write("manager", "patch", "b")
	if err := os.WriteFile(log, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBoard(os.Stdout)
	b.order = []string{"a", "b", "c"}
	b.rows = map[string]*row{
		"a": {name: "a", state: "Finished", starts: 1}, "b": {name: "b", state: "Finished", starts: 2, preempted: 1},
		"c": {name: "c", state: "Queued", reason: "it doesn't fit"},
	}
	var out bytes.Buffer
	if err := summarize(&out, b, log, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"3 TrainJobs submitted, 3 starts, 1 preempted, 2 finished, 0 failed, 1 waiting.", "c: it doesn't fit",
		"from the audit log: 1.00 (1 TrainJobs that ran undisturbed).",
		"The 1 preempted took 3 writes for 2 starts and 1 stops",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want %s", out.String(), want)
		}
	}
	b.rows["c"].state = "Failed"
	if err := summarize(&out, b, log, 0); err == nil {
		t.Error("a failed TrainJob is an error")
	}
}
