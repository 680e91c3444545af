package e2e

import (
	"context"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// podPolicy returns a policy for the pods of a namespace.
func podPolicy(expression string) func(string) []client.Object {
	return func(namespace string) []client.Object {
		name := metav1.ObjectMeta{Name: "pods-" + namespace}
		policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: name}
		policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
						Resources: []string{"pods"}},
				}}},
		}
		policy.Spec.Validations = []admissionregistrationv1.Validation{{Expression: expression}}
		binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name}
		binding.Spec.PolicyName = name.Name
		binding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
		return []client.Object{policy, binding}
	}
}

// enforced waits until the API server knows a policy: it refuses a pod that nobody has labeled.
func enforced(ctx context.Context, namespace string) func() error {
	return func() error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "try"}}
		pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
		return admin.Create(ctx, pod, client.DryRunAll)
	}
}

var _ = ginkgo.Describe("Real namespaces", func() {
	if !cluster.bundled() {
		return
	}
	ginkgo.It("count the objects that JobSet creates", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		for _, o := range resourceQuota(map[corev1.ResourceName]string{"count/jobs.batch": "0"})(g.namespace) {
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
			q := o.(*corev1.ResourceQuota)
			gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(1))
		}
		g.runtime(ctx, "torch", "1s")
		tj := g.submit(ctx, g.trainJob("job", "torch", 1))
		gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.ContainSubstring("1 of count/jobs.batch, of 0"))
		gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
	})

	ginkgo.It("don't queue a TrainJob that a queued Job controls", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		launcher := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "launcher",
			Labels: map[string]string{constants.QueueLabel: localQueue}}}
		launcher.Spec.Suspend = ptr.To(true)
		launcher.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		launcher.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "a",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: quantity("64")}}}}
		gomega.Expect(admin.Create(ctx, launcher)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) {
			background := client.PropagationPolicy(metav1.DeletePropagationBackground)
			gomega.Expect(ignoreNotFound(admin.Delete(ctx, launcher, background))).To(gomega.Succeed())
		})
		tj := g.submit(ctx, g.trainJob("job", "torch", 1, func(tj *api.TrainJob) {
			owner := metav1.NewControllerRef(launcher, batchv1.SchemeGroupVersion.WithKind("Job"))
			owner.BlockOwnerDeletion = nil
			tj.OwnerReferences = []metav1.OwnerReference{*owner}
		}))
		gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.ContainSubstring("Job launcher controls it"))
		gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil())
		gomega.Eventually(func() error {
			now := get(ctx, tj)
			now.OwnerReferences = nil
			return user.Update(ctx, now)
		}).Should(gomega.Succeed())
		gomega.Eventually(complete(ctx, tj), "2m").Should(gomega.BeTrue())
	})
})
