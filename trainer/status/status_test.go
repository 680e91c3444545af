package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestStatusOf(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(c string) string { return c + `, lastTransitionTime: "2026-11-20T11:00:00Z"` }
	js := func(status string) string { return "spec: {replicatedJobs: [{name: node}]}\nstatus: " + status }
	const wl = "metadata: {name: wl}\nspec: {queueName: q}\nstatus: "
	cases := map[string]struct {
		reason, job, js, wl string
		state               api.TrainJobState
		want                string // conditions and counts
	}{
		"its start has failed for good": {
			"nothing starts it, and the reason is its Workload's",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: Finished, status: 'True', reason: FailedToStart, message: why}]}",
			api.StateBlocked,
			"Suspended=True/Suspended Blocked=True/FailedToStart(why) QuotaReserved=False/FailedToStart(why)",
		},
		"suspended by its user": {
			"Trainer's condition",
			"spec: {suspend: true}",
			"",
			"",
			api.StateSuspended,
			"Suspended=True/Suspended",
		},
		"queued": {
			"Kueue has said nothing yet",
			"spec: {suspend: true}",
			"",
			wl + "{}",
			api.StateQueued,
			"Suspended=True/Suspended QuotaReserved=False/Pending(Workload wl waits in LocalQueue q)",
		},
		"Kueue says why": {
			"its word is passed on",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: QuotaReserved, status: 'False', reason: Inadmissible, message: too big}]}",
			api.StateQueued,
			"Suspended=True/Suspended QuotaReserved=False/Inadmissible(too big)",
		},
		"quota reserved": {
			"it waits for admission checks",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: QuotaReserved, status: 'True', reason: QuotaReserved}]}",
			api.StateQuotaReserved,
			"Suspended=True/Suspended QuotaReserved=True/QuotaReserved",
		},
		"admitted": {
			"it is about to start",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: QuotaReserved, status: 'True', reason: A}, {type: Admitted, status: 'True', reason: B}]}",
			api.StateAdmitted,
			"Suspended=True/Suspended QuotaReserved=True/A Admitted=True/B",
		},
		"blocked": {
			"what the integration says stays",
			"spec: {suspend: true}\nstatus: {conditions: [{type: Blocked, status: 'True', reason: RuntimeNotFound}]}",
			"",
			"",
			api.StateBlocked,
			"Blocked=True/RuntimeNotFound Suspended=True/Suspended",
		},
		"started, and its pods are refused": {
			"the integration removes what it has said",
			"spec: {suspend: false}\nstatus: {conditions: [{type: Blocked, status: 'True', reason: QuotaExceeded}]}",
			js("{}"),
			"",
			api.StateBlocked,
			"Blocked=True/QuotaExceeded",
		},
		"never suspended": {
			"it has no such condition, as with Trainer",
			"spec: {suspend: false}",
			"",
			"",
			api.StateStarting,
			"",
		},
		"started": {
			"it says Resumed from the time of its entry",
			"spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager, time: " +
				"'2026-11-20T11:59:00Z'}]}\nstatus: {conditions: [{type: Suspended, status: 'True', reason: Suspended}]}",
			"",
			"",
			api.StateStarting,
			"Suspended=False/Resumed@11:59",
		},
		"runs": {
			"counts are the JobSet's",
			"spec: {suspend: false}",
			js("{replicatedJobsStatus: [{name: node, ready: 1, active: 1}]}"),
			"",
			api.StateRunning,
			"node:a1r1s0",
		},
		"runs, and a request fails": {
			"the integration says so until none does, and would say it again",
			"spec: {suspend: false}\nstatus: {conditions: [{type: Blocked, status: 'True', reason: ReconcileFailed}]}",
			js("{replicatedJobsStatus: [{name: node, active: 1}]}"),
			"",
			api.StateBlocked,
			"Blocked=True/ReconcileFailed node:a1r0s0",
		},
		"stops": {
			"its pods have not ended",
			"spec: {suspend: true}",
			js("{replicatedJobsStatus: [{name: node, active: 1}]}"),
			"",
			api.StateStopping,
			"Suspended=True/Suspended node:a1r0s0",
		},
		"stopped": {
			"what has succeeded is still true",
			"spec: {suspend: true}\nstatus: {jobsStatus: [{name: init, succeeded: 1, ready: 0, active: 0, failed: 0, " +
				"suspended: 0}, {name: node, succeeded: 0, ready: 1, active: 1, failed: 0, suspended: 0}]}",
			"",
			"",
			api.StateSuspended,
			"Suspended=True/Suspended init:a0r0s1 node:a0r0s0",
		},
		"left out": {
			"what was not run again keeps its count",
			"spec: {suspend: false}\nstatus: {jobsStatus: [{name: init, succeeded: 1}]}",
			js("{replicatedJobsStatus: [{name: node, ready: 1, active: 1}]}"),
			"",
			api.StateRunning,
			"node:a1r1s0 init:a0r0s1",
		},
		"complete": {
			"the JobSet's end is the TrainJob's",
			"spec: {suspend: false}",
			js("{conditions: [{type: Completed, status: 'True', reason: AllJobsCompleted, message: done}]}"),
			"",
			api.StateComplete,
			"Complete=True/AllJobsCompleted(done)",
		},
		"failed": {
			"the JobSet's end is the TrainJob's",
			"spec: {suspend: false}",
			js("{conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}"),
			"",
			api.StateFailed,
			"Failed=True/FailedJobs",
		},
		"failed, JobSet gone": {
			"an end stays",
			"spec: {suspend: false}\nstatus: {conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}",
			"",
			"",
			api.StateFailed,
			"Failed=True/FailedJobs",
		},
		"overdue": {
			"the deadline counts from the start",
			"spec: {suspend: false, activeDeadlineSeconds: 3601}\nstatus: {conditions: [{" + at(
				"type: Suspended, status: 'False', reason: Resumed",
			) + "}]}\nmetadata: {creationTimestamp: '2026-11-20T01:00:00Z'}",
			"",
			"",
			api.StateStarting,
			"Suspended=False/Resumed@11:00",
		},
		"past its deadline": {
			"the deadline has passed",
			"spec: {suspend: false, activeDeadlineSeconds: 3599}\nstatus: {conditions: [{" + at(
				"type: Suspended, status: 'False', reason: Resumed",
			) + "}]}",
			"",
			"",
			api.StateFailed,
			"Suspended=False/Resumed@11:00 Failed=True/DeadlineExceeded",
		},
		"a deadline of 300 years": {
			"it hasn't passed, although no duration is as long",
			"spec: {suspend: false, activeDeadlineSeconds: 9223372037}\nstatus: {conditions: [{" + at(
				"type: Suspended, status: 'False', reason: Resumed",
			) + "}]}",
			"",
			"",
			api.StateStarting,
			"Suspended=False/Resumed@11:00",
		},
		"deadline, suspended": {
			"time stands still while it is suspended",
			"spec: {suspend: true, activeDeadlineSeconds: 1}\nmetadata: {creationTimestamp: '2026-11-20T01:00:00Z'}",
			"",
			"",
			api.StateSuspended,
			"Suspended=True/Suspended",
		},
		"evicted": {
			"with Kueue's reason",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: Evicted, status: 'True', reason: Preempted, message: by x}, {type: QuotaReserved, " +
				"status: 'False', reason: Pending}]}",
			api.StateQueued,
			"Suspended=True/Suspended QuotaReserved=False/Pending Evicted=True/Preempted(by x)",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid", Generation: 3}}
			if err := yaml.UnmarshalStrict([]byte(c.job), job); err != nil {
				t.Fatal(err)
			}
			var set *jobset.JobSet
			if c.js != "" {
				set = &jobset.JobSet{}
				if err := yaml.UnmarshalStrict([]byte(c.js), set); err != nil {
					t.Fatal(err)
				}
			}
			var load *kueue.Workload
			if c.wl != "" {
				load = &kueue.Workload{}
				if err := yaml.UnmarshalStrict([]byte(c.wl), load); err != nil {
					t.Fatal(err)
				}
			}
			status := Of(job, set, load, Running{}, now)
			if got := describeStatus(status); got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
			if got := api.StateOf(&status.TrainJobStatus); got != c.state {
				t.Errorf("%s: state %s, want %s", c.reason, got, c.state)
			}
			for _, condition := range status.Conditions {
				if condition.ObservedGeneration != 3 {
					t.Errorf("condition %s has no generation", condition.Type)
				}
			}
			again := job.DeepCopy()
			again.Status = *status
			if got := Of(again, set, load, Running{}, now.Add(time.Millisecond)); describeStatus(got) != describeStatus(status) {
				t.Errorf("a second look changes %q to %q", describeStatus(status), describeStatus(got))
			}
		})
	}
}

