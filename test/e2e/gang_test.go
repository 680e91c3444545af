package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// hasGangs is whether TrainJobs can be gangs.
var hasGangs = cluster.bundled() && servesPodGroups && os.Getenv("SIGNALBOX_JOBSET") >= "0.12"

func init() {
	switch {
	case !cluster.bundled():
		ginkgo.Describe("Gangs beside Kubeflow Trainer", noGangSpecs)
	case !hasGangs:
		ginkgo.Describe("Gangs where Kubernetes or JobSet has none", gangsUnavailableSpecs)
	default:
		ginkgo.Describe("Gangs", func() {
			gangSpecs()
			gangRefusalSpecs()
			gangPrioritySpecs()
		})
		ginkgo.Describe("Gangs for all, by configuration", ginkgo.Ordered, gangConfigSpecs)
	}
}

func gangSpecs() {
	ginkgo.It("place all pods or none: 9 nodes where there is room for 8, without and with", func(ctx context.Context) {
		for _, mode := range []api.GangMode{api.GangOff, api.GangRequired} {
			g := newGround(ctx, map[string]int64{"a100": 72})
			g.runtime(ctx, "torch", "forever")
			tj := g.submit(ctx, g.trainJob("nine", "torch", 9, gangs(mode)))
			if mode == api.GangOff {
				gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(8))
				gomega.Consistently(bound(ctx, tj), "3s").Should(gomega.Equal(8), "64 GPUs are held, and nothing runs")
				gomega.Expect(g.leftovers(ctx)()).To(gomega.BeEmpty())
				gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
				gomega.Eventually(func() []corev1.Pod { return podsOf(ctx, tj) }).Should(gomega.BeEmpty())
				continue
			}
			gomega.Eventually(func() []corev1.Pod { return podsOf(ctx, tj) }).Should(gomega.HaveLen(9))
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(gomega.And(
				gomega.HavePrefix("False Unschedulable: gang node (9 pods) can't be placed, since 20"),
				gomega.ContainSubstring("nodes are available"), gomega.ContainSubstring("Insufficient nvidia.com/gpu")))
			gomega.Eventually(eventsOf(ctx, tj)).Should(
				gomega.ContainElement(gomega.HavePrefix("GangUnschedulable: gang node (9 pods) can't be placed")))
			gomega.Eventually(cluster.metrics).Should(gomega.ContainSubstring("signalbox_gangs_unschedulable 1"))
			gomega.Consistently(bound(ctx, tj), "3s").Should(gomega.BeZero(), "not one GPU is held")
			moreNodes(ctx, "a100", nodesOfKind, 1)
			gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(9))
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(
				gomega.Equal("True Scheduled: gang node (9 pods) is placed"))
			gomega.Eventually(cluster.metrics).Should(gomega.ContainSubstring("signalbox_gangs_unschedulable 0"))
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
			gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
		}
		ginkgo.AddReportEntry("gangs: of 9 pods with room for 8, 8 bound without a gang; 0 with, and 9 with one node more")
	})

	repeats := ginkgo.Label("repeats")
	ginkgo.It("never deadlock: two jobs of 6 nodes on 8, started at once, 20 times", repeats, func(ctx context.Context) {
		const rounds = 20
		low, _ := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 96})
		g.runtime(ctx, "torch", "300ms")
		halves := watchHalves(ctx, g, 6)
		for n := range rounds {
			first := g.trainJob(fmt.Sprintf("first-%d", n), "torch", 6, gangs(api.GangRequired), priority(low))
			second := g.trainJob(fmt.Sprintf("second-%d", n), "torch", 6, gangs(api.GangRequired), priority(low))
			g.submit(ctx, first)
			g.submit(ctx, second)
			gomega.Eventually(func() bool { return complete(ctx, first)() && complete(ctx, second)() }).Should(gomega.BeTrue(),
				"round %d", n)
			gomega.Expect(halves.seen()).To(gomega.BeEmpty(), "round %d", n)
		}
		gomega.Expect(halves.ended.Load()).To(gomega.BeFalse(), "the watch has seen all")
		gomega.Expect(halves.whole()).To(gomega.Equal(2*rounds), "TrainJobs all of whose pods were seen to be bound")
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
		ginkgo.AddReportEntry(fmt.Sprintf(
			"gangs: %d rounds of 6 + 6 nodes on 8: %d jobs finished, none ever half placed beside another", rounds,
			g.finished(ctx)()))
		gomega.Expect(g.finished(ctx)()).To(gomega.Equal(2 * rounds))
	})

	ginkgo.It("wait for no pod that comes later: initializers before the trainer, "+
		"nodes before the launcher", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "staged", "2s", func(rt *api.TrainingRuntime) {
			withInitializers(rt, "1s", jobset.DependencyComplete)
			rt.Annotations = map[string]string{api.GangModeAnnotation: string(api.GangRequired)}
		})
		g.runtime(ctx, "mpi", "2s", mpiAsNode)
		staged := g.submit(ctx, g.trainJob("staged", "staged", 2))
		mpi := g.submit(ctx, g.trainJob("mpi", "mpi", 4, gangs(api.GangRequired)))
		gomega.Eventually(func() []string { return podGroups(ctx, staged) }).Should(
			gomega.ConsistOf("dataset-initializer=2", "node=2"))
		gomega.Eventually(func() []string { return podGroups(ctx, mpi) }).Should(gomega.ConsistOf("node=3", "launcher=1"))
		workloads := scheduling.list(ctx, "Workload", g.namespace)
		for _, tj := range []*api.TrainJob{staged, mpi} {
			gomega.Expect(workloads).To(gomega.ContainElement(gomega.Satisfy(func(w unstructured.Unstructured) bool {
				return metav1.IsControlledBy(&w, tj) && text(w, "spec", "controllerRef", "kind") == "TrainJob" &&
					text(w, "spec", "controllerRef", "name") == tj.Name && templates(w) == 2
			})))
			gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(
				gomega.HavePrefix("True Scheduled"))
		}
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty(), "finished")
		ginkgo.AddReportEntry("gangs: initializers (2 pods) → trainer (2) and nodes (3) → launcher (1) ran to their ends")
	})

	ginkgo.It("leave nothing behind: 50 preemptions, 50 restarts, 100 finishes", repeats, func(ctx context.Context) {
		const pairs = 50
		low, high := makePriorities(ctx)
		moreNodes(ctx, "a100", nodesOfKind, 5) // 104 GPUs
		g := newGround(ctx, map[string]int64{"a100": 2 * pairs})
		g.runtime(ctx, "torch", "forever")
		var victims, urgent []*api.TrainJob
		for n := range pairs {
			victims = append(victims, g.submit(ctx,
				g.trainJob(fmt.Sprintf("victim-%d", n), "torch", 2, gangs(api.GangRequired), priority(low), gpusEach(1))))
		}
		gomega.Eventually(g.boundOf(ctx, "victim-"), "2m").Should(gomega.Equal(2 * pairs))
		for n := range pairs {
			urgent = append(urgent, g.submit(ctx,
				g.trainJob(fmt.Sprintf("urgent-%d", n), "torch", 2, gangs(api.GangRequired), priority(high), gpusEach(1))))
		}
		gomega.Eventually(g.boundOf(ctx, "urgent-"), "2m").Should(gomega.Equal(2*pairs), "every victim is preempted")
		g.end(ctx, "urgent-")
		gomega.Eventually(g.boundOf(ctx, "victim-"), "2m").Should(gomega.Equal(2*pairs), "every victim runs again")
		g.end(ctx, "victim-")
		gomega.Eventually(g.finished(ctx), "2m").Should(gomega.Equal(2 * pairs))
		again := 0
		for n := range pairs {
			again += watched.startsOf(victims[n]) - 1
			gomega.Expect(watched.startsOf(urgent[n])).To(gomega.Equal(1))
		}
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
		ginkgo.AddReportEntry(fmt.Sprintf(
			"gangs: %d preempted and started again, %d finished, 0 Workloads and PodGroups left", again, 2*pairs))
		gomega.Expect(again).To(gomega.Equal(pairs))
	})

	ginkgo.It("leave nothing behind of a TrainJob that fails", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "1s", func(rt *api.TrainingRuntime) {
			job := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec
			job.BackoffLimit = ptr.To[int32](0)
			job.Template.Annotations[fails] = "true"
		})
		tj := g.submit(ctx, g.trainJob("fails", "torch", 2, gangs(api.GangRequired)))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateFailed))
		gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(
			gomega.HavePrefix("True Scheduled: gang node (2 pods) is placed"))
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
	})

	ginkgo.It("are named by pods, and made again under the same name when they are deleted", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("held", "torch", 2, gangs(api.GangRequired)))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		named := groupsOfPods(ctx, tj)
		gomega.Expect(named).To(gomega.HaveLen(1))
		list := scheduling.list(ctx, "PodGroup", g.namespace)
		gomega.Expect(list).To(gomega.HaveLen(1))
		before := list[0].DeepCopy()
		gomega.Expect(named).To(gomega.Equal(map[string]int{before.GetName(): 2}))
		gomega.Expect(before.GetOwnerReferences()).To(gomega.HaveLen(2))
		gomega.Expect(metav1.IsControlledBy(before, get(ctx, tj))).To(gomega.BeTrue())
		gomega.Expect(before.GetOwnerReferences()[1].Kind).To(gomega.Equal("Workload"))

		// Its Workload is but where it came from.
		gomega.Expect(admin.DeleteAllOf(ctx, scheduling.empty("Workload", "", ""), client.InNamespace(g.namespace))).To(
			gomega.Succeed())
		gomega.Consistently(bound(ctx, tj)).Should(gomega.Equal(2))

		gomega.Expect(admin.Delete(ctx, before.DeepCopy())).To(gomega.Succeed())
		gomega.Expect(get(ctx, before.DeepCopy()).GetDeletionTimestamp()).NotTo(gomega.BeNil(),
			"its finalizer keeps it while its pods run")
		gomega.Expect(bound(ctx, tj)()).To(gomega.Equal(2))
		// The Job makes both pods again; between the two the PodGroup is free to go.
		gomega.Expect(admin.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(g.namespace))).To(gomega.Succeed())
		gomega.Eventually(func() bool {
			pg := before.DeepCopy()
			return admin.Get(ctx, client.ObjectKeyFromObject(before), pg) == nil && pg.GetUID() != before.GetUID() &&
				bound(ctx, tj)() == 2
		}).Should(gomega.BeTrue())
		gomega.Expect(groupsOfPods(ctx, tj)).To(gomega.Equal(map[string]int{before.GetName(): 2}))
	})

	ginkgo.It("let a pod be placed by itself that replaces a failed one, "+
		"when others of its gang have succeeded", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "staged", "forever", func(rt *api.TrainingRuntime) {
			withInitializers(rt, "forever", jobset.DependencyReady)
			rt.Spec.Template.Spec.SuccessPolicy = &jobset.SuccessPolicy{Operator: jobset.OperatorAll,
				TargetReplicatedJobs: []string{"node"}}
		})
		tj := g.submit(ctx, g.trainJob("staged", "staged", 1, gangs(api.GangRequired)))
		gomega.Eventually(func() int32 { return succeeded(ctx, tj, "dataset-initializer") }).Should(gomega.BeEquivalentTo(1))
		gomega.Eventually(func() []string { return podsNamed(ctx, tj, "model-initializer") }).Should(gomega.HaveLen(1))
		lost := podsNamed(ctx, tj, "model-initializer")[0]
		gomega.Expect(admin.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: lost}})).To(
			gomega.Succeed())
		gomega.Eventually(eventsOf(ctx, tj)).Should(
			gomega.ContainElement(gomega.HavePrefix(
				"GangReleased: gang dataset-initializer (2 pods) was placed as a whole, and 1 of its pods")))
		gomega.Eventually(func() string {
			for _, p := range podsOf(ctx, tj) {
				if strings.HasPrefix(p.Name, "staged-model-initializer") && p.DeletionTimestamp == nil && p.Name != lost {
					return string(p.Status.Phase)
				}
			}
			return ""
		}).Should(gomega.Equal("Running"))
		gomega.Expect(podGroups(ctx, tj)).To(gomega.ConsistOf("node=1",
			map[bool]string{true: "dataset-initializer=1", false: "dataset-initializer=basic"}[scheduling.lowersMinCount]))
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
	})

	ginkgo.It("of more phases than a Workload has templates are spread over several", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "long", "200ms", func(rt *api.TrainingRuntime) {
			rjs := []jobset.ReplicatedJob{step("node", "trainer", "200ms")}
			for n := range 9 {
				next := step(fmt.Sprintf("step-%d", n), "", "200ms")
				next.DependsOn = []jobset.DependsOn{{Name: rjs[n].Name, Status: jobset.DependencyComplete}}
				rjs = append(rjs, next)
			}
			rt.Spec.Template.Spec.ReplicatedJobs = rjs
		})
		tj := g.submit(ctx, g.trainJob("long", "long", 1, gangs(api.GangRequired)))
		gomega.Eventually(func() []int {
			var all []int
			for _, w := range scheduling.list(ctx, "Workload", g.namespace) {
				all = append(all, templates(w))
			}
			return all
		}).Should(gomega.ConsistOf(8, 2))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
	})

	ginkgo.It("are placed in the rack that Kueue's topology-aware scheduling gives them", func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template
			pod.Annotations[kueue.PodSetRequiredTopologyAnnotation] = "rack"
		})
		tj := g.submit(ctx, g.trainJob("racked", "torch", nodesOfRack, gangs(api.GangRequired)))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(nodesOfRack))
		gomega.Expect(racksOf(ctx, tj)).To(gomega.HaveLen(1))
		gomega.Expect(podGroups(ctx, tj)).To(gomega.ConsistOf(fmt.Sprintf("node=%d", nodesOfRack)))
	})

	ginkgo.It("are found out at run time: where the API isn't served, required waits and says why, "+
		"preferred does without", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "1s")
		// Watches come back to a restarted API server up to half a minute late, so those are restarted that the spec isn't
		// about.
		served := true
		serve := func(on bool) {
			action := map[bool]string{true: "enable", false: "disable"}[on]
			cluster.mustAct(action, "gangs")
			served = on
			cluster.mustAct("restart", "kueue", "jobset")
			awaitKueue()
		}
		ginkgo.DeferCleanup(func() {
			if !served {
				serve(true)
			}
			cluster.mustAct("restart", "signalbox")
		})
		serve(false)
		required, preferred := g.trainJob("required", "torch", 2, gangs(api.GangRequired)),
			g.trainJob("preferred", "torch", 2, gangs(api.GangPreferred))
		for _, tj := range []*api.TrainJob{required, preferred} {
			gomega.Eventually(func() error { return user.Create(ctx, tj) }).Should(gomega.Succeed())
		}
		gomega.Eventually(func() string { return told(ctx, required, api.ConditionBlocked) }).Should(gomega.And(
			gomega.HavePrefix(
				"True GangSchedulingUnavailable: gang scheduling is required "+
					"(metadata.annotations[signalbox.dev/gang-scheduling]), but the API server doesn't serve Workloads and PodGroups "+
					"of scheduling.k8s.io/v1beta1 or scheduling.k8s.io/v1alpha3 or scheduling.k8s.io/v1alpha2"),
			gomega.ContainSubstring("--feature-gates=GenericWorkload=true"),
			gomega.HaveSuffix("or set it to preferred or off")))
		gomega.Eventually(complete(ctx, preferred)).Should(gomega.BeTrue())
		gomega.Eventually(eventsOf(ctx, preferred)).Should(
			gomega.ContainElement(gomega.HavePrefix(
				"GangSchedulingSkipped: Its pods are placed one by one: the API server doesn't serve")))
		gomega.Expect(running(ctx, required)()).To(gomega.BeFalse())

		serve(true)
		gomega.Eventually(complete(ctx, required)).Should(gomega.BeTrue())
		gomega.Eventually(func() string { return told(ctx, required, api.ConditionGangScheduled) }).Should(
			gomega.HavePrefix("True Scheduled: gang node (2 pods) is placed"))
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
	})
}
