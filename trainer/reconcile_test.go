package trainer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

const (
	started = "spec: {suspend: false}"
	stopped = "spec: {suspend: true}"
	// settled is the status of a TrainJob that was stopped before, so that a reconcile writes none.
	settled = stopped + "\nstatus: {conditions: [{type: Suspended, status: 'True', reason: Suspended, " +
		"observedGeneration: 3, " +
		"message: TrainJob is suspended, lastTransitionTime: '2026-11-23T11:00:00Z'}]}"
)

// jobSetOf is a JobSet that a TrainJob has made.
func jobSetOf(t testing.TB, job *api.TrainJob, text string) *jobset.JobSet {
	t.Helper()
	js := ownedBy(job, read[jobset.JobSet](t, text))
	js.Name, js.UID = job.Name, "jobset"
	return js
}

// workloadOf is a TrainJob's Workload.
func workloadOf(t testing.TB, job *api.TrainJob, text string) *kueue.Workload {
	t.Helper()
	wl := ownedBy(job, read[kueue.Workload](t, text))
	wl.Name = "wl"
	return wl
}

func TestStart(t *testing.T) {
	cases := map[string]struct {
		reason, runtime string
		want            []string // the requests of the second reconcile
	}{
		"torch": {"a JobSet alone", "torch", []string{"create JobSet job"}},
		"mpi": {"side objects come before the JobSet, whose pods mount them", "mpi",
			[]string{"create Secret job-mpi-ssh-auth", "create ConfigMap job-mpi-hostfile", "create JobSet job"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.put(h.trainJob(c.runtime, started))
			h.reconcile("job")
			h.wantRequests("the pin is written before anything runs on it", "patch TrainJob job")
			rt := &api.TrainingRuntime{}
			h.get(rt, c.runtime)
			pin, err := store.Pinned(h.job("job"))
			if err != nil || string(must(yaml.Marshal(pin))) != string(must(yaml.Marshal(rt.Spec))) {
				t.Errorf("it is pinned to its runtime: got %v, %v", pin, err)
			}
			h.reconcile("job")
			h.wantRequests(c.reason, c.want...)
			js := &jobset.JobSet{}
			if !h.get(js, "job") || !metav1.IsControlledBy(js, h.job("job")) || ptr.Deref(js.Spec.Suspend, true) {
				t.Errorf("the JobSet runs, and is the TrainJob's: got %+v", js)
			}
			for range 3 {
				if result := h.reconcile("job"); result.RequeueAfter != 0 {
					t.Errorf("there is nothing to wait for: got %+v", result)
				}
			}
			h.wantRequests("it is made once")
			h.wantEvents("nothing failed")
		})
	}
}

// scenario is one reconcile of a TrainJob.
type scenario struct {
	reason  string
	runtime string // "" is torch
	job     string
	free    bool   // it is not pinned
	js, wl  string // its JobSet and its Workload; "" for none
	arrange func(*harness, *api.TrainJob)
	failed  bool // the integration has failed

	sent   []string
	events []string
	status string // as describeStatus; "" isn't looked at
	state  api.TrainJobState
	again  time.Duration
	err    string
}

func (s scenario) run(t *testing.T) {
	h := newHarness(t)
	if s.runtime == "" {
		s.runtime = "torch"
	}
	job := h.trainJob(s.runtime, s.job)
	if !s.free {
		h.pinned(job)
	}
	h.put(job)
	if s.js != "" {
		h.put(jobSetOf(t, job, s.js))
	}
	if s.wl != "" {
		h.put(workloadOf(t, job, s.wl))
	}
	if s.arrange != nil {
		s.arrange(h, job)
	}
	result, err := h.try("job", s.failed)
	if s.err == "" && err != nil || s.err != "" && (err == nil || !strings.Contains(err.Error(), s.err)) {
		t.Errorf("%s: got error %v, want %q", s.reason, err, s.err)
	}
	if result.RequeueAfter != s.again {
		t.Errorf("%s: requeued after %v, want %v", s.reason, result.RequeueAfter, s.again)
	}
	h.wantRequests(s.reason, s.sent...)
	h.wantEvents(s.reason, s.events...)
	is := &api.TrainJob{}
	if !h.get(is, "job") {
		return
	}
	if got := describeStatus(&is.Status.TrainJobStatus); s.status != "" && got != s.status {
		t.Errorf("%s: status %q, want %q", s.reason, got, s.status)
	}
	if s.state != "" && is.Status.State != s.state {
		t.Errorf("%s: state %q, want %q", s.reason, is.Status.State, s.state)
	}
}

