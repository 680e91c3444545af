package e2e

import (
	"context"
	"encoding/json"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

var _ = ginkgo.Describe("Who owns a TrainJob", func() {
	owner := func(tj *api.TrainJob) []metav1.OwnerReference {
		return []metav1.OwnerReference{
			{APIVersion: trainerapi.GroupVersion.String(), Kind: trainerapi.TrainJobKind, Name: tj.Name, UID: tj.UID,
				Controller: ptr.To(true)}}
	}

	ginkgo.It("is decided when it is created", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever")
		small, tj := g.submit(ctx, g.trainJob("small", "torch", 1)), g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		for _, of := range []*api.TrainJob{small, tj} {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": owner(of)}})
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(user.Patch(ctx, tj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))).To(
				gomega.MatchError(gomega.ContainSubstring("metadata.ownerReferences")))
		}
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.inUse(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("doesn't make it run on another's quota", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		parent := g.submit(ctx, g.trainJob("parent", "torch", 1))
		gomega.Eventually(bound(ctx, parent)).Should(gomega.Equal(1))
		child := g.submit(ctx, g.trainJob("child", "torch", 1, func(tj *api.TrainJob) { tj.OwnerReferences = owner(parent) }))
		gomega.Eventually(func() *kueue.Workload { return workloadOf(ctx, child) }).ShouldNot(gomega.BeNil(),
			"it needs quota of its own")
		gomega.Consistently(running(ctx, child)).Should(gomega.BeFalse())
		gomega.Expect(g.inUse(ctx)()).To(gomega.Equal(int64(8)))
	})
})

var _ = ginkgo.Describe("A field manager's name", func() {
	ginkgo.It("is nobody's: what is applied by the integration's stays", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.trainJob("mine", "torch", 1)
		tj.Labels["team"] = "x"
		u, err := toUnstructured(tj)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		u.SetAPIVersion(trainerapi.GroupVersion.String())
		u.SetKind(trainerapi.TrainJobKind)
		delete(u.Object, "status")
		u.SetCreationTimestamp(metav1.Time{})
		gomega.Expect(user.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(store.FieldManager),
			client.ForceOwnership)).To(gomega.Succeed())
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
		gomega.Expect(get(ctx, tj).Labels).To(
			gomega.And(gomega.HaveKeyWithValue(constants.QueueLabel, localQueue), gomega.HaveKeyWithValue("team", "x")))
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeFalse(), "it is still managed")
		gomega.Eventually(g.inUse(ctx)).Should(gomega.BeZero())
	})
})

var _ = ginkgo.Describe("A pinned runtime", func() {
	if !cluster.bundled() {
		return
	}
	ginkgo.It("is the manager's alone, "+
		"also of a TrainJob that nobody queues and in a namespace that Kueue doesn't manage", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever")
		privileged := rt.Spec.DeepCopy()
		privileged.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.HostPID = true
		pin, err := store.Pin(privileged)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for _, namespace := range []string{g.namespace, "kueue-system"} {
			tj := g.trainJob("mine", "torch", 1)
			tj.Namespace, tj.Labels, tj.Annotations = namespace, nil, map[string]string{store.PinAnnotation: pin}
			gomega.Expect(user.Create(ctx, tj)).To(gomega.MatchError(gomega.ContainSubstring(store.PinAnnotation)))
		}
		tj := g.trainJob("mine", "torch", 1)
		tj.Labels = nil
		gomega.Expect(user.Create(ctx, tj)).To(gomega.Succeed())
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{store.PinAnnotation: pin}},
			"spec":     map[string]any{"suspend": false}})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(user.Patch(ctx, tj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))).To(gomega.Succeed())
		gomega.Eventually(func() []corev1.Pod { return podsOf(ctx, tj) }).Should(gomega.HaveLen(1))
		gomega.Expect(podsOf(ctx, tj)[0].Spec.HostPID).To(gomega.BeFalse())
		gomega.Expect(get(ctx, tj).Annotations[store.PinAnnotation]).NotTo(gomega.Equal(pin))
	})
})
