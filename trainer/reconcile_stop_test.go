package trainer

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
			sent:    []string{js, "delete Secret job-mpi-ssh-auth", "delete ConfigMap job-mpi-hostfile uid"}},
		"side objects gone": {reason: "what isn't there needs no deletion", runtime: "mpi", job: settled, js: "{}",
			sent: []string{js, "delete Secret job-mpi-ssh-auth"}},
		"another's ConfigMap": {reason: "it stays", runtime: "mpi", job: settled, js: "{}",
			arrange: func(h *harness, _ *api.TrainJob) { h.put(hostfile(nil)) }, sent: []string{js,
				"delete Secret job-mpi-ssh-auth"}},
		"side objects that stay": {reason: "they keep no TrainJob running", runtime: "mpi", job: settled, js: "{}",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["delete Secret"], h.fail["get ConfigMap"] = down, down },
			sent:    []string{js, "delete Secret job-mpi-ssh-auth"}},
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
		"the status isn't written": {reason: "it stops all the same", job: stopped, js: "{}",
			sent: []string{status, js}, err: "writing the status: down",
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
