package managed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// wrapper is a job of another kind, which owns TrainJobs.
var wrapper = objectOf("workload.codeflare.dev/v1beta2", "AppWrapper", "wrapper", "queue")

func objectOf(version, kind, name, queue string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(version)
	o.SetKind(kind)
	o.SetNamespace("ns")
	o.SetName(name)
	o.SetUID(types.UID(name))
	if queue != "" {
		o.SetLabels(map[string]string{constants.QueueLabel: queue})
	}
	return o
}

func controlledBy[T client.Object](o T, owner client.Object) T {
	ref := metav1.OwnerReference{Name: owner.GetName(), UID: owner.GetUID(), Controller: ptr.To(true)}
	ref.APIVersion, ref.Kind = owner.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	o.SetOwnerReferences([]metav1.OwnerReference{ref})
	return o
}

func trainJob(queue string) *api.TrainJob {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job"}}
	if queue != "" {
		job.Labels = map[string]string{constants.QueueLabel: queue}
	}
	return job
}

// queuesOf returns Queues of a cluster with these objects. Reads of the kind that is down fail.
func queuesOf(t *testing.T, change func(*configapi.Kueue), down string, objects ...client.Object) Queues {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, jobset.AddToScheme, kueue.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	scheme.AddKnownTypeWithName(wrapper.GroupVersionKind(), &unstructured.Unstructured{})
	config := &configapi.Default().Kueue
	if change != nil {
		change(config)
	}
	policy, err := PolicyOf(config)
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			kind, err := apiutil.GVKForObject(o, scheme)
			if err == nil && kind.Kind == down {
				err = errors.New("down")
			}
			if err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	return New(c, c, policy)
}

func TestStanding(t *testing.T) {
	_ = jobframework.RegisterExternalJobType(configapi.Default().Kueue.OwnerKinds[0]) // once in a process
	all := func(k *configapi.Kueue) { k.ManageJobsWithoutQueueName = true }
	team := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns",
		Labels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}}}
	present := []client.Object{team, wrapper.DeepCopy()}
	for name, c := range map[string]struct {
		reason   string
		job      *api.TrainJob
		change   func(*configapi.Kueue)
		down     string
		objects  []client.Object
		want     Standing
		suspends bool
		err      string
	}{
		"in a queue": {reason: "it has its own", job: trainJob("queue"), objects: present, want: Queued, suspends: true},
		"in none":    {reason: "Kueue leaves it alone", job: trainJob(""), objects: present},
		"in none, all managed": {reason: "Kueue suspends it", job: trainJob(""), change: all, objects: present,
			want: Queued, suspends: true},
		"another's namespace": {reason: "Kueue doesn't select it", job: trainJob("queue"),
			objects: []client.Object{system}, suspends: true},
		"the same, all managed": {reason: "nor this", job: trainJob(""), change: all, objects: []client.Object{system}},
		"no namespace":          {reason: "it is being deleted", job: trainJob("queue"), suspends: true},
		"unread namespace": {reason: "it isn't known", job: trainJob("queue"), objects: present, down: "Namespace",
			suspends: true, err: "down"},
		"owned": {reason: "it is the owner's", job: controlledBy(trainJob(""), wrapper), objects: present, want: Owned},
		"owner unread": {reason: "it isn't known", job: controlledBy(trainJob(""), wrapper), objects: present,
			down: "AppWrapper", err: "looking for the owner"},
		"another owner": {reason: "Kueue doesn't manage it", objects: present, want: Queued, suspends: true,
			job: controlledBy(trainJob("queue"), objectOf("apps/v1", "ReplicaSet", "made-up", ""))},
	} {
		t.Run(name, func(t *testing.T) {
			q := queuesOf(t, c.change, c.down, c.objects...)
			got, err := q.Standing(t.Context(), c.job)
			if got != c.want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, %v", c.reason, got, err)
			}
			if got, _ := q.Suspends(t.Context(), c.job); got != c.suspends {
				t.Errorf("%s: suspends it: got %t", c.reason, got)
			}
		})
	}
}

