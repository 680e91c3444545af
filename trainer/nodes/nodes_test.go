package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// ground is a cluster of twenty nodes, and a Keeper.
type ground struct {
	client.WithWatch
	t        *testing.T
	keeper   *Keeper
	clock    *clocktesting.FakeClock
	recorder *events.FakeRecorder
	patches  int
	rejects  error
}

func newGround(t *testing.T, change func(*configapi.Nodes)) *ground {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme),
		kueue.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	avoided.Reset()
	g := &ground{t: t, recorder: events.NewFakeRecorder(100),
		clock: clocktesting.NewFakeClock(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))}
	g.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&api.TrainJob{}).Build()
	for i := range 20 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}
		node.Spec.Taints = []corev1.Taint{{Key: "other", Effect: corev1.TaintEffectNoExecute}}
		g.must(g.Create(t.Context(), node))
	}
	settings := configapi.Default().Nodes
	settings.AvoidFor.Duration = time.Hour
	change(&settings)
	counted := interceptor.NewClient(g.WithWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			options ...client.PatchOption) error {
			if g.patches++; g.rejects != nil {
				return g.rejects
			}
			return c.Patch(ctx, o, p, options...)
		},
	})
	g.keeper = New(counted, g.recorder, g.clock, settings)
	return g
}

func (g *ground) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// avoids adds a TrainJob of a namespace that avoids a node from now on.
func (g *ground) avoids(namespace, node, reason string) {
	g.t.Helper()
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "job-"}}
	job.Status.Avoided = []api.AvoidedNode{{Name: node, Reason: reason, Time: metav1.NewTime(g.clock.Now())}}
	status := job.Status
	g.must(g.Create(g.t.Context(), job))
	job.Status = status
	g.must(g.Status().Update(g.t.Context(), job))
}

// keeps returns which nodes have the taint, and how many events were sent.
func (g *ground) keeps() (tainted string, sent int) {
	g.t.Helper()
	g.must(g.keeper.Keep(g.t.Context()))
	var nodes corev1.NodeList
	g.must(g.List(g.t.Context(), &nodes))
	for i := range nodes.Items {
		if hasTaint(&nodes.Items[i]) {
			tainted = strings.TrimSpace(tainted + " " + nodes.Items[i].Name)
		}
		if nodes.Items[i].Spec.Taints[0].Key != "other" {
			g.t.Errorf("others' taints stay: got %+v", nodes.Items[i].Spec.Taints)
		}
	}
	for ; len(g.recorder.Events) > 0; sent++ {
		if e := <-g.recorder.Events; !strings.HasPrefix(e, "Warning AvoidedByTrainJobs ") {
			g.t.Errorf("got event %q", e)
		}
	}
	return tainted, sent
}

func (g *ground) want(reason, tainted string, sent int) {
	g.t.Helper()
	if got, events := g.keeps(); got != tainted || events != sent {
		g.t.Errorf("%s: got %q, %d events; want %q, %d", reason, got, events, tainted, sent)
	}
}

func taints(n *configapi.Nodes) { n.Taint = true }

// TestKeep holds that no namespace has a node tainted or told of alone, and that the taint goes with the time.
func TestKeep(t *testing.T) {
	g := newGround(t, taints)
	g.want("nobody avoids one", "", 0)
	for range 5 {
		g.avoids("a", "n1", avoid.Rejected)
	}
	g.avoids("b", "n2", avoid.Rejected)
	g.avoids("c", "n3", avoid.NotStartedAlone)
	g.avoids("d", "n3", avoid.NotStartedAlone)
	g.avoids("a", "gone", avoid.Lost)
	g.avoids("b", "gone", avoid.Lost)
	g.want("one namespace each, images of theirs, and a node that is gone", "", 0)
	g.clock.Step(time.Minute)
	g.avoids("b", "n1", avoid.Lost)
	g.want("two namespaces", "n1", 1)
	if n := testutil.ToFloat64(avoided.WithLabelValues("n1")); n != 2 || testutil.CollectAndCount(avoided) != 1 {
		t.Errorf("got %f", n)
	}
	patches := g.patches
	g.want("once", "n1", 0)
	if g.patches != patches {
		t.Error("nothing has changed, and it writes")
	}
	g.clock.Step(59 * time.Minute)
	g.want("the first have forgotten it", "", 0)
	if testutil.CollectAndCount(avoided) != 0 {
		t.Error("so has the metric")
	}
	g.avoids("c", "n1", avoid.Rejected)
	g.want("again", "n1", 1)
}

