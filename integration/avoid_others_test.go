package integration_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// anotherRemembers has a TrainJob of a namespace remember a node now, beside what it does already.
func (h *harness) anotherRemembers(namespace, reason string, names ...string) {
	h.t.Helper()
	other := newTrainJob("other")
	other.Namespace = namespace
	if err := h.store.Get(h.t.Context(), client.ObjectKeyFromObject(other), other); apierrors.IsNotFound(err) {
		h.create(other)
	}
	for _, name := range names {
		other.Status.Avoided = append(other.Status.Avoided, api.AvoidedNode{Name: name, Reason: reason, Pod: "p",
			Time: metav1.NewTime(h.clock.Now())})
	}
	h.updateStatus(other)
}

// TestKeepsOffOthers holds that a start keeps off what others of its namespace remember, that what waits isn't queued
// for that, and that a place on such a node is taken.
func TestKeepsOffOthers(t *testing.T) {
	for name, c := range map[string]struct {
		namespace, reason string
		change            []func(*kueue.PodSetAssignment)
		want              string
	}{
		"rejected":          {team, avoid.Rejected, nil, "a1.host"},
		"failed early":      {team, avoid.FailedEarly, nil, ""},
		"another namespace": {"other", avoid.Rejected, nil, ""},
		"placed there":      {team, avoid.Rejected, []func(*kueue.PodSetAssignment){onA1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := avoiding(t)
			h.anotherRemembers(c.namespace, c.reason, "a1")
			h.settle("job")
			h.starts(c.change...)
			h.wantOff("it is started", "", c.want)
		})
	}
}

// TestGoneOfOthers holds that nodes that are gone leave room for one that is there and broken.
func TestGoneOfOthers(t *testing.T) {
	h := avoiding(t)
	h.start(dialect.Bundled, func(c *configapi.Configuration) { avoidsForAnHour(c); c.Nodes.AtMost = 2 })
	h.anotherRemembers(team, avoid.Rejected, "a1")
	h.clock.Step(time.Minute)
	h.anotherRemembers(team, avoid.Lost, "spot1", "spot2")
	h.settle("job")
	h.starts()
	h.wantOff("a1 is there", "", "a1.host")
}

// TestOthersFailNoStart holds that a start that contradicts what others remember, because a user's entry comes after
// the integration's and sets the affinity, is one without that.
func TestOthersFailNoStart(t *testing.T) {
	h := avoiding(t)
	job := h.trainJob("job")
	job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager}, { // it has run before
		Manager: "example.com/user", TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
			Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{
				ReplicatedJobs: []trainerapi.ReplicatedJobPatch{{Name: "node", Template: &trainerapi.JobTemplatePatch{
					Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Spec: &trainerapi.PodSpecPatch{
						Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
							RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
								NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
									{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}}}}},
					}}}}}}}}}}}
	h.update(job)
	h.anotherRemembers(team, avoid.Rejected, "a1")
	h.settle("job")
	if events := h.starts(); slices.Contains(events, "FailedToStart") || slices.Contains(events, "KeepsOff") {
		t.Errorf("it is started without that: got %v", events)
	}
}

// TestNeedsWithAll holds that a TrainJob that is admitted with all its pods, or has grown to them, keeps off no node
// that these need, although its minimum didn't.
func TestNeedsWithAll(t *testing.T) {
	h := avoiding(t)
	h.remove(h.trainJob("job"))
	job := sized(4, "2")
	eight := corev1.ResourceList{gpu: resource.MustParse("8")}
	job.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: eight, Limits: eight}
	h.create(job)
	h.remembers("a1")
	h.settle("job")
	h.wantOff("two nodes would be enough", "a1.host", "")
	events := h.starts(func(a *kueue.PodSetAssignment) {
		a.Count, a.ResourceUsage[gpu] = ptr.To[int32](4), resource.MustParse("32")
	})
	if h.wantOff("of a1 to a4, three are left", "a1.host", ""); h.nodes() != 4 || !slices.Contains(events, "NodesTaken") {
		t.Errorf("it is started with %d nodes, which is said: got %v", h.nodes(), events)
	}

	h = growing(t, func(c *configapi.Configuration) { grows(c); avoidsForAnHour(c) })
	for i := range 8 {
		h.addNodes("n" + string(rune('0'+i)))
	}
	h.remembers("n1")
	h.clock.Step(time.Second)
	h.settle("job")
	h.growsBySlice()
	if h.nodes() != 8 || h.startedOff() != "" {
		t.Errorf("eight nodes are all that there are: it is started with %d, off %q", h.nodes(), h.startedOff())
	}
}

// addNodes adds nodes that hold a pod of a TrainJob each.
func (h *harness) addNodes(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.create(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				"pool": "a", corev1.LabelHostname: name + ".host"}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{gpu: resource.MustParse("1")}},
		})
	}
}

// TestOrderOfNodes holds that a Workload is written once, in whatever order a cache lists the nodes.
func TestOrderOfNodes(t *testing.T) {
	h := avoiding(t)
	for _, name := range []string{"a3", "a4", "b1", "b2"} {
		h.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	small := &corev1.Node{}
	h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "a2"}, small))
	four, eight := corev1.ResourceList{gpu: resource.MustParse("4")}, corev1.ResourceList{gpu: resource.MustParse("8")}
	small.Status.Allocatable = four
	h.updateStatus(small)
	rt := &api.ClusterTrainingRuntime{}
	h.must(h.store.Get(t.Context(), client.ObjectKey{Name: "torch"}, rt))
	launcher := node()
	launcher.Name, launcher.Template.Labels = "launcher", nil
	container := &launcher.Template.Spec.Template.Spec.Containers[0]
	container.Name, container.Resources = "launcher", corev1.ResourceRequirements{Requests: four, Limits: four}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{launcher, node()}
	h.update(rt)
	job := h.trainJob("job")
	job.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: eight, Limits: eight}
	h.update(job)
	h.remembers("a2")
	random := rand.New(rand.NewPCG(1, 1))
	h.shown["Node"] = interceptor.NewClient(h.store, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, l, opts...)
			items := l.(*corev1.NodeList).Items
			random.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
			return err
		}})
	h.settle("job")
	h.wantOff("both need their node", "", "")
	for range 20 {
		if _, err := h.reconcile("job"); err != nil || len(h.sent) > 0 {
			t.Fatalf("nothing changes: got %v, %v", h.sent, err)
		}
	}
}
