package webhook

import (
	"gomodules.xyz/jsonpatch/v2"

	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

// Lists returns the reviews for a Kubeflow Trainer whose list of overrides is not keyed by manager: v2.0 and v2.1. A
// Record in an annotation holds which elements are the integration's.
func Lists(list *legacy.List) Reviews { return lists{list: list} }

type lists struct {
	ofKubeflow
	list *legacy.List
}

// Guarded implements Reviews. What a Record is sent with, the list replaces.
func (lists) Guarded() []string { return []string{store.PinAnnotation} }

// CompleteOwn implements Reviews.
func (l lists) CompleteOwn(rq *review.Request) ([]jsonpatch.Operation, error) {
	return l.list.Render(rq)
}

// Keep implements Reviews.
func (lists) Keep(rq *review.Request) ([]jsonpatch.Operation, error) {
	return keepAnnotations(rq, []string{store.PinAnnotation}), nil
}

// Unqueued implements Reviews.
func (lists) Unqueued(rq *review.Request) []jsonpatch.Operation {
	return rq.Restore(legacy.RecordAnnotation)
}

// Queued implements Reviews.
func (l lists) Queued(rq *review.Request) ([]jsonpatch.Operation, error) { return l.list.Render(rq) }
