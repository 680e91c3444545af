package integration

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/usage"
)

// do notes it; that it can't be noted changes nothing of what happens. The version isn't checked: others write the rest
// of the Workload meanwhile.
func (s noteBegin) do(ctx context.Context, a *actor, _ *situation) error {
	after := s.workload.DeepCopy()
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, usage.Annotation, s.note.String())
	if err := a.client.Patch(ctx, after, client.MergeFrom(s.workload)); client.IgnoreNotFound(err) != nil {
		ctrl.LoggerFrom(ctx).Info("The API server rejects what is noted of a Workload's use of quota; trying again",
			"workload", s.workload.Name, "reason", err.Error())
	}
	return nil
}
