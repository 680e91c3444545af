package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// repeats marks specs that take minutes and show beside Kubeflow Trainer what they show with the bundled one too:
// `make test` leaves them out there, `make test-trainers` doesn't.
func repeats() ginkgo.Labels {
	if os.Getenv("SIGNALBOX_PROFILE") == "kubeflow" {
		return ginkgo.Label("repeats")
	}
	return nil
}

var _ = ginkgo.Describe("The manager, killed after any of its writes", repeats(), func() {
	ginkgo.It("starts nothing twice, loses nothing, and leaks no quota", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "300ms")
		g.runtime(ctx, "long", "forever")
		trap := newTrap(cluster)
		n := 1
		for ; ; n++ {
			fired := trap.arm(n, g.namespace)
			mode := api.GangOff
			if hasGangs {
				mode = api.GangRequired // the writes without are among those with
			}
			victim := g.trainJob(fmt.Sprintf("victim-%d", n), "long", 1, priority(low), gangs(mode))
			urgent := g.trainJob(fmt.Sprintf("urgent-%d", n), "torch", 1, priority(high), gangs(mode))
			// eventually holds a condition, and starts the manager again when the trap has snapped meanwhile.
			eventually := func(what string, holds func() bool) {
				ginkgo.GinkgoHelper()
				gomega.Eventually(func() bool { trap.reviveAfter(fired); return holds() }).Should(gomega.BeTrue(), "round %d: %s",
					n, what)
			}
			eventually("the victim is submitted", func() bool { return user.Create(ctx, victim) == nil })
			eventually("the victim runs", func() bool { return bound(ctx, victim)() > 0 })
			eventually("the urgent is submitted", func() bool { return user.Create(ctx, urgent) == nil })
			eventually(urgent.Name+" completes", complete(ctx, urgent))
			eventually(victim.Name+" runs again, and completes", func() bool {
				g.end(ctx, victim.Name+"-")
				return complete(ctx, victim)()
			})
			for _, tj := range []*api.TrainJob{victim, urgent} {
				eventually("the Workload of "+tj.Name+" is finished", func() bool {
					wl := workloadOf(ctx, tj)
					return wl != nil && workloadfinish.IsFinished(wl)
				})
			}
			eventually("the quota is free", func() bool { return g.used(ctx)() == 0 })
			gomega.Eventually(func() []string { trap.reviveAfter(fired); return g.leftovers(ctx)() }).Should(gomega.BeEmpty(),
				"round %d: Workloads and PodGroups of gangs", n)
			gomega.Expect(g.list(ctx, &kueue.WorkloadList{})).To(gomega.HaveLen(2), "round %d", n)
			eventually("the Workloads are let go when they are deleted", func() bool { return g.letGo(ctx) })
			gomega.Expect(watched.startsOf(urgent)).To(gomega.Equal(1), "round %d", n)
			gomega.Expect(watched.startsOf(victim)).To(gomega.BeNumerically("<=", 2), "round %d", n)
			gomega.Expect(watched.violations()).To(gomega.BeEmpty(), "round %d", n)
			if !trap.fired() {
				break
			}
		}
		ginkgo.AddReportEntry(fmt.Sprintf(
			"crash: killed after each of %d writes of a start, a preemption, a restart and two finishes", n-1))
		gomega.Expect(n).To(gomega.BeNumerically(">", 14),
			"a start, a preemption, a restart and two finishes have more writes")
	})
})

// letGo deletes the Workloads of finished TrainJobs, and reports whether they are gone: whoever deletes one doesn't
// wait for the minute after which its finalizer goes by itself.
func (g *ground) letGo(ctx context.Context) bool {
	ginkgo.GinkgoHelper()
	gomega.Expect(admin.DeleteAllOf(ctx, &kueue.Workload{}, client.InNamespace(g.namespace))).To(gomega.Succeed())
	return len(g.list(ctx, &kueue.WorkloadList{})) == 0
}

// trap stands between the manager and the API server and kills the manager when the API server has carried out its nth
// write, before the manager hears of it.
type trap struct {
	plane
	mu        sync.Mutex
	left      int
	namespace string
	killed    chan struct{}
	dead      bool
	failed    error // of a kill: the round would prove nothing
}