// TestKeepBounds holds that it taints no more than a tenth of the nodes, that the admin decides of how many namespaces,
// and that it taints none without the setting.
func TestKeepBounds(t *testing.T) {
	g := newGround(t, taints)
	for i := range 10 {
		g.avoids("a", fmt.Sprintf("n%d", i), avoid.Rejected)
		g.avoids("b", fmt.Sprintf("n%d", i), avoid.Rejected)
	}
	g.want("two of twenty", "n0 n1", 10)
	g.want("and no more later", "n0 n1", 0)
	g = newGround(t, func(n *configapi.Nodes) { n.Taint, n.Namespaces = true, 3 })
	g.avoids("a", "n1", avoid.Rejected)
	g.avoids("b", "n1", avoid.Rejected)
	g.want("two of three namespaces", "", 0)
	g = newGround(t, func(*configapi.Nodes) {})
	g.avoids("a", "n1", avoid.Rejected)
	g.avoids("b", "n1", avoid.Rejected)
	if g.want("without the setting", "", 1); g.patches != 0 {
		t.Error("it has no right to write nodes")
	}
	g = newGround(t, taints)
	g.avoids("a", "n1", avoid.Rejected)
	g.avoids("b", "n1", avoid.Rejected)
	g.rejects = errors.New("forbidden")
	if err := g.keeper.Keep(t.Context()); !errors.Is(err, g.rejects) {
		t.Errorf("got %v", err)
	}
	g.rejects = nil
	g.want("tried again", "n1", 1)
}

// TestKeepSpares holds that half of the nodes of each flavor, and of the cluster, stay without the taint, and without
// another reason to take no pods: two namespaces would take the only node from all others.
func TestKeepSpares(t *testing.T) {
	gpus := func(g *ground, names ...string) {
		g.must(g.Create(t.Context(), &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
			Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpus": "true"}}}))
		for _, name := range names {
			node := &corev1.Node{}
			g.must(g.Get(t.Context(), client.ObjectKey{Name: name}, node))
			node.Labels = map[string]string{"gpus": "true"}
			g.must(g.Update(t.Context(), node))
		}
	}
	is := func(g *ground, name string, change func(*corev1.Node)) {
		node := &corev1.Node{}
		g.must(g.Get(t.Context(), client.ObjectKey{Name: name}, node))
		change(node)
		g.must(g.Update(t.Context(), node))
	}
	for name, c := range map[string]struct {
		set  func(*ground)
		want string
	}{
		"the only one of a flavor": {func(g *ground) { gpus(g, "n1") }, "n0"},
		"of two, one":              {func(g *ground) { gpus(g, "n0", "n1") }, "n0"},
		"of two, the other is cordoned": {func(g *ground) {
			gpus(g, "n0", "n5")
			is(g, "n5", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		}, "n1"},
		"of two, the other isn't ready": {func(g *ground) {
			gpus(g, "n0", "n5")
			is(g, "n5", func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: "NoSchedule"})
			})
		}, "n1"},
		"the only one": {func(g *ground) {
			g.must(g.DeleteAllOf(t.Context(), &corev1.Node{}))
			g.must(g.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"},
				Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}}}}))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, taints)
			c.set(g)
			for _, node := range []string{"n0", "n1"} {
				g.avoids("a", node, avoid.Rejected)
				g.avoids("b", node, avoid.Rejected)
			}
			for range 2 {
				if got, _ := g.keeps(); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
}

// TestKeepAgain holds that a node that was deleted and created again is another one, and that nothing is remembered of
// one that is gone.
func TestKeepAgain(t *testing.T) {
	g := newGround(t, taints)
	for range 3 {
		g.avoids("a", "n1", avoid.Rejected)
		g.avoids("b", "n1", avoid.Rejected)
		g.want("two namespaces", "n1", 1)
		g.must(g.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
		g.want("it is gone", "", 0)
		if len(g.keeper.told) > 0 || testutil.CollectAndCount(avoided) > 0 {
			t.Errorf("it is remembered: got %v", g.keeper.told)
		}
		g.clock.Step(time.Minute)
		g.must(g.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1",
			CreationTimestamp: metav1.NewTime(g.clock.Now())},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}}}}))
		g.want("it is back, as a new one", "", 0)
		g.clock.Step(time.Minute)
	}
}

// TestRetain holds what a choice depends on, and a taint's write.
func TestRetain(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"a": "b"},
		ResourceVersion: "7", Annotations: map[string]string{"large": ""}}}
	node.Spec.Taints, node.Spec.Unschedulable = []corev1.Taint{{Key: "other"}}, true
	node.CreationTimestamp = metav1.Now()
	node.Status.Images = []corev1.ContainerImage{{}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": {}}
	got, err := Retain(node)
	kept := got.(*corev1.Node)
	if err != nil || kept.Labels["a"] != "b" || kept.ResourceVersion != "7" || len(kept.Spec.Taints) != 1 ||
		!kept.Spec.Unschedulable || kept.CreationTimestamp.IsZero() || len(kept.Status.Allocatable) != 1 ||
		kept.Status.Images != nil || kept.Annotations != nil {
		t.Errorf("got %+v, %v", kept, err)
	}
	if got, err := Retain("deleted"); got != "deleted" || err != nil {
		t.Errorf("what is no node stays: got %v, %v", got, err)
	}
}
