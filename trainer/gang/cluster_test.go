package gang

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// cluster is Gangs on a fake client, which is both the API server and a cache that is never stale.
type cluster struct {
	*Gangs
	version *version
	client  client.Client
	// fails returns the API server's error for a write; nil for success.
	fails func(verb string, o client.Object) error
	job   *api.TrainJob
	js    *jobset.JobSet
}

// newCluster returns a cluster that serves the best version.
func newCluster(t *testing.T, mode api.GangMode) *cluster {
	t.Helper()
	return newClusterWith(t, versions[0], mode)
}

// onEach runs a test on clusters that serve one version each.
func onEach(t *testing.T, mode api.GangMode, test func(*testing.T, *cluster)) {
	t.Helper()
	for _, v := range versions {
		t.Run(v.Version, func(t *testing.T) { test(t, newClusterWith(t, v, mode)) })
	}
}

func newClusterWith(t *testing.T, v *version, mode api.GangMode) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s, uids := &cluster{version: v, fails: func(string, client.Object) error { return nil }}, 0
	workload := (&served{version: v}).emptyWorkload()
	empty := v.object("PodGroup", types.NamespacedName{})
	s.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(empty).
		WithIndex(empty, ownerIndex, byOwner).WithIndex(workload, ownerIndex, byOwner).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				if err := s.fails("create", o); err != nil {
					return err
				}
				if isPodGroup(o) {
					o.SetFinalizers([]string{protection, "example.com/other"})
				}
				uids++
				o.SetUID(types.UID(fmt.Sprint(uids)))
				return c.Create(ctx, o, options...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
				options ...client.PatchOption) error {
				if err := s.fails("patch", o); err != nil {
					return err
				}
				return c.Patch(ctx, o, patch, options...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
				if err := s.fails("delete", o); err != nil {
					return err
				}
				return c.Delete(ctx, o, options...)
			},
			List: listMetadata,
		}).Build()
	s.Gangs = NewGangs(t.Context(), Config{
		Client: s.client, Reader: s.client, JobsOf: store.NewPods(s.client, s.client).JobsOf,
		Recorder: events.NewFakeRecorder(100), Clock: clock.RealClock{}, Mode: mode, Policy: api.GangPolicyGang,
	})
	s.probed(availability{served: &served{version: v, objects: s.client}}, nil)
	s.job = &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "u", Generation: 2}}
	return s
}

// listMetadata lists also the metadata of kinds that the scheme doesn't know, which the fake client can't.
func listMetadata(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	metadata, ok := list.(*metav1.PartialObjectMetadataList)
	if !ok || metadata.GroupVersionKind().GroupVersion() == schedulingv1alpha2.SchemeGroupVersion {
		return c.List(ctx, list, options...)
	}
	whole := &unstructured.UnstructuredList{}
	whole.SetGroupVersionKind(metadata.GroupVersionKind())
	if err := c.List(ctx, whole, options...); err != nil {
		return err
	}
	for i := range whole.Items {
		var item metav1.PartialObjectMetadata
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(whole.Items[i].Object, &item)
		if err != nil {
			return err
		}
		metadata.Items = append(metadata.Items, item)
	}
	return nil
}

// probed sets what the last probe found; it holds for the whole test.
func (s *cluster) probed(found availability, err error) {
	s.prober.last = probeResult{availability: found, err: err, probed: time.Now(), expires: time.Now().Add(time.Hour)}
}

// start creates the groups of a JobSet, and sets js to the JobSet.
func (s *cluster) start(t *testing.T, jobs string) (skipped, err error) {
	t.Helper()
	spec := specOf(t, "replicatedJobs:\n"+jobs)
	data, err := yaml.Marshal(&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}},
		Spec: *spec})
	if err != nil {
		t.Fatal(err)
	}
	applied := jobsetac.JobSet("train", "team")
	if err := yaml.Unmarshal(data, applied); err != nil {
		t.Fatal(err)
	}
	if skipped, err = s.Make(t.Context(), s.job, &trainerapi.TrainingRuntimeSpec{}, spec, applied); err != nil {
		return nil, err
	}
	if data, err = yaml.Marshal(applied); err != nil {
		t.Fatal(err)
	}
	s.js = &jobset.JobSet{}
	if err := yaml.Unmarshal(data, s.js); err != nil {
		t.Fatal(err)
	}
	s.created.Clear() // the cache shows them
	return skipped, nil
}

