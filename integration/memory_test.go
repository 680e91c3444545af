package integration

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestMemory(t *testing.T) {
	m := newMemory()
	key := types.NamespacedName{Namespace: "ns", Name: "job"}
	m.keep(key, "first", func(r *record) { r.rebuilt = "7" })
	if m.of(key, "first").rebuilt != "7" {
		t.Error("what was kept is known")
	}
	if got := m.of(key, "second"); got.uid != "second" || got.rebuilt != "" {
		t.Error("another TrainJob of the same name starts from nothing")
	}
	m.keep(key, "second", func(r *record) { r.workload = "wl" })
	if got := m.of(key, "second"); got.workload != "wl" || got.rebuilt != "" {
		t.Errorf("nothing is taken over from the first: got %+v", got)
	}
	other := types.NamespacedName{Namespace: "ns", Name: "other"}
	m.recall(other, "third", now)
	m.keep(other, "third", func(*record) {})
	m.keep(key, "second", func(r *record) { r.ended = true })
	m.keep(key, "second", func(r *record) { r.workload = "its next" })
	if got := m.recall(other, "third", now.Add(time.Second)); got.unfinished != 1 || !got.since.Equal(now) {
		t.Errorf("one of two has ended: got %+v", got)
	}
	m.keep(key, "fourth", func(*record) {})
	if got := m.recall(key, "fourth", now); got.unfinished != 2 {
		t.Errorf("a TrainJob that takes the name of one that had ended has not ended: got %+v", got)
	}
	m.keep(key, "fourth", func(r *record) { r.ended = true })
	m.forget(key)
	m.forget(key)
	if got := m.recall(key, "fourth", now); got.ended || got.unfinished != 1 {
		t.Errorf("a forgotten TrainJob isn't counted: got %+v", got)
	}
}
