package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestSetback holds the times between starts that are rejected, and that a TrainJob that has changed doesn't wait.
func TestSetback(t *testing.T) {
	job := &api.TrainJob{}
	job.Generation, job.Labels = 1, map[string]string{"a": "b"}
	at, s := now, setback{}
	var waits []time.Duration
	for range 12 {
		s = s.again(job, errors.New("no"), at)
		var blocked *admission.BlockedError
		if err := s.blocks(job, at); err != nil && errors.As(err, &blocked) {
			waits = append(waits, blocked.RetryAfter)
			at = at.Add(blocked.RetryAfter)
		} else {
			at = at.Add(30 * time.Second)
		}
		if err := s.blocks(job, at); err != nil {
			t.Fatalf("it may start again: got %v", err)
		}
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60, 60}
	for i, w := range want {
		if i >= len(waits) || waits[i] != w*time.Minute {
			t.Fatalf("got %v, want %v minutes", waits, want)
		}
	}
	s = s.again(job, errors.New("no"), at)
	changed := job.DeepCopy()
	changed.Annotations = map[string]string{"c": "d"}
	if s.blocks(changed, at) != nil || s.blocks(job, at) == nil {
		t.Error("another may start at once")
	}
	if s = s.again(changed, errors.New("no"), at); s.count != 0 || s.blocks(changed, at) != nil {
		t.Errorf("its times begin again: got %+v", s)
	}
}
