package trainer

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// The status of a TrainJob that was stopped before, so that a reconcile writes none.
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
	if got := describeStatus(&is.Status); s.status != "" && got != s.status {
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
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job-mpi-ssh-auth"}, Type: corev1.SecretTypeSSHAuth,
	}
}

func TestMake(t *testing.T) {
	refuse := func(request string, err error) func(*harness, *api.TrainJob) {
		return func(h *harness, _ *api.TrainJob) { h.fail[request] = err }
	}
	leaving := func(kind string, since time.Duration) func(*harness, *api.TrainJob) {
		return func(h *harness, _ *api.TrainJob) {
			h.put(&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "job", DeletionTimestamp: &metav1.Time{Time: noon},
				Finalizers: []string{metav1.FinalizerDeleteDependents},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: kind, Name: "job", UID: "previous", Controller: new(true),
				}},
			}})
			var js jobset.JobSet // the fake API server deletes by its own clock
			h.get(&js, "job")
			h.clock.SetTime(js.DeletionTimestamp.Add(since))
		}
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
		"the JobSet of a deleted one": {reason: "its deletion triggers a reconcile, and nobody is told of a moment",
			job: started, arrange: leaving("TrainJob", time.Second), again: terminatingFor - time.Second},
		"the JobSet of a deleted one, which stays": {reason: "the event says what it waits for", job: started,
			arrange: leaving("TrainJob", terminatingFor),
			err:     "the JobSet of the previous TrainJob of this name is being deleted",
			events:  []string{creationFailed + "the JobSet of the previous TrainJob of this name is being deleted"}},
		"another's JobSet, deleted": {reason: "nobody says that it makes room", job: started,
			arrange: leaving("Other", time.Second), events: []string{creationFailed + "there is a JobSet ns/job already"},
			err: "there is a JobSet ns/job already that is not the TrainJob's"},
		"its JobSet, not cached": {reason: "the API server decides what is there", job: started, js: "{}",
			arrange: func(h *harness, _ *api.TrainJob) { h.hide("JobSet", "job") }},
		"unread JobSet": {reason: "what is there isn't known", job: started, arrange: refuse("get JobSet", down),
			events: []string{creationFailed + "reading the JobSet: down"}, err: "down"},
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
		"groups that can't be": {reason: "the reason is in a condition and an event, and it is tried again", free: true,
			job:     started + "\nmetadata: {annotations: {signalbox.dev/gang-scheduling: required}}",
			arrange: func(h *harness, _ *api.TrainJob) { h.edit("job", func(j *api.TrainJob) { h.pinned(j) }) },
			sent:    []string{"patch TrainJob/status job"},
			events:  []string{creationFailed + "gang scheduling is required"}, again: 10 * time.Second},
	})
}
