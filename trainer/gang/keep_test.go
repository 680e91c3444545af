package gang

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	signalboxevents "github.com/signalbox-dev/signalbox/events"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

// cluster is Gangs on a fake client, which is both the API server and a cache that is never stale.
type cluster struct {
	*Gangs
	client client.Client
	// fails returns the API server's error for a write; nil for success.
	fails func(verb string, o client.Object) error
	job   *api.TrainJob
	js    *jobset.JobSet
}

func newCluster(t *testing.T, mode api.GangMode) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s, uids := &cluster{fails: func(string, client.Object) error { return nil }}, 0
	workload := &metav1.PartialObjectMetadata{}
	workload.SetGroupVersionKind(schedulingv1alpha2.SchemeGroupVersion.WithKind("Workload"))
	s.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&schedulingv1alpha2.PodGroup{}).
		WithIndex(&schedulingv1alpha2.PodGroup{}, ownerIndex, byOwner).WithIndex(workload, ownerIndex, byOwner).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				if err := s.fails("create", o); err != nil {
					return err
				}
				if _, ok := o.(*schedulingv1alpha2.PodGroup); ok {
					o.SetFinalizers([]string{protection, "example.com/other"})
				}
				uids++
				o.SetUID(types.UID(fmt.Sprint(uids)))
				return c.Create(ctx, o, options...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
				options ...client.PatchOption) error {
				if err := s.fails("patch", o); err != nil {
					return err
				}
				return c.Patch(ctx, o, patch, options...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
				if err := s.fails("delete", o); err != nil {
					return err
				}
				return c.Delete(ctx, o, options...)
			},
		}).Build()
	s.Gangs = NewGangs(t.Context(), Config{
		Client: s.client, Reader: s.client, Recorder: events.NewFakeRecorder(100), Clock: clock.RealClock{},
		Mode: mode, Policy: api.GangPolicyGang,
	})
	s.probed(availability{served: &served{version: v1alpha2{}, objects: s.client}}, nil)
	s.job = &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "u", Generation: 2}}
	return s
}

// probed sets what the last probe found; it holds for the whole test.
func (s *cluster) probed(found availability, err error) {
	s.prober.last = probeResult{availability: found, err: err, probed: time.Now(), expires: time.Now().Add(time.Hour)}
}

// start creates the groups of a JobSet, and sets js to the JobSet.
func (s *cluster) start(t *testing.T, jobs string) (skipped, err error) {
	t.Helper()
	spec := specOf(t, "replicatedJobs:\n"+jobs)
	data, err := yaml.Marshal(&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}},
		Spec: *spec})
	if err != nil {
		t.Fatal(err)
	}
	applied := jobsetac.JobSet("train", "team")
	if err := yaml.Unmarshal(data, applied); err != nil {
		t.Fatal(err)
	}
	if skipped, err = s.Make(t.Context(), s.job, &trainerapi.TrainingRuntimeSpec{}, spec, applied); err != nil {
		return nil, err
	}
	if data, err = yaml.Marshal(applied); err != nil {
		t.Fatal(err)
	}
	s.js = &jobset.JobSet{}
	if err := yaml.Unmarshal(data, s.js); err != nil {
		t.Fatal(err)
	}
	s.created.Clear() // the cache shows them
	return skipped, nil
}

// objects returns what exists, as "name policy".
func (s *cluster) objects(t *testing.T) string {
	t.Helper()
	var workloads schedulingv1alpha2.WorkloadList
	var podGroups schedulingv1alpha2.PodGroupList
	if err := errors.Join(s.client.List(t.Context(), &workloads), s.client.List(t.Context(), &podGroups)); err != nil {
		t.Fatal(err)
	}
	var found []string
	base := planOf(s.js)
	short := func(name string) string {
		if base == nil {
			return name
		}
		return strings.TrimPrefix(name, base.base)
	}
	for _, w := range workloads.Items {
		found = append(found, fmt.Sprintf("workload%s", short(w.Name)))
	}
	for _, pg := range podGroups.Items {
		policy := "basic"
		if gang := pg.Spec.SchedulingPolicy.Gang; gang != nil {
			policy = fmt.Sprint(gang.MinCount)
		}
		if !pg.DeletionTimestamp.IsZero() {
			policy += " terminating"
		}
		found = append(found, fmt.Sprintf("%s=%s", short(pg.Name), policy))
	}
	return strings.Join(found, " ")
}

