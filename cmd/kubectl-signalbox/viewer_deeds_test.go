package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestDeeds holds that a later deed ends an earlier one with the same TrainJob, and that what goes wrong is told.
func TestDeeds(t *testing.T) {
	var d deeds
	told := make(chan struct{}, 3)
	tell := func() { told <- struct{}{} }
	waits := func(ctx context.Context) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	restart := d.begin(t.Context(), "a", "it goes on", waits, tell)
	if got := d.told("a"); got != "it goes on" {
		t.Error(got)
	}
	<-d.begin(t.Context(), "b", "", func(context.Context) (string, error) { return "", errors.New("refused") }, tell)
	select {
	case <-restart:
		t.Error("a deed with another TrainJob has ended it")
	case <-time.After(10 * time.Millisecond):
	}
	<-d.begin(t.Context(), "a", "", func(context.Context) (string, error) { return "it is stopping", nil }, tell)
	<-restart
	<-told
	if got, other := d.told("a"), d.told("b"); got != "it is stopping" || other != "refused" || d.told("c") != "" {
		t.Errorf("%q, %q", got, other)
	}
}