// describeStatus describes all conditions of a status, wherever they are.
func describeStatus(status *api.TrainJobStatus) string {
	var texts []string
	status = status.DeepCopy()
	expand(status)
	for _, c := range status.Conditions {
		text := fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason)
		if c.Message != "" && c.Type != trainerapi.TrainJobSuspended &&
			c.Reason != trainerapi.TrainJobDeadlineExceededReason {
			text += "(" + c.Message + ")"
		}
		if c.Reason == trainerapi.TrainJobResumedReason {
			text += c.LastTransitionTime.UTC().Format("@15:04")
		}
		texts = append(texts, text)
	}
	for _, s := range status.JobsStatus {
		texts = append(
			texts,
			fmt.Sprintf("%s:a%dr%ds%d", s.Name, ptr.Deref(s.Active, -1), ptr.Deref(s.Ready, -1), ptr.Deref(s.Succeeded, -1)),
		)
	}
	return strings.Join(texts, " ")
}

func TestDiffers(t *testing.T) {
	written := &api.TrainJobStatus{State: api.StateQueued, Flavor: "a"}
	if Differs(written, &api.TrainJobStatus{Flavor: "a"}) || written.State != api.StateQueued {
		t.Error("the state follows from the rest, and what is written isn't changed")
	}
	if !Differs(written, &api.TrainJobStatus{Flavor: "b"}) {
		t.Error("another flavor is to be written")
	}
}

