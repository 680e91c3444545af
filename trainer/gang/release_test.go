package gang

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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
