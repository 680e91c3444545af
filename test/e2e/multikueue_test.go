package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// workersVariable names the folders of the worker clusters, separated by colons. make test-multi sets it.
const workersVariable = "SIGNALBOX_WORKERS"

func init() {
	if os.Getenv(workersVariable) != "" {
		ginkgo.Describe("MultiKueue", ginkgo.Label("multikueue"), ginkgo.Ordered, ginkgo.ContinueOnFailure,
			multiKueueSpecs)
	}
}

func multiKueueSpecs() {
	var workers fleet
	ginkgo.BeforeAll(func(ctx context.Context) {
		cluster.configure(func(c map[string]any) {
			c["multiKueue"] = map[string]any{
				"externalFrameworks": []any{map[string]any{"name": "TrainJob.v1alpha1.trainer.kubeflow.org"}},
				"gcInterval":         "5s", "workerLostTimeout": "45s",
			}
		}, func(map[string]any) {})
		workers = newFleet(ctx)
		workers.join()
	})

	ginkgo.It("runs a TrainJob in a worker and shows its status here", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "4s")
		tj := g.submit(ctx, g.trainJob("away", "torch", 1))
		gomega.Expect(*get(ctx, tj).Spec.ManagedBy).To(gomega.Equal(kueue.MultiKueueControllerName))
		w := workers.awaitRun(ctx, tj)
		gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
		remote := w.trainJob(ctx, tj)
		gomega.Expect(*remote.Spec.ManagedBy).To(gomega.Equal("trainer.kubeflow.org/trainjob-controller"))
		gomega.Expect(dialect.Bundled.Own(remote)).NotTo(gomega.BeNil(), "the worker starts it as its own")
		here := get(ctx, tj)
		gomega.Expect(*here.Spec.Suspend).To(gomega.BeTrue(), "it never starts here")
		gomega.Expect(entryOf(here)).To(gomega.BeNil())
		gomega.Expect(here.Annotations).NotTo(gomega.HaveKey("signalbox.dev/runtime"))
		gomega.Expect(podsOf(ctx, tj)).To(gomega.BeEmpty())
		gomega.Expect(*workloadOf(ctx, tj).Status.ClusterName).To(gomega.Equal(w.name))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadFinished)).Should(gomega.HavePrefix("True/"))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(workers.gone(ctx, g)).Should(gomega.Succeed())
	})

	ginkgo.It("shows the progress that a training process reports in the worker", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("progress", "torch", 1))
		w := workers.awaitRun(ctx, tj)
		gomega.Eventually(func() error {
			remote := w.trainJob(ctx, tj)
			remote.Status.TrainerStatus = &trainerapi.TrainerStatus{
				ProgressPercentage: ptr.To[int32](42), LastUpdatedTime: metav1.Now(),
			}
			return w.admin.Status().Update(ctx, remote)
		}).Should(gomega.Succeed())
		gomega.Eventually(func() *trainerapi.TrainerStatus { return get(ctx, tj).Status.TrainerStatus }).Should(
			gomega.HaveValue(gomega.HaveField("ProgressPercentage", gomega.HaveValue(gomega.BeEquivalentTo(42)))))
		gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
	})

	ginkgo.It("is explained as it is in the worker, and its logs are read there", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("read", "torch", 1))
		w := workers.awaitRun(ctx, tj)
		gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
		w.hasLogs(ctx, tj)
		for _, who := range both {
			explained := workers.plugin(ctx, g, who, "explain", "read")
			gomega.Expect(explained.out).To(gomega.And(gomega.ContainSubstring("it runs in cluster "+w.name),
				gomega.ContainSubstring("In cluster "+w.name+":\n  It is Running.")), explained.err)
			listed := workers.plugin(ctx, g, who, "list", "--clusters")
			gomega.Expect(listed.out).To(gomega.MatchRegexp(w.name+` +read +Running .* a100 `), listed.err)
		}
		logs := workers.plugin(ctx, g, "", "logs", "read")
		gomega.Expect(logs.out).To(gomega.HavePrefix("[node-0] the log at /containerLogs/"+g.namespace+"/read-node-0-0"),
			logs.err)
		logs = workers.plugin(ctx, g, "user", "logs", "read")
		gomega.Expect(logs.out).To(gomega.BeEmpty())
		gomega.Expect(logs.err).To(gomega.And(gomega.ContainSubstring("its pods are in cluster "+w.name),
			gomega.ContainSubstring(`User "user" cannot get resource "pods/log"`)), "the right is named")
		gomega.Expect(workers.plugin(ctx, g, "", "top", "--clusters").out).To(gomega.And(
			gomega.MatchRegexp(`(?m)^worker-1 +`+g.queue), gomega.MatchRegexp(`(?m)^worker-2 +`+g.queue)))
		gomega.Expect(workers.plugin(ctx, g, "", "logs", "read", "--cluster", w.name+"=none").err).To(
			gomega.ContainSubstring(`the kubeconfig has no context "none"`))
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		g.submit(ctx, g.trainJob("large", "torch", 2)) // there is quota for it here, and in no worker
		gomega.Eventually(func() string { return workers.plugin(ctx, g, "", "explain", "large").out }).Should(gomega.And(
			gomega.MatchRegexp(`(?s)In cluster worker-1:.*In cluster worker-2:`), gomega.ContainSubstring("ExceedsQuota")))
	})

	ginkgo.It("is shown in the page as it is in the worker, whose log it has, and says which right is missing there",
		func(ctx context.Context) {
			g := workers.ground(ctx, 8)
			workers.runtime(ctx, g, "torch", "forever")
			tj := g.submit(ctx, g.trainJob("seen", "torch", 1))
			w := workers.awaitRun(ctx, tj)
			gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
			w.hasLogs(ctx, tj)
			path := "/trainjobs/" + g.namespace + "/seen"
			for _, name := range slices.Sorted(maps.Keys(both)) {
				b := workers.page(ctx, g, both[name])
				b.opens(path)
				in := fmt.Sprintf("section[aria-label=%q]", "Cluster "+w.name)
				gomega.Eventually(b.text).Should(gomega.And(gomega.ContainSubstring("it runs in cluster "+w.name),
					gomega.ContainSubstring("In cluster "+w.name+"\n\nRunning. ")), name)
				gomega.Expect(b.rows(in)).To(gomega.ContainElement(gomega.And(gomega.ContainElement("node-0"),
					gomega.ContainElement("Running"))), name)
				b.accessible()
				b.opens(path + "/logs?rank=node-0")
				says := "the log at /containerLogs/" + g.namespace + "/seen-node-0-0"
				if both[name] == "user" {
					says = `User "user" cannot get resource "pods/log"`
				}
				gomega.Eventually(b.text).Should(gomega.ContainSubstring(says), name)
				gomega.Expect(b.found()).To(gomega.BeEmpty(), "errors in the browser")
			}
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
			g.submit(ctx, g.trainJob("large", "torch", 2)) // there is quota for it here, and in no worker
			b := workers.page(ctx, g, "")
			b.opens("/trainjobs/" + g.namespace + "/large")
			gomega.Eventually(b.text, "30s").Should(gomega.And(gomega.ContainSubstring("In cluster worker-1"),
				gomega.ContainSubstring("In cluster worker-2"), gomega.ContainSubstring("ExceedsQuota")))
		})

	ginkgo.It("waits here for those that it runs after, and for nobody in the worker", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "1s")
		last := g.submit(ctx, g.trainJob("last", "torch", 1, runsAfter("first=ok,other=any")))
		for _, name := range []string{"first", "other"} {
			gomega.Expect(condition(ctx, last, kueue.WorkloadQuotaReserved)()).NotTo(gomega.HavePrefix("True/"))
			gomega.Eventually(complete(ctx, g.submit(ctx, g.trainJob(name, "torch", 1)))).Should(gomega.BeTrue())
		}
		gomega.Eventually(complete(ctx, last)).Should(gomega.BeTrue())
	})

	ginkgo.It("runs again when somebody deletes it in the worker", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("vanishes", "torch", 1))
		w := workers.awaitRun(ctx, tj)
		gone := w.trainJob(ctx, tj)
		gomega.Expect(w.admin.Delete(ctx, gone)).To(gomega.Succeed())
		gomega.Eventually(func() string {
			now := workers.runsIn(ctx, tj)()
			if len(now) != 1 {
				return fmt.Sprintf("runs in %v; %v; %s", now, eventsOf(ctx, tj)(), condition(ctx, tj, kueue.WorkloadFinished)())
			}
			for _, w := range workers {
				if again := w.trainJob(ctx, tj); again != nil && again.UID != gone.UID {
					return "again"
				}
			}
			return "the same"
		}, "90s").Should(gomega.Equal("again"))
	})

	ginkgo.It("keeps a worker's quota until the last pod of a deleted TrainJob has ended", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever", slowly("6s"))
		tj := g.submit(ctx, g.trainJob("deleted", "torch", 1))
		w := workers.awaitRun(ctx, tj)
		gomega.Eventually(w.used(ctx, g)).Should(gomega.BeEquivalentTo(8))
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		gomega.Eventually(func() *api.TrainJob { return w.trainJob(ctx, tj) }).Should(gomega.BeNil())
		gomega.Eventually(func() bool {
			used := w.used(ctx, g)()
			if len(workers.pods(ctx, tj)) > 0 {
				gomega.Expect(used).To(gomega.BeEquivalentTo(8), "its pod has not ended")
				return false
			}
			return used == 0
		}).Should(gomega.BeTrue())
		gomega.Eventually(workers.gone(ctx, g)).Should(gomega.Succeed())
	})

	ginkgo.It("runs again after a preemption in the worker, and after one here", func(ctx context.Context) {
		low, high := workers.priorities(ctx)
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("preempted", "torch", 1, priority(low)))
		first := workers.awaitRun(ctx, tj)
		local := g.trainJob("local", "torch", 1, priority(high))
		gomega.Expect(first.admin.Create(ctx, local)).To(gomega.Succeed())
		gomega.Eventually(workers.runsIn(ctx, local)).Should(gomega.Equal([]string{first.name}))
		gomega.Eventually(workers.runsIn(ctx, tj)).Should(gomega.And(
			gomega.HaveLen(1), gomega.Not(gomega.ContainElement(first.name))), "in the other worker")

		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 2, priority(high)))
		gomega.Eventually(workers.runsIn(ctx, tj)).Should(gomega.BeEmpty())
		gomega.Eventually(condition(ctx, urgent, kueue.WorkloadQuotaReserved)).Should(gomega.HavePrefix("True/"))
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadQuotaReserved)).Should(gomega.HavePrefix("False/"))
		gomega.Expect(user.Delete(ctx, urgent)).To(gomega.Succeed())
		gomega.Eventually(workers.runsIn(ctx, tj)).Should(gomega.HaveLen(1))
		gomega.Expect(first.admin.Delete(ctx, local)).To(gomega.Succeed())
	})

	ginkgo.It("holds the quota here until it has stopped in the worker", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever", slowly("6s"))
		tj := g.submit(ctx, g.trainJob("drained", "torch", 1))
		workers.awaitRun(ctx, tj)
		gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(8))
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(func() bool {
			used := g.used(ctx)()
			if len(workers.pods(ctx, tj)) > 0 {
				gomega.Expect(used).To(gomega.BeEquivalentTo(8), "its pod has not ended")
				return false
			}
			return used == 0
		}).Should(gomega.BeTrue())
		gomega.Eventually(workers.gone(ctx, g)).Should(gomega.Succeed())
		stopPolicy(ctx, g.queue, kueue.None)
		workers.awaitRun(ctx, tj)
	})

	ginkgo.It("says what differs between the runtimes of two clusters, and doesn't try again", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "3s")
		for _, w := range workers {
			w.setImage(ctx, g, "torch", "example.com/other:1")
		}
		tj := g.submit(ctx, g.trainJob("differs", "torch", 1))
		gomega.Eventually(eventsOf(ctx, tj), "90s").Should(gomega.ContainElement(gomega.And(
			gomega.HavePrefix("FailedToStart: "), gomega.ContainSubstring("podSets[node].template.spec.containers"))))
		if cluster.bundled() {
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionBlocked) }).Should(gomega.And(
				gomega.HavePrefix("True "+integration.ReasonRuntimesDiffer),
				gomega.ContainSubstring("podSets[node].template.spec.containers")))
		}
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(workers.gone(ctx, g)).Should(gomega.Succeed())
		gomega.Expect(condition(ctx, tj, kueue.WorkloadEvicted)()).To(gomega.BeEmpty(), "it isn't dispatched again")

		// The admin corrects the runtimes, and deletes the Workload as the event says.
		for _, w := range workers {
			w.setImage(ctx, g, "torch", "example.com/train:1")
		}
		gomega.Expect(admin.Delete(ctx, workloadOf(ctx, tj))).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
	})

	ginkgo.It("runs in another worker when one is lost, and in one of them when that is back", func(ctx context.Context) {
		g := workers.ground(ctx, 8)
		workers.runtime(ctx, g, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("lost", "torch", 1))
		first := workers.awaitRun(ctx, tj)
		gomega.Eventually(ready(ctx, tj)).Should(gomega.BeTrue())
		first.kill()
		ginkgo.DeferCleanup(first.revive)
		others := slices.DeleteFunc(slices.Clone(workers), func(w worker) bool { return w.name == first.name })
		gomega.Eventually(others.runsIn(ctx, tj), "3m").Should(gomega.HaveLen(1))
		first.revive()
		gomega.Eventually(workers.runsIn(ctx, tj), "2m").Should(gomega.Equal([]string{first.name}), "Kueue keeps the older")
		gomega.Consistently(workers.runsIn(ctx, tj)).Should(gomega.Equal([]string{first.name}))
		gomega.Expect(others[0].trainJob(ctx, tj)).To(gomega.BeNil())
	})

	ginkgo.It("loses nothing when Kueue and Signalbox of the manager cluster are killed", func(ctx context.Context) {
		const jobs = 20
		g := workers.ground(ctx, 16)
		workers.runtime(ctx, g, "torch", "1s")
		for i := range jobs {
			g.submit(ctx, g.trainJob(fmt.Sprintf("job-%d", i), "torch", 1))
		}
		for i, component := range []string{"signalbox", "kueue", "signalbox", "kueue"} {
			gomega.Eventually(g.finished(ctx), "3m").Should(gomega.BeNumerically(">=", 1+4*i))
			cluster.mustAct("kill", component)
			cluster.mustAct("start", component)
		}
		gomega.Eventually(g.finished(ctx), "5m").Should(gomega.Equal(jobs))
		gomega.Eventually(workers.gone(ctx, g), "2m").Should(gomega.Succeed())
	})

	ginkgo.It("finishes 100 TrainJobs on two workers, one of which is killed and comes back, and runs none in both",
		func(ctx context.Context) {
			const jobs = 100
			g := workers.ground(ctx, 32)
			workers.runtime(ctx, g, "torch", "2s")
			ran := workers.follow(g)
			for i := range jobs {
				g.submit(ctx, g.trainJob(fmt.Sprintf("job-%d", i), "torch", 1))
			}
			gomega.Eventually(g.finished(ctx), "5m").Should(gomega.BeNumerically(">=", 20))
			workers[0].kill()
			gomega.Eventually(g.finished(ctx), "5m").Should(gomega.BeNumerically(">=", 35))
			workers[0].revive()
			gomega.Eventually(g.finished(ctx), "5m").Should(gomega.Equal(jobs))
			where := ran()
			gomega.Expect(where).To(gomega.HaveLen(jobs))
			for name, in := range where {
				gomega.Expect(in).To(gomega.HaveLen(1), "%s ran in %v", name, in)
			}
			gomega.Eventually(workers.gone(ctx, g), "2m").Should(gomega.Succeed())
		})

	multiKueueFaults(&workers)
}