func runSteps(t *testing.T, steps map[string]scenario) {
	t.Helper()
	for name, s := range steps {
		t.Run(name, s.run)
	}
}

const creationFailed = "Warning TrainJobResourcesCreationFailed TrainJob resources reconciliation failed: "

// unknownJob is what Kueue's webhook answers that doesn't know the TrainJob yet.
func unknownJob() error {
	return apierrors.NewNotFound(schema.GroupResource{Group: "trainer.kubeflow.org", Resource: "trainjobs"}, "job")
}

func hostfile(owner *api.TrainJob) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job-mpi-hostfile"}}
	if owner == nil {
		return cm
	}
	return ownedBy(owner, cm)
}

func sshAuth() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job-mpi-ssh-auth"}}
}

func TestMake(t *testing.T) {
	refuse := func(request string, err error) func(*harness, *api.TrainJob) {
		return func(h *harness, _ *api.TrainJob) { h.fail[request] = err }
	}
	down := apierrors.NewServiceUnavailable("down")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, "x", errors.New("not yours"))
	aged := func(h *harness, _ *api.TrainJob) { h.clock.Step(10 * time.Second) }
	runSteps(t, map[string]scenario{
		"the integration failed": {reason: "the TrainJob may have to be stopped", job: started, failed: true},
		"not started":            {reason: "nothing is made for what waits", job: settled},
		"for another Trainer": {reason: "the integration stops it and starts it again", job: started +
			"\nmetadata: {annotations: {signalbox.dev/overrides: '{\"field\":\"podTemplateOverrides\"}'}}", free: true},
		"managed by another": {reason: "another controller makes its JobSet",
			job: "spec: {suspend: false, managedBy: kueue.x-k8s.io/multikueue}"},
		"another's JobSet": {reason: "nothing of anybody else is taken over", job: started,
			arrange: func(h *harness, _ *api.TrainJob) {
				h.put(&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job"}})
			}, events: []string{creationFailed + "there is a JobSet ns/job already that is not the TrainJob's; delete it, or " +
				"create the TrainJob by another name"},
			err: "there is a JobSet ns/job already that is not the TrainJob's"},
		"its JobSet, not cached": {reason: "the API server decides what is there", job: started, js: "{}",
			arrange: func(h *harness, _ *api.TrainJob) { h.hide("JobSet", "job") }},
		"unread JobSet": {reason: "what is there isn't known", job: started, arrange: refuse("get JobSet", down),
			events: []string{creationFailed + "down"}, err: "down"},
		"another's ConfigMap": {reason: "a side object of somebody else's stops the start", runtime: "mpi", job: started,
			arrange: func(h *harness, _ *api.TrainJob) { h.put(hostfile(nil)) },
			sent:    []string{"create Secret job-mpi-ssh-auth", "create ConfigMap job-mpi-hostfile"},
			events: []string{creationFailed + "creating ConfigMap job-mpi-hostfile: there is a ConfigMap ns/job-mpi-hostfile " +
				"already " +
				"that is not the TrainJob's; delete it, or create the TrainJob by another name"},
			err: "creating ConfigMap job-mpi-hostfile: there is a ConfigMap ns/job-mpi-hostfile already"},
		"its own leftovers": {reason: "they are of an earlier start", runtime: "mpi", job: started,
			arrange: func(h *harness, job *api.TrainJob) { h.put(hostfile(job), ownedBy(job, sshAuth())) },
			sent: []string{"create Secret job-mpi-ssh-auth", "delete Secret job-mpi-ssh-auth", "create Secret job-mpi-ssh-auth",
				"create ConfigMap job-mpi-hostfile", "delete ConfigMap job-mpi-hostfile uid", "create ConfigMap job-mpi-hostfile",
				"create JobSet job"}},
		"a leftover that can't be read": {reason: "it isn't known whose it is", runtime: "mpi", job: started,
			arrange: func(h *harness, job *api.TrainJob) { h.put(hostfile(job)); h.fail["get ConfigMap job-mpi"] = down },
			sent:    []string{"create Secret job-mpi-ssh-auth", "create ConfigMap job-mpi-hostfile"},
			events:  []string{creationFailed}, err: "creating ConfigMap job-mpi-hostfile: down"},
		"a leftover that stays": {reason: "its content may be of before", runtime: "mpi", job: started,
			arrange: func(h *harness, job *api.TrainJob) { h.put(hostfile(job)); h.fail["delete ConfigMap"] = down },
			sent: []string{"create Secret job-mpi-ssh-auth", "create ConfigMap job-mpi-hostfile",
				"delete ConfigMap job-mpi-hostfile uid"},
			events: []string{creationFailed}, err: "creating ConfigMap job-mpi-hostfile: down"},
		"a Secret that is not its own": {reason: "a policy of the chart refuses the deletion", runtime: "mpi", job: started,
			arrange: func(h *harness, _ *api.TrainJob) { h.put(sshAuth()); h.fail["delete Secret"] = forbidden },
			sent:    []string{"create Secret job-mpi-ssh-auth", "delete Secret job-mpi-ssh-auth"},
			events: []string{creationFailed + "creating Secret job-mpi-ssh-auth: there is a Secret ns/job-mpi-ssh-auth " +
				"already"}, err: "not yours"},
		"a Secret that can't be deleted": {reason: "it is tried again", runtime: "mpi", job: started,
			arrange: func(h *harness, _ *api.TrainJob) { h.put(sshAuth()); h.fail["delete Secret"] = down },
			sent:    []string{"create Secret job-mpi-ssh-auth", "delete Secret job-mpi-ssh-auth"},
			events:  []string{creationFailed}, err: "creating Secret job-mpi-ssh-auth: down"},
		"a Secret that is refused": {reason: "no JobSet without it", runtime: "mpi", job: started,
			arrange: refuse("create Secret", forbidden),
			sent:    []string{"create Secret job-mpi-ssh-auth"}, events: []string{creationFailed}, err: "not yours"},
		"refused": {reason: "the event says why", job: started, arrange: refuse("create JobSet", forbidden),
			sent:   []string{"create JobSet job"},
			events: []string{creationFailed + `creating the JobSet: any "x" is forbidden: not yours`},
			err:    "creating the JobSet"},
		"conflict": {reason: "a cache is about to show what it was about", job: started, arrange: refuse("create JobSet",
			conflict("job")),
			sent: []string{"create JobSet job"}, again: 100 * time.Millisecond},
		"unseen": {reason: "a webhook's cache doesn't have the TrainJob yet", job: started,
			arrange: refuse("create JobSet", unknownJob()),
			sent:    []string{"create JobSet job"}, again: 100 * time.Millisecond},
		"unseen for long": {reason: "after ten seconds it is a failure", job: started,
			arrange: func(h *harness, job *api.TrainJob) { aged(h, job); h.fail["create JobSet"] = unknownJob() },
			sent:    []string{"create JobSet job"}, events: []string{creationFailed}, err: "not found"},
		"the pin conflicts": {reason: "the TrainJob has changed", job: started, free: true,
			arrange: refuse("patch TrainJob", conflict("job")),
			sent:    []string{"patch TrainJob job"}, again: 100 * time.Millisecond},
		"a forged pin": {reason: "what nobody of us wrote isn't run", free: true, job: started +
			"\nmetadata: {annotations: {signalbox.dev/runtime: x}}",
			events: []string{creationFailed + "metadata.annotations[signalbox.dev/runtime]"},
			err:    "it was not written by Signalbox"},
		"no runtime": {reason: "the event says what to do", runtime: "missing", free: true, job: started,
			events: []string{creationFailed + `spec.runtimeRef: there is no TrainingRuntime "missing" in namespace "ns"; ` +
				`create it`},
			err: `there is no TrainingRuntime "missing"`},
		"runtime can't be read": {reason: "it is tried again", free: true, job: started,
			arrange: refuse("cache TrainingRuntime", down),
			events:  []string{creationFailed + "down"}, err: "down"},
		"a runtime of nothing": {reason: "the plugins' word is passed on", runtime: "empty", free: true, job: started,
			arrange: func(h *harness, job *api.TrainJob) {
				h.put(&api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "empty"}})
				h.edit("job", func(j *api.TrainJob) { h.pinned(j) })
			}, events: []string{creationFailed + `spec.runtimeRef: Required value: runtime "empty" has no replicatedJobs`},
			err: "has no replicatedJobs"},
		"groups that can't be": {reason: "the reason is in an event, and it is tried again", free: true,
			job:     started + "\nmetadata: {annotations: {signalbox.dev/gang-scheduling: required}}",
			arrange: func(h *harness, _ *api.TrainJob) { h.edit("job", func(j *api.TrainJob) { h.pinned(j) }) },
			events:  []string{creationFailed + "gang scheduling is required"}, again: 10 * time.Second},
	})
}

