package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/trial"
)

func reasonOf(err error) string {
	if blocked := (*admission.BlockedError)(nil); errors.As(err, &blocked) {
		return blocked.Reason
	}
	return ""
}

func TestCheckTaken(t *testing.T) {
	created := func(name string, at int64, change ...func(*api.TrainJob)) *api.TrainJob {
		job := jobOf(t, "plain", "{}")
		job.Name, job.UID, job.CreationTimestamp = name, types.UID(name), metav1.NewTime(time.Unix(at, 0))
		for _, c := range change {
			c(job)
		}
		return job
	}
	finished := func(job *api.TrainJob) {
		job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobComplete, Status: metav1.ConditionTrue}}
	}
	runtime := &api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "plain"}}
	runtime.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{{Name: "node"}}
	set := func(name, replicatedJob string, owner *api.TrainJob) *jobset.JobSet {
		js := &jobset.JobSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec:       jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{{Name: replicatedJob}}},
		}
		if owner != nil {
			js.OwnerReferences = []metav1.OwnerReference{
				{
					APIVersion: "trainer.kubeflow.org/v1alpha1",
					Kind:       "TrainJob",
					Name:       owner.Name,
					UID:        owner.UID,
					Controller: new(true),
				},
			}
		}
		return js
	}
	cases := map[string]struct {
		reason string
		there  []client.Object
		taken  bool
	}{
		"nothing": {reason: "every name is free"},
		"its own JobSet": {
			reason: "of its last run",
			there:  []client.Object{set("my", "model-node", created("my", 10))},
		},
		"another's JobSet": {
			reason: "it can't be taken over",
			there:  []client.Object{set("my", "x", nil)},
			taken:  true,
		},
		"an earlier TrainJob": {
			reason: "its Job has the name",
			there:  []client.Object{created("my-model", 5)},
			taken:  true,
		},
		"a later TrainJob": {
			reason: "it is for the later one to wait",
			there:  []client.Object{created("my-model", 15)},
		},
		"one that has finished": {
			reason: "it makes no Job any more",
			there:  []client.Object{created("my-model", 5, finished)},
		},
		"a JobSet with the same Job": {
			reason: "whoever made it",
			there:  []client.Object{set("my-model", "node", nil)},
			taken:  true,
		},
		"a JobSet of other Jobs": {reason: "their names differ", there: []client.Object{set("my-model", "other", nil)}},
		"a TrainJob of another shape": {
			reason: "its runtime has no such replicatedJob",
			there:  []client.Object{created("my-model-node", 5)},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			objects := fake.NewClientBuilder().WithScheme(
				testClient(t).Scheme(),
			).WithObjects(
				append(c.there, runtime)...).Build()
			err := checkTaken(context.Background(), objects, created("my", 10),
				[]jobset.ReplicatedJob{{Name: "model-node"}})
			if c.taken != (reasonOf(err) == ReasonNameTaken) || !c.taken && err != nil {
				t.Errorf("%s: got %v", c.reason, err)
			}
		})
	}
}

func TestCheckNames(t *testing.T) {
	job := jobOf(t, "torch", "{}")
	rjs := []jobset.ReplicatedJob{{Name: "node", Replicas: 1}}
	for name, ok := range map[string]bool{strings.Repeat("a", 48): true, strings.Repeat("a", 49): false, "1st": false} {
		job.Name = name
		if err := checkNames(job, rjs); ok != (err == nil) {
			t.Errorf("%d characters, %q: got %v", len(name), name, err)
		}
	}
}

