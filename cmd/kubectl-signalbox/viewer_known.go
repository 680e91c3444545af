package main

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// known is what the queues show, as of a number of changes.
type known struct {
	*queues
	jobs    []api.TrainJob
	byUID   map[types.UID]*api.TrainJob
	missing []string
	count   uint64
}

// jobOf returns the TrainJob of a Workload; nil if it is no TrainJob's.
func (k *known) jobOf(wl *kueue.Workload) *api.TrainJob {
	for _, ref := range wl.OwnerReferences {
		if job := k.byUID[ref.UID]; job != nil {
			return job
		}
	}
	return nil
}

// errNoView is for a path that leads nowhere.
var errNoView = errors.New("there is no such view")

// shows returns an answer with a view.
func shows(title string, missing []string, view page.View) serve.Answer {
	return serve.Answer{Content: page.Content{Title: title, Missing: slices.Clone(missing), View: view}}
}
