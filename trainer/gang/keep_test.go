package gang

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestMakeAndKeep(t *testing.T) {
	onEach(t, api.GangRequired, func(t *testing.T, s *cluster) {
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
			if c, again, err := s.keep(t, s.js, nil, true); c != nil || again != 0 || err != nil {
				t.Errorf("what is current stays: got %v, %s, %v", c, again, err)
			}
		}
		// The next start, of the same TrainJob.
		s.job.Generation = 4
		if _, err := s.start(t, twoPhases); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.keep(t, s.js, nil, true); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(s.objects(t), "terminating"); got != 2 || strings.Count(s.objects(t), "workload") != 1 {
			t.Errorf("those of an earlier start are deleted: got %s", s.objects(t))
		}
		if _, _, err := s.keep(t, nil, nil, false); err != nil {
			t.Fatal(err)
		}
		if got := s.objects(t); strings.Count(got, "terminating") != 4 || strings.Contains(got, "workload") {
			t.Errorf("a TrainJob that doesn't run has no objects: got %s", got)
		}
	})
}

func TestKeepIgnoresOthers(t *testing.T) {
	onEach(t, api.GangRequired, func(t *testing.T, s *cluster) {
		if err := s.client.Create(t.Context(), s.of("PodGroup", "theirs")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.keep(t, nil, nil, false); err != nil || len(s.podGroups(t)) != 1 {
			t.Errorf("got %d PodGroups, %v", len(s.podGroups(t)), err)
		}
		// Another user's object has the name that a start would use.
		if _, err := s.start(t, twoPhases); err != nil {
			t.Fatal(err)
		}
		name := planOf(s.js).base
		s = newClusterWith(t, s.version, api.GangRequired)
		if err := s.client.Create(t.Context(), s.of("Workload", name)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.start(t, twoPhases); err == nil || !strings.Contains(err.Error(),
			"there is a Workload team/"+name+" already that is not the TrainJob's") {
			t.Errorf("got %v", err)
		}
	})
}

// TestKeepCounts holds that the metric counts what the condition reports.
func TestKeepCounts(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	for _, pg := range s.podGroups(t) {
		s.unplaced.add(client.ObjectKeyFromObject(pg))
	}
	s.say(t, "a", metav1.ConditionFalse, 0)
	gated, tried := s.pod("a-0", "a", corev1.PodPending, ""), s.pod("a-1", "a", corev1.PodPending, "")
	gated.Status.Conditions = gatedPod("a").Status.Conditions
	for _, c := range []struct {
		reason string
		pods   []corev1.Pod
		want   float64
	}{
		{"Kueue has not opened all scheduling gates", []corev1.Pod{gated, tried}, 0},
		{"it can't be placed", []corev1.Pod{tried, tried}, 1},
	} {
		if _, _, err := s.keep(t, s.js, c.pods, true); err != nil {
			t.Fatal(err)
		}
		if got := testutil.ToFloat64(gangsUnschedulable); got != c.want {
			t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
		}
	}
	s.unplaced.clear()
	if got := testutil.ToFloat64(gangsUnschedulable); got != 0 {
		t.Errorf("its API isn't served any more: got %v", got)
	}
}

func TestPreferredDoesWithout(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: "podgroups"}, "",
		errors.New("exceeded quota"))
	for mode, why := range map[api.GangMode]string{api.GangPreferred: "", api.GangRequired: "exceeded quota"} {
		s := newCluster(t, mode)
		s.fails = func(verb string, o client.Object) error {
			if isPodGroup(o) && verb == "create" {
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
		if _, _, err := s.keep(t, s.js, nil, true); err != nil || s.objects(t) != "" {
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
	if _, _, err := s.keep(t, nil, nil, false); err == nil {
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
	onEach(t, api.GangRequired, func(t *testing.T, s *cluster) {
		if _, err := s.start(t, twoPhases); err != nil {
			t.Fatal(err)
		}
		s.say(t, "a", metav1.ConditionFalse, 0)
		condition, recheck, err := s.keep(t, s.js, nil, true)
		if err != nil || recheck != messageInterval || condition == nil || condition.Reason != "Unschedulable" {
			t.Errorf("a pod's message follows the refusal: got %v, %s, %v", condition, recheck, err)
		}
	})
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
		condition, recheck, err := s.keep(t, js, nil, true)
		if condition != nil || recheck != 0 || err != nil || s.objects(t) != before {
			t.Errorf("a start creates groups before their JobSet: got %v, %s, %v", condition, recheck, err)
		}
	}
}

func TestKeepRestores(t *testing.T) {
	onEach(t, api.GangRequired, func(t *testing.T, s *cluster) {
		if _, err := s.start(t, twoPhases); err != nil {
			t.Fatal(err)
		}
		name := planOf(s.js).base + "-a"
		pg := s.of("PodGroup", name)
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := errors.Join(s.client.Patch(t.Context(), pg, patch), s.client.Delete(t.Context(), pg)); err != nil {
			t.Fatal(err)
		}
		s.created.Store(types.NamespacedName{Namespace: "team", Name: name}, nil)
		if _, _, err := s.keep(t, s.js, nil, true); err != nil || s.objects(t) != "workload -b=3" {
			t.Errorf("a stale cache is no reason to create: got %s, %v", s.objects(t), err)
		}
		s.created.Clear()
		s.fails = func(verb string, o client.Object) error {
			if isPodGroup(o) && verb == "create" {
				return errors.New("timeout")
			}
			return nil
		}
		if _, _, err := s.keep(t, s.js, nil, true); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("a failed write is an error: got %v", err)
		}
		s.fails = func(string, client.Object) error { return nil }
		if _, _, err := s.keep(t, s.js, nil, true); err != nil || s.objects(t) != "workload -a=2 -b=3" {
			t.Errorf("a missing PodGroup is created: got %s, %v", s.objects(t), err)
		}
	})
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
	if _, _, err := s.keep(t, nil, nil, false); err == nil ||
		!strings.Contains(err.Error(), "deleting ") {
		t.Errorf("a failed delete is an error: got %v", err)
	}
	s.prober.last.served.objects = brokenReader{}
	for _, running := range []bool{true, false} {
		_, _, err := s.keep(t, s.js, nil, running)
		if err == nil || !strings.Contains(err.Error(), "listing the TrainJob's groups") {
			t.Errorf("a failed list is an error: got %v", err)
		}
	}
}

func TestDeleteOutdated(t *testing.T) {
	s := newClusterWith(t, v1alpha2, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	s.withoutOthers(t) // Kubernetes' finalizer stays
	if err := s.client.Create(t.Context(), s.of("Workload", "theirs")); err != nil {
		t.Fatal(err)
	}
	var deleted []string
	count := func(o *metav1.PartialObjectMetadata) { deleted = append(deleted, o.Kind) }
	remaining, err := DeleteOutdated(t.Context(), s.client, count)
	if err != nil || strings.Join(deleted, " ") != "PodGroup PodGroup Workload" || s.objects(t) != "workloadtheirs" {
		t.Errorf("got %v, %v, %s", deleted, err, s.objects(t))
	}
	if len(remaining) != 1 || remaining[0].Name != "theirs" {
		t.Errorf("others' are left, and named: got %v", remaining)
	}
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"delete", "patch"} {
		s.fails = func(v string, _ client.Object) error {
			if v == verb {
				return errors.New("no connection")
			}
			return nil
		}
		if _, err := DeleteOutdated(t.Context(), s.client, count); err == nil ||
			!strings.Contains(err.Error(), "no connection") || !strings.Contains(err.Error(), "PodGroup team/train-") {
			t.Errorf("%s: got %v", verb, err)
		}
	}
}
