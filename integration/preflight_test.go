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
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	clientsfake "k8s.io/client-go/kubernetes/fake"
	clientstesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
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
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) { return disco.asked.Load() >= times, nil })
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
	if err == nil || !strings.Contains(err.Error(), "does not serve kind ClusterTrainingRuntime") ||
		!strings.Contains(err.Error(), "conditions of the CRDs") {
		t.Errorf("after its time it says what is missing, and where to look: got %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := <-await(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with the process: got %v", err)
	}
}

func TestCompareWithKueue(t *testing.T) {
	ours := func() *configapi.Kueue { return &configapi.Default().Kueue }
	cases := map[string]struct {
		reason string
		ours   func(*configapi.Kueue)
		theirs kueueconfig.Configuration
		want   []string
	}{
		"as it should be": {reason: "nothing to say", theirs: kueueconfig.Configuration{
			Integrations: &kueueconfig.Integrations{ExternalFrameworks: []string{externalFramework}},
		}},
		"built-in": {
			reason: "two integrations would fight",
			theirs: kueueconfig.Configuration{
				Integrations: &kueueconfig.Integrations{Frameworks: []string{"batch/job", builtinFramework}},
			},
			want: []string{`integrations.frameworks lists "trainer.kubeflow.org/trainjob"`, "take it out"},
		},
		"nothing said": {
			reason: "Kueue must know that TrainJobs are managed", theirs: kueueconfig.Configuration{},
			want: []string{"integrations.externalFrameworks does not list", "add it"},
		},
		"other settings": {
			reason: "every difference is named, with both values",
			ours:   func(k *configapi.Kueue) { k.WaitForPodsReady = true },
			theirs: kueueconfig.Configuration{
				ManageJobsWithoutQueueName: true,
				Integrations:               &kueueconfig.Integrations{ExternalFrameworks: []string{externalFramework}},
			},
			want: []string{"manageJobsWithoutQueueName is true there and kueue.manageJobsWithoutQueueName false here",
				"waitForPodsReady is set there: false, and kueue.waitForPodsReady is true here"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			config := ours()
			if c.ours != nil {
				c.ours(config)
			}
			err := compare(config, &c.theirs)
			if len(c.want) == 0 && err != nil {
				t.Errorf("%s: got %v", c.reason, err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want it to say %q", c.reason, err, want)
				}
			}
		})
	}
}

func TestPrepareProcess(t *testing.T) {
	config := &configapi.Default().Kueue
	config.OwnerKinds = []string{"Thing.v1.example.com"}
	if err := Prepare(config); err != nil {
		t.Errorf("the defaults are valid: got %v", err)
	}
	config.OwnerKinds = []string{"Thing"}
	if err := Prepare(config); err == nil || !strings.Contains(err.Error(), "kueue.ownerKinds[0]: ") {
		t.Errorf("the kind has no group: got %v", err)
	}
	config.FeatureGates = map[string]bool{"NoSuchGate": true}
	if err := Prepare(config); err == nil || !strings.Contains(err.Error(), "kueue.featureGates: ") {
		t.Errorf("Kueue doesn't have the gate: got %v", err)
	}
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

func TestCheck(t *testing.T) {
	config := &configapi.Default().Kueue
	served := &kindsServed{kinds: []string{"Workload", "JobSet"}}
	configured := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{"a.yaml": text}, ObjectMeta: metav1.ObjectMeta{
			Namespace: config.ConfigMap.Namespace, Name: config.ConfigMap.Name}}
	}
	const head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
	cases := map[string]struct {
		reason string
		disco  *kindsServed
		down   string
		config *corev1.ConfigMap
		want   []string
	}{
		"as it should be": {reason: "nothing is wrong", disco: served, config: configured(head +
			"integrations: {externalFrameworks: [" + externalFramework + "]}")},
		"no configuration":      {reason: "it may be elsewhere", disco: served},
		"another configuration": {reason: "it is not Kueue's", disco: served, config: configured("kind: Other")},
		"nothing installed": {reason: "both are missing", disco: &kindsServed{}, want: []string{
			"install Kueue v0.19 or later", "install JobSet v0.12 or later"}},
		"an old Kueue": {reason: "one is missing", disco: &kindsServed{kinds: []string{"JobSet"}}, want: []string{
			"does not serve kind Workload"}},
		"other settings": {reason: "they differ", disco: served, config: configured(head), want: []string{
			"ConfigMap " + config.ConfigMap.Namespace + "/" + config.ConfigMap.Name + " key a.yaml: integrations."}},
		"no YAML":    {reason: "it can't be read", disco: served, config: configured("{"), want: []string{"key a.yaml: "}},
		"unreadable": {reason: "it isn't known", disco: served, down: "ConfigMap", want: []string{errDown.Error()}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if c.config != nil {
				objects = append(objects, c.config)
			}
			err := Check(t.Context(), cluster(t, c.down, objects...), c.disco, config)
			if len(c.want) == 0 && err != nil {
				t.Errorf("%s: got %v", c.reason, err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want %q in it", c.reason, err, want)
				}
			}
		})
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
	if d, err := FindTrainer(t.Context(), found); err != nil || d != overrides.Kubeflow20 {
		t.Errorf("got %v, %v", d, err)
	}
	unknown := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()
	if _, err := FindTrainer(t.Context(), unknown); err == nil || !strings.Contains(err.Error(), "reading CRD ") {
		t.Errorf("got %v", err)
	}
}
