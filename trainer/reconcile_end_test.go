package trainer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

func TestEnd(t *testing.T) {
	const limited = "spec: {suspend: false, activeDeadlineSeconds: 60}"
	const status, js = "patch TrainJob/status job", "delete JobSet job foreground uid version"
	const completed, failed = "{type: Completed, status: 'True', reason: AllJobsCompleted, message: done}",
		"{type: Failed, status: 'True', reason: FailedJobs}"
	ends := func(conditions string) string { return "status: {conditions: [" + conditions + "]}" }
	late := func(h *harness, _ *api.TrainJob) { h.clock.Step(time.Minute + time.Nanosecond) }
	const over = started + "\nstatus: {conditions: [{type: Failed, status: 'True', reason: FailedJobs, " +
		"observedGeneration: 3, message: '', lastTransitionTime: '2026-11-23T11:00:00Z'}]}"
	runSteps(t, map[string]scenario{
		"completed": {reason: "an end is written at once, and its JobSet stays", job: started, js: ends(completed),
			sent:   []string{status},
			status: "Complete=True/AllJobsCompleted(done)", state: api.StateComplete},
		"failed": {reason: "an end is written at once, and its JobSet stays", job: started, js: ends(failed),
			sent:   []string{status},
			status: "Failed=True/FailedJobs", state: api.StateFailed},
		"ended, then stopped": {reason: "an end before the stop is an end", job: stopped, js: ends(completed),
			sent:   []string{status},
			status: "Complete=True/AllJobsCompleted(done) Suspended=True/Suspended", state: api.StateComplete},
		"a JobSet that goes": {reason: "what it said before is true", job: started, sent: []string{status},
			js:     "metadata: {deletionTimestamp: '2026-11-23T11:59:00Z', finalizers: [foregroundDeletion]}\n" + ends(failed),
			status: "Failed=True/FailedJobs", state: api.StateFailed},
		"finished, JobSet gone": {reason: "finished stays finished", job: over, status: "Failed=True/FailedJobs"},
		"finished, JobSet running": {reason: "it is not ours to stop: JobSet has failed it", job: over, js: "{}",
			status: "Failed=True/FailedJobs"},
		"finished for Kubeflow Trainer": {reason: "the state that its status lacks is not urgent", again: 2 * time.Second,
			job: started + "\nstatus: {conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}"},
		"before its deadline": {reason: "it is looked at again when it has passed", job: limited, js: "{}",
			again: time.Minute + time.Millisecond},
		"started by its Workload": {reason: "the deadline counts from the start, which its own entry has",
			again: 30*time.Second + time.Millisecond,
			job: "spec: {suspend: false, activeDeadlineSeconds: 60, runtimePatches: [{manager: kueue.x-k8s.io/manager, time: " +
				"'2026-11-23T11:59:30Z'}]}\n" +
				"status: {startTime: '2026-11-23T11:59:30Z'}", js: "{}"},
		"past its deadline": {reason: "its end is written, then its JobSet goes, which nobody has told", job: limited,
			js: "{}", arrange: late,
			sent: []string{status, js}, status: "Failed=True/DeadlineExceeded", state: api.StateFailed},
		"past its deadline, conflict": {reason: "it is tried again", job: limited, js: "{}", sent: []string{status, js},
			again:   100 * time.Millisecond,
			arrange: func(h *harness, job *api.TrainJob) { late(h, job); h.fail["delete JobSet"] = conflict("job") }},
		"past its deadline, no JobSet": {reason: "none is made", job: limited, arrange: late, sent: []string{status},
			state: api.StateFailed},
		"past its deadline, ended": {reason: "its own end counts", job: limited, js: ends(completed), arrange: late,
			sent: []string{status}, state: api.StateComplete},
		"being deleted": {reason: "nothing of it is to run on", js: "{}", sent: []string{js},
			job: started + "\nmetadata: {deletionTimestamp: '2026-11-23T11:59:00Z', finalizers: [kueue.x-k8s.io/job]}"},
		"being deleted, no JobSet": {reason: "nothing is made for it",
			job: started + "\nmetadata: {deletionTimestamp: '2026-11-23T11:59:00Z', finalizers: [kueue.x-k8s.io/job]}"},
		"being deleted, conflict": {reason: "it is tried again", js: "{}", sent: []string{js}, again: 100 * time.Millisecond,
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["delete JobSet"] = conflict("job") },
			job:     started + "\nmetadata: {deletionTimestamp: '2026-11-23T11:59:00Z', finalizers: [kueue.x-k8s.io/job]}"},
		"being deleted, no answer": {reason: "it is tried again", js: "{}", sent: []string{js},
			err:     "deleting the JobSet: down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["delete JobSet"] = apierrors.NewServiceUnavailable("down") },
			job:     started + "\nmetadata: {deletionTimestamp: '2026-11-23T11:59:00Z', finalizers: [kueue.x-k8s.io/job]}"},
		"gone": {reason: "nothing is left to do", job: started, arrange: func(h *harness,
			_ *api.TrainJob) {
			h.remove(&api.TrainJob{}, "job")
		}},
		"unread": {reason: "it is tried again", job: started, err: "down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["cache TrainJob"] = apierrors.NewServiceUnavailable("down") }},
		"its JobSet unread": {reason: "that nothing runs isn't known", job: started, err: "reading the JobSet: down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["cache JobSet"] = apierrors.NewServiceUnavailable("down") }},
		"its Workload unread": {reason: "its conditions aren't known", job: started,
			err:     "listing the TrainJob's Workloads: down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["list Workload"] = apierrors.NewServiceUnavailable("down") }},
	})
}

// A JobSet may say both ends; the TrainJob's conditions have one order, whatever the order of a map.
func TestBothEnds(t *testing.T) {
	h := newHarness(t)
	job := h.pinned(h.trainJob("torch", started))
	h.put(job, jobSetOf(t, job, "status: {conditions: [{type: Failed, status: 'True', reason: B}, "+
		"{type: Completed, status: 'True', reason: A}]}"))
	for range 60 {
		h.reconcile("job")
		h.wantRequests("an end is written at once", statusPatch)
		is := h.job("job")
		if got := describeStatus(&is.Status); got != "Complete=True/A Failed=True/B" ||
			is.Status.State != api.StateFailed {
			t.Fatalf("Complete stands before Failed, and Failed counts: got %q, state %s", got, is.Status.State)
		}
		h.edit("job", func(j *api.TrainJob) { j.Status = api.TrainJobStatus{} })
	}
}

// After a stop the JobSet is made again only when the last is gone.
func TestRestart(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("mpi", started)))
	h.reconcile("job")
	h.requests()
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.reconcile("job")
	h.wantRequests("it stops", "patch TrainJob/status job", "delete JobSet job foreground uid version",
		"delete Secret job-mpi-ssh-auth", "delete ConfigMap job-mpi-hostfile uid")
	h.reconcile("job")
	h.wantRequests("its pods are ending")
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
	h.reconcile("job")
	h.wantRequests("the JobSet of before must be gone first")
	h.remove(&jobset.JobSet{}, "job")
	h.reconcile("job")
	h.wantRequests("it starts anew", "create Secret job-mpi-ssh-auth", "create ConfigMap job-mpi-hostfile",
		"create JobSet job")
}

