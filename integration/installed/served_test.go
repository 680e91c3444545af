package installed

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	clientsfake "k8s.io/client-go/kubernetes/fake"
	clientstesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// kindsServed serves some kinds, and a group only where it has one.
type kindsServed struct {
	discovery.DiscoveryInterface
	kinds []string
}

func (s *kindsServed) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	if len(s.kinds) == 0 {
		return nil, apierrors.NewNotFound(trainerapi.GroupVersion.WithResource("").GroupResource(), groupVersion)
	}
	list := &metav1.APIResourceList{GroupVersion: groupVersion}
	for _, kind := range s.kinds {
		list.APIResources = append(list.APIResources, metav1.APIResource{Kind: kind})
	}
	return list, nil
}

// The API server lists the kinds of new CRDs one after the other, a moment after it has taken the CRDs.
func TestAwaitTrainJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disco := &kindsServed{}
		await := func(ctx context.Context) <-chan error {
			ended := make(chan error, 1)
			go func() { ended <- AwaitTrainJobs(ctx, disco) }()
			synctest.Wait()
			return ended
		}
		ended := await(t.Context())
		disco.kinds = []string{"TrainJob"}
		time.Sleep(serveTime / 100)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("it waits for the runtimes too: got %v", err)
		default:
		}
		disco.kinds = []string{"TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"}
		if err := <-ended; err != nil {
			t.Errorf("all are served: got %v", err)
		}

		disco.kinds = []string{"TrainJob", "TrainingRuntime"}
		err := <-await(t.Context())
		if err == nil || !strings.Contains(err.Error(), "does not serve kind ClusterTrainingRuntime") ||
			!strings.Contains(err.Error(), "conditions of the CRDs") {
			t.Errorf("after its time it says what is missing, and where to look: got %v", err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := <-await(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with the process: got %v", err)
		}
	})
}

func TestIdentity(t *testing.T) {
	clients := clientsfake.NewClientset()
	clients.PrependReactor("create", "selfsubjectreviews", func(clientstesting.Action) (bool, runtime.Object, error) {
		review := &authenticationv1.SelfSubjectReview{}
		review.Status.UserInfo.Username = "me"
		return true, review, nil
	})
	if got, err := Identity(t.Context(), clients); err != nil || got != "me" {
		t.Errorf("got %q, %v", got, err)
	}
	clients.PrependReactor("create", "selfsubjectreviews", func(clientstesting.Action) (bool, runtime.Object, error) {
		return true, nil, errDown
	})
	if _, err := Identity(t.Context(), clients); !errors.Is(err, errDown) {
		t.Errorf("got %v", err)
	}
}

func TestFindTrainer(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	empty := fake.NewClientBuilder().WithScheme(scheme).Build()
	_, err := FindTrainer(t.Context(), empty)
	if err == nil || !strings.Contains(err.Error(), "the cluster has no TrainJobs") {
		t.Errorf("got %v", err)
	}
	crd := crdOf(t, "{podSpecOverrides: {}}")
	found := fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd).Build()
	if d, err := FindTrainer(t.Context(), found); err != nil || d != dialect.Kubeflow20 {
		t.Errorf("got %v, %v", d, err)
	}
	unknown := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()
	if _, err := FindTrainer(t.Context(), unknown); err == nil || !strings.Contains(err.Error(), "reading CRD ") {
		t.Errorf("got %v", err)
	}
}
