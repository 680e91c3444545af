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
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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
	context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective,
) (Own, error) {
	return Own{}, m.err
}

func (m maker) Needs(
	_ context.Context, job *api.TrainJob, rt *trainerapi.TrainingRuntimeSpec, e *overrides.Effective, _ Own,
) (*Needs, error) {
	return &Needs{ReplicatedJobs: e.Built, Fewest: fewest(job, rt, e), Objects: slices.Clone(m.objects)}, nil
}

func (maker) Room(*api.TrainJob, int) error { return nil }

// ground is an API server that answers each dry run with an error, nil for none.
type ground struct {
	*Trial
	*maker
	answer, list error
	asked        []*corev1.Pod
	accepts      func(*corev1.Pod) bool // what answer doesn't refuse
	refused      string                 // the kind of an object that is refused
	clock        *clocktesting.FakeClock
	created      time.Time // the TrainJob
	annotations  map[string]string
	runtime      *trainerapi.TrainingRuntimeSpec
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
			return g.answer
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
		"a quota that is used up": {answer: forbidden("check", "exceeded quota: gpus, requested: pods=1, used: pods=2")},
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
				if !errors.As(err, &blocked) || blocked.Reason != ReasonPodsRefused || !strings.Contains(err.Error(), c.says) {
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
	if got := pod.asked[1]; got.Labels["kueue.x-k8s.io/queue-name"] != "" || got.Labels["team"] != "a" || got.Namespace != "team" ||
		got.Spec.RestartPolicy != corev1.RestartPolicyOnFailure || metav1.GetControllerOf(got).Name != "job-node-0" {
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

// TestPolicies holds that a policy that asks for what a flavor brings keeps nobody from the queue, and another does.
func TestPolicies(t *testing.T) {
	pool := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "pool"},
		Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": "a"}}}
	plain := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}
	for says, flavors := range map[string][]client.Object{
		"": {plain, pool}, "needs a pool": {plain},
	} {
		g := newGround(nil, flavors...)
		g.accepts = func(pod *corev1.Pod) bool { return pod.Spec.NodeSelector["pool"] != "" }
		g.answer = forbidden("check", "ValidatingAdmissionPolicy 'pools' with binding 'all' denied request: needs a pool")
		err := g.startable("team", jobs(2))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%d flavors: got %v", len(flavors), err)
		}
	}
	g := newGround(nil, pool)
	g.answer = forbidden("check", `violates PodSecurity "restricted:latest"`)
	if err := g.startable("team", jobs(2)); err == nil {
		t.Error("Pod Security doesn't look at nodes")
	}
}

// TestPoliciesOfWhatRuns holds that a policy that every pod of a JobSet satisfies keeps nobody from the queue, and what
// isn't satisfied by what runs does. One that looks at who creates pods can't be tried.
func TestPoliciesOfWhatRuns(t *testing.T) {
	policy := func(expression string) *admissionregistrationv1.ValidatingAdmissionPolicy {
		p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}
		p.Spec.Validations = []admissionregistrationv1.Validation{{Expression: expression}}
		return p
	}
	labeled := func(key string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool { return pod.Labels[key] != "" }
	}
	const byPolicy = "ValidatingAdmissionPolicy 'pods' with binding 'all' denied request: no"
	for name, c := range map[string]struct {
		says    string
		policy  *admissionregistrationv1.ValidatingAdmissionPolicy
		accepts func(*corev1.Pod) bool
		refused bool
	}{
		"a Job's label":    {byPolicy, policy("has(object.metadata.labels)"), labeled("batch.kubernetes.io/job-name"), false},
		"an older one":     {byPolicy, policy("has(object.metadata.labels)"), labeled("controller-uid"), false},
		"a JobSet's label": {byPolicy, policy("has(object.metadata.labels)"), labeled(jobset.JobSetNameKey), false},
		"a Job's by a webhook": {`admission webhook "a.b" denied the request: no`, nil,
			labeled(jobset.ReplicatedJobNameKey), false},
		"a Job as the owner": {byPolicy, policy("object.metadata.ownerReferences[0].kind == 'Job'"),
			func(pod *corev1.Pod) bool { return metav1.GetControllerOf(pod).Kind == "Job" }, false},
		"another label": {byPolicy, policy("has(object.metadata.labels)"), labeled("cost-center"), true},
		"who creates it": {byPolicy, policy("request.userInfo.username == 'system:serviceaccount:kube-system:job-controller'"),
			nil, false},
		"who may create it":          {byPolicy, policy("authorizer.requestResource.check('x').allowed()"), nil, false},
		"a policy that is gone":      {byPolicy, nil, nil, true},
		"a webhook, of who knows":    {`admission webhook "a.b" denied the request: no`, nil, nil, true},
		"a webhook that names a CEL": {`admission webhook "a.b" denied the request: userInfo`, nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(nil)
			if c.policy != nil {
				g = newGround(nil, c.policy)
			}
			g.answer, g.accepts = forbidden("check", c.says), c.accepts
			if err := g.startable("team", jobs(2)); (err != nil) != c.refused {
				t.Errorf("got %v", err)
			}
		})
	}
}

// object returns an object of a TrainJob, of what JSON says.
func object(t *testing.T, text string) Object {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return Object{Unstructured: o}
}

