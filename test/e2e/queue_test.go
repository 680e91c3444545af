package e2e

import (
	"context"
	"encoding/json"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// relabel changes a label of a TrainJob as the user; an empty value removes it.
func relabel(ctx context.Context, tj *api.TrainJob, key, value string) error {
	var v any = value
	if value == "" {
		v = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{key: v}}})
	if err != nil {
		return err
	}
	return user.Patch(ctx, tj, client.RawPatch(types.MergePatchType, patch))
}

var _ = ginkgo.Describe("A TrainJob that waits", func() {
	ginkgo.It("goes before the others when its priority is raised", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) { cq.Spec.Preemption = nil })
		g.runtime(ctx, "torch", "forever")
		first := g.submit(ctx, g.trainJob("first", "torch", 1, priority(low)))
		gomega.Eventually(running(ctx, first)).Should(gomega.BeTrue())
		second := g.submit(ctx, g.trainJob("second", "torch", 1, priority(low)))
		gomega.Eventually(func() any { return workloadOf(ctx, second) }).ShouldNot(gomega.BeNil())
		third := g.submit(ctx, g.trainJob("third", "torch", 1, priority(low)))
		gomega.Eventually(func() any { return workloadOf(ctx, third) }).ShouldNot(gomega.BeNil())
		gomega.Expect(relabel(ctx, third, constants.WorkloadPriorityClassLabel, high)).To(gomega.Succeed())
		gomega.Eventually(func() int32 { return ptr.Deref(workloadOf(ctx, third).Spec.Priority, 0) }).Should(
			gomega.BeEquivalentTo(1000))
		g.complete(ctx, first)
		gomega.Eventually(running(ctx, third)).Should(gomega.BeTrue())
		gomega.Expect(running(ctx, second)()).To(gomega.BeFalse())
		g.complete(ctx, third)
		g.complete(ctx, second)
	})

	ginkgo.It("moves to another queue, and not once it runs", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
			cq.Spec.StopPolicy = ptr.To(kueue.Hold)
		})
		g.clusterQueue(ctx, g.queue+"-open", map[string]int64{"h100": 8})
		g.localQueue(ctx, "open", g.queue+"-open")
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("mover", "torch", 1))
		gomega.Eventually(func() any { return workloadOf(ctx, tj) }).ShouldNot(gomega.BeNil())
		gomega.Expect(relabel(ctx, tj, constants.QueueLabel, "open")).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Expect(flavor(ctx, tj)()).To(gomega.Equal("h100"))
		gomega.Expect(relabel(ctx, tj, constants.QueueLabel, localQueue)).To(gomega.MatchError(gomega.And(
			gomega.ContainSubstring("metadata.labels[kueue.x-k8s.io/queue-name]"), gomega.ContainSubstring("immutable"))))
	})

	ginkgo.It("waits for those who gate its admission", func(ctx context.Context) {
		const gate = "kueue.x-k8s.io/admission-gated-by"
		g := newGround(ctx, map[string]int64{"a100": 8})
		cluster.configure(func(c map[string]any) { c["featureGates"].(map[string]any)["AdmissionGatedBy"] = true },
			func(c map[string]any) {
				c["kueue"].(map[string]any)["featureGates"] = map[string]any{"AdmissionGatedBy": true}
			})
		g.runtime(ctx, "torch", "1s")
		tj := g.submit(ctx, g.trainJob("gated", "torch", 1, func(tj *api.TrainJob) {
			tj.Annotations = map[string]string{gate: "example.com/budget"}
		}))
		gomega.Eventually(func() string {
			if wl := workloadOf(ctx, tj); wl != nil {
				return wl.Annotations[gate]
			}
			return ""
		}).Should(gomega.Equal("example.com/budget"))
		gomega.Consistently(flavor(ctx, tj)).Should(gomega.BeEmpty())
		gomega.Expect(user.Patch(ctx, tj, client.RawPatch(
			types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+gate+`":null}}}`)))).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
	})

	ginkgo.It("takes a Workload that was made for it", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8, "h100": 8}, func(cq *kueue.ClusterQueue) {
			cq.Spec.StopPolicy = ptr.To(kueue.Hold)
		})
		g.runtime(ctx, "torch", "1s")
		model := g.submit(ctx, g.trainJob("model", "torch", 1))
		gomega.Eventually(func() any { return workloadOf(ctx, model) }).ShouldNot(gomega.BeNil())
		prebuilt := &kueue.Workload{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "prebuilt"},
			Spec:       kueue.WorkloadSpec{QueueName: localQueue, PodSets: workloadOf(ctx, model).Spec.PodSets},
		}
		gomega.Expect(admin.Delete(ctx, model)).To(gomega.Succeed())
		gomega.Expect(admin.Create(ctx, prebuilt)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("taker", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels[constants.PrebuiltWorkloadLabel] = "prebuilt"
		}))
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Expect(workloadOf(ctx, tj).Name).To(gomega.Equal("prebuilt"))
	})
})

