package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	_ "sigs.k8s.io/kueue/pkg/features" // registers Kueue's feature gates

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Prepare sets what jobframework keeps for the whole process: Kueue's feature gates and the kinds that may own
// TrainJobs. It is to be called once, with what Adopt returns, before anything else of this package but
// FindReleases and Adopt.
func Prepare(config *configapi.Kueue) error {
	if err := CheckConfiguration(config); err != nil {
		return err
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(config.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	// TrainJob itself isn't registered: one that names another as its owner needs quota of its own, because the other's
	// Workload stands for the other's pods alone.
	for i, kind := range config.OwnerKinds {
		if err := jobframework.RegisterExternalJobType(kind); err != nil {
			return fmt.Errorf("kueue.ownerKinds[%d]: %w", i, err)
		}
	}
	return nil
}

// CheckConfiguration refuses what Prepare would, and changes nothing: gates that Kueue doesn't have, by their name.
func CheckConfiguration(config *configapi.Kueue) error {
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(config.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	return nil
}

// Identity returns the name of the user that the client is to the API server.
func Identity(ctx context.Context, clients kubernetes.Interface) (string, error) {
	review, err := clients.AuthenticationV1().SelfSubjectReviews().Create(
		ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking who we are: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// serveTime is for how long the API server may not list the kinds of a CRD that it has.
const serveTime = 30 * time.Second

// AwaitTrainJobs waits until TrainJobs and their runtimes are served: a manager that is installed together with their
// CRDs comes before the API server has taken those up. That a CRD is there is for others to check.
func AwaitTrainJobs(ctx context.Context, disco discovery.DiscoveryInterface, clk clock.WithTicker) error {
	version := trainerapi.GroupVersion
	timeout, ticker := clk.After(serveTime), clk.NewTicker(serveTime/100)
	defer ticker.Stop()
	for {
		var missing error // the first; the group alone would be missing once for each kind
		for _, kind := range []string{
			trainerapi.TrainJobKind, trainerapi.TrainingRuntimeKind, trainerapi.ClusterTrainingRuntimeKind,
		} {
			missing = served(disco, version.WithKind(kind), "look at the conditions of the CRDs of group "+version.Group)
			if missing != nil {
				break
			}
		}
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), missing)
		case <-timeout:
			return fmt.Errorf("waited for %s: %w", serveTime, missing)
		case <-ticker.C():
		}
	}
}

func served(disco discovery.DiscoveryInterface, kind schema.GroupVersionKind, wayOut string) error {
	resources, err := disco.ServerResourcesForGroupVersion(kind.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the cluster does not serve %s; %s", kind.GroupVersion(), wayOut)
	}
	if err != nil {
		return fmt.Errorf("looking for %s: %w", kind, err)
	}
	if !slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind.Kind }) {
		return fmt.Errorf("the cluster does not serve kind %s of %s; %s", kind.Kind, kind.GroupVersion(), wayOut)
	}
	return nil
}

// FindTrainer returns how the installed Kubeflow Trainer takes overrides.
func FindTrainer(ctx context.Context, reader client.Reader) (overrides.Dialect, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := reader.Get(ctx, client.ObjectKey{Name: TrainJobCRD}, &crd); apierrors.IsNotFound(err) {
		return nil, errors.New("the cluster has no TrainJobs; install Kubeflow Trainer, or set trainer.enabled to true and " +
			"apply config/crd")
	} else if err != nil {
		return nil, fmt.Errorf("reading CRD %s: %w", TrainJobCRD, err)
	}
	return DialectOf(&crd)
}