// The API server is asked once for each shape, and again after a minute where it has refused.
func TestJudge(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "jobset.x-k8s.io", Kind: "JobSet"}, "check", nil)
	cases := map[string]struct {
		reason string
		answer error
		asked  int // by two TrainJobs of the same shape
		want   string
		after  time.Duration // when it is asked again
		age    time.Duration // of the TrainJob
	}{
		"taken": {"the second has the shape of the first", nil, 1, "", 0, 0},
		"a quota that is used up": {"what has used it may end, or be preempted", apierrors.NewForbidden(
			schema.GroupResource{Resource: "jobsets"}, "check", errors.New("exceeded quota: q, requested: a=1, used: a=1")),
			1, "", 0, 0},
		"refused":   {"so it would be when it is admitted", invalid, 1, trial.ReasonInvalidJobSet, 0, 0},
		"no answer": {"it may be refused", apierrors.NewServiceUnavailable("down"), 1, "", unansweredRetry, 0},
		"no dry run": {"the start will tell",
			apierrors.NewBadRequest(`admission webhook "a.com" does not support dry run`), 1, "", 0, 0},
		"a quoted name": {"users write what a webhook quotes", apierrors.NewBadRequest(
			`admission webhook "a.com" denied the request: name: "b" does not support dry run`), 1, trial.ReasonInvalidJobSet, 0, 0},
		"a bad request": {"so it would be when it is admitted",
			apierrors.NewBadRequest("a"), 1, trial.ReasonInvalidJobSet, 0, 0},
		"unknown yet": {"a webhook doesn't know the TrainJob yet",
			apierrors.NewNotFound(schema.GroupResource{}, "job"), 1, "", store.ConflictDelay, 0},
		"never known": {"nor will it", apierrors.NewNotFound(schema.GroupResource{}, "job"), 1, "", unansweredRetry,
			unansweredRetry},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			asked := 0
			answers := fake.NewClientBuilder().WithScheme(testClient(t).Scheme()).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, object client.Object, options ...client.CreateOption) error {
					switch object.(type) {
					case *corev1.Pod, *corev1.Service, *batchv1.Job:
						return nil
					}
					asked++
					o := (&client.CreateOptions{}).ApplyOptions(options)
					if o.FieldValidation != metav1.FieldValidationStrict || !slices.Equal(o.DryRun, []string{metav1.DryRunAll}) {
						t.Errorf("a field that JobSet doesn't have would be pruned, and nothing is kept: got %+v", o)
					}
					return c.answer
				},
			}).Build()
			gangs := gang.NewGangs(t.Context(), gang.Config{
				Client: answers, Reader: answers, Discovery: discoveryOf(false), Recorder: kevents.NewFakeRecorder(1),
				Clock: clock.RealClock{}, Mode: api.GangOff,
			})
			s := trial.New(answers, answers, clock.RealClock{}, &Startable{
				Client: answers, Reader: answers, Builder: testBuilder(t, answers), Gangs: gangs,
			})
			spec, effective := runtimeOf(t, "{numNodes: 2, torch: {}}", lostVolume), &overrides.Effective{}
			job := jobOf(t, "torch", "spec: {suspend: true}")
			job.CreationTimestamp = metav1.NewTime(time.Now().Add(-c.age))
			for range 2 {
				err := s.Startable(context.Background(), job, spec, effective)
				if pending := (*admission.PendingError)(nil); errors.As(err, &pending) && pending.RetryAfter == c.after {
					continue
				}
				if c.after > 0 || reasonOf(err) != c.want || c.want == "" && err != nil {
					t.Fatalf("%s: got %v", c.reason, err)
				}
			}
			if asked != c.asked {
				t.Errorf("%s: asked %d times, want %d", c.reason, asked, c.asked)
			}
		})
	}
}

// TestJudgeOfControlled holds that a TrainJob that another object controls is asked about itself: Kueue's webhook
// refuses its JobSet where that object isn't there, and it would hold quota for nothing.
func TestJudgeOfControlled(t *testing.T) {
	h := newHarness(t)
	spec := h.runtime("torch", "{numNodes: 2, torch: {}}").Spec
	plain, controlled := h.trainJob("torch", settled), h.trainJob("torch", settled)
	controlled.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "any", UID: "any", Controller: ptr.To(true)}}
	e := h.effective(plain, &spec)
	if err := h.startable(plain, &spec, e); err != nil {
		t.Fatal(err)
	}
	h.fail["dry-run JobSet"] = apierrors.NewNotFound(schema.GroupResource{Resource: "replicasets"}, "any")
	if err := h.startable(controlled, &spec, e); !errors.As(err, new(*admission.PendingError)) {
		t.Errorf("got %v", err)
	}
	if err := h.startable(plain, &spec, e); err != nil {
		t.Errorf("the other isn't asked about again: got %v", err)
	}
}

// TestJudgeOfInitialized holds that a TrainJob whose initializers have to run is asked about itself, although one that
// runs the same has no need of them any more, and the other way round.
func TestJudgeOfInitialized(t *testing.T) {
	const done = "status: {jobsStatus: [{name: dataset-initializer, succeeded: 1, ready: 0, active: 0, failed: 0, " +
		"suspended: 0}]}"
	h := newHarness(t)
	fresh, initialized := h.trainJob("torch", "{}"), h.trainJob("torch", done)
	spec := h.runtime("torch", "{numNodes: 2, torch: {}}").Spec
	e := h.effective(fresh, &spec)
	pods := func(job *api.TrainJob) (n int) {
		if err := h.startable(job, &spec, e); err != nil {
			t.Fatal(err)
		}
		for _, request := range h.requests() {
			if strings.HasPrefix(request, "dry-run Pod") {
				n++
			}
		}
		return n
	}
	all := len(spec.Template.Spec.ReplicatedJobs)
	if before, after := pods(initialized), pods(fresh); before != all-1 || after != all {
		t.Errorf("asked about %d and %d pods, want %d and %d", before, after, all-1, all)
	}
	if n := pods(initialized) + pods(fresh); n > 0 {
		t.Errorf("asked again about %d pods", n)
	}
}

// TestJudgeOfLabeled holds that TrainJobs whose JobSets have other labels are asked about each, however they have them:
// a policy may ask for one.
func TestJudgeOfLabeled(t *testing.T) {
	for name, labeled := range map[string]string{
		"runtimePatches": "spec: {runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: {template: {metadata: {labels: " +
			"{team: %s}}}}}]}",
		"templateOverrides": "spec: {templateOverrides: [{manager: a.com/a, job: [{metadata: {labels: {team: %s}}}]}]}",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			spec := h.runtime("torch", "{numNodes: 2, torch: {}}").Spec
			for _, team := range []string{"a", "b"} {
				job := h.trainJob("torch", fmt.Sprintf(labeled, team))
				if err := h.startable(job, &spec, h.effective(job, &spec)); err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(h.requests(), func(r string) bool { return strings.HasPrefix(r, "dry-run JobSet") }) {
					t.Errorf("nobody is asked about team %s", team)
				}
			}
		})
	}
}