// The cache shows the TrainJob before what was written of it.
func TestBehind(t *testing.T) {
	h := newHarness(t)
	h.put(h.trainJob("torch", started))
	h.freeze(&api.TrainJob{}, "job")
	h.reconcile("job")
	h.wantRequests("it is pinned", "patch TrainJob job")
	for range 2 {
		if result := h.reconcile("job"); result.RequeueAfter != time.Second {
			t.Errorf("the version that was written comes: got %+v", result)
		}
	}
	h.wantRequests("nothing is decided on an older version")
	h.clock.Step(time.Minute + time.Second)
	h.reconcile("job")
	h.wantRequests("an API server that was set back is believed", "patch TrainJob job")
	h.thaw()
	h.reconcile("job")
	h.wantRequests("it starts", "create JobSet job")
}

// A TrainJob of a Kubeflow Trainer runs on what that has pinned.
func TestSnapshot(t *testing.T) {
	const counted = started + "\nstatus: {jobsStatus: [{name: node, active: 1, ready: 0, succeeded: 0, failed: 0, " +
		"suspended: 0}]}"
	snapshot := func(job *api.TrainJob, runtime string) *corev1.ConfigMap {
		return ownedBy(job, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "job-runtime-snapshot"},
			Data: map[string]string{"runtime": runtime}})
	}
	const pinned = "{kind: TrainingRuntime, metadata: {name: torch}, spec: {mlPolicy: {numNodes: 7}}}"
	cases := map[string]struct {
		reason, job string
		arrange     func(*harness, *api.TrainJob)
		nodes       int32
		err         string
	}{
		"it ran": {"it stays on its runtime", counted, func(h *harness, j *api.TrainJob) { h.put(snapshot(j, pinned)) },
			7, ""},
		"it never ran": {"anybody can make a ConfigMap that looks so", started, func(h *harness,
			j *api.TrainJob) {
			h.put(snapshot(j, pinned))
		}, 2, ""},
		"of another": {"it is of an earlier TrainJob of the name", counted, func(h *harness, j *api.TrainJob) {
			other := j.DeepCopy()
			other.UID = "other"
			h.put(snapshot(other, pinned))
		}, 2, ""},
		"none": {"the live runtime", counted, func(*harness, *api.TrainJob) {}, 2, ""},
		"unreadable": {"it is passed on", counted, func(h *harness, j *api.TrainJob) { h.put(snapshot(j, "[")) }, 0,
			"Trainer's runtime snapshot ns/job-runtime-snapshot"},
		"unread": {"it is tried again", counted, func(h *harness, _ *api.TrainJob) {
			h.fail["get ConfigMap"] = apierrors.NewServiceUnavailable("down")
		}, 0, "reading Trainer's runtime snapshot: down"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			job := h.trainJob("torch", c.job)
			h.put(job)
			c.arrange(h, job)
			_, err := h.try("job", false)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: got %v, want %q", c.reason, err, c.err)
				}
				return
			}
			pin, pinErr := store.Pinned(h.job("job"))
			if err != nil || pinErr != nil || pin == nil || *pin.MLPolicy.NumNodes != c.nodes {
				t.Errorf("%s: got %+v, %v, %v", c.reason, pin, err, pinErr)
			}
		})
	}
}

// What a runtime's own annotations say of the start is pinned with it.
func TestPinHoldsTheRuntimesAnnotations(t *testing.T) {
	h := newHarness(t)
	rt := h.runtime("grouped", "{torch: {}}")
	rt.Annotations = map[string]string{api.GangModeAnnotation: "off", "other": "x"}
	h.put(rt, h.trainJob("grouped", started))
	h.reconcile("job")
	pin, err := store.Pinned(h.job("job"))
	if err != nil || fmt.Sprint(pin.Template.Annotations) != "map["+api.GangModeAnnotation+":off]" {
		t.Errorf("got %v, %v", pin, err)
	}
	if apimeta.FindStatusCondition(h.job("job").Status.Conditions, api.ConditionBlocked) != nil {
		t.Error("nothing blocks it")
	}
}
