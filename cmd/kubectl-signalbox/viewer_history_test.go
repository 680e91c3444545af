package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// TestHealth holds that a lost API server and expired credentials are told apart.
func TestHealth(t *testing.T) {
	var h health
	at := time.Now()
	if !h.due(at) || h.due(at.Add(askLost)) || !h.due(at.Add(askAgain)) {
		t.Error("it is asked at the wrong times")
	}
	h.failed(apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, "", errors.New("no")))
	if h.lost() != nil || !errors.Is(h.expired(), serve.ErrRights) {
		t.Error("a refusal is an answer: what was read is no longer allowed")
	}
	h = health{}
	h.failed(errors.New("connection refused"))
	if h.lost() == nil || !h.due(at.Add(askAgain+askLost)) {
		t.Error("it isn't lost")
	}
	h.heard(nil, at)
	if h.lost() != nil || h.expired() != nil {
		t.Error("it is still lost")
	}
	h.heard(errors.New("connection refused"), at)
	h.heard(apierrors.NewUnauthorized("expired"), at)
	if !errors.Is(h.expired(), serve.ErrExpired) {
		t.Error("it isn't expired")
	}
}

// TestHistory holds that reports become curves, within bounds.
func TestHistory(t *testing.T) {
	var h history
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	job := func(uid string, second int, value string) *api.TrainJob {
		j := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		j.Status.TrainerStatus = &trainerapi.TrainerStatus{
			LastUpdatedTime: metav1.NewTime(at.Add(time.Duration(second) * time.Second)),
			Metrics:         []trainerapi.Metric{{Name: "loss", Value: value}},
		}
		return j
	}
	var before any
	for i := range 3 * mostPoints {
		now := job("a", i, "1.5")
		h.add(before, now, at)
		before = now
	}
	saved := job("a", 2000, "1.5")
	saved.Status.Checkpoint = &api.Checkpoint{Time: metav1.NewTime(at), Value: "7"}
	h.add(before, saved, at)
	h.add(saved, job("a", 2000, "9"), at) // nothing new was reported
	for _, value := range []string{"NaN", "Inf", "x"} {
		h.add(saved, job("a", 3000, value), at)
	}
	curves := h.curves("a")
	if len(curves) != 1 || len(curves[0].Points) > mostPoints || curves[0].Last() != 1.5 || len(curves[0].Marks) != 1 ||
		!curves[0].Points[0].Time.Equal(at) {
		t.Errorf("%+v", curves)
	}
	for i := range 2 * mostReporting {
		h.add(nil, job(strings.Repeat("b", 1+i%7)+string(rune(i)), i, "1"), at.Add(time.Duration(i)*time.Second))
	}
	if len(h.of) > mostReporting || h.curves("a") != nil {
		t.Errorf("%d are kept", len(h.of))
	}
	h.add(saved, nil, at)
}
