package trainer

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const statusPatch = "patch TrainJob/status job"

// waits checks that a TrainJob's status isn't written before the time has passed, and then is, by one request.
func (h *harness) waits(reason string, wait time.Duration) {
	h.t.Helper()
	result := h.reconcile("job")
	if result.RequeueAfter != wait || ptr.Deref(result.Priority, 0) != -10 {
		h.t.Errorf("%s: got %+v, want %v at the priority of a status", reason, result, wait)
	}
	h.wantRequests(reason + ": not yet")
	h.clock.Step(wait - time.Nanosecond)
	if result := h.reconcile("job"); result.RequeueAfter != time.Nanosecond {
		h.t.Errorf("%s: the time runs from the first change: got %+v", reason, result)
	}
	h.wantRequests(reason + ": not yet")
	h.clock.Step(time.Nanosecond)
	result = h.reconcile("job")
	then := time.Duration(0)
	if h.job("job").Status.State == api.StateQueued {
		then = 30*time.Second - wait // for the event
	}
	if result.RequeueAfter != then {
		h.t.Errorf("%s: it is written: got %+v", reason, result)
	}
	h.wantRequests(reason, statusPatch)
	h.reconcile("job")
	h.wantRequests(reason + ": once")
}

func TestStatusWaits(t *testing.T) {
	const reserved = "status: {conditions: [{type: QuotaReserved, status: 'True', reason: QuotaReserved}]}"
	const admitted = `
status:
  conditions:
  - {type: QuotaReserved, status: 'True', reason: QuotaReserved}
  - {type: Admitted, status: 'True', reason: Admitted}
  admission: {clusterQueue: q, podSetAssignments: [{name: node, flavors: {cpu: b, nvidia.com/gpu: a}}]}`
	cases := map[string]struct {
		reason, job, js, wl string
		wait                time.Duration
		status              string
		state               api.TrainJobState
		flavor              string
	}{
		"suspended": {"somebody wants to know why it waits", stopped, "", "", 2 * time.Second, "Suspended=True/Suspended",
			api.StateSuspended, ""},
		"queued": {"Kueue has said nothing yet", stopped, "", "spec: {queueName: q}", 2 * time.Second,
			"Suspended=True/Suspended QuotaReserved=False/Pending(Workload wl waits in LocalQueue q)", api.StateQueued, ""},
		"quota reserved": {"it waits for its checks", stopped, "", reserved, 2 * time.Second,
			"Suspended=True/Suspended QuotaReserved=True/QuotaReserved", api.StateQuotaReserved, ""},
		"admitted": {"it is about to start, and on what", stopped, "", admitted, 4 * time.Second,
			"Suspended=True/Suspended QuotaReserved=True/QuotaReserved Admitted=True/Admitted", api.StateAdmitted, "a,b"},
		"counts": {"they change all the time", started, "status: {replicatedJobsStatus: [{name: node, active: 1}]}", "",
			4 * time.Second,
			"node:a1r0s0", api.StateStarting, ""},
		"runs": {"its first pods are ready", started, "status: {replicatedJobsStatus: [{name: node, active: 1, ready: 1}]}",
			"",
			2 * time.Second, "node:a1r1s0", api.StateRunning, ""},
		"Kubeflow Trainer's": {"its status lacks the state", started + "\nstatus: {conditions: [{type: Failed, status: " +
			"'True', reason: X}]}", "", "",
			2 * time.Second, "Failed=True/X", api.StateFailed, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			job := h.pinned(h.trainJob("torch", c.job))
			h.put(job)
			if c.js != "" {
				h.put(jobSetOf(t, job, c.js))
			}
			if c.wl != "" {
				h.put(workloadOf(t, job, c.wl))
			}
			h.waits(c.reason, c.wait)
			is := h.job("job")
			if got := describeStatus(&is.Status); got != c.status || is.Status.State != c.state ||
				is.Status.Flavor != c.flavor {
				t.Errorf("%s: got %q, state %s, flavor %q", c.reason, got, is.Status.State, is.Status.Flavor)
			}
			for _, condition := range is.Status.Conditions {
				if condition.ObservedGeneration != 3 {
					t.Errorf("condition %s is of generation %d, want the TrainJob's", condition.Type, condition.ObservedGeneration)
				}
			}
			h.wantEvents("nothing to tell")
		})
	}
}