var _ = ginkgo.Describe("A TrainJob that Kueue does not manage", func() {
	ginkgo.It("is left alone, byte for byte", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s", func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Tolerations = append(
				rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Tolerations,
				corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})
		})
		from := cluster.auditEnd()
		free := g.trainJob("free", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels, tj.Spec.Suspend = nil, ptr.To(false)
		})
		object, err := toUnstructured(free)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		resources := object.Object["spec"].(map[string]any)["trainer"].(map[string]any)["resourcesPerNode"]
		resources.(map[string]any)["requests"].(map[string]any)["nvidia.com/gpu"] =
			int64(8) // a form that a typed client rewrites
		sent, err := json.Marshal(object.Object["spec"])
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(user.Create(ctx, object)).To(gomega.Succeed())
		delete(object.Object["spec"].(map[string]any), "managedBy") // the CRD's default
		gomega.Expect(json.Marshal(object.Object["spec"])).To(gomega.MatchJSON(sent))
		gomega.Eventually(complete(ctx, free)).Should(gomega.BeTrue())
		gomega.Expect(workloadOf(ctx, free)).To(gomega.BeNil())
		gomega.Expect(cluster.requests(from, func(r request) bool {
			trainers := cluster.bundled() && (r.ObjectRef.Resource == "jobsets" || r.ObjectRef.Resource == "trainjobs")
			return r.User.Username == "signalbox" && r.Writes() && r.ObjectRef.Namespace == g.namespace && !trainers
		})).To(gomega.BeEmpty())
		object = object.DeepCopy()
		gomega.Expect(admin.Get(ctx, client.ObjectKeyFromObject(free), object)).To(gomega.Succeed())
		delete(object.Object["spec"].(map[string]any), "managedBy")
		gomega.Expect(json.Marshal(object.Object["spec"])).To(gomega.MatchJSON(sent), "at its end")
	})
})