func (s *cluster) pod(name, group string, phase corev1.PodPhase, node string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute))},
		Spec: corev1.PodSpec{NodeName: node,
			SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To(planOf(s.js).base + "-" + group)}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

const twoPhases = "- {name: a, replicas: 1, template: {spec: {parallelism: 2, template: {spec: {containers: []}}}}}\n" +
	"- {name: b, replicas: 1, template: {spec: {parallelism: 3, template: {spec: {containers: []}}}}, dependsOn: " +
	"[{name: a, status: Complete}]}\n"

func TestMakeAndKeep(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	if got := s.objects(t); got != "workload -a=2 -b=3" {
		t.Fatalf("a start makes one Workload and its PodGroups: got %s", got)
	}
	if s.js.Annotations["a"] != "b" || s.js.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec.SchedulingGroup == nil {
		t.Errorf("the JobSet names the groups, and keeps what it has: got %+v", s.js)
	}
	first := planOf(s.js).base
	if _, err := s.start(t, twoPhases); err != nil || planOf(s.js).base != first {
		t.Errorf("a repeated start uses what exists: got %v, %s and %s", err, first, planOf(s.js).base)
	}
	for range 2 {
		if c, again, err := s.Keep(t.Context(), s.job, s.js, nil, true); c != nil || again != 0 || err != nil {
			t.Errorf("what is current stays: got %v, %s, %v", c, again, err)
		}
	}
	// The next start, of the same TrainJob.
	s.job.Generation = 4
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Keep(t.Context(), s.job, s.js, nil, true); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(s.objects(t), "terminating"); got != 2 || strings.Count(s.objects(t), "workload") != 1 {
		t.Errorf("those of an earlier start are deleted: got %s", s.objects(t))
	}
	if _, _, err := s.Keep(t.Context(), s.job, nil, nil, false); err != nil {
		t.Fatal(err)
	}
	if got := s.objects(t); strings.Count(got, "terminating") != 4 || strings.Contains(got, "workload") {
		t.Errorf("a TrainJob that doesn't run has no objects: got %s", got)
	}
}

func TestKeepIgnoresOthers(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	other := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "theirs"}}
	if err := s.client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Keep(t.Context(), s.job, nil, nil, false); err != nil || s.objectsOf(t) != 1 {
		t.Errorf("got %d PodGroups, %v", s.objectsOf(t), err)
	}
	// Another user's object has the name that a start would use.
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	name := planOf(s.js).base
	s = newCluster(t, api.GangRequired)
	if err := s.client.Create(t.Context(),
		&schedulingv1alpha2.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.start(t, twoPhases); err == nil || !strings.Contains(err.Error(),
		"there is a Workload team/"+name+" already that is not the TrainJob's") {
		t.Errorf("got %v", err)
	}
}

