package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// TestTrainings holds that each second of a process is either useful or lost, and that it continues after what it saved.
func TestTrainings(t *testing.T) {
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	after := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	pod := func(uid string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			UID: types.UID(uid), Labels: map[string]string{jobset.JobSetNameKey: "train"},
		}, Status: corev1.PodStatus{Phase: phase}}
	}
	p := &trainings{every: 20 * time.Second, all: map[string]*training{"train": {gpus: 4, work: 50 * time.Second}}}
	p.see(watch.Added, pod("1", corev1.PodPending), after(0))
	p.see(watch.Modified, pod("1", corev1.PodRunning), after(5))
	if saved, _ := p.step(after(20)); len(saved) > 0 {
		t.Errorf("saved %v before it was time", saved)
	}
	if saved, _ := p.step(after(25)); saved["train"] != 20*time.Second {
		t.Errorf("saved %v, want 20 s", saved)
	}
	p.see(watch.Deleted, pod("1", corev1.PodRunning), after(35))
	p.see(watch.Deleted, pod("1", corev1.PodRunning), after(36))
	if want := (spent{Useful: 80, Lost: 40, Stops: 1}); p.spent != want {
		t.Errorf("after the stop %+v, want %+v", p.spent, want)
	}
	p.see(watch.Added, pod("2", corev1.PodRunning), after(100))
	p.step(after(120))
	if _, ended := p.step(after(129)); len(ended) > 0 {
		t.Errorf("%v ended before its work was done", ended)
	}
	if _, ended := p.step(after(200)); len(ended) != 1 {
		t.Errorf("ended: %v, want the one", ended)
	}
	if want := (spent{Useful: 200, Lost: 40, Stops: 1, Ended: 1}); p.spent != want {
		t.Errorf("at the end %+v, want %+v", p.spent, want)
	}
}