// Many TrainJobs that change at once wait longer, each.
func TestStatusWaitsInACrowd(t *testing.T) {
	h := newHarness(t)
	for i := range 10 {
		other := h.trainJob("torch", stopped)
		other.Name, other.UID = fmt.Sprintf("other-%d", i), types.UID(fmt.Sprint(i))
		h.put(other)
		h.reconcile(other.Name)
	}
	elsewhere := newMemory()
	for i := range 100 {
		elsewhere.recall(types.NamespacedName{Namespace: "spam", Name: fmt.Sprint(i)}, h.clock.Now(), true, false)
	}
	own := types.NamespacedName{Namespace: "team", Name: "job"}
	if p := elsewhere.recall(own, h.clock.Now(), true, false); p.others != 0 {
		t.Errorf("what happens in another namespace delays nothing: got %d others", p.others)
	}
	h.put(h.trainJob("torch", stopped))
	if result := h.reconcile("job"); result.RequeueAfter != 5*time.Second {
		t.Errorf("300 ms for each of ten others: got %+v", result)
	}
	for i := range 10 {
		h.remove(&api.TrainJob{}, fmt.Sprintf("other-%d", i))
		h.reconcile(fmt.Sprintf("other-%d", i))
	}
	h.clock.Step(time.Second)
	if result := h.reconcile("job"); result.RequeueAfter != 4*time.Second {
		t.Errorf("a crowd that gets less is still one: got %+v", result)
	}
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
	h.put(jobSetOf(t, h.job("job"), "status: {conditions: [{type: Completed, status: 'True', reason: Done}]}"))
	h.requests()
	h.reconcile("job")
	h.wantRequests("an end waits for nobody", statusPatch)
}

// A change that goes back needs no write, and the next waits for its own time.
func TestStatusThatGoesBack(t *testing.T) {
	h := newHarness(t)
	job := h.pinned(h.trainJob("torch", started))
	h.put(job, jobSetOf(t, job, "status: {replicatedJobsStatus: [{name: node, active: 1}]}"))
	h.reconcile("job")
	h.clock.Step(3 * time.Second)
	js := &jobset.JobSet{}
	h.get(js, "job")
	counts := js.Status.ReplicatedJobsStatus
	set := func(statuses []jobset.ReplicatedJobStatus) {
		h.get(js, "job")
		js.Status.ReplicatedJobsStatus = statuses
		if err := h.store.Status().Update(t.Context(), js); err != nil {
			t.Fatal(err)
		}
	}
	set(nil)
	if result := h.reconcile("job"); result.RequeueAfter != 0 {
		t.Errorf("there is nothing to write: got %+v", result)
	}
	set(counts)
	h.waits("it waits anew", 4*time.Second)
}