func (s *cluster) objectsOf(t *testing.T) int {
	t.Helper()
	var list schedulingv1alpha2.PodGroupList
	if err := s.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// A release is interrupted at each of its writes, and at none; the end is the same.
func TestReleaseSurvives(t *testing.T) {
	for _, at := range []string{"", "patch", "delete", "create"} {
		t.Run("interrupted at "+at, func(t *testing.T) {
			s := newCluster(t, api.GangRequired)
			if _, err := s.start(t, twoPhases); err != nil {
				t.Fatal(err)
			}
			pods := []corev1.Pod{s.pod("a-0", "a", corev1.PodSucceeded, "n"), s.pod("a-1", "a", corev1.PodFailed, "n"),
				s.pod("a-1-again", "a", corev1.PodPending, "")}
			interrupted := false
			s.fails = func(verb string, o client.Object) error {
				if verb == at && !interrupted {
					interrupted = true
					return errors.New("the connection is lost")
				}
				// withoutOthers removes the finalizer of another owner.
				return nil
			}
			for range 4 {
				s.withoutOthers(t)
				if _, _, err := s.Keep(t.Context(), s.job, s.js, pods, true); err != nil &&
					!strings.Contains(err.Error(), "the connection is lost") {
					t.Fatal(err)
				}
				s.created.Clear()
			}
			if got := s.objects(t); got != "workload -a=basic -b=3" || interrupted != (at != "") {
				t.Errorf("got %s", got)
			}
		})
	}
}

// withoutOthers removes the finalizers of other owners than Kubernetes.
func (s *cluster) withoutOthers(t *testing.T) {
	t.Helper()
	var list schedulingv1alpha2.PodGroupList
	if err := s.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		pg := &list.Items[i]
		if len(pg.Finalizers) != 2 {
			continue
		}
		pg.Finalizers = pg.Finalizers[:1]
		if err := s.client.Update(t.Context(), pg); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPreferredDoesWithout(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: "podgroups"}, "",
		errors.New("exceeded quota"))
	for mode, why := range map[api.GangMode]string{api.GangPreferred: "", api.GangRequired: "exceeded quota"} {
		s := newCluster(t, mode)
		s.fails = func(verb string, o client.Object) error {
			if _, ok := o.(*schedulingv1alpha2.PodGroup); ok && verb == "create" {
				return forbidden
			}
			return nil
		}
		skipped, err := s.start(t, twoPhases)
		if why != "" {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: got %v", mode, err)
			}
			continue
		}
		if err != nil || skipped == nil || Has(s.js) {
			t.Fatalf("%s: got %v, %v, %v", mode, skipped, err, s.js.Annotations)
		}
		if _, _, err := s.Keep(t.Context(), s.job, s.js, nil, true); err != nil || s.objects(t) != "" {
			t.Errorf("the Workload is deleted: got %s, %v", s.objects(t), err)
		}
	}
}

func TestStartable(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	s.probed(availability{unavailable: &unavailableError{"it is not served"}}, nil)
	_, err := s.start(t, twoPhases)
	blocked := (*admission.BlockedError)(nil)
	if !errors.As(err, &blocked) || blocked.Reason != ReasonUnavailable || blocked.RetryAfter != retryEvery ||
		!strings.Contains(err.Error(), "gang scheduling is required (the manager's configuration, "+
			"trainer.gangScheduling.mode), but it is not served") {
		t.Errorf("required is refused: got %v", err)
	}
	s.probed(availability{}, errors.New("the API server is not there"))
	if _, err := s.start(t, twoPhases); err == nil || errors.As(err, &blocked) {
		t.Errorf("a temporary error is retried: got %v", err)
	}
	if _, _, err := s.Keep(t.Context(), s.job, nil, nil, false); err == nil {
		t.Error("what can't be read isn't gone")
	}
	s.defaults.Mode = api.GangPreferred
	s.probed(availability{unavailable: &unavailableError{"it is not served"}}, nil)
	if skipped, err := s.start(t, twoPhases); err != nil || skipped == nil || Has(s.js) {
		t.Errorf("preferred starts without groups: got %v, %v", skipped, err)
	}
	s.defaults.Mode = api.GangOff
	if skipped, err := s.start(t, twoPhases); err != nil || skipped != nil || Has(s.js) {
		t.Errorf("off needs no API: got %v, %v", skipped, err)
	}
}

