package trial

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// maker is a Trainer that makes what is in Effective.Built, and objects.
type maker struct {
	err     error
	objects []Object
}

func (m maker) Startable(
	_ context.Context, job *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec, e *overrides.Effective,
) (Own, func() (*Needs, error), error) {
	needs := func() (*Needs, error) {
		return &Needs{ReplicatedJobs: e.Built, Fewest: fewest(job, rt, e), Objects: slices.Clone(m.objects)}, nil
	}
	return Own{}, needs, m.err
}

func (maker) CreatesJobSets() bool { return true }

// ground is an API server that answers each dry run with an error, nil for none.
type ground struct {
	*Trial
	*maker
	answer, list, read error
	asked              []*corev1.Pod
	others             int                    // objects of other kinds that were asked about
	accepts            func(*corev1.Pod) bool // what answer doesn't refuse
	ofJobs             error                  // the answer to a Job's pod, if it isn't accepted; nil for answer
	refused            string                 // the kind of an object that is refused
	clock              *clocktesting.FakeClock
	created            time.Time // the TrainJob
	annotations        map[string]string
	runtime            *trainerapi.TrainingRuntimeSpec
}

func newGround(next error, quotas ...client.Object) *ground {
	g := &ground{clock: clocktesting.NewFakeClock(time.Unix(1_000_000, 0))}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kueue.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	there := fake.NewClientBuilder().WithScheme(scheme).WithObjects(quotas...).Build()
	c := interceptor.NewClient(there, interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if asked := (&client.CreateOptions{}).ApplyOptions(options); len(asked.DryRun) == 0 {
				return errors.New("it would be kept")
			}
			pod, isPod := o.DeepCopyObject().(*corev1.Pod)
			if !isPod {
				g.others++
				kind, err := apiutil.GVKForObject(o, scheme)
				if u, ok := o.(*unstructured.Unstructured); ok {
					kind, err = u.GroupVersionKind(), nil
				}
				if err == nil && kind.Kind == g.refused {
					return apierrors.NewBadRequest("no")
				}
				return err
			}
			g.asked = append(g.asked, pod)
			if g.accepts != nil && g.accepts(pod) {
				return nil
			}
			if g.ofJobs != nil && metav1.GetControllerOf(pod).Kind == "Job" {
				return g.ofJobs
			}
			return g.answer
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if g.read != nil {
				return g.read
			}
			return c.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, options ...client.ListOption) error {
			if g.list != nil {
				return g.list
			}
			return c.List(ctx, l, options...)
		},
	})
	g.maker = &maker{err: next}
	g.runtime = &trainerapi.TrainingRuntimeSpec{}
	g.Trial = New(c, c, g.clock, g.maker)
	return g
}

func (g *ground) startable(namespace string, e *overrides.Effective) error {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "job",
		CreationTimestamp: metav1.NewTime(g.created)}}
	for key, value := range g.annotations {
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, key, value)
	}
	return g.Trial.Startable(context.Background(), job, g.runtime, e)
}

// jobs is what a TrainJob of an initializer, and of nodes with four GPUs each, runs.
func jobs(nodes int32) *overrides.Effective {
	data := jobset.ReplicatedJob{Name: "data", Replicas: 1}
	data.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "data"}}
	node := jobset.ReplicatedJob{Name: "node", Replicas: 1,
		DependsOn: []jobset.DependsOn{{Name: "data", Status: jobset.DependencyComplete}}}
	node.Template.Spec.Parallelism = ptr.To(nodes)
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
	node.Template.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "node", Resources: corev1.ResourceRequirements{Limits: gpus}},
	}
	node.Template.Spec.Template.Labels = map[string]string{
		"team": "a", "kueue.x-k8s.io/queue-name": "q", "jobset.sigs.k8s.io/jobset-name": "another",
	}
	all := []jobset.ReplicatedJob{data, node}
	return &overrides.Effective{ReplicatedJobs: all, Built: all}
}

func forbidden(name, says string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, name, errors.New(says))
}

func quotaOf(name string, hard corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
		Spec: corev1.ResourceQuotaSpec{Hard: hard, Scopes: scopes}, Status: corev1.ResourceQuotaStatus{Hard: hard}}
}