var _ = ginkgo.Describe("The children of a queued TrainJob", func() {
	// aloneInQueue holds that a TrainJob has one Workload and its JobSet and Jobs none, and that it comes to its end.
	aloneInQueue := func(ctx context.Context, g *ground, tj *api.TrainJob) {
		ginkgo.GinkgoHelper()
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Expect(g.list(ctx, &kueue.WorkloadList{})).To(gomega.HaveLen(1))
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: tj.Name}})
		gomega.Expect(js.Labels).NotTo(gomega.HaveKey(constants.QueueLabel))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Expect(g.list(ctx, &kueue.WorkloadList{})).To(gomega.HaveLen(1))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
	}
	inDefault := func(tj *api.TrainJob) { tj.Labels[constants.QueueLabel] = "default" }

	ginkgo.It("are not queued a second time, with a LocalQueue named default", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.localQueue(ctx, "default", g.queue)
		g.runtime(ctx, "torch", "2s")
		aloneInQueue(ctx, g, g.submit(ctx, g.trainJob("named", "torch", 1, inDefault)))
		unnamed := g.submit(ctx, g.trainJob("unnamed", "torch", 1, func(tj *api.TrainJob) { tj.Labels = nil }))
		gomega.Expect(unnamed.Labels).To(gomega.HaveKeyWithValue(constants.QueueLabel, "default"))
	})

	ginkgo.It("are not queued a second time with manageJobsWithoutQueueName, "+
		"in selected namespaces only", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.localQueue(ctx, "default", g.queue)
		g.runtime(ctx, "torch", "2s")
		outside := newGround(ctx, map[string]int64{"a100": 8})
		outside.runtime(ctx, "torch", "2s")
		namespace := get(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: outside.namespace}})
		gomega.Expect(merge(ctx, admin, namespace, "", `{"metadata":{"labels":{"batch":"no"}}}`)).To(gomega.Succeed())
		selector := map[string]any{"matchExpressions": []any{
			map[string]any{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
				"values": []any{"kube-system", "kueue-system"}},
			map[string]any{"key": "batch", "operator": "NotIn", "values": []any{"no"}}}}
		cluster.configure(
			func(c map[string]any) {
				c["manageJobsWithoutQueueName"], c["managedJobsNamespaceSelector"] = true, selector
			},
			func(c map[string]any) {
				k := c["kueue"].(map[string]any)
				k["manageJobsWithoutQueueName"], k["managedJobsNamespaceSelector"] = true, selector
			})
		aloneInQueue(ctx, g, g.submit(ctx, g.trainJob("named", "torch", 1, inDefault)))
		alien := outside.submit(ctx, outside.trainJob("alien", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels, tj.Spec.Suspend = nil, ptr.To(false)
		}))
		gomega.Expect(alien.Spec.Suspend).To(gomega.HaveValue(gomega.BeFalse()), "in a namespace that Kueue doesn't manage")
		later := outside.submit(ctx, outside.trainJob("later", "torch", 1))
		gomega.Consistently(func() []any { return []any{workloadOf(ctx, alien), workloadOf(ctx, later)} }).Should(
			gomega.HaveEach(gomega.BeNil()))
		gomega.Eventually(func() []metav1.Condition { return get(ctx, later).Status.Conditions }).ShouldNot(
			gomega.BeEmpty(), "nothing is done for it any more")
		gomega.Expect(user.Delete(ctx, alien)).To(gomega.Succeed()) // it would be stopped, as one that nobody has queued
		gomega.Expect(merge(ctx, admin, namespace, "", `{"metadata":{"labels":{"batch":null}}}`)).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, later)).Should(gomega.BeTrue(), "Kueue manages its namespace from now on")

		// Without a queue named default, a TrainJob without a queue name is held until it gets one.
		gomega.Expect(admin.Delete(ctx, &kueue.LocalQueue{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "default"},
		})).To(gomega.Succeed())
		gomega.Eventually(func() *bool {
			tj := g.trainJob("held", "torch", 1, func(tj *api.TrainJob) { tj.Labels, tj.Spec.Suspend = nil, ptr.To(false) })
			gomega.Expect(user.Create(ctx, tj, client.DryRunAll)).To(gomega.Succeed())
			if tj.Labels[constants.QueueLabel] != "" {
				return nil // the caches still know the queue
			}
			return tj.Spec.Suspend
		}).Should(gomega.HaveValue(gomega.BeTrue()))
		held := g.submit(ctx, g.trainJob("held", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels, tj.Spec.Suspend = nil, ptr.To(false)
		}))
		gomega.Consistently(bound(ctx, held)).Should(gomega.BeZero())
		gomega.Expect(relabel(ctx, held, constants.QueueLabel, localQueue)).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, held)).Should(gomega.BeTrue())
	})
})