// newTrap puts the trap between the two of a cluster for the running spec.
func newTrap(of plane) *trap {
	ginkgo.GinkgoHelper()
	t := &trap{plane: of}
	through(of, func(proxy *httputil.ReverseProxy) http.Handler {
		proxy.ModifyResponse = func(response *http.Response) error {
			t.see(response)
			return nil
		}
		return proxy
	})
	ginkgo.DeferCleanup(func() { t.arm(0, "") })
	return t
}

// arm sets the trap for the nth write in the namespace from now on; the channel is closed when it has snapped. A
// manager whom it has killed by a write that came when nobody waited for one any more is started again.
func (t *trap) arm(n int, namespace string) <-chan struct{} {
	ginkgo.GinkgoHelper()
	t.mu.Lock()
	dead := t.dead
	t.left, t.dead = 0, false
	t.mu.Unlock()
	if dead {
		t.mustAct("start", "signalbox")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left, t.namespace, t.killed = n, namespace, make(chan struct{})
	return t.killed
}

func (t *trap) see(response *http.Response) {
	r := response.Request
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Method == http.MethodGet || t.left == 0 || !strings.Contains(r.URL.Path, "/namespaces/"+t.namespace+"/") ||
		response.StatusCode >= 300 {
		return
	}
	if t.left--; t.left > 0 {
		return
	}
	if t.failed = t.act("kill", "signalbox"); t.failed == nil {
		t.dead = true
		close(t.killed)
	}
}

func (t *trap) fired() bool {
	ginkgo.GinkgoHelper()
	t.mu.Lock()
	defer t.mu.Unlock()
	gomega.Expect(t.failed).NotTo(gomega.HaveOccurred(), "killing the manager")
	return t.left == 0
}

// reviveAfter starts the manager again once the trap has snapped.
func (t *trap) reviveAfter(killed <-chan struct{}) {
	ginkgo.GinkgoHelper()
	select {
	case <-killed:
	default:
		return
	}
	t.mu.Lock()
	dead := t.dead
	t.dead = false
	t.mu.Unlock()
	if dead {
		t.mustAct("start", "signalbox")
	}
}

// Pods that would harm others aren't queued. Each case stands for what its comment in overrides/limits_pods.go says.

func init() {
	if cluster.bundled() {
		ginkgo.Describe("One TrainJob harms no other", harmSpecs)
		return
	}
	ginkgo.Describe("One TrainJob's tolerations", tolerationSpecs)
}

// everywhere keeps pods of all namespaces with a label from a node.
func everywhere(topology string) *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: jobset.JobSetNameKey, Operator: metav1.LabelSelectorOpExists}}},
			NamespaceSelector: &metav1.LabelSelector{}, TopologyKey: topology,
		}},
	}}
}

// requests sets what a node of a TrainJob requests.
func requests(name corev1.ResourceName, quantity string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		list := corev1.ResourceList{name: resource.MustParse(quantity)}
		tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: list, Limits: list}
	}
}

// inTemplate is an entry for the JobSet's metadata.
func inTemplate(meta metav1.ObjectMeta) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		tj.Spec.RuntimePatches = append(tj.Spec.RuntimePatches, trainerapi.RuntimePatch{Manager: "example.com/team",
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
				Template: &trainerapi.JobSetTemplatePatch{Metadata: &meta}}})
	}
}