func TestSooner(t *testing.T) {
	for _, c := range []struct{ a, b, want time.Duration }{{0, 0, 0}, {0, 2, 2}, {3, 0, 3}, {3, 2, 2}, {2, 3, 2}} {
		if got := sooner(c.a, c.b); got != c.want {
			t.Errorf("sooner of %d and %d: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestKeepReadsMessages(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	pg := &schedulingv1alpha2.PodGroup{}
	key := client.ObjectKey{Namespace: "team", Name: planOf(s.js).base + "-a"}
	if err := s.client.Get(t.Context(), key, pg); err != nil {
		t.Fatal(err)
	}
	pg.Status.Conditions = []metav1.Condition{{
		Type: schedulingv1alpha2.PodGroupScheduled, Status: metav1.ConditionFalse, Reason: "Unschedulable",
		LastTransitionTime: metav1.Now(),
	}}
	if err := s.client.Status().Update(t.Context(), pg); err != nil {
		t.Fatal(err)
	}
	condition, recheck, err := s.Keep(t.Context(), s.job, s.js, nil, true)
	if err != nil || recheck != messageInterval || condition == nil || condition.Reason != "Unschedulable" {
		t.Errorf("a pod's message follows the refusal: got %v, %s, %v", condition, recheck, err)
	}
}

func TestKeepLeavesStartsAlone(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	before := s.objects(t)
	deleted := s.js.DeepCopy()
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	for _, js := range []*jobset.JobSet{nil, deleted} {
		condition, recheck, err := s.Keep(t.Context(), s.job, js, nil, true)
		if condition != nil || recheck != 0 || err != nil || s.objects(t) != before {
			t.Errorf("a start creates groups before their JobSet: got %v, %s, %v", condition, recheck, err)
		}
	}
}

func TestKeepRestores(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	name := planOf(s.js).base + "-a"
	pg := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := errors.Join(s.client.Patch(t.Context(), pg, patch), s.client.Delete(t.Context(), pg)); err != nil {
		t.Fatal(err)
	}
	s.created.Store(types.NamespacedName{Namespace: "team", Name: name}, nil)
	if _, _, err := s.Keep(t.Context(), s.job, s.js, nil, true); err != nil || s.objects(t) != "workload -b=3" {
		t.Errorf("a stale cache is no reason to create: got %s, %v", s.objects(t), err)
	}
	s.created.Clear()
	s.fails = func(verb string, o client.Object) error {
		if _, ok := o.(*schedulingv1alpha2.PodGroup); ok && verb == "create" {
			return errors.New("timeout")
		}
		return nil
	}
	if _, _, err := s.Keep(t.Context(), s.job, s.js, nil, true); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("a failed write is an error: got %v", err)
	}
	s.fails = func(string, client.Object) error { return nil }
	if _, _, err := s.Keep(t.Context(), s.job, s.js, nil, true); err != nil || s.objects(t) != "workload -a=2 -b=3" {
		t.Errorf("a missing PodGroup is created: got %s, %v", s.objects(t), err)
	}
}

func TestKeepFails(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	s.fails = func(verb string, _ client.Object) error {
		if verb == "delete" {
			return errors.New("timeout")
		}
		return nil
	}
	if _, _, err := s.Keep(t.Context(), s.job, nil, nil, false); err == nil ||
		!strings.Contains(err.Error(), "deleting ") {
		t.Errorf("a failed delete is an error: got %v", err)
	}
	s.prober.last.served.objects = brokenReader{}
	for _, running := range []bool{true, false} {
		_, _, err := s.Keep(t.Context(), s.job, s.js, nil, running)
		if err == nil || !strings.Contains(err.Error(), "listing the TrainJob's groups") {
			t.Errorf("a failed list is an error: got %v", err)
		}
	}
}

// brokenReader fails all reads.
type brokenReader struct{ client.Reader }

func (brokenReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("no cache")
}

func (brokenReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no connection")
}

func TestEnsure(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	s.config.Reader = brokenReader{}
	_, err := s.start(t, twoPhases)
	if err == nil || !strings.Contains(err.Error(), "reading Workload") {
		t.Errorf("an existing object that can't be read is an error: got %v", err)
	}
	s.config.Reader = s.client
	finalizers := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/slow"]}}`))
	w := &schedulingv1alpha2.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: planOf(s.js).base}}
	if err := errors.Join(s.client.Patch(t.Context(), w, finalizers), s.client.Delete(t.Context(), w)); err != nil {
		t.Fatal(err)
	}
	_, err = s.start(t, twoPhases)
	if err == nil || !strings.Contains(err.Error(), "of before is not gone yet") {
		t.Errorf("an object that is being deleted can't be used: got %v", err)
	}
	s = newCluster(t, api.GangRequired)
	s.fails = func(string, client.Object) error {
		return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "workloads"}, "")
	}
	if _, err = s.start(t, twoPhases); err == nil || s.prober.last.usable(time.Now().Add(time.Millisecond), time.Hour) {
		t.Errorf("the API may no longer be served: got %v, %+v", err, s.prober.last)
	}
}

