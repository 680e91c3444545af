package gang

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// apiServer is a prober on a fake API server that serves the API.
type apiServer struct {
	*prober
	fake  *clienttesting.Fake
	clock *clocktesting.FakeClock
	// discoveryErr and crdErr are what the API server answers; nil for success.
	discoveryErr, crdErr, watchErr error
	synced                         bool
	// probes and watches count what was asked for; stops the caches that were stopped.
	probes, watches, stops int
}

func serving(versions ...string) []*metav1.APIResourceList {
	var all []*metav1.APIResourceList
	for _, v := range versions {
		all = append(all, &metav1.APIResourceList{
			GroupVersion: "scheduling.k8s.io/" + v, APIResources: []metav1.APIResource{{Name: "workloads"}, {Name: "podgroups"}},
		})
	}
	return all
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &apiServer{
		fake: &clienttesting.Fake{Resources: serving("v1beta1")}, synced: true,
		clock: clocktesting.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)),
	}
	s.fake.AddReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.probes++
		return s.discoveryErr != nil, nil, s.discoveryErr
	})
	crd := jobSetCRDWith(t, "{schedulingGroup: {type: object}}")
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if s.crdErr != nil {
				return s.crdErr
			}
			return c.Get(ctx, key, o, options...)
		},
	}).Build()
	s.prober = &prober{reader: reader, discovery: &fakediscovery.FakeDiscovery{Fake: s.fake}, clock: s.clock}
	s.watch = func(_ context.Context, v *version) (*served, error) {
		s.watches++
		return &served{
			version: v, since: s.clock.Now(), stop: func() { s.stops++ },
			synced: func(context.Context) bool { return s.synced },
		}, s.watchErr
	}
	return s
}

// available returns whether TrainJobs can have groups, as their start finds it.
func (s *apiServer) available(ctx context.Context, maxAge time.Duration) (availability, error) {
	found := s.result(ctx, maxAge)
	if found.err != nil {
		return availability{}, found.err
	}
	return found.availability, nil
}

func TestProbeIsCached(t *testing.T) {
	s := newAPIServer(t)
	for _, step := range []struct {
		reason string
		after  time.Duration
		maxAge time.Duration
		probes int
	}{
		{"nothing is known", 0, startMaxAge, 1},
		{"the result is recent", time.Second, startMaxAge, 1},
		{"the result is too old for a start", 2 * time.Second, startMaxAge, 2},
		{"it is recent enough for the upkeep", 29 * time.Second, keepMaxAge, 2},
		{"it is too old for the upkeep", time.Second, keepMaxAge, 3},
	} {
		s.clock.Step(step.after)
		found, err := s.available(t.Context(), step.maxAge)
		if err != nil || found.unavailable != nil || found.served == nil || s.probes != step.probes {
			t.Errorf("%s: got %+v, %v, %d probes, want %d", step.reason, found, err, s.probes, step.probes)
		}
	}
	s.expire()
	if _, err := s.available(t.Context(), keepMaxAge); err != nil || s.probes != 4 {
		t.Errorf("an expired result is not used: got %v, %d probes", err, s.probes)
	}
	if s.watches != 1 {
		t.Errorf("one cache serves all probes: got %d", s.watches)
	}
}

func TestFailedProbe(t *testing.T) {
	s := newAPIServer(t)
	s.discoveryErr = errors.New("connection refused")
	if found, err := s.existing(t.Context()); err == nil || found != nil {
		t.Errorf("without an earlier probe the failure is an error: got %v, %v", found, err)
	}
	s.discoveryErr = nil
	if _, err := s.available(t.Context(), startMaxAge); err == nil || s.probes != 1 {
		t.Errorf("a failure holds for a second: got %v, %d probes", err, s.probes)
	}
	s.clock.Step(failureMaxAge)
	if _, err := s.available(t.Context(), keepMaxAge); err != nil || s.probes != 2 {
		t.Errorf("a failure holds for no longer, whoever asks: got %v, %d probes", err, s.probes)
	}
	s.clock.Step(keepMaxAge)
	s.discoveryErr = errors.New("connection refused")
	if found, err := s.existing(t.Context()); err != nil || found == nil {
		t.Errorf("what an earlier probe found serves the upkeep: got %v, %v", found, err)
	}
	if found, err := s.available(t.Context(), startMaxAge); err == nil || found != (availability{}) {
		t.Errorf("a start needs to know: got %+v, %v", found, err)
	}
}