func harmSpecs() {
	const uncountable = "more nvidia.com/gpu than can be counted"
	exclusive := map[string]string{jobset.ExclusiveKey: "has-a100"}
	for name, c := range map[string]struct {
		runtime  func(*api.TrainingRuntime)
		trainJob func(*api.TrainJob)
		says     string
	}{
		"by a finalizer in its runtime's pods": {runtime: func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Finalizers = []string{"example.com/kept"}
		}, says: `replicatedJobs[node].template.spec.template.metadata.finalizers: Invalid value: ["example.com/kept"]`},
		"by anti-affinity of its runtime to every namespace": {runtime: func(rt *api.TrainingRuntime) {
			podSpec(rt).Affinity = everywhere("has-a100")
		}, says: "requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector"},
		"by anti-affinity of an entry to every namespace": {trainJob: entryFor("example.com/team", "node",
			func(_ *metav1.ObjectMeta, pod *trainerapi.PodSpecPatch) { pod.Affinity = everywhere("has-a100") }),
			says: "requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector"},
		"by anti-affinity to a namespace": {runtime: func(rt *api.TrainingRuntime) {
			podSpec(rt).Affinity = everywhere("has-a100")
			term := &podSpec(rt).Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
			term.NamespaceSelector, term.Namespaces = nil, []string{"team-b"}
		}, says: `[0].namespaces: Invalid value: ["team-b"]`},
		"by JobSet's exclusive placement of its runtime": {runtime: func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Annotations = exclusive
		}, says: "exclusive-topology"},
		"by JobSet's exclusive placement of an entry": {trainJob: inTemplate(metav1.ObjectMeta{Annotations: exclusive}),
			says: "exclusive-topology"},
		"by a negative request": {trainJob: requests(gpu, "-8"),
			says: `containers[node].resources.limits[nvidia.com/gpu]: Invalid value: "-8"`},
		"by half a GPU":                       {trainJob: requests(gpu, "500m"), says: "must be a whole number"},
		"by more requests than can be summed": {trainJob: requests(gpu, "9223372036854775807"), says: uncountable},
	} {
		ginkgo.It(name, func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 16})
			g.runtime(ctx, "odd", "forever", func(rt *api.TrainingRuntime) {
				if c.runtime != nil {
					c.runtime(rt)
				}
			})
			g.runtime(ctx, "torch", "1s")
			nodes := int32(1)
			if c.says == uncountable {
				nodes = 2
			}
			tj := g.submit(ctx, g.trainJob("odd", "odd", nodes, func(tj *api.TrainJob) {
				if c.trainJob != nil {
					c.trainJob(tj)
				}
			}))
			gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.And(
				gomega.HavePrefix("LimitExceeded: "), gomega.ContainSubstring(c.says)))
			gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil())
			gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
			other := newGround(ctx, map[string]int64{"a100": 8})
			other.runtime(ctx, "torch", "1s")
			gomega.Eventually(complete(ctx, other.submit(ctx, other.trainJob("other", "torch", 1)))).Should(gomega.BeTrue())
		})
	}

	ginkgo.It("nor itself by a number that computing with takes hours", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		err := user.Create(ctx, g.trainJob("huge", "torch", 1, requests(corev1.ResourceCPU, "1e1000000002")))
		gomega.Expect(err).To(gomega.MatchError(gomega.And(
			gomega.ContainSubstring("spec.trainer.resourcesPerNode.limits.cpu: the quantity 1e1000000002 has too many digits"),
			gomega.ContainSubstring("an exponent of at most 3 digits"))))
		err = user.Create(ctx, g.trainJob("huge", "torch", 1, requests(corev1.ResourceCPU, "1e102")))
		gomega.Expect(err).To(gomega.MatchError(gomega.And(
			gomega.ContainSubstring("spec.trainer.resourcesPerNode.limits[cpu]: Invalid value: \"1e102\""),
			gomega.ContainSubstring("request less"))))
		odd := g.runtime(ctx, "huge", "1s", func(rt *api.TrainingRuntime) {
			podSpec(rt).Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1e102")
		})
		gomega.Expect(user.Create(ctx, g.trainJob("huge", odd.Name, 1))).To(gomega.MatchError(
			gomega.ContainSubstring("resources.requests[memory]: Invalid value: \"1e102\"")))
	})
}

func tolerationSpecs() {
	ginkgo.It("can't have its pods evicted and replaced while they terminate, "+
		"unless its runtime replaces what has ended", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		evicting := func(rt *api.TrainingRuntime) {
			podSpec(rt).Tolerations = append(podSpec(rt).Tolerations, corev1.Toleration{
				Key: "evicts", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: ptr.To[int64](1)})
		}
		g.runtime(ctx, "evicted", "1s", evicting)
		g.runtime(ctx, "replaced", "1s", evicting, replacesEnded)
		tj := g.submit(ctx, g.trainJob("evicted", "evicted", 1))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.And(
			gomega.HavePrefix("LimitExceeded: "), gomega.ContainSubstring("tolerations[1].tolerationSeconds: Invalid value: 1"),
			gomega.ContainSubstring("podReplacementPolicy: Failed"))))
		gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil())
		gomega.Eventually(complete(ctx, g.submit(ctx, g.trainJob("replaced", "replaced", 1)))).Should(gomega.BeTrue())
	})
}
