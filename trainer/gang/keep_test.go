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
)

// stand is Gangs on a client that stands for the API server and for a cache that is never late.
type stand struct {
	*Gangs
	client client.Client
	// fails is asked before each write; an error is the API server's.
	fails func(verb string, o client.Object) error
	job   *api.TrainJob
	js    *jobset.JobSet
}

func newStand(t *testing.T, mode api.GangMode) *stand {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s, uids := &stand{fails: func(string, client.Object) error { return nil }}, 0
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
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
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
	s.Gangs = NewGangs(t.Context(), s.client, s.client, nil, nil, events.NewFakeRecorder(100), clock.RealClock{}, mode, api.GangPolicyGang)
	s.served = &served{version: v1alpha2{}, objects: s.client}
	s.checked = time.Now().Add(time.Hour) // the API is served, and stays so
	s.job = &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "u", Generation: 2}}
	return s
}

// start makes the groups of a JobSet, and the JobSet.
func (s *stand) start(t *testing.T, jobs string) (skipped, err error) {
	t.Helper()
	spec := specOf(t, "replicatedJobs:\n"+jobs)
	data, err := yaml.Marshal(&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}}, Spec: *spec})
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
	s.made.Clear() // the cache shows them
	return skipped, nil
}

// objects are what is there, as "name policy".
func (s *stand) objects(t *testing.T) string {
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

func (s *stand) pod(name, group string, phase corev1.PodPhase, node string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute))},
		Spec:       corev1.PodSpec{NodeName: node, SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To(planOf(s.js).base + "-" + group)}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

const twoPhases = "- {name: a, replicas: 1, template: {spec: {parallelism: 2, template: {spec: {containers: []}}}}}\n" +
	"- {name: b, replicas: 1, template: {spec: {parallelism: 3, template: {spec: {containers: []}}}}, dependsOn: [{name: a, status: Complete}]}\n"

func TestMakeAndKeep(t *testing.T) {
	s := newStand(t, api.GangRequired)
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
		t.Errorf("a start that is done again takes what is there: got %v, %s and %s", err, first, planOf(s.js).base)
	}
	for range 2 {
		if c, again, err := s.Keep(t.Context(), s.job, s.js, nil, true); c != nil || again != 0 || err != nil {
			t.Errorf("what is in step stays: got %v, %s, %v", c, again, err)
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
		t.Errorf("those of an earlier start go: got %s", s.objects(t))
	}
	if _, _, err := s.Keep(t.Context(), s.job, nil, nil, false); err != nil {
		t.Fatal(err)
	}
	if got := s.objects(t); strings.Count(got, "terminating") != 4 || strings.Contains(got, "workload") {
		t.Errorf("nothing stays of a TrainJob that doesn't run: got %s", got)
	}
}

func TestKeepTouchesNobodyElses(t *testing.T) {
	s := newStand(t, api.GangRequired)
	other := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "theirs"}}
	if err := s.client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Keep(t.Context(), s.job, nil, nil, false); err != nil || s.objectsOf(t) != 1 {
		t.Errorf("got %d PodGroups, %v", s.objectsOf(t), err)
	}
	// One by the very name that a start would give.
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	name := planOf(s.js).base
	s = newStand(t, api.GangRequired)
	if err := s.client.Create(t.Context(), &schedulingv1alpha2.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.start(t, twoPhases); err == nil || !strings.Contains(err.Error(), "there is a Workload team/"+name+" already that is not the TrainJob's") {
		t.Errorf("got %v", err)
	}
}

func (s *stand) objectsOf(t *testing.T) int {
	t.Helper()
	var list schedulingv1alpha2.PodGroupList
	if err := s.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// A release is interrupted at each of its writes, and at none; it comes to the same end.
func TestReleaseSurvives(t *testing.T) {
	for _, at := range []string{"", "patch", "delete", "create"} {
		t.Run("interrupted at "+at, func(t *testing.T) {
			s := newStand(t, api.GangRequired)
			if _, err := s.start(t, twoPhases); err != nil {
				t.Fatal(err)
			}
			pods := []corev1.Pod{s.pod("a-0", "a", corev1.PodSucceeded, "n"), s.pod("a-1", "a", corev1.PodFailed, "n"), s.pod("a-1-again", "a", corev1.PodPending, "")}
			interrupted := false
			s.fails = func(verb string, o client.Object) error {
				if verb == at && !interrupted {
					interrupted = true
					return errors.New("the connection is lost")
				}
				// What has a finalizer left that isn't ours stays; here its owner is quick.
				return nil
			}
			for range 4 {
				s.withoutOthers(t)
				if _, _, err := s.Keep(t.Context(), s.job, s.js, pods, true); err != nil && !strings.Contains(err.Error(), "the connection is lost") {
					t.Fatal(err)
				}
				s.made.Clear()
			}
			if got := s.objects(t); got != "workload -a=basic -b=3" || interrupted != (at != "") {
				t.Errorf("got %s", got)
			}
		})
	}
}

// withoutOthers takes off the finalizers that are neither ours to take nor Kubernetes' own.
func (s *stand) withoutOthers(t *testing.T) {
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
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: "podgroups"}, "", errors.New("exceeded quota"))
	for mode, why := range map[api.GangMode]string{api.GangPreferred: "", api.GangRequired: "exceeded quota"} {
		s := newStand(t, mode)
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
			t.Errorf("the Workload that was made goes: got %s, %v", s.objects(t), err)
		}
	}
}

func TestStartable(t *testing.T) {
	s := newStand(t, api.GangRequired)
	s.served, s.why = nil, &errNotServed{"it is not served"}
	_, err := s.start(t, twoPhases)
	blocked := (*admission.BlockedError)(nil)
	if !errors.As(err, &blocked) || blocked.Reason != ReasonUnavailable || blocked.RetryAfter != retryEvery || !strings.Contains(err.Error(), "gang scheduling is required (the manager's configuration, trainer.gangScheduling.mode), but it is not served") {
		t.Errorf("required is refused: got %v", err)
	}
	s.why = errors.New("the API server is not there")
	if _, err := s.start(t, twoPhases); err == nil || errors.As(err, &blocked) {
		t.Errorf("what may pass is tried again: got %v", err)
	}
	if _, _, err := s.Keep(t.Context(), s.job, nil, nil, false); err == nil {
		t.Error("what can't be seen is not taken for gone")
	}
	s.defaults.Mode, s.why = api.GangPreferred, &errNotServed{"it is not served"}
	if skipped, err := s.start(t, twoPhases); err != nil || skipped == nil || Has(s.js) {
		t.Errorf("preferred does without: got %v, %v", skipped, err)
	}
	s.defaults.Mode = api.GangOff
	if skipped, err := s.start(t, twoPhases); err != nil || skipped != nil || Has(s.js) {
		t.Errorf("off asks nobody: got %v, %v", skipped, err)
	}
}
