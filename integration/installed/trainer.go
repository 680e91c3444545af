package installed

import (
	"context"
	"errors"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TrainJobCRD is the CRD that shows which Trainer is installed.
const TrainJobCRD = "trainjobs.trainer.kubeflow.org"

// DialectOf returns how the Kubeflow Trainer that a CRD is of takes overrides.
func DialectOf(crd *apiextensionsv1.CustomResourceDefinition) (*dialect.Dialect, error) {
	d, err := dialect.Kubeflow(fieldsOf(crd))
	if err != nil {
		return nil, fmt.Errorf("CRD %s %w", crd.Name, err)
	}
	return d, nil
}

// TrainerOf does the same for the CRD of any Trainer.
func TrainerOf(crd *apiextensionsv1.CustomResourceDefinition) (*dialect.Dialect, error) {
	if dialect.IsBundled(fieldsOf(crd)) {
		return dialect.Bundled, nil
	}
	return DialectOf(crd)
}

// fieldsOf reports which fields the spec of a CRD's TrainJobs has, by their paths.
func fieldsOf(crd *apiextensionsv1.CustomResourceDefinition) func(path ...string) bool {
	spec := specOf(crd, trainerapi.GroupVersion.Version)
	return func(path ...string) bool { return hasField(spec, path) }
}

// FindTrainer returns how the installed Kubeflow Trainer takes overrides.
func FindTrainer(ctx context.Context, reader client.Reader) (*dialect.Dialect, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := reader.Get(ctx, client.ObjectKey{Name: TrainJobCRD}, &crd); apierrors.IsNotFound(err) {
		return nil, errors.New("the cluster has no TrainJobs; install Kubeflow Trainer, or set trainer.enabled to true and " +
			"apply config/crd")
	} else if err != nil {
		return nil, fmt.Errorf("reading CRD %s: %w", TrainJobCRD, err)
	}
	return DialectOf(&crd)
}

// AwaitOther returns when the TrainJobs' CRD is that of another Trainer than the one that runs, or when ctx ends. A CRD
// of no Trainer that is known is only logged. The process is to end then.
func AwaitOther(ctx context.Context, informers cache.Informers, running *dialect.Dialect) (other bool, err error) {
	informer, err := informers.GetInformer(ctx, &apiextensionsv1.CustomResourceDefinition{}, cache.BlockUntilSynced(false))
	if err != nil {
		return false, fmt.Errorf("watching CRD %s: %w", TrainJobCRD, err)
	}
	log := ctrl.LoggerFrom(ctx).WithValues("crd", TrainJobCRD)
	found := make(chan *dialect.Dialect, 1)
	look := func(object any) {
		crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
		if !ok || crd.Name != TrainJobCRD {
			return
		}
		d, err := DialectOf(crd)
		if err != nil {
			log.Error(err, "The installed Trainer isn't known; TrainJobs are started as with the previous one")
			return
		}
		if d != running {
			select {
			case found <- d:
			default: // one is enough
			}
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, now any) { look(now) },
	}); err != nil {
		return false, err
	}
	select {
	case <-ctx.Done():
		return false, nil
	case d := <-found:
		log.Info("Another Trainer is installed", "trainer", d.Name, "previous", running.Name)
		return true, nil
	}
}
