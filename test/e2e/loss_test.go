package e2e

import (
	"context"
	"fmt"
	"slices"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("A TrainJob that loses pods with their node", lossSpecs)
	}
}

// once lets a Job fail with its first pod.
func once(rt *api.TrainingRuntime) {
	rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.BackoffLimit = ptr.To[int32](0)
}

// losePod marks a pod as Kubernetes' garbage collector does when its node is gone.
func losePod(ctx context.Context, tj *api.TrainJob) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		pod := podsOf(ctx, tj)[0]
		pod.Status.Phase = corev1.PodFailed
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
			LastTransitionTime: metav1.Now(),
		})
		return admin.Status().Update(ctx, &pod)
	}).Should(gomega.Succeed())
}

// restartsAt sets how often a TrainJob is restarted after a loss.
func restartsAt(most int) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.RestartsAnnotation, fmt.Sprint(most))
	}
}

// restarts is how often a TrainJob was restarted after a loss.
func restarts(ctx context.Context, tj *api.TrainJob) func() int32 {
	return func() int32 {
		ginkgo.GinkgoHelper()
		if lost := get(ctx, tj).Status.Lost; lost != nil {
			return lost.Restarts
		}
		return 0
	}
}

func lossSpecs() {
	ginkgo.It("is restarted on the quota that it has, until its budget is spent", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever", once)
		tj := g.submit(ctx, g.trainJob("lost", "torch", 2, restartsAt(2)))
		waits := g.trainJob("waits", "torch", 2)
		for restart := 1; restart <= 2; restart++ {
			gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
			if restart == 1 {
				g.submit(ctx, waits)
			}
			losePod(ctx, tj)
			gomega.Eventually(restarts(ctx, tj)).Should(gomega.BeEquivalentTo(restart))
			gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(restart + 1))
		}
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		gomega.Expect(condition(ctx, tj, kueue.WorkloadEvicted)()).To(gomega.BeEmpty())
		gomega.Expect(running(ctx, waits)()).To(gomega.BeFalse(), "nobody else gets the quota meanwhile")
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.MatchRegexp(
			"^Restarting: Its JobSet has failed after pod lost-node-.* was lost with its node; restart 2 of 2$")))
		losePod(ctx, tj)
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateFailed))
		gomega.Eventually(bound(ctx, waits)).Should(gomega.Equal(2))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(3))
	})

	ginkgo.It("fails by its own fault as before", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "broken", "1s", once, func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Annotations[fails] = "true"
		})
		tj := g.submit(ctx, g.trainJob("broken", "broken", 1))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateFailed))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		gomega.Expect(user.Create(ctx, g.trainJob("refused", "broken", 1, restartsAt(-1)))).To(gomega.MatchError(
			gomega.ContainSubstring("metadata.annotations[" + api.RestartsAnnotation + "]: Invalid value: \"-1\"")))
	})

	ginkgo.It("is restarted elsewhere when its node is gone", ginkgo.Label("kueue"), func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever", once)
		tj := g.submit(ctx, g.trainJob("moves", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gone := loseNode(ctx, podsOf(ctx, tj)[0].Spec.NodeName)
		gomega.Eventually(restarts(ctx, tj), "3m").Should(gomega.BeEquivalentTo(1))
		gomega.Eventually(func(e gomega.Gomega) {
			pods := podsOf(ctx, tj)
			e.Expect(pods).To(gomega.HaveLen(1))
			e.Expect(pods[0].Spec.NodeName).NotTo(gomega.Or(gomega.BeEmpty(), gomega.Equal(gone)))
		}, "2m").Should(gomega.Succeed())
	})
}

func init() {
	if cluster.bundled() {
		ginkgo.Describe("A TrainJob on a broken node", waitsForTime, brokenNodeSpecs)
	}
}

// reject marks a pod as a kubelet does whose device plugin has no device for it, and returns its node.
func reject(ctx context.Context, tj *api.TrainJob) (node string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		pod := podsOf(ctx, tj)[0]
		node = pod.Spec.NodeName
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
			Message: "Allocate failed due to no healthy devices present"}
		return admin.Status().Update(ctx, &pod)
	}).Should(gomega.Succeed())
	return node
}

