package e2e

import (
	"context"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// multiKueueFaults are the specs of interruptions: of the managers, by preemptions, and by users.
func multiKueueFaults(of *fleet) {
	ginkgo.It("runs a TrainJob once when Signalbox of the manager cluster is killed after any of its writes",
		func(ctx context.Context) { of.crash(ctx, cluster, "the manager cluster", 1) }) // the Workload; Kueue does the rest

	ginkgo.It("runs a TrainJob once when Signalbox of the worker is killed after any of its writes",
		func(ctx context.Context) { of.crash(ctx, (*of)[0].plane, "the worker", 5) })

	ginkgo.It("never runs a TrainJob in two workers while both preempt it", func(ctx context.Context) {
		const jobs, preemptions = 6, 4
		workers := *of
		low, high := workers.priorities(ctx)
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "3s", slowly("1s"))
		var all []*api.TrainJob
		for i := range jobs {
			all = append(all, g.submit(ctx, g.trainJob(fmt.Sprintf("job-%d", i), "torch", 1, priority(low))))
		}
		urgent := 0
		gomega.Eventually(func() int {
			for _, tj := range all {
				gomega.Expect(len(workers.runsIn(ctx, tj)())).To(gomega.BeNumerically("<=", 1), tj.Name)
			}
			done := g.finished(ctx)()
			// As often as TrainJobs have finished, one in either worker in turn preempts what runs there.
			if urgent < preemptions && done >= urgent {
				local := g.trainJob(fmt.Sprintf("urgent-%d", urgent), "torch", 1, priority(high))
				gomega.Expect(workers[urgent%len(workers)].admin.Create(ctx, local)).To(gomega.Succeed())
				urgent++
			}
			return done
		}, "5m").Should(gomega.Equal(jobs))
		gomega.Expect(urgent).To(gomega.Equal(preemptions))
		for _, w := range workers {
			gomega.Eventually(func() error {
				return w.admin.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(g.namespace))
			}).Should(gomega.Succeed())
		}
		gomega.Eventually(workers.gone(ctx, g), "2m").Should(gomega.Succeed())
	})

	ginkgo.It("stops and resumes a TrainJob that runs in a worker", func(ctx context.Context) {
		workers := *of
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("stopped", "torch", 1))
		workers.awaitRun(ctx, tj)
		gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
		annotate := func(value string) {
			ginkgo.GinkgoHelper()
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, api.StopAnnotation, value)
			gomega.Expect(user.Patch(ctx, get(ctx, tj), client.RawPatch("application/merge-patch+json", []byte(patch)))).To(
				gomega.Succeed())
		}
		annotate(`"true"`)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(workers.gone(ctx, g)).Should(gomega.Succeed())
		gomega.Consistently(condition(ctx, tj, kueue.WorkloadQuotaReserved)).ShouldNot(gomega.HavePrefix("True/"))
		annotate("null")
		workers.awaitRun(ctx, tj)
		gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
	})
}

// crash runs a TrainJob in the first worker again and again, and kills Signalbox of a cluster after its first write,
// its second, and so on to the last; a TrainJob takes at least so many.
func (f fleet) crash(ctx context.Context, of plane, name string, least int) {
	g := f.ground(ctx, 8)
	f.runtime(ctx, g, "torch", "300ms")
	for _, w := range f[1:] {
		cq := &kueue.ClusterQueue{}
		cq.Name = g.queue
		hold := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"stopPolicy":"Hold"}}`))
		gomega.Expect(w.admin.Patch(ctx, cq, hold)).To(gomega.Succeed())
	}
	ran := f.follow(g)
	trap := newTrap(of)
	n := 1
	for ; ; n++ {
		fired := trap.arm(n, g.namespace)
		tj := g.trainJob(fmt.Sprintf("round-%d", n), "torch", 1)
		eventually := func(what string, holds func() bool) {
			ginkgo.GinkgoHelper()
			gomega.Eventually(func() bool { trap.reviveAfter(fired); return holds() }, "90s").Should(gomega.BeTrue(),
				"round %d: %s", n, what)
		}
		eventually("it is submitted", func() bool { return user.Create(ctx, tj) == nil })
		eventually("it completes", complete(ctx, tj))
		eventually("the quota here is free", func() bool { return g.used(ctx)() == 0 })
		eventually("the worker has forgotten it", func() bool {
			return f[0].trainJob(ctx, tj) == nil && f[0].used(ctx, g)() == 0
		})
		if !trap.fired() {
			break
		}
	}
	ginkgo.AddReportEntry(fmt.Sprintf("crash: Signalbox of %s killed after each of %d writes", name, n-1))
	gomega.Expect(n).To(gomega.BeNumerically(">", least), "a TrainJob takes more writes")
	for job, in := range ran() {
		gomega.Expect(in).To(gomega.Equal([]string{f[0].name}), job)
	}
}
