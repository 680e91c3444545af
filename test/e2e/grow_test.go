package e2e

import (
	"bytes"
	"context"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/admission/grow"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("A TrainJob that may grow", growSpecs)
	}
}

// growing lets TrainJobs grow, and installs the policy by which nobody is preempted for them, as the chart renders it.
func growing() {
	ginkgo.GinkgoHelper()
	const policy = "signalbox-grow"
	rendered, err := os.ReadFile("config/grow/policy.yaml")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for _, document := range bytes.Split(rendered, []byte("\n---\n")) {
		meta := metav1.PartialObjectMetadata{}
		gomega.Expect(yaml.Unmarshal(document, &meta)).To(gomega.Succeed())
		var o client.Object = &admissionregistrationv1.ValidatingAdmissionPolicy{}
		if meta.Kind == "ValidatingAdmissionPolicyBinding" {
			o = &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		}
		gomega.Expect(yaml.UnmarshalStrict(document, o)).To(gomega.Succeed())
		gomega.Expect(admin.Create(context.Background(), o)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, o)).To(gomega.Succeed()) })
	}
	cluster.configure(func(map[string]any) {}, func(c map[string]any) {
		c["grow"] = map[string]any{"enabled": true, "every": "10s", "policy": policy}
	})
}

func mayGrow(tj *api.TrainJob) {
	metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.GrowAnnotation, "true")
}

func growSpecs() {
	ginkgo.It("runs with all its nodes when there is room, and gives them back", func(ctx context.Context) {
		growing()
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 48})
		g.runtime(ctx, "torch", "forever")
		other := g.submit(ctx, g.trainJob("other", "torch", 5, priority(high)))
		gomega.Eventually(running(ctx, other)).Should(gomega.BeTrue())
		tj := g.submit(ctx, g.trainJob("part", "torch", 6, priority(low), least("1"), mayGrow))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Expect(user.Delete(ctx, other)).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, tj), "1m").Should(gomega.Equal(6))
		gomega.Expect(nodesOfEnv(ctx, tj)).To(gomega.Equal([]string{"6"}))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(2))
		gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }).Should(gomega.HaveLen(1))
		wl := workloadOf(ctx, tj)
		gomega.Expect(podsets.SliceOf(wl)).To(gomega.HaveValue(gomega.Equal(podsets.Slice{PodSet: "node", From: 1, Of: 6})))
		gomega.Expect(podsets.HoldsQuota(wl)).To(gomega.BeTrue())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(48))
		gomega.Eventually(func() string { return get(ctx, tj).Status.Nodes }).Should(gomega.BeEmpty())

		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 5, priority(high)))
		gomega.Eventually(bound(ctx, urgent)).Should(gomega.Equal(5))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Expect(podsets.SliceOf(workloadOf(ctx, tj))).To(gomega.BeNil(), "it has its minimum again")
		gomega.Eventually(func() string { return get(ctx, tj).Status.Nodes }).Should(gomega.Equal("1 of 6"))
	})

	ginkgo.It("preempts nobody, although the room is gone when Kueue decides", func(ctx context.Context) {
		growing()
		low, _ := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "torch", "forever")
		other := g.submit(ctx, g.trainJob("other", "torch", 2, priority(low)))
		gomega.Eventually(running(ctx, other)).Should(gomega.BeTrue())
		tj := g.submit(ctx, g.trainJob("part", "torch", 3, priority(low), least("1"), mayGrow))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		// What Signalbox would create if the other weren't there, with a priority by which Kueue preempts that.
		slice := grow.Want{PodSet: "node", Have: 1, Least: 2, Most: 3}.Slice(workloadOf(ctx, tj), 3, 1)
		slice.Name, slice.Spec.Priority = "trainjob-slice", ptr.To[int32](5000)
		gomega.Expect(admin.Create(ctx, slice)).To(gomega.Succeed())
		gomega.Eventually(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(slice), slice))
		}, "20s").Should(gomega.BeTrue(), "it is withdrawn as soon as Kueue can't admit it")
		gomega.Eventually(func() []corev1.Event {
			var events corev1.EventList
			gomega.Expect(admin.List(ctx, &events, client.InNamespace(g.namespace))).To(gomega.Succeed())
			return events.Items
		}).Should(gomega.ContainElement(gomega.HaveField("Message",
			gomega.ContainSubstring("Preempting 1 workload(s) failed"))), "Kueue has tried")
		evicted := apimeta.FindStatusCondition(workloadOf(ctx, other).Status.Conditions, kueue.WorkloadEvicted)
		gomega.Expect(evicted).To(gomega.BeNil())
		gomega.Expect(watched.startsOf(other)).To(gomega.Equal(1))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
	})
}