func TestStatusAtOnce(t *testing.T) {
	evicted := "status: {conditions: [{type: QuotaReserved, status: 'False', reason: Pending, lastTransitionTime: " +
		"'2026-11-23T12:00:00Z'}, {type: Evicted, status: " +
		"'True', reason: Preempted, message: by x}]}"
	runSteps(t, map[string]scenario{
		"evicted": {reason: "the reason of a stop is what people ask for", job: stopped, wl: evicted,
			sent: []string{statusPatch}, again: 30 * time.Second,
			status: "Suspended=True/Suspended QuotaReserved=False/Pending Evicted=True/Preempted(by x)", state: api.StateQueued},
		"gone meanwhile": {reason: "there is nobody to tell", job: stopped, wl: evicted, sent: []string{statusPatch},
			again: 30 * time.Second,
			arrange: func(h *harness, _ *api.TrainJob) {
				h.fail[statusPatch] = apierrors.NewNotFound(schema.GroupResource{}, "job")
			}},
		"no answer": {reason: "it is tried again", job: stopped, wl: evicted, sent: []string{statusPatch},
			again:   30 * time.Second,
			err:     "writing the status: down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail[statusPatch] = apierrors.NewServiceUnavailable("down") }},
	})
}

func TestMirror(t *testing.T) {
	const both = "{type: QuotaReserved, status: 'True', reason: A, lastTransitionTime: '2026-11-23T11:00:00Z'}, {type: " +
		"Admitted, status: 'True', reason: B}"
	status := func(conditions string) string { return "status: {conditions: [" + conditions + "]}" }
	cases := map[string]struct {
		reason, job, wl string
		change          func(*kueue.Workload)
		want            map[string]string // by type: status/reason(message)
	}{
		"another's Workload": {"it is not the TrainJob's", stopped, status(both),
			func(wl *kueue.Workload) { wl.OwnerReferences[0].UID = "other" },
			map[string]string{"QuotaReserved": "", "Admitted": ""}},
		"of another kind": {"a JobSet may have its name", stopped, status(both),
			func(wl *kueue.Workload) { wl.OwnerReferences[0].Kind = "JobSet" },
			map[string]string{"QuotaReserved": ""}},
		"a Workload that goes": {"it says nothing of the TrainJob any more", stopped, status(both), func(wl *kueue.Workload) {
			wl.Finalizers, wl.DeletionTimestamp = []string{"a/b"}, &metav1.Time{Time: noon}
		}, map[string]string{"QuotaReserved": ""}},
		"taken away": {"a condition that Kueue took back goes", stopped + "\nstatus: {conditions: [{type: Admitted, " +
			"status: 'True', reason: B}, " +
			"{type: Evicted, status: 'True', reason: B}]}", status("{type: QuotaReserved, status: 'True', reason: A}"), nil,
			map[string]string{"Admitted": "", "Evicted": "", "QuotaReserved": "True/A()"}},
		"finished while it is suspended": {"it waits for nothing that will come", stopped +
			"\nstatus: {conditions: [{type: Admitted, status: 'True', reason: B}]}",
			status(both + ", {type: Finished, status: 'True', reason: StartFailed, message: why}"), nil,
			map[string]string{"Blocked": "True/StartFailed(why)", "QuotaReserved": "False/StartFailed(why)", "Admitted": ""}},
		"finished while it runs": {"the TrainJob's own end tells more", started, status(both +
			", {type: Finished, status: 'True', reason: X, message: why}"), nil,
			map[string]string{"Blocked": "", "QuotaReserved": "True/A()", "Admitted": "True/B()"}},
		"running, nothing said": {"it waits in no queue", started + "\nstatus: {conditions: [{type: QuotaReserved, status: " +
			"'False', reason: X}]}", "{}", nil,
			map[string]string{"QuotaReserved": ""}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			job := h.pinned(h.trainJob("torch", c.job))
			wl := workloadOf(t, job, c.wl)
			if c.change != nil {
				c.change(wl)
			}
			h.put(job, jobSetOf(t, job, "metadata: {deletionTimestamp: '2026-11-23T11:59:00Z', finalizers: "+
				"[foregroundDeletion]}"), wl)
			h.reconcile("job")
			h.clock.Step(time.Minute)
			h.reconcile("job")
			is := h.job("job")
			for name, want := range c.want {
				got := ""
				if condition := is.Status.Condition(name); condition != nil {
					got = fmt.Sprintf("%s/%s(%s)", condition.Status, condition.Reason, condition.Message)
				}
				if got != want {
					t.Errorf("%s: condition %s is %q, want %q", c.reason, name, got, want)
				}
			}
		})
	}
}

