package status

import (
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestUrgent(t *testing.T) {
	is := func(condition string) *api.TrainJobStatus {
		s := &api.TrainJobStatus{}
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue})
		return s
	}
	if !urgent(&api.TrainJobStatus{}, is(trainerapi.TrainJobComplete)) ||
		urgent(is(trainerapi.TrainJobComplete), is(trainerapi.TrainJobComplete)) ||
		urgent(&api.TrainJobStatus{}, is(api.ConditionAdmitted)) {
		t.Error("an end is urgent, once; an admission can wait for what comes with it")
	}
}

func TestDelayOf(t *testing.T) {
	noon := metav1.NewTime(time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC))
	status := func(conditions ...string) *api.TrainJobStatus {
		s := &api.TrainJobStatus{}
		for _, c := range conditions {
			kind, value, _ := strings.Cut(c, "=")
			apimeta.SetStatusCondition(
				&s.Conditions,
				metav1.Condition{
					Type: kind, Status: metav1.ConditionStatus(value), Reason: "Any", LastTransitionTime: noon,
				},
			)
		}
		return s
	}
	pods := func(ready int32, others ...trainerapi.JobStatus) *api.TrainJobStatus {
		s := status("Suspended=False")
		s.State = map[bool]api.TrainJobState{true: api.StateRunning, false: api.StateStarting}[ready > 0 || len(others) > 0]
		node := trainerapi.JobStatus{Name: "node", Active: ptr.To[int32](1), Ready: ptr.To(ready)}
		s.JobsStatus = slices.Concat(others, []trainerapi.JobStatus{node})
		return s
	}
	starting := status("Suspended=False")
	starting.State = api.StateStarting
	gang := func(placed metav1.ConditionStatus) *api.TrainJobStatus {
		s := pods(0)
		s.Queue = &api.QueueStatus{Conditions: status("Admitted=True", "GangScheduled="+string(placed)).Conditions}
		return s
	}
	stalled := func(is metav1.ConditionStatus) *api.TrainJobStatus {
		s := pods(1)
		s.Queue = &api.QueueStatus{Conditions: status("Stalled=" + string(is)).Conditions}
		return s
	}
	admitted := pods(0)
	admitted.Queue = &api.QueueStatus{Conditions: status("Admitted=True").Conditions}
	ready := trainerapi.JobStatus{Name: "launcher", Active: ptr.To[int32](1), Ready: ptr.To[int32](1)}
	done := trainerapi.JobStatus{Name: "launcher", Succeeded: ptr.To[int32](1)}
	cases := map[string]struct {
		reason        string
		before, after *api.TrainJobStatus
		others        int
		want          time.Duration
	}{
		"waits": {
			"somebody wants to know why",
			status(),
			status("Suspended=True", "QuotaReserved=False"),
			0,
			2 * time.Second,
		},
		"waits in a crowd": {
			"the API server is busy with starts",
			status(),
			status("Suspended=True", "QuotaReserved=False"),
			100,
			32 * time.Second,
		},
		"a great crowd": {
			"not for ever",
			status(),
			status("Suspended=True", "QuotaReserved=False"),
			10000,
			122 * time.Second,
		},
		"admitted": {
			"it is about to start",
			status("Suspended=True"),
			status("Suspended=True", "QuotaReserved=True", "Admitted=True"),
			0,
			4 * time.Second,
		},
		"counts":             {"they change with every Job", pods(0, ready), pods(1, ready), 0, 30 * time.Second},
		"the end of a step":  {"its user sees how far it is", pods(0, ready), pods(0, done), 0, 4 * time.Second},
		"the end of another": {"eighteen may end one by one", pods(1, done), pods(1, done, done), 0, 30 * time.Second},
		"counts of one that starts": {
			"its state says as much",
			starting,
			pods(0),
			0,
			2 * time.Minute,
		},
		"counts of one that starts, untold": {
			"its state isn't written yet",
			status("Suspended=False"),
			pods(0),
			0,
			4 * time.Second,
		},
		"gang placed":       {"its pods count soon", admitted, gang(metav1.ConditionTrue), 0, 2 * time.Minute},
		"gang not placed":   {"nothing runs", admitted, gang(metav1.ConditionFalse), 0, 4 * time.Second},
		"gang placed later": {"it was not", gang(metav1.ConditionFalse), gang(metav1.ConditionTrue), 0, 4 * time.Second},
		"has stalled":       {"its user is to look", stalled(metav1.ConditionFalse), stalled(metav1.ConditionTrue), 10000, 0},
		"reports again": {"its user waits for it", stalled(metav1.ConditionTrue), stalled(metav1.ConditionFalse), 0,
			2 * time.Second},
		"a pod is ready in turns": {"as counts", pods(1), stalled(metav1.ConditionFalse), 0, 30 * time.Second},
		"running":                 {"its user waits for it", pods(0), pods(1), 0, 2 * time.Second},
		"end": {
			"an end doesn't wait for anybody",
			status("Suspended=False"),
			status("Suspended=False", "Complete=True"),
			10000,
			0,
		},
		"evicted": {
			"nor does the reason of a stop",
			status("Admitted=True"),
			status("Admitted=False", "Evicted=True"),
			10000,
			0,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Delay(c.before, c.after, c.others); got != c.want {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		})
	}
}
