package integration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	clocktesting "k8s.io/utils/clock/testing"
)

// kindsServed serves some kinds, and a group only where it has one.
type kindsServed struct {
	discovery.DiscoveryInterface
	asked atomic.Int32
	mu    sync.Mutex
	kinds []string
}

func (s *kindsServed) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	defer s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
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
	disco := &kindsServed{}
	kinds := func(kinds ...string) {
		disco.mu.Lock()
		defer disco.mu.Unlock()
		disco.kinds = kinds
	}
	clk := clocktesting.NewFakeClock(time.Now())
	await := func(ctx context.Context) <-chan error {
		ended := make(chan error)
		go func() { ended <- AwaitTrainJobs(ctx, disco, clk) }()
		return ended
	}
	looked := func(times int32) { // in all, for a kind each time
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return disco.asked.Load() >= times, nil })
		if err != nil {
			t.Fatalf("it asked %d times, want %d", disco.asked.Load(), times)
		}
	}

	ended := await(t.Context())
	looked(1)
	kinds("TrainJob")
	clk.Step(serveTime / 100)
	looked(3) // for TrainJobs, and for the first of the runtimes
	select {
	case err := <-ended:
		t.Fatalf("it waits for the runtimes too: got %v", err)
	default:
	}
	kinds("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
	clk.Step(serveTime / 100)
	if err := <-ended; err != nil {
		t.Errorf("all are served: got %v", err)
	}

	kinds("TrainJob", "TrainingRuntime")
	ended = await(t.Context())
	looked(9) // three more when all were served, and three now
	clk.Step(serveTime)
	err := <-ended
	if err == nil || !strings.Contains(err.Error(), "does not serve kind ClusterTrainingRuntime") || !strings.Contains(err.Error(), "conditions of the CRDs") {
		t.Errorf("after its time it says what is missing, and where to look: got %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := <-await(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with the process: got %v", err)
	}
}