// What is written doesn't depend on the order of a map.
func TestFinishedWorkloadIsToldInOneOrder(t *testing.T) {
	h := newHarness(t)
	job := h.trainJob("torch", stopped)
	h.put(job, workloadOf(t, job, "status: {conditions: [{type: Finished, status: 'True', reason: X}]}"))
	first := ""
	for range 60 {
		h.reconcile("job")
		h.clock.Step(time.Minute)
		h.reconcile("job")
		got := describeStatus(&h.job("job").Status)
		if first == "" {
			first = got
		}
		if got != first {
			t.Fatalf("once it is %q, once %q", first, got)
		}
		h.edit("job", func(j *api.TrainJob) { j.Status = api.TrainJobStatus{} })
	}
}

func TestCounts(t *testing.T) {
	const was = "\nstatus: {conditions: [{type: Suspended, status: '%s', reason: X, lastTransitionTime: " +
		"'2026-11-23T11:00:00Z'}], " +
		"jobsStatus: [{name: init, succeeded: 1, ready: 0, active: 0, failed: 0, suspended: 0}, {name: node, succeeded: 0, " +
		"ready: 1, active: 1, failed: 0, suspended: 0}]}"
	entry := func(at string) string {
		return "spec: {suspend: true, runtimePatches: [{manager: a.com/a, time: '" + at + "'}]}"
	}
	cases := map[string]struct{ reason, job, js, want string }{
		"stopped, JobSet gone": {"what has succeeded is still true, and nothing else", stopped +
			fmt.Sprintf(was, "True"), "", "init:a0r0s1 node:a0r0s0"},
		"edited before the stop": {"it was done with it", entry("2026-11-23T10:00:00Z") + fmt.Sprintf(was, "True"), "",
			"init:a0r0s1 node:a0r0s0"},
		"edited since the stop": {"it was done for what the TrainJob was then", entry("2026-11-23T11:30:00Z") +
			fmt.Sprintf(was, "True"), "", "init:a0r0s0 node:a0r0s0"},
		"started, JobSet to come": {"its counts stay until there are new ones", started + fmt.Sprintf(was, "False"), "",
			"init:a0r0s1 node:a1r1s0"},
		"left out of the next": {"what was not run again keeps its count", started + fmt.Sprintf(was, "False"),
			"spec: {replicatedJobs: [{name: node}]}\nstatus: {replicatedJobsStatus: [{name: node, active: 1}]}",
			"node:a1r0s0 init:a0r0s1"},
		"in the next, not told yet": {"JobSet counts it anew", started + fmt.Sprintf(was, "False"),
			"spec: {replicatedJobs: [{name: init}, {name: node}]}\nstatus: {replicatedJobsStatus: [{name: node, active: 1}]}",
			"node:a1r0s0"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.fail["create JobSet"] = conflict("job")
			job := h.pinned(h.trainJob("torch", c.job))
			h.put(job)
			if c.js != "" {
				h.put(jobSetOf(t, job, c.js))
			}
			h.reconcile("job")
			h.clock.Step(time.Minute)
			h.reconcile("job")
			counts := &api.TrainJobStatus{}
			counts.JobsStatus = h.job("job").Status.JobsStatus
			if got := describeStatus(counts); got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
}

// A start is told from the time of the TrainJob's own entry.
func TestResumed(t *testing.T) {
	h := newHarness(t)
	job := h.pinned(h.trainJob("torch", "spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager, "+
		"time: '2026-11-23T11:58:00Z'}]}\n"+
		"status: {conditions: [{type: Suspended, status: 'True', reason: Suspended, observedGeneration: 2}]}"))
	h.put(job, jobSetOf(t, job, "{}"))
	h.reconcile("job")
	h.clock.Step(time.Minute)
	h.reconcile("job")
	is := h.job("job")
	if got := describeStatus(&is.Status); got != "Suspended=False/Resumed@11:58" ||
		is.Status.State != api.StateStarting {
		t.Errorf("got %q, state %s", got, is.Status.State)
	}
}
