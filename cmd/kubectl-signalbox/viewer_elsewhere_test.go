package main

import (
	"errors"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestOpensOnce holds that another cluster is connected to once, that its gates don't become those of all simulations,
// and that one request's missing rights aren't another's.
func TestOpensOnce(t *testing.T) {
	worker, opened := newTrial(t, interceptor.Funcs{}), 0
	open := opensOnce(func(context string) (*session, error) {
		if context == "broken" {
			return nil, errors.New("no such context")
		}
		opened++
		return worker.session(genericiooptions.IOStreams{}), nil
	}, genericiooptions.IOStreams{})
	for range 3 {
		s, err := open("worker")
		if err != nil || !s.gated || len(s.missing) > 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		s.lacks("list nodes")
		var jobs api.TrainJobList
		if err := s.client.List(t.Context(), &jobs, client.InNamespace("team")); err != nil || len(jobs.Items) == 0 {
			t.Errorf("%d TrainJobs, %v", len(jobs.Items), err)
		}
		if _, err := open("broken"); err == nil {
			t.Error("a context that is missing was opened")
		}
	}
	if opened != 1 {
		t.Errorf("it was opened %d times", opened)
	}
}
