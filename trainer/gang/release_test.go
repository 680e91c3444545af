package gang

import (
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestReleaseDue(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	pod := func(phase corev1.PodPhase, node string, age time.Duration) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Spec:       corev1.PodSpec{NodeName: node, SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	done, failed, runs := pod(corev1.PodSucceeded, "n", time.Hour), pod(corev1.PodFailed, "n", time.Hour),
		pod(corev1.PodRunning, "n", time.Hour)
	waits, fresh := pod(corev1.PodPending, "", time.Minute), pod(corev1.PodPending, "", 4*time.Second)
	other := waits
	other.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("other")}
	cases := map[string]struct {
		reason string
		status metav1.ConditionStatus
		pods   []corev1.Pod
		late   bool
		wait   time.Duration
	}{
		"a waiting one": {"the rest has succeeded", metav1.ConditionTrue, []corev1.Pod{done, done, failed, waits},
			true, 0},
		"beside one that runs": {"kube-scheduler counts two of three", metav1.ConditionTrue, []corev1.Pod{done, runs, waits},
			true, 0},
		"fresh": {"the other pods may be about to change", metav1.ConditionTrue, []corev1.Pod{done, done, fresh},
			false, 6 * time.Second},
		"a fresh one and not": {"the youngest counts", metav1.ConditionTrue, []corev1.Pod{done, waits, fresh}, false,
			6 * time.Second},
		"to come": {"the pod that replaces the failed one is not there yet", metav1.ConditionTrue,
			[]corev1.Pod{done, done, failed}, false, patience},
		"the end": {"pods end one after the other", metav1.ConditionTrue, []corev1.Pod{done, runs, runs}, false,
			0},
		"none has succeeded": {"all pods are created again, unless one that runs succeeds before", metav1.ConditionTrue,
			[]corev1.Pod{failed, failed, waits}, false, patience},
		"a failure first": {"the others may succeed before the replacement is there", metav1.ConditionTrue,
			[]corev1.Pod{failed, runs, runs}, false, patience},
		"enough": {"kube-scheduler has what it waits for, until another succeeds", metav1.ConditionTrue,
			[]corev1.Pod{done, runs, runs, waits}, false, patience},
		"at first": {"kube-scheduler places all or none", metav1.ConditionFalse, []corev1.Pod{waits, waits, waits}, false, 0},
		"on their way": {"all are there, and some are bound already", metav1.ConditionTrue,
			[]corev1.Pod{runs, waits, waits}, false, patience},
		"gone": {"nothing waits", metav1.ConditionTrue, []corev1.Pod{failed, failed, failed}, false, 0},
		"made again": {"what has succeeded was placed, whatever a new PodGroup says", metav1.ConditionFalse,
			[]corev1.Pod{done, done, waits}, true, 0},
		"of another": {"only its own pods count", metav1.ConditionTrue, []corev1.Pod{done, done, other}, false, patience},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			late, wait := releaseDue(podGroupState{name: "g", minCount: 3, scheduled: &metav1.Condition{Status: c.status}},
				3, countPods(byPodGroup(c.pods)["g"], now))
			if late != c.late || wait != c.wait {
				t.Errorf("%s: got %t, %s; want %t, %s", c.reason, late, wait, c.late, c.wait)
			}
		})
	}
	if late, _ := releaseDue(podGroupState{name: "g", scheduled: &metav1.Condition{Status: metav1.ConditionTrue}},
		2, countPods(byPodGroup([]corev1.Pod{done, waits})["g"], now)); late {
		t.Error("a group that is no gang is never released")
	}
}

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