func TestStartable(t *testing.T) {
	list := func(name, amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
	}
	const noDryRun = `admission webhook "a.b" does not support dry run`
	for name, c := range map[string]struct {
		answer, list, next error
		quota              *corev1.ResourceQuota
		says               string // by which it is blocked
		pending            string // for which it waits
		other              string
	}{
		"taken":                       {},
		"what comes before":           {next: errors.New("a name is taken"), other: "a name is taken"},
		"a pod of that name":          {answer: apierrors.NewAlreadyExists(schema.GroupResource{Resource: "pods"}, "check")},
		"a webhook with side effects": {answer: apierrors.NewBadRequest(noDryRun)},
		"a webhook that quotes that": {answer: apierrors.NewBadRequest("it says: " + noDryRun),
			says: "does not support dry run"},
		"a quota that is used up": {answer: forbidden("check",
			"exceeded quota: gpus, requested: pods=1,requests.memory=1Gi, used: pods=2,requests.memory=0, "+
				"limited: pods=2,requests.memory=1Gi")},
		"a quota that one object is larger than": {answer: forbidden("check",
			"exceeded quota: storage, "+
				"requested: persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/requests.storage=100Gi, "+
				"used: persistentvolumeclaims=0,fast.storageclass.storage.k8s.io/requests.storage=0, "+
				"limited: persistentvolumeclaims=10,fast.storageclass.storage.k8s.io/requests.storage=10Gi"),
			says: "fast.storageclass.storage.k8s.io/requests.storage=10Gi"},
		"a quota that needs limits": {answer: forbidden("check", "failed quota: gpus: must specify limits.cpu"),
			says: "must specify limits.cpu"},
		"no ServiceAccount": {answer: forbidden("check", `error looking up service account team/nobody`),
			says: "a pod of its ReplicatedJob data is refused"},
		"an invalid pod": {answer: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "check", nil),
			says: "what namespace team allows"},
		"no right to ask":    {answer: forbidden("", "User \"manager\" cannot create resource \"pods\"")},
		"no answer":          {answer: apierrors.NewServiceUnavailable("down"), pending: "a pod of its ReplicatedJob data"},
		"quotas unread":      {list: apierrors.NewServiceUnavailable("down"), pending: "the ResourceQuotas of namespace"},
		"no right to quotas": {list: forbidden("", "User \"manager\" cannot list resource \"resourcequotas\"")},
		"a quota with room":  {quota: quotaOf("gpus", list("requests.nvidia.com/gpu", "8"))},
		"a quota that is too small": {quota: quotaOf("gpus", list("requests.nvidia.com/gpu", "7")),
			says: "ResourceQuota gpus is smaller than what the TrainJob needs: 8 of requests.nvidia.com/gpu, of 7"},
		"a quota for what runs at a time": {quota: quotaOf("two", list("pods", "2"))},
		"a quota of too few pods":         {quota: quotaOf("one", list("count/pods", "1")), says: "3 of count/pods, of 1"},
		"a quota for other pods": {
			quota: quotaOf("ending", list("pods", "0"), corev1.ResourceQuotaScopeTerminating)},
		"a quota for other things": {quota: quotaOf("maps", list("count/configmaps", "0"))},
	} {
		t.Run(name, func(t *testing.T) {
			var quotas []client.Object
			if c.quota != nil {
				quotas = append(quotas, c.quota)
			}
			g := newGround(c.next, quotas...)
			g.answer, g.list = c.answer, c.list
			err := g.startable("team", jobs(2))
			blocked, pending := (*admission.BlockedError)(nil), (*admission.PendingError)(nil)
			switch {
			case c.says != "":
				if !errors.As(err, &blocked) || blocked.Reason != admission.ReasonPodsRefused ||
					!strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %q", err, c.says)
				}
			case c.pending != "":
				if !errors.As(err, &pending) || !strings.Contains(err.Error(), c.pending) {
					t.Errorf("got %v, want %q", err, c.pending)
				}
			case fmt.Sprint(err) != c.other && (err != nil || c.other != ""):
				t.Errorf("got %v, want %q", err, c.other)
			}
		})
	}
}

// TestAsked holds that one TrainJob of a burst asks, once for each ReplicatedJob and namespace, and again after a time.
func TestAsked(t *testing.T) {
	g, e := newGround(nil), jobs(2)
	expect := func(what string, err error, asked int) {
		t.Helper()
		if (err != nil) != (g.answer != nil) || len(g.asked) != asked {
			t.Errorf("%s: %v, asked %d times, want %d", what, err, len(g.asked), asked)
		}
		g.asked = nil
	}
	expect("the first", g.startable("team", e), 2)
	pod := newGround(nil)
	pod.startable("team", e)
	if got := pod.asked[1]; len(got.Labels) != 1 || got.Labels["team"] != "a" || got.Namespace != "team" ||
		got.Spec.RestartPolicy != corev1.RestartPolicyOnFailure || metav1.GetControllerOf(got).Name != "job" {
		t.Errorf("asked for %v", got)
	}
	expect("another", g.startable("team", e), 0)
	expect("its equal", g.startable("team", jobs(2)), 0)
	g.runtime = &trainerapi.TrainingRuntimeSpec{}
	g.runtime.Template.Spec.VolumeClaimPolicies = []jobset.VolumeClaimPolicy{{}}
	expect("its equal of a runtime with claims", g.startable("team", jobs(2)), 2)
	g.runtime = &trainerapi.TrainingRuntimeSpec{}
	expect("in another namespace", g.startable("other", e), 2)
	expect("of another shape", g.startable("team", jobs(3)), 2)
	g.clock.Step(acceptedFor)
	g.answer = forbidden("check", "no more")
	expect("later", g.startable("team", e), 1)
	expect("refused", g.startable("team", e), 0)
	g.clock.Step(refusedRetry)
	g.answer = nil
	expect("mended", g.startable("team", e), 2)
	g.answer = apierrors.NewServiceUnavailable("down")
	expect("nobody answers", g.startable("down", e), 1)
	expect("its equal meanwhile", g.startable("down", jobs(2)), 0)
	g.clock.Step(unansweredRetry)
	g.answer = nil
	expect("answered", g.startable("down", e), 2)
	g.created = g.clock.Now()
	g.answer = forbidden("check", "no such ServiceAccount")
	if err := g.startable("new", e); !errors.As(err, new(*admission.PendingError)) {
		t.Errorf("a new TrainJob: got %v", err)
	}
	expect("a second later", g.startable("new", e), 1)
	g.clock.Step(newRetry)
	expect("and another", g.startable("new", e), 1)
	g.clock.Step(newFor)
	if err := g.startable("new", e); !errors.As(err, new(*admission.BlockedError)) {
		t.Errorf("it is new no more: got %v", err)
	}
}