func TestPartOf(t *testing.T) {
	const batch, sets = "batch/v1", "jobset.x-k8s.io/v1alpha2"
	launcher := func(queue string) *unstructured.Unstructured { return objectOf(batch, "Job", "launcher", queue) }
	type chain = []*unstructured.Unstructured
	away := controlledBy(trainJob("queue"), objectOf(batch, "Job", "launcher", ""))
	away.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
	for name, c := range map[string]struct {
		reason string
		job    *api.TrainJob
		owners []*unstructured.Unstructured
		all    bool
		down   string
		want   string
	}{
		"of nobody":       {reason: "it stands for itself", job: trainJob("queue")},
		"of a queued Job": {reason: "Kueue suspends the JobSet", owners: chain{launcher("q")}, want: "launcher"},
		"of a Job":        {reason: "nobody suspends it", owners: chain{launcher("")}},
		"of a Job, all":   {reason: "Kueue manages it", owners: chain{launcher("")}, all: true, want: "launcher"},
		"of a JobSet's Job": {reason: "Kueue looks further", owners: chain{launcher(""),
			objectOf(sets, "JobSet", "set", "q")}, want: "set"},
		"of another kind": {reason: "it counts as one without pods", owners: chain{wrapper}},
		"elsewhere":       {reason: "its copy there has no owner", job: away},
		"gone":            {reason: "Kueue's webhook refuses the JobSet", job: controlledBy(trainJob("queue"), launcher(""))},
		"unread":          {reason: "it isn't known", owners: chain{launcher("q")}, down: "Job", want: "down"},
	} {
		t.Run(name, func(t *testing.T) {
			job := c.job
			var objects []client.Object
			for i, owner := range slices.Backward(c.owners) {
				owner = owner.DeepCopy()
				if i+1 < len(c.owners) {
					controlledBy(owner, c.owners[i+1])
				}
				objects = append(objects, owner)
			}
			if job == nil {
				job = controlledBy(trainJob("queue"), c.owners[0])
			}
			q := queuesOf(t, func(k *configapi.Kueue) { k.ManageJobsWithoutQueueName = c.all }, c.down, objects...)
			owner, err := q.PartOf(t.Context(), job)
			got := ptr.Deref(owner, metav1.OwnerReference{}).Name
			if err != nil && strings.Contains(err.Error(), "which controls the TrainJob: down") {
				got = "down"
			}
			if got != c.want {
				t.Errorf("%s: got %q, %v", c.reason, got, err)
			}
		})
	}
	renewed := controlledBy(trainJob("queue"), objectOf(batch, "Job", "launcher", "q"))
	renewed.OwnerReferences[0].UID = "earlier"
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "launcher", UID: "launcher",
		Labels: map[string]string{constants.QueueLabel: "q"}}}
	if owner, err := queuesOf(t, nil, "", job).PartOf(t.Context(), renewed); owner != nil || err != nil {
		t.Errorf("a Job of the same name isn't the owner: got %v, %v", owner, err)
	}
}

func TestLeadsAway(t *testing.T) {
	check := func(name, controller string) *kueue.AdmissionCheck {
		c := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.ControllerName = controller
		return c
	}
	queue := func(name string, checks ...kueue.AdmissionCheckReference) []client.Object {
		lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		lq.Spec.ClusterQueue = kueue.ClusterQueueReference(name)
		cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if len(checks) > 0 {
			cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
		}
		for _, name := range checks {
			cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks,
				kueue.AdmissionCheckStrategyRule{Name: name})
		}
		return []client.Object{lq, cq}
	}
	objects := slices.Concat(queue("away", "missing", "zones", "multikueue"), queue("checked", "zones"), queue("here"),
		queue("broken")[:1], []client.Object{check("zones", "example.com/z"),
			check("multikueue", kueue.MultiKueueControllerName)})
	for name, want := range map[string]bool{
		"away": true, "checked": false, "here": false, "broken": false, "unknown": false, "": false,
	} {
		for _, listed := range []bool{true, false} {
			q := queuesOf(t, func(k *configapi.Kueue) { k.MultiKueue = &listed }, "", objects...)
			if got, err := q.LeadsAway(t.Context(), "ns", name); err != nil || got != (want && listed) {
				t.Errorf("queue %q, dispatched %t: got %t, %v", name, listed, got, err)
			}
		}
	}
	for kind, want := range map[string]string{
		"LocalQueue": "reading LocalQueue ns/away: down", "ClusterQueue": "reading ClusterQueue away: down",
		"AdmissionCheck": "reading AdmissionCheck missing: down",
	} {
		q := queuesOf(t, func(k *configapi.Kueue) { k.MultiKueue = new(true) }, kind, objects...)
		if got, err := q.LeadsAway(t.Context(), "ns", "away"); got || err == nil || err.Error() != want {
			t.Errorf("got %t, %v, want %q", got, err, want)
		}
	}
}

func TestNamed(t *testing.T) {
	high := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}}
	defaultQueue := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default"}}
	q := queuesOf(t, nil, "", high, defaultQueue)
	if is, err := q.PriorityClassExists(t.Context(), "high"); !is || err != nil {
		t.Errorf("it exists: got %t, %v", is, err)
	}
	if is, err := q.PriorityClassExists(t.Context(), "typo"); is || err != nil {
		t.Errorf("it doesn't: got %t, %v", is, err)
	}
	if has, err := q.HasDefaultQueue(t.Context(), "ns"); !has || err != nil {
		t.Errorf("it has one: got %t, %v", has, err)
	}
	if has, err := q.HasDefaultQueue(t.Context(), "other"); has || err != nil {
		t.Errorf("it has none: got %t, %v", has, err)
	}
	down := queuesOf(t, nil, "WorkloadPriorityClass")
	if _, err := down.PriorityClassExists(t.Context(), "high"); err == nil {
		t.Error("it isn't known")
	}
	job := &metav1.OwnerReference{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob"}
	if !IsTrainJob(job) || IsTrainJob(nil) || IsTrainJob(&metav1.OwnerReference{Kind: "TrainJob"}) {
		t.Error("a TrainJob is one by kind and group")
	}
}

func TestPolicyOf(t *testing.T) {
	for want, change := range map[string]func(*configapi.Kueue){
		`kueue.ownerKinds[0] is "Job"; write Kind.version.group`: func(k *configapi.Kueue) { k.OwnerKinds = []string{"Job"} },
		"kueue.managedJobsNamespaceSelector: ": func(k *configapi.Kueue) {
			k.ManagedJobsNamespaceSelector = &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
		},
	} {
		config := &configapi.Default().Kueue
		change(config)
		if _, err := PolicyOf(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
