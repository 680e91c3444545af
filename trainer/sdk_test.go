package trainer

import (
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/trainer/status"
)

// sdkStatus derives the status of a TrainJob from its conditions and from the number of its running nodes, as the
// Kubeflow SDK v0.5.0 does. Source: kubeflow/trainer/backends/kubernetes/backend.py, __get_trainjob_from_cr. ignored
// are conditions that a later SDK may skip before it reads the pods (kubeflow/sdk#803).
func sdkStatus(conditions []metav1.Condition, allNodesRun bool, ignored ...string) string {
	status, told := "Created", false
	for _, c := range conditions {
		if len(ignored) > 0 && c.Type == ignored[0] {
			continue
		}
		told = true
		if (c.Type == "Complete" || c.Type == "Failed") && c.Status == metav1.ConditionTrue {
			status = c.Type
		}
	}
	if !told && allNodesRun {
		status = "Running"
	}
	return status
}

// A TrainJob goes through its life, and the SDK reads each part of it.
func TestSDKReadsStatus(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	condition := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: "Any", LastTransitionTime: metav1.NewTime(now)}
	}
	admitted := []metav1.Condition{
		condition(kueue.WorkloadQuotaReserved, metav1.ConditionTrue), condition(kueue.WorkloadAdmitted, metav1.ConditionTrue),
	}
	gangs := condition(api.ConditionGangScheduled, metav1.ConditionTrue)
	steps := []struct {
		name       string
		suspend    bool
		conditions []metav1.Condition
		gangs      *metav1.Condition
		end        string
		runs       bool
		want       string
	}{
		{name: "queued", suspend: true, conditions: []metav1.Condition{condition(kueue.WorkloadQuotaReserved, "False")},
			want: "Created"},
		{name: "admitted", suspend: true, conditions: admitted, want: "Created"},
		{name: "starting", conditions: admitted, want: "Created"},
		{name: "running", conditions: admitted, gangs: &gangs, runs: true, want: "Running"},
		{name: "evicted", suspend: true, conditions: []metav1.Condition{condition(kueue.WorkloadEvicted, "True")}, runs: true,
			want: "Created"},
		{name: "running again", conditions: admitted, runs: true, want: "Running"},
		{name: "complete", conditions: admitted, end: trainerapi.TrainJobComplete, runs: true, want: "Complete"},
	}
	job := &api.TrainJob{}
	for _, s := range steps {
		now = now.Add(time.Minute)
		job.Spec.Suspend = ptr.To(s.suspend)
		job.Spec.RuntimePatches = nil
		if !s.suspend {
			job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager, Time: ptr.To(metav1.NewTime(now))}}
		}
		wl := &kueue.Workload{Status: kueue.WorkloadStatus{Conditions: s.conditions}}
		status := status.Of(job, nil, wl, status.Running{Gangs: s.gangs}, now)
		if s.end != "" {
			status.Conditions = append(status.Conditions, condition(s.end, metav1.ConditionTrue))
		}
		job.Status = *status
		for _, ignored := range [][]string{nil, {trainerapi.TrainJobSuspended}} {
			if got := sdkStatus(status.Conditions, s.runs, ignored...); got != s.want {
				t.Errorf("%s: the SDK that ignores %v reads %s, want %s", s.name, ignored, got, s.want)
			}
		}
		for _, c := range s.conditions {
			if got := job.Status.Condition(c.Type); got == nil || got.Status != c.Status {
				t.Errorf("%s: kubectl's users keep condition %s: got %v", s.name, c.Type, got)
			}
		}
		if !s.suspend && (status.StartTime == nil || s.end == "" && !status.StartTime.Equal(ptr.To(metav1.NewTime(now)))) {
			t.Errorf("%s: it was started at %v, and the status says %v", s.name, now, status.StartTime)
		}
	}
}