func TestDecide(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	effective := &overrides.Effective{ReplicatedJobs: specOf(t, "replicatedJobs:\n"+rj("a", 1, 2, "")).ReplicatedJobs}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	if err := s.Startable(t.Context(), s.job, runtime, effective); err != nil {
		t.Errorf("groups can be created: got %v", err)
	}
	var blocked *admission.BlockedError
	runtime.PodGroupPolicy = &trainerapi.PodGroupPolicy{}
	err := s.Startable(t.Context(), s.job, runtime, effective)
	if !errors.As(err, &blocked) || blocked.Reason != ReasonInvalid || !strings.Contains(err.Error(), "podGroupPolicy") {
		t.Errorf("a pod is in one group: got %v", err)
	}
	s.defaults.Mode = api.GangPreferred
	if err := s.Startable(t.Context(), s.job, runtime, effective); err != nil {
		t.Errorf("preferred starts without groups: got %v", err)
	}
	s.job.Annotations = map[string]string{api.GangModeAnnotation: "always"}
	err = s.Startable(t.Context(), s.job, runtime, effective)
	if !errors.As(err, &blocked) || blocked.Reason != ReasonInvalid {
		t.Errorf("an unknown mode is refused: got %v", err)
	}
}

func TestUnsupported(t *testing.T) {
	runtime := &trainerapi.TrainingRuntimeSpec{}
	for mode, want := range map[string]string{
		"": "", "off": "", "preferred": "", "always": ReasonInvalid, "required": ReasonUnavailable,
	} {
		job := &api.TrainJob{}
		if mode != "" {
			job.Annotations = map[string]string{api.GangModeAnnotation: mode}
		}
		err := Unsupported{}.Startable(t.Context(), job, runtime, nil)
		var blocked *admission.BlockedError
		if errors.As(err, &blocked) != (want != "") || blocked != nil && blocked.Reason != want {
			t.Errorf("%s: got %v, want %q", mode, err, want)
		}
	}
}

func TestSkipped(t *testing.T) {
	s := newCluster(t, api.GangPreferred)
	recorder := events.NewFakeRecorder(1)
	s.recorder = signalboxevents.NewRecorder(recorder)
	s.Skipped(s.job, errors.New("it is not served"))
	if got := <-recorder.Events; got != "Warning GangSchedulingSkipped Its pods are placed one by one: it is not served" {
		t.Errorf("got %s", got)
	}
}

func TestPlanOfPodsWithoutGroup(t *testing.T) {
	js := &jobset.JobSet{Spec: *specOf(t, "replicatedJobs:\n"+rj("a", 1, 2, ""))}
	js.Annotations = map[string]string{baseAnnotation: "train-1"}
	if p := planOf(js); p == nil || len(p.groups) != 0 {
		t.Errorf("a ReplicatedJob without a group is in none: got %+v", p)
	}
}

func TestPinnedSetting(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{store.PinAnnotation: "{}"}}}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	runtime.Template.Annotations = map[string]string{api.GangModeAnnotation: "required"}
	s, err := SettingOf(job, runtime, Setting{})
	if err != nil || !strings.Contains(s.From, "when it was first started") {
		t.Errorf("the runtime may have changed since: got %+v, %v", s, err)
	}
}