// nodesOf returns the nodes of a TrainJob's pods.
func nodesOf(ctx context.Context, tj *api.TrainJob) func() []string {
	return func() []string {
		nodes := sets.New[string]()
		for _, p := range podsOf(ctx, tj) {
			nodes.Insert(p.Spec.NodeName)
		}
		return sets.List(nodes)
	}
}

func brokenNodeSpecs() {
	ginkgo.It("is restarted elsewhere on its quota, and keeps off the node", func(ctx context.Context) {
		cluster.configure(func(map[string]any) {}, func(c map[string]any) {
			c["nodes"] = map[string]any{"avoidFor": "1h", "taint": true}
		})
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever", once)
		tj := g.submit(ctx, g.trainJob("rejected", "torch", 2))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		workload := workloadOf(ctx, tj).UID
		first := reject(ctx, tj)
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(2))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		gomega.Expect(nodesOf(ctx, tj)()).NotTo(gomega.ContainElement(first))
		second := reject(ctx, tj)
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(3))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		gomega.Expect(nodesOf(ctx, tj)()).NotTo(gomega.ContainElements(first, second), "it keeps off both")
		gomega.Expect(workloadOf(ctx, tj).UID).To(gomega.Equal(workload), "it keeps its quota")
		var names []string
		for _, n := range get(ctx, tj).Status.Avoided {
			gomega.Expect(n.Reason).To(gomega.Equal(avoid.Rejected))
			names = append(names, n.Name)
		}
		gomega.Expect(names).To(gomega.Equal([]string{first, second}))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElements(
			gomega.ContainSubstring("NodeAvoided: It keeps off node "+first), gomega.ContainSubstring("KeepsOff: ")))

		ginkgo.By("having another namespace avoid one of them")
		tainted := func() bool {
			node := get(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first}})
			return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == api.AvoidedTaint })
		}
		gomega.Expect(tainted()).To(gomega.BeFalse(), "one namespace alone taints nothing")
		other := newGround(ctx, map[string]int64{"a100": 8})
		other.runtime(ctx, "torch", "forever", once)
		theirs := other.submit(ctx, other.trainJob("rejected", "torch", 1))
		gomega.Eventually(bound(ctx, theirs)).Should(gomega.Equal(1))
		gomega.Eventually(func() error {
			theirs := get(ctx, theirs)
			theirs.Status.Avoided = []api.AvoidedNode{{Name: first, Reason: avoid.Lost, Pod: "p", Time: metav1.Now()}}
			return admin.Status().Update(ctx, theirs)
		}).Should(gomega.Succeed())
		gomega.Eventually(tainted, "90s").Should(gomega.BeTrue())
		gomega.Expect(g.plugin(ctx, "", "nodes").out).To(gomega.ContainSubstring(first))
		gomega.Expect(admin.Delete(ctx, theirs)).To(gomega.Succeed())
		gomega.Eventually(tainted, "90s").Should(gomega.BeFalse(), "nobody else avoids it any more")
	})

	ginkgo.It("runs on the node again when its time is over and others fill the rest", func(ctx context.Context) {
		cluster.configure(func(map[string]any) {}, func(c map[string]any) {
			c["nodes"] = map[string]any{"avoidFor": "40s"}
		})
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "forever", once)
		tj := g.submit(ctx, g.trainJob("waits", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		workload := workloadOf(ctx, tj).UID
		others := g.submit(ctx, g.trainJob("others", "torch", 7))
		gomega.Eventually(bound(ctx, others)).Should(gomega.Equal(7), "they fill the other nodes")
		first := reject(ctx, tj)
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(2))
		gomega.Eventually(func() string { return g.plugin(ctx, "", "explain", tj.Name).out }).Should(
			gomega.ContainSubstring("its pods keep off nodes " + first))
		gomega.Eventually(bound(ctx, tj), "3m").Should(gomega.Equal(1))
		gomega.Expect(nodesOf(ctx, tj)()).To(gomega.ConsistOf(first))
		gomega.Expect(eventsOf(ctx, tj)()).To(gomega.ContainElement(gomega.ContainSubstring("NodesFreed: ")))
		gomega.Expect(workloadOf(ctx, tj).UID).To(gomega.Equal(workload), "it keeps its quota")
	})
}
