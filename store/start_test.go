package store

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/signalbox-dev/signalbox/admission"
)

const refusal = "admission webhook denied the request: spec.runtimePatches: Forbidden: RuntimePatches can only be " +
	"modified when the TrainJob is suspended"

func TestRefused(t *testing.T) {
	for message, want := range map[string]bool{
		refusal:                                 true,
		refusal + " before or after the update": false,
		"the object has been modified":          false,
	} {
		if got := Refused(errors.New(message)); got != want {
			t.Errorf("%q: got %t, want %t", message, got, want)
		}
	}
	if Refused(nil) {
		t.Error("no error is no refusal")
	}
}

// TestStartAtomically holds that a Trainer that refuses to start in one write is not asked to for a while, and is then
// asked again: it may be another, with the same CRD.
func TestStartAtomically(t *testing.T) {
	refuses, requests := true, 0
	writes := interceptor.Funcs{
		Patch: func(
			_ context.Context, _ client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption,
		) error {
			requests++
			data, err := patch.Data(o)
			sent := string(data)
			if refuses && strings.Contains(sent, "/spec/suspend") && strings.Contains(sent, "/spec/runtimePatches") {
				return errors.New(refusal)
			}
			return err
		},
	}
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC))
	w := NewWriter(interceptor.NewClient(nil, writes), clk, false)
	for _, step := range []struct {
		reason   string
		after    time.Duration
		refuses  bool
		atomic   bool
		requests int
	}{
		{"a Trainer that takes it in one", 0, false, true, 1},
		{"one that refuses gets it in two", 0, true, false, 3},
		{"and isn't tried for a while", refusalHolds - time.Second, true, false, 2},
		{"then it is tried again", time.Second, false, true, 1},
	} {
		clk.Step(step.after)
		refuses, requests = step.refuses, 0
		atomic, err := w.StartAtomically(t.Context(), &admission.Start{At: -1})
		if err != nil || atomic != step.atomic || requests != step.requests {
			t.Errorf("%s: got atomic %t, %d requests, %v; want %t, %d", step.reason, atomic, requests, err, step.atomic,
				step.requests)
		}
	}
}
