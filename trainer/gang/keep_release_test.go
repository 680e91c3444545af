package gang

import (
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// A release is interrupted at each of its writes, and at none; the end is the same.
func TestReleaseSurvives(t *testing.T) {
	for _, c := range []struct {
		version  *version
		at, want string
	}{
		{v1alpha2, "", "workload -a=basic -b=3"},
		{v1alpha2, "patch", "workload -a=basic -b=3"},
		{v1alpha2, "delete", "workload -a=basic -b=3"},
		{v1alpha2, "create", "workload -a=basic -b=3"},
		{v1beta1, "", "workload -a=1 -b=3"},
		{v1beta1, "patch", "workload -a=1 -b=3"},
	} {
		t.Run(c.version.Version+" interrupted at "+c.at, func(t *testing.T) {
			s := newClusterWith(t, c.version, api.GangRequired)
			if _, err := s.start(t, twoPhases); err != nil {
				t.Fatal(err)
			}
			pods := []corev1.Pod{s.pod("a-0", "a", corev1.PodSucceeded, "n"), s.pod("a-1", "a", corev1.PodFailed, "n"),
				s.pod("a-1-again", "a", corev1.PodPending, "")}
			interrupted := false
			s.fails = func(verb string, o client.Object) error {
				if verb == c.at && !interrupted {
					interrupted = true
					return errors.New("the connection is lost")
				}
				// withoutOthers removes the finalizer of another owner.
				return nil
			}
			for range 4 {
				s.withoutOthers(t)
				if _, _, err := s.keep(t, s.js, pods, true); err != nil &&
					!strings.Contains(err.Error(), "the connection is lost") {
					t.Fatal(err)
				}
				s.created.Clear()
			}
			if got := s.objects(t); got != c.want || interrupted != (c.at != "") {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestReleaseAfterAFailureFirst holds that a gang is released whose first pod fails while the others run: they succeed
// before the Job controller replaces it, and no event tells that (TestAsItIs in integration).
func TestReleaseAfterAFailureFirst(t *testing.T) {
	onEach(t, api.GangRequired, func(t *testing.T, s *cluster) {
		if _, err := s.start(t, twoPhases); err != nil {
			t.Fatal(err)
		}
		s.say(t, "a", metav1.ConditionTrue, time.Hour)
		failed, succeeds := s.pod("a-0", "a", corev1.PodFailed, "n"), s.pod("a-1", "a", corev1.PodRunning, "n")
		for _, step := range []struct {
			reason string
			pods   []corev1.Pod
			phase  corev1.PodPhase
			again  bool
		}{
			{"it has failed", []corev1.Pod{failed}, corev1.PodRunning, true},
			{"the other has succeeded", []corev1.Pod{failed}, corev1.PodSucceeded, true},
			{"the replacement waits", []corev1.Pod{failed, s.pod("a-0-again", "a", corev1.PodPending, "")},
				corev1.PodSucceeded, false},
		} {
			s.withoutOthers(t)
			succeeds.Status.Phase = step.phase
			_, recheck, err := s.keep(t, s.js, append(step.pods, succeeds), true)
			if err != nil || step.again && (recheck == 0 || recheck > patience) {
				t.Fatalf("%s: got %s, %v", step.reason, recheck, err)
			}
		}
		want := "workload -a=1 -b=3"
		if s.version == v1alpha2 { // no field of its PodGroups can change
			want = "workload -a=basic -b=3"
		}
		if got := s.objects(t); got != want {
			t.Errorf("the replacement is placed separately: got %s, want %s", got, want)
		}
	})
}

// TestReleaseWithoutPods holds that a gang is released whose succeeded pods were deleted with their node.
func TestReleaseWithoutPods(t *testing.T) {
	onEach(t, api.GangRequired, func(t *testing.T, s *cluster) {
		if _, err := s.start(t, twoPhases); err != nil {
			t.Fatal(err)
		}
		s.withoutOthers(t)
		s.js.UID = "jobset"
		s.say(t, "a", metav1.ConditionTrue, time.Hour)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.js.Namespace, Name: "a-0",
			Labels: map[string]string{jobset.JobSetNameKey: s.js.Name, jobset.ReplicatedJobNameKey: "a"},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.js, jobset.SchemeGroupVersion.WithKind("JobSet"))}}}
		if err := s.client.Create(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		waits := []corev1.Pod{s.pod("a-1-again", "a", corev1.PodPending, "")}
		before := s.objects(t)
		if _, recheck, err := s.keep(t, s.js, waits, true); err != nil || s.objects(t) != before {
			t.Fatalf("none has succeeded: got %s, %s, %v", s.objects(t), recheck, err)
		}
		job.Status.Succeeded = 1
		if err := s.client.Status().Update(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.keep(t, s.js, waits, true); err != nil || s.objects(t) == before {
			t.Errorf("the replacement is placed separately: got %s, %v", s.objects(t), err)
		}
	})
}
