package installed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
)

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
func AwaitTrainJobs(ctx context.Context, disco discovery.DiscoveryInterface) error {
	version := trainerapi.GroupVersion
	var missing error // the first; the group alone would be missing once for each kind
	err := wait.PollUntilContextTimeout(ctx, serveTime/100, serveTime, true, func(context.Context) (bool, error) {
		for _, kind := range []string{
			trainerapi.TrainJobKind, trainerapi.TrainingRuntimeKind, trainerapi.ClusterTrainingRuntimeKind,
		} {
			missing = served(disco, version.WithKind(kind), "check the conditions of the CRDs of group "+version.Group)
			if missing != nil {
				return false, nil
			}
		}
		return true, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.Join(context.Cause(ctx), missing)
	}
	return fmt.Errorf("waited for %s: %w", serveTime, missing)
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