// keep observes the groups, decides, and keeps them, as a reconcile does.
func (s *cluster) keep(
	t *testing.T, js *jobset.JobSet, pods []corev1.Pod, running bool,
) (*metav1.Condition, time.Duration, error) {
	t.Helper()
	groups, err := s.Observe(t.Context(), s.job, js, pods, running)
	if err != nil {
		return nil, 0, err
	}
	outlook := groups.Outlook()
	return outlook.Condition, outlook.Again, s.Keep(t.Context(), outlook)
}

// objects returns what exists, as "name policy".
func (s *cluster) objects(t *testing.T) string {
	t.Helper()
	workloads := &metav1.PartialObjectMetadataList{}
	workloads.SetGroupVersionKind(s.version.WithKind("WorkloadList"))
	if err := s.client.List(t.Context(), workloads); err != nil {
		t.Fatal(err)
	}
	var found []string
	base := planOf(s.js)
	short := func(name string) string {
		if base == nil {
			return name
		}
		return strings.TrimPrefix(name, base.base)
	}
	for _, w := range workloads.Items {
		found = append(found, fmt.Sprintf("workload%s", short(w.Name)))
	}
	for _, pg := range s.podGroups(t) {
		policy := "basic"
		if minCount := s.version.read(pg).minCount; minCount != 0 {
			policy = fmt.Sprint(minCount)
		}
		if !pg.GetDeletionTimestamp().IsZero() {
			policy += " terminating"
		}
		found = append(found, fmt.Sprintf("%s=%s", short(pg.GetName()), policy))
	}
	return strings.Join(found, " ")
}

func (s *cluster) pod(name, group string, phase corev1.PodPhase, node string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute))},
		Spec: corev1.PodSpec{NodeName: node,
			SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To(planOf(s.js).base + "-" + group)}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

const twoPhases = "- {name: a, replicas: 1, template: {spec: {parallelism: 2, template: {spec: {containers: []}}}}}\n" +
	"- {name: b, replicas: 1, template: {spec: {parallelism: 3, template: {spec: {containers: []}}}}, dependsOn: " +
	"[{name: a, status: Complete}]}\n"

func (s *cluster) podGroups(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(s.version.WithKind("PodGroupList"))
	if err := s.client.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// say sets kube-scheduler's condition of a group, which is of some time ago.
func (s *cluster) say(t *testing.T, group string, status metav1.ConditionStatus, ago time.Duration) {
	t.Helper()
	pg := s.of("PodGroup", planOf(s.js).base+"-"+group)
	patch := fmt.Sprintf(`{"status": {"conditions": [{"type": %q, "status": %q, "reason": "Unschedulable", "message": "",
		"lastTransitionTime": %q}]}}`, s.version.scheduled, status, time.Now().Add(-ago).UTC().Format(time.RFC3339))
	if err := s.client.Status().Patch(t.Context(), pg, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// of returns an object of a kind and a name that has nothing to do with the TrainJob.
func (s *cluster) of(kind, name string) client.Object {
	return s.version.object(kind, types.NamespacedName{Namespace: "team", Name: name})
}

func isPodGroup(o client.Object) bool { return o.GetObjectKind().GroupVersionKind().Kind == "PodGroup" }

// withoutOthers removes the finalizers of other owners than Kubernetes.
func (s *cluster) withoutOthers(t *testing.T) {
	t.Helper()
	for _, pg := range s.podGroups(t) {
		if len(pg.GetFinalizers()) != 2 {
			continue
		}
		pg.SetFinalizers(pg.GetFinalizers()[:1])
		if err := s.client.Update(t.Context(), pg); err != nil {
			t.Fatal(err)
		}
	}
}

// brokenReader fails all reads.
type brokenReader struct{ client.Reader }

func (brokenReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("no cache")
}

func (brokenReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no connection")
}
