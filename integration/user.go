package integration

import (
	"gomodules.xyz/jsonpatch/v2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/review"
)

// keepUser returns the patch that writes who creates a TrainJob, if that is recorded, and that restores it later. Kueue
// copies a TrainJob to another cluster with the user whom the first one has seen.
func (w *Webhook) keepUser(rq *review.Request) []jsonpatch.Operation {
	_, copied := rq.New.Annotations[api.UserAnnotation]
	switch {
	case !w.signs || rq.Created() && rq.Trusted && copied:
		return nil
	case rq.Created():
		return rq.Annotate(api.UserAnnotation, &rq.User)
	}
	return keepAnnotations(rq, []string{api.UserAnnotation})
}
