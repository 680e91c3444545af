package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer/trial"
)

// wantBlocked compares what keeps a TrainJob from starting; "" is nothing.
func wantBlocked(t *testing.T, reason string, err error, is, message string, again time.Duration) {
	t.Helper()
	if is == "" {
		if err != nil {
			t.Errorf("%s: got %v", reason, err)
		}
		return
	}
	blocked := (*admission.BlockedError)(nil)
	if !errors.As(err, &blocked) || blocked.Reason != is || blocked.RetryAfter != again ||
		!strings.Contains(err.Error(), message) {
		t.Errorf("%s: got %+v, want %s, %q, after %v", reason, err, is, message, again)
	}
}

// triedOfJobSet is what is tried after a JobSet is taken (TestObjects of package trial).
var triedOfJobSet = []string{"dry-run Service", "dry-run Job", "dry-run Pod"}

func TestStartable(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "jobset.x-k8s.io", Kind: "JobSet"}, "check", nil)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "check", errors.New("by a quota"))
	named := func(h *harness, name string, age time.Duration, runtime string) *api.TrainJob {
		job := h.trainJob(runtime, "{}")
		job.Name, job.UID, job.CreationTimestamp = name, types.UID(name), metav1.NewTime(noon.Add(-age))
		return job
	}
	cases := map[string]struct {
		reason, runtime, job string
		arrange              func(*harness, *api.TrainJob)
		asked                string // the requests
		is, message          string
		again                time.Duration
		other                string // any other error
	}{
		"fine": {reason: "the API server would take it", asked: "dry-run JobSet"},
		"with MPI": {reason: "a Secret's form is fixed; all else is asked for", runtime: "mpi",
			asked: "dry-run ConfigMap, dry-run JobSet"},
		"a long name": {reason: "no pod could have its name", job: "metadata: {name: " + strings.Repeat("a", 60) + "}",
			is:      trial.ReasonInvalidJobSet,
			message: "metadata.name: \"aaa"},
		"its own JobSet": {reason: "of its last run", asked: "dry-run JobSet",
			arrange: func(h *harness, job *api.TrainJob) { h.put(jobSetOf(h.t, job, "{}")) }},
		"another's JobSet": {reason: "nothing is taken over", is: ReasonNameTaken, again: 10 * time.Second,
			message: `there is a JobSet "job" already`,
			arrange: func(h *harness, _ *api.TrainJob) {
				h.put(&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job"}})
			}},
		"another's JobSet that goes": {reason: "its name is about to be free", asked: "dry-run JobSet",
			arrange: func(h *harness, _ *api.TrainJob) {
				h.put(&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", Finalizers: []string{"a/b"},
					DeletionTimestamp: &metav1.Time{Time: noon}}})
			}},
		"JobSets unread": {reason: "it is tried again", other: "down",
			arrange: func(h *harness, _ *api.TrainJob) {
				h.fail["cache JobSet job"] = apierrors.NewServiceUnavailable("down")
			}},
		"siblings unread": {reason: "it is tried again", other: "down",
			arrange: func(h *harness, _ *api.TrainJob) {
				h.fail["cache JobSet job-dataset"] = apierrors.NewServiceUnavailable("down")
			}},
		"a sibling TrainJob unread": {reason: "it is tried again", other: "down",
			arrange: func(h *harness, _ *api.TrainJob) {
				h.fail["cache TrainJob job-dataset"] = apierrors.NewServiceUnavailable("down")
			}},
		"a sibling that came first": {reason: "its Job has the name", is: ReasonNameTaken, again: 10 * time.Second,
			message: `there is a Job of TrainJob job-dataset "job-dataset-initializer-0" already`,
			arrange: func(h *harness, _ *api.TrainJob) {
				rt := h.runtime("short", "{torch: {}}")
				rt.Spec.Template.Spec.ReplicatedJobs[0].Name = "initializer"
				h.put(rt, named(h, "job-dataset", time.Hour, "short"))
			}},
		"a sibling that came first and is pinned": {reason: "what it is pinned to counts", asked: "dry-run JobSet",
			arrange: func(h *harness, _ *api.TrainJob) {
				rt := h.runtime("short", "{torch: {}}")
				rt.Spec.Template.Spec.ReplicatedJobs[0].Name = "initializer"
				h.put(rt)
				sibling := named(h, "job-dataset", time.Hour, "torch")
				h.pinned(sibling)
				sibling.Spec.RuntimeRef.Name = "short"
				h.put(sibling)
			}},
		"a sibling with a forged pin": {reason: "it can't start itself", asked: "dry-run JobSet",
			arrange: func(h *harness, _ *api.TrainJob) {
				sibling := named(h, "job-dataset", time.Hour, "torch")
				sibling.Annotations = map[string]string{store.PinAnnotation: "x"}
				h.put(sibling)
			}},
		"a sibling of the same second": {reason: "the UID decides", asked: "dry-run JobSet",
			job: "metadata: {creationTimestamp: '2026-11-23T11:00:00Z'}",
			arrange: func(h *harness, _ *api.TrainJob) {
				rt := h.runtime("short", "{torch: {}}")
				rt.Spec.Template.Spec.ReplicatedJobs[0].Name = "initializer"
				sibling := named(h, "job-dataset", time.Hour, "short")
				sibling.UID = "zzz"
				h.put(rt, sibling)
			}},
		"refused": {reason: "so it would be when it is admitted", asked: "dry-run JobSet", is: trial.ReasonInvalidJobSet,
			again: time.Minute,
			message: `what is built of TrainingRuntime "torch" in namespace "ns" and the TrainJob is refused, so that the ` +
				`TrainJob would never have pods: JobSet job is refused: `,
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["dry-run JobSet"] = invalid }},
		"a side object is refused": {reason: "the JobSet's pods would wait for it", runtime: "mpi",
			asked: "dry-run ConfigMap", is: trial.ReasonInvalidJobSet, again: time.Minute,
			message: "ConfigMap job-mpi-hostfile is refused: configmaps \"check\" is forbidden: by a quota",
			arrange: func(h *harness, _ *api.TrainJob) {
				h.fail["dry-run ConfigMap"] = forbidden
			}},
		"a bad request": {reason: "so it would be when it is admitted", asked: "dry-run JobSet",
			is: trial.ReasonInvalidJobSet, again: time.Minute,
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["dry-run JobSet"] = apierrors.NewBadRequest("no") }},
		"a large side object": {reason: "the host file of very many nodes", runtime: "mpi", asked: "dry-run ConfigMap",
			is: trial.ReasonInvalidJobSet, again: time.Minute, message: "is refused: Request entity too large: limit",
			arrange: func(h *harness, _ *api.TrainJob) {
				h.fail["dry-run ConfigMap"] = apierrors.NewRequestEntityTooLargeError("limit is 3145728")
			}},
		"no such kind": {reason: "JobSet isn't installed", asked: "dry-run JobSet", is: trial.ReasonInvalidJobSet,
			again: time.Minute,
			arrange: func(h *harness, _ *api.TrainJob) {
				h.fail["dry-run JobSet"] = &apimeta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "jobset.x-k8s.io",
					Kind: "JobSet"}}
			}},
		"no answer": {reason: "it may be refused", asked: "dry-run JobSet",
			other:   "the API server doesn't say whether it would take JobSet job: down",
			arrange: func(h *harness, _ *api.TrainJob) { h.fail["dry-run JobSet"] = apierrors.NewServiceUnavailable("down") }},
		"no room": {reason: "the pin must fit beside the other annotations", asked: "dry-run JobSet",
			is:  trial.ReasonTooLarge,
			job: "metadata: {annotations: {a: " + strings.Repeat("x", 258048) + "}}",
			message: "and the TrainJob's annotations together may have 258048; make the runtime smaller, or take annotations " +
				"away"},
		"a pin of before": {reason: "it is replaced, not added", asked: "dry-run JobSet",
			job: "metadata: {annotations: {" + store.PinAnnotation + ": " + strings.Repeat("x", 258048) + "}}"},
		"groups": {reason: "required, and not served", is: "GangSchedulingUnavailable", again: 10 * time.Second,
			job:     "metadata: {annotations: {signalbox.dev/gang-scheduling: required}}",
			message: "the API server doesn't serve Workloads and PodGroups"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			if c.runtime == "" {
				c.runtime = "torch"
			}
			job := h.trainJob(c.runtime, c.job)
			if job.CreationTimestamp.IsZero() {
				job.CreationTimestamp = metav1.NewTime(noon)
			}
			rt := &api.TrainingRuntime{}
			h.get(rt, c.runtime)
			effective := h.effective(job, &rt.Spec)
			h.put(job)
			if c.arrange != nil {
				c.arrange(h, job)
			}
			err := h.startable(job, &rt.Spec, effective)
			if c.other != "" {
				if err == nil || !strings.Contains(err.Error(), c.other) || reasonOf(err) != "" {
					t.Errorf("%s: got %v", c.reason, err)
				}
			} else {
				wantBlocked(t, c.reason, err, c.is, c.message, c.again)
			}
			var kinds []string
			for _, request := range h.requests() {
				kind, always := strings.CutSuffix(request, " check")
				if !always {
					t.Errorf("a dry run always has one name: got %q", request)
				}
				if !slices.Contains(triedOfJobSet, kind) {
					kinds = append(kinds, kind)
				}
			}
			if got := strings.Join(kinds, ", "); got != c.asked {
				t.Errorf("%s: asked %q, want %q", c.reason, got, c.asked)
			}
		})
	}
}