func TestDeadlineExceeded(t *testing.T) {
	failed := &api.TrainJobStatus{}
	failed.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobFailed, Status: metav1.ConditionTrue, Reason: "Own"}}
	if DeadlineExceeded(failed) || DeadlineExceeded(&api.TrainJobStatus{}) {
		t.Error("a failure of its own is no deadline")
	}
	failed.Conditions[0].Reason = trainerapi.TrainJobDeadlineExceededReason
	if !DeadlineExceeded(failed) || !Finished(failed) {
		t.Error("a TrainJob that exceeds its deadline has failed")
	}
}

// TestNoWorkload holds that a suspended TrainJob without a Workload doesn't say that it has quota.
func TestNoWorkload(t *testing.T) {
	job := &api.TrainJob{}
	job.Spec.Suspend = ptr.To(true)
	for _, name := range []string{api.ConditionQuotaReserved, api.ConditionAdmitted} {
		job.Status.Conditions = append(job.Status.Conditions, metav1.Condition{Type: name, Status: metav1.ConditionTrue,
			Reason: "Admitted"})
	}
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	status := Of(job, nil, nil, Running{}, now)
	if c := status.Condition(api.ConditionQuotaReserved); c == nil || c.Status != metav1.ConditionFalse ||
		!c.LastTransitionTime.Time.Equal(now) || status.Condition(api.ConditionAdmitted) != nil {
		t.Errorf("got %+v", status.Conditions)
	}
	job.Spec.Suspend = ptr.To(false)
	if c := Of(job, nil, nil, Running{}, now).Condition(api.ConditionAdmitted); c == nil {
		t.Error("one that runs is about to be stopped")
	}
}