func TestUnavailable(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, jobSetCRD)
	cases := map[string]struct {
		reason string
		change func(*apiServer)
		want   string
		// served is whether existing groups can be read.
		served bool
	}{
		"not served": {"there is nothing to read", func(s *apiServer) { s.fake.Resources = nil },
			"doesn't serve Workloads and PodGroups", false},
		"no CRD": {"groups may exist from before", func(s *apiServer) { s.crdErr = notFound },
			"it is unknown whether JobSet accepts groups", true},
		"not listed": {"the cache would be incomplete", func(s *apiServer) {
			s.synced = false
			if _, err := s.available(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "still being listed") {
				t.Errorf("at first it is temporary: got %v", err)
			}
			s.clock.Step(listTimeout + time.Second)
		}, "can't be listed; the manager's log says why", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			c.change(s)
			found, err := s.available(t.Context(), startMaxAge)
			if err != nil || !isUnavailable(found.unavailable) || !strings.Contains(found.unavailable.Error(), c.want) {
				t.Errorf("%s: got %+v, %v, want %s", c.reason, found, err, c.want)
			}
			if existing, err := s.existing(t.Context()); err != nil || (existing != nil) != c.served {
				t.Errorf("%s: got %v, %v", c.reason, existing, err)
			}
		})
	}
}

func TestTemporaryErrors(t *testing.T) {
	cases := map[string]struct {
		change func(*apiServer)
		want   string
	}{
		"the CRD": {func(s *apiServer) { s.crdErr = errors.New("timeout") },
			"reading CRD jobsets.jobset.x-k8s.io: timeout"},
		"the cache": {func(s *apiServer) { s.watchErr = errors.New("no informer") }, "no informer"},
		"the groups": {func(s *apiServer) {
			s.fake.Resources = nil
			s.fake.AddReactor("get", "group", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("timeout")
			})
		}, "asking for the API groups: timeout"},
		"another version": {func(s *apiServer) {
			s.fake.Resources = serving("v2")
			asked := 0
			s.fake.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
				asked++
				return asked > len(versions), nil, errors.New("timeout")
			})
		}, "asking for the resources of scheduling.k8s.io/v2: timeout"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			c.change(s)
			if _, err := s.available(t.Context(), startMaxAge); err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestCacheFollowsVersion(t *testing.T) {
	s := newAPIServer(t)
	if _, err := s.existing(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.fake.Resources = nil
	s.expire()
	if found, err := s.existing(t.Context()); found != nil || err != nil || s.stops != 1 {
		t.Errorf("the cache of a version that is no longer served is stopped: got %v, %v, %d stops", found, err, s.stops)
	}
	for n, served := range []string{"v1alpha2", "v1beta1", "v1alpha3"} { // upgraded and back
		s.fake.Resources = serving(served)
		s.expire()
		found, err := s.existing(t.Context())
		if err != nil || found == nil || found.version.Version != served || s.watches != n+2 {
			t.Errorf("a new one is started: got %v, %v, %d caches", found, err, s.watches)
		}
	}
	s.fake.Resources = serving("v1beta1", "v1alpha3")
	s.expire()
	if found, err := s.existing(t.Context()); err != nil || found.version != v1alpha3 || s.watches != 4 {
		t.Errorf("the version in use is kept while it is served: got %v, %v, %d caches", found, err, s.watches)
	}
}

func TestOnlyOneProbes(t *testing.T) {
	s := newAPIServer(t)
	if _, err := s.existing(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.expire()
	s.probing.Lock()
	if found, err := s.existing(t.Context()); found == nil || err != nil || s.probes != 1 {
		t.Errorf("during a probe the last result holds: got %v, %v, %d probes", found, err, s.probes)
	}
	s.probing.Unlock()
	first := newAPIServer(t)
	first.probing.Lock()
	done := make(chan error)
	go func() {
		_, err := first.existing(t.Context())
		done <- err
	}()
	select {
	case <-done:
		t.Error("without a result the caller waits for the probe")
	case <-time.After(20 * time.Millisecond):
	}
	first.probing.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCheckJobSetCRD(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	crd := jobSetCRDWith(t, "{}")
	crd.Spec.Versions[0].Name = "v1alpha1"
	err := checkJobSetCRD(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd).Build())
	if !isUnavailable(err) || !strings.Contains(err.Error(), "has no version v1alpha2; upgrade JobSet") {
		t.Errorf("got %v", err)
	}
}