// What can't be built is said as it is.
func TestStartableThatCantBeBuilt(t *testing.T) {
	h := newHarness(t)
	job := h.trainJob("torch", "{}")
	wantBlocked(t, "the plugins refuse it", h.startable(job, &trainerapi.TrainingRuntimeSpec{}, &overrides.Effective{}),
		trial.ReasonInvalidJobSet, "has no replicatedJobs", 0)
	h.wantRequests("nobody is asked")
}

// A refusal holds for a minute; what is taken holds as long as it is remembered.
func TestVerdicts(t *testing.T) {
	h := newHarness(t)
	job := h.trainJob("torch", "{}")
	spec := runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)
	one, two := h.effective(job, spec), h.effective(job, runtimeOf(t, "{numNodes: 3, torch: {}}", lastingVolume))
	ask := func(reason string, e *overrides.Effective, is string, asked int) {
		t.Helper()
		err := h.startable(job, spec, e)
		if reasonOf(err) != is || is == "" && err != nil {
			t.Errorf("%s: got %v", reason, err)
		}
		got := slices.DeleteFunc(h.requests(), func(r string) bool {
			return slices.Contains(triedOfJobSet, strings.TrimSuffix(r, " check"))
		})
		if len(got) != asked {
			t.Errorf("%s: asked %q, want %d", reason, got, asked)
		}
	}
	h.fail["dry-run"] = apierrors.NewBadRequest("no")
	ask("it is asked for", one, trial.ReasonInvalidJobSet, 1)
	h.fail = faults{}
	h.clock.Step(time.Minute - time.Nanosecond)
	ask("it was refused less than a minute ago", one, trial.ReasonInvalidJobSet, 0)
	ask("another shape is another question", two, "", 1)
	h.clock.Step(time.Nanosecond)
	ask("what refused it may have changed", one, "", 1)
	h.clock.Step(time.Hour)
	ask("it was taken a while ago", one, "", 1)
	ask("it was taken a moment ago", one, "", 0)
}

// Of a burst of one shape, one asks.
func TestOneOfABurstAsks(t *testing.T) {
	h := newHarness(t)
	spec := runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)
	effective := h.effective(h.trainJob("torch", "{}"), spec)
	var burst sync.WaitGroup
	for i := range 20 {
		job := h.trainJob("torch", "{}")
		job.Name, job.UID = fmt.Sprintf("job-%d", i), types.UID(fmt.Sprint(i))
		burst.Go(func() {
			if err := h.startable(job, spec, effective); err != nil {
				t.Error(err)
			}
		})
	}
	burst.Wait()
	if sent := h.requests(); len(sent) != 2+2*len(effective.ReplicatedJobs) {
		t.Errorf("asked %q, for a JobSet, its Service, and a Job and a pod of each ReplicatedJob", sent)
	}
}