func TestStop(t *testing.T) {
	down := apierrors.NewServiceUnavailable("down")
	const status, js = "patch TrainJob/status job", "delete JobSet job foreground uid version"
	runSteps(t, map[string]scenario{
		"torch": {reason: "the status is written before the JobSet goes", job: stopped, js: "{}", sent: []string{status, js},
			status: "Suspended=True/Suspended", state: api.StateSuspended},
		"still active": {reason: "its pods have not ended", job: stopped, js: "status: {replicatedJobsStatus: [{name: " +
			"node, active: 1}]}",
			sent: []string{status, js}, status: "Suspended=True/Suspended node:a1r0s0", state: api.StateStopping},
		"written before": {reason: "a status that is right isn't written again", job: settled, js: "{}", sent: []string{js}},
		"mpi": {reason: "side objects go with it", runtime: "mpi", job: settled, js: "{}",
			arrange: func(h *harness, job *api.TrainJob) { h.put(hostfile(job), sshAuth()) },
			sent:    []string{"delete Secret job-mpi-ssh-auth", "delete ConfigMap job-mpi-hostfile uid", js}},
		"side objects gone": {reason: "what isn't there needs no deletion", runtime: "mpi", job: settled, js: "{}",
			sent: []string{"delete Secret job-mpi-ssh-auth", js}},
		"another's ConfigMap": {reason: "it stays", runtime: "mpi", job: settled, js: "{}",
			arrange: func(h *harness, _ *api.TrainJob) { h.put(hostfile(nil)) }, sent: []string{"delete Secret job-mpi-ssh-auth",
				js}},
		"side objects that stay": {reason: "they keep no TrainJob running", runtime: "mpi", job: settled, js: "{}",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["delete Secret"], h.fail["get ConfigMap"] = down, down },
			sent:    []string{"delete Secret job-mpi-ssh-auth", js}},
		"no runtime": {reason: "side objects can't be told; the JobSet goes", runtime: "missing", free: true, job: settled,
			js: "{}", sent: []string{js}},
		"a runtime of nothing": {reason: "side objects can't be told; the JobSet goes", runtime: "empty", free: true,
			job: settled, js: "{}",
			arrange: func(h *harness, _ *api.TrainJob) {
				h.put(&api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "empty"}})
			}, sent: []string{js}},
		"the integration failed": {reason: "a stop doesn't wait", job: settled, js: "{}", failed: true, sent: []string{js}},
		"on its way out": {reason: "it is deleted once", job: settled,
			js: "metadata: {deletionTimestamp: '2026-11-23T11:59:00Z', finalizers: [foregroundDeletion]}"},
		"the status isn't written": {reason: "what was is lost with the JobSet", job: stopped, js: "{}",
			sent: []string{status}, err: "writing the status: down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["patch TrainJob/status"] = down }},
		"conflict": {reason: "the JobSet may have come to its end", job: settled, js: "{}", sent: []string{js},
			again:   100 * time.Millisecond,
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["delete JobSet"] = conflict("job") }},
		"changed meanwhile": {reason: "only the version that was looked at is deleted", job: settled, js: "{}",
			sent: []string{js}, again: 100 * time.Millisecond,
			arrange: func(h *harness, _ *api.TrainJob) {
				h.freeze(&jobset.JobSet{}, "job")
				there := &jobset.JobSet{}
				h.get(there, "job")
				there.Labels = map[string]string{"a": "b"}
				if err := h.store.Update(context.Background(), there); err != nil {
					h.t.Fatal(err)
				}
			}},
		"gone meanwhile": {reason: "that is what was wanted", job: settled, js: "{}", sent: []string{js},
			arrange: func(h *harness, _ *api.TrainJob) {
				h.freeze(&jobset.JobSet{}, "job")
				h.remove(&jobset.JobSet{}, "job")
			}},
		"can't be deleted": {reason: "it is tried again", job: settled, js: "{}", sent: []string{js},
			err:     "deleting the JobSet: down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["delete JobSet"] = down }},
	})
}

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
				"status: {conditions: [{type: Suspended, status: 'False', reason: Resumed, observedGeneration: 3, message: " +
				"TrainJob is resumed, " +
				"lastTransitionTime: '2026-11-23T11:59:30Z'}]}", js: "{}"},
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
		if got := describeStatus(&is.Status.TrainJobStatus); got != "Complete=True/A Failed=True/B" ||
			is.Status.State != api.StateFailed {
			t.Fatalf("Complete stands before Failed, and Failed counts: got %q, state %s", got, is.Status.State)
		}
		h.edit("job", func(j *api.TrainJob) { j.Status = api.TrainJobStatus{} })
	}
}

