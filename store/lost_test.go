package store

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLost holds that a JobSet has lost the pods that are its own by their controllers, whatever others name it, and
// that a lost pod counts that is gone.
func TestLost(t *testing.T) {
	lost := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	}
	live := newStored(t, jobOfSet("j", "a"), jobOfSet("forged", "b"))
	p := NewPods(newStored(t).api(), live.api())
	name := func() string {
		got, err := p.Lost(t.Context(), setOf("a", "uid"))
		if err != nil {
			t.Fatal(err)
		}
		if got == nil {
			return ""
		}
		return got.Name
	}
	if name() != "" {
		t.Error("it has lost none")
	}
	for i := range 3 * rememberedLost {
		p.SawLost(podOf(fmt.Sprint("forged-", i), "forged", "a", lost))
	}
	if got := name(); got != "" {
		t.Errorf("a label says nothing: got %q", got)
	}
	p = NewPods(newStored(t).api(), live.api())
	p.SawLost(podOf("forged", "forged", "a", lost))
	p.SawLost(podOf("gone", "j", "a", lost))
	if got := name(); got != "gone" {
		t.Errorf("it has lost one that is gone: got %q", got)
	}
	p = NewPods(newStored(t, podOf("there", "j", "a", lost), podOf("runs", "j", "a")).api(), live.api())
	if got := name(); got != "there" {
		t.Errorf("it has lost one that is there: got %q", got)
	}
	runs, ended := podOf("evicted", "j", "a", lost), podOf("evicted", "j", "a", lost)
	ended.Status.Phase, ended.DeletionTimestamp = corev1.PodSucceeded, new(metav1.Now())
	p = NewPods(newStored(t, podOf("there", "j", "a", lost)).api(), live.api())
	p.SawLost(runs)
	if got := name(); got != "there" {
		t.Errorf("the first: got %q", got)
	}
	p.SawLost(ended)
	if got := name(); got != "evicted" {
		t.Errorf("one that was cut short comes first: got %q", got)
	}
	p = NewPods(newStored(t, podOf("there", "j", "a", lost)).api(), live.api())
	live.fail["get PartialObjectMetadata"], live.fail["get Job"] = errDown, errDown
	if got, err := p.Lost(t.Context(), setOf("a", "uid")); !errors.Is(err, errDown) {
		t.Errorf("whose it is isn't known: got %v, %v", got, err)
	}
}

// TestJobNamed holds that a Job counts by its controller.
func TestJobNamed(t *testing.T) {
	s := newStored(t, jobOfSet("j", "a"))
	if job, err := NewPods(s.api(), s.api()).JobNamed(t.Context(), jobKey); err != nil || job == nil || job.Name != "j" {
		t.Errorf("got %v, %v", job, err)
	}
	other := jobOfSet("j", "a")
	other.OwnerReferences = nil
	s = newStored(t, other)
	if job, err := NewPods(s.api(), s.api()).JobNamed(t.Context(), jobKey); err != nil || job != nil {
		t.Errorf("it is anybody's: got %v, %v", job, err)
	}
}