// TestObjects holds that all that a TrainJob has at a time is compared with a ResourceQuota, and tried.
func TestObjects(t *testing.T) {
	const js = `{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "job"}}`
	claim := object(t, `{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-job"},
		"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "10Gi"}}}}`)
	there := Object{Unstructured: claim.Unstructured, Untried: true}
	config := object(t, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job-mpi"}}`)
	for name, c := range map[string]struct {
		hard, amount, says string
		refused            string
		claim              Object
		js                 string
	}{
		"Jobs":                {hard: "count/jobs.batch", amount: "1", says: "2 of count/jobs.batch, of 1"},
		"room for Jobs":       {hard: "count/jobs.batch", amount: "2"},
		"JobSets":             {hard: "count/jobsets.jobset.x-k8s.io", amount: "0", says: "1 of count/jobsets.jobset.x-k8s.io"},
		"claims":              {hard: "persistentvolumeclaims", amount: "0", says: "1 of persistentvolumeclaims, of 0"},
		"counted claims":      {hard: "count/persistentvolumeclaims", amount: "0", says: "1 of count/persistentvolumeclaims"},
		"storage":             {hard: "requests.storage", amount: "9Gi", says: "10Gi of requests.storage, of 9Gi"},
		"a claim that fits":   {hard: "requests.storage", amount: "10Gi"},
		"one that is there":   {hard: "requests.storage", amount: "10Gi", claim: there},
		"there, and no room":  {hard: "requests.storage", amount: "9Gi", claim: there, says: "10Gi of requests.storage"},
		"storage of a class":  {hard: "fast.storageclass.storage.k8s.io/requests.storage", amount: "1Gi", says: "10Gi of fast."},
		"of another class":    {hard: "slow.storageclass.storage.k8s.io/requests.storage", amount: "1Gi"},
		"ConfigMaps":          {hard: "configmaps", amount: "0", says: "1 of configmaps, of 0"},
		"Services":            {hard: "services", amount: "0", says: "1 of services, of 0"},
		"counted Services":    {hard: "count/services", amount: "0", says: "1 of count/services, of 0"},
		"no Service":          {hard: "services", amount: "0", js: `{"spec": {"network": {"enableDNSHostnames": false}}, ` + js[1:]},
		"no load balancer":    {hard: "services.loadbalancers", amount: "0"},
		"pods that stay":      {hard: "count/pods", amount: "2", says: "3 of count/pods, of 2"},
		"pods at a time":      {hard: "pods", amount: "2"},
		"a refused JobSet":    {refused: "JobSet", says: "is refused: no"},
		"a refused claim":     {refused: "PersistentVolumeClaim", says: "is refused: no"},
		"one there isn't":     {refused: "PersistentVolumeClaim", claim: there},
		"a refused Job":       {refused: "Job", says: "a Job of its ReplicatedJob data is refused: no"},
		"a refused Service":   {refused: "Service", says: "its Service is refused: no"},
		"no Service, refused": {refused: "Service", js: `{"spec": {"network": {"enableDNSHostnames": false}}, ` + js[1:]},
		"a refused ConfigMap": {refused: "ConfigMap", says: "is refused: no"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(nil)
			if c.hard != "" {
				g = newGround(nil, quotaOf("q", corev1.ResourceList{corev1.ResourceName(c.hard): resource.MustParse(c.amount)}))
			}
			g.refused = c.refused
			if c.claim.Unstructured == nil {
				c.claim = claim
			}
			if c.js == "" {
				c.js = js
			}
			g.objects = []Object{c.claim, config, object(t, c.js)}
			err := g.startable("team", jobs(2))
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			g.objects = nil
			if err := g.startable("elsewhere", jobs(2)); err != nil {
				t.Errorf("another namespace has no such quota: got %v", err)
			}
		})
	}
}

// TestFewestNodes holds that a TrainJob that may be admitted with fewer nodes fits a ResourceQuota of as many, and that
// it shares no answer with one that may not.
func TestFewestNodes(t *testing.T) {
	g := newGround(nil, quotaOf("gpus", corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("8")}))
	g.runtime.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](4)}
	for least, fits := range map[string]bool{"": false, "3": false, "2": true, "1": true} {
		g.annotations = nil
		if least != "" {
			g.annotations = map[string]string{overrides.MinParallelismAnnotation: least}
		}
		if err := g.startable("team", jobs(4)); (err == nil) != fits {
			t.Errorf("at least %q nodes of four GPUs: got %v", least, err)
		}
	}
}

func TestPhases(t *testing.T) {
	after := func(name string, status jobset.DependsOnStatus, on ...string) jobset.ReplicatedJob {
		rj := jobset.ReplicatedJob{Name: name}
		for _, o := range on {
			rj.DependsOn = append(rj.DependsOn, jobset.DependsOn{Name: o, Status: status})
		}
		return rj
	}
	got := phases([]jobset.ReplicatedJob{
		after("a", ""), after("b", jobset.DependencyComplete, "a"), after("c", jobset.DependencyReady, "b"),
		after("d", ""), after("e", jobset.DependencyComplete, "c", "d"),
	})
	if fmt.Sprint(got) != "[[0 3] [1 2] [4]]" {
		t.Errorf("got %v", got)
	}
}