// The answer to a creation is lost. Whether the JobSet is there, only the API server knows.
func TestLostAnswer(t *testing.T) {
	lost := apierrors.NewTimeoutError("the answer is lost", 1)
	for name, arrived := range map[string]bool{"it arrived": true, "it didn't": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.put(h.pinned(h.trainJob("torch", started)))
			h.hide("JobSet", "job") // the cache is late, too
			if arrived {
				h.lost["create JobSet"] = lost
			} else {
				h.fail["create JobSet"] = lost
			}
			if _, err := h.try("job", false); !errors.Is(err, lost) {
				t.Fatalf("the error is passed on: got %v", err)
			}
			clear(h.fail)
			h.requests()
			h.reconcile("job")
			if arrived {
				h.wantRequests("it is there")
			} else {
				h.wantRequests("it is not there", "create JobSet job")
			}
			h.thaw()
			h.reconcile("job")
			h.wantRequests("the cache has it")
			// A stop finds it, whatever the cache says of it.
			h.hide("JobSet", "job")
			h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
			h.thaw()
			h.reconcile("job")
			h.wantRequests("it is stopped", "patch TrainJob/status job", "delete JobSet job foreground uid version")
		})
	}
}

// A stop must find the JobSet of a creation whose answer was lost, whatever the cache shows.
func TestStopAfterALostAnswer(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("torch", started)))
	h.hide("JobSet", "job")
	h.lost["create JobSet"] = apierrors.NewTimeoutError("the answer is lost", 1)
	if _, err := h.try("job", false); err == nil {
		t.Fatal("the error is passed on")
	}
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.requests()
	h.reconcile("job")
	h.wantRequests("it may run", "patch TrainJob/status job", "delete JobSet job foreground uid version")
}

// A stop right after a start must find the JobSet that the cache doesn't show yet.
func TestStopBeforeTheCacheShowsTheJobSet(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("torch", started)))
	h.hide("JobSet", "job")
	h.reconcile("job")
	h.wantRequests("it starts", "create JobSet job")
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.reconcile("job")
	h.wantRequests("it stops", "patch TrainJob/status job", "delete JobSet job foreground uid version")
}

// After a stop the JobSet is made again only when the last is gone.
func TestRestart(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("mpi", started)))
	h.reconcile("job")
	h.requests()
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.reconcile("job")
	h.wantRequests("it stops", "patch TrainJob/status job", "delete Secret job-mpi-ssh-auth",
		"delete ConfigMap job-mpi-hostfile uid",
		"delete JobSet job foreground uid version")
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
