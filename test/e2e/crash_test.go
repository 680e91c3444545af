package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
