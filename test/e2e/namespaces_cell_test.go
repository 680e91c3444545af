package e2e

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// cell is a TrainJob on a runtime in a namespace, and what runs the same pods.
type cell struct {
	row    *row
	column column
	job    *api.TrainJob
	twin   client.Object
}

func (c cell) refused() bool {
	return c.row.says != "" && (len(c.row.only) == 0 || slices.Contains(c.row.only, c.column.name))
}

// twinOf returns the JobSet of a TrainJob that ran, as a user would have written it.
func twinOf(ctx context.Context, tj *api.TrainJob, source *trainerapi.TrainingRuntimeSpec) jobset.JobSetSpec {
	ginkgo.GinkgoHelper()
	js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: tj.Name}})
	spec := js.Spec
	spec.Suspend, spec.ManagedBy = ptr.To(true), nil
	if spec.Network != nil {
		spec.Network.Subdomain = "" // the name of the JobSet
	}
	// The bundled Trainer mounts claims that it has made.
	spec.VolumeClaimPolicies = source.Template.Spec.VolumeClaimPolicies
	claims := map[string]bool{}
	for _, p := range spec.VolumeClaimPolicies {
		for _, c := range p.Templates {
			claims[c.Name] = true
		}
	}
	for i := range spec.ReplicatedJobs {
		job := &spec.ReplicatedJobs[i].Template.Spec
		pod := &job.Template
		// Kueue has given them to the TrainJob's pods; a Job's PodSet has another name.
		for _, of := range []map[string]string{pod.Labels, pod.Annotations} {
			maps.DeleteFunc(of, func(key, _ string) bool { return strings.HasPrefix(key, kueue.SchemeGroupVersion.Group+"/") })
		}
		pod.Spec.NodeSelector, pod.Spec.Tolerations = nil, nil // the flavor's
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return claims[v.Name] })
		if pod.Spec.RestartPolicy == "" {
			pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // which JobSet writes, and a Job needs
		}
	}
	return spec
}

// completed reports whether a twin has.
func (c cell) completed(ctx context.Context) bool {
	ginkgo.GinkgoHelper()
	if c.twin == nil || c.twin.GetUID() == "" {
		return false // it was refused
	}
	switch twin := get(ctx, c.twin).(type) {
	case *batchv1.Job:
		return slices.ContainsFunc(twin.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
		})
	case *jobset.JobSet:
		return apimeta.IsStatusConditionTrue(twin.Status.Conditions, string(jobset.JobSetCompleted))
	}
	return false
}

// isBlocked returns what is wrong with a TrainJob that should be blocked before it holds quota; "" if nothing is.
func (c cell) isBlocked(ctx context.Context) string {
	ginkgo.GinkgoHelper()
	why, says := blockedBy(ctx, c.job)(), regexp.MustCompile(c.row.says)
	switch {
	case !says.MatchString(why):
		return fmt.Sprintf("blocked by %q, not by %q; events %q", why, c.row.says, eventsOf(ctx, c.job)())
	case !slices.ContainsFunc(eventsOf(ctx, c.job)(), says.MatchString):
		return fmt.Sprintf("no event says that it is blocked by %q", c.row.says)
	case watched.startsOf(c.job) > 0:
		return "it was started"
	}
	if wl := workloadOf(ctx, c.job); wl != nil && apimeta.IsStatusConditionTrue(wl.Status.Conditions,
		kueue.WorkloadQuotaReserved) {
		return "it holds quota"
	}
	return ""
}

// isComplete returns what is wrong with a TrainJob that should be complete; "" if nothing is.
func (c cell) isComplete(ctx context.Context) string {
	ginkgo.GinkgoHelper()
	if complete(ctx, c.job)() {
		return ""
	}
	return fmt.Sprintf("not complete, blocked by %q; events %q", blockedBy(ctx, c.job)(), eventsOf(ctx, c.job)())
}

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

var _ = ginkgo.Describe("Real namespaces", func() {
	ginkgo.It("queue what a ResourceQuota has no room for now", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		for _, o := range resourceQuota(map[corev1.ResourceName]string{gpuQuota: "8"})(g.namespace) {
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
			q := o.(*corev1.ResourceQuota)
			gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(1))
		}
		g.runtime(ctx, "long", "forever")
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("first", "long", 1))
		gomega.Eventually(running(ctx, first)).Should(gomega.BeTrue())
		gomega.Eventually(func() []string { return g.list(ctx, &corev1.PodList{}) }).Should(gomega.HaveLen(1))
		second := g.submit(ctx, g.trainJob("second", "torch", 1))
		gomega.Eventually(func() bool { return workloadOf(ctx, second) != nil }).Should(gomega.BeTrue())
		gomega.Expect(blockedBy(ctx, second)()).To(gomega.BeEmpty())
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, second), "2m").Should(gomega.BeTrue())
	})

	ginkgo.It("say why the pods of a started TrainJob can't be created, until they are", func(ctx context.Context) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/waits"}}
		pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "example.com/none:1"}}
		usedUp(ctx, "pods", pod)
	})

	if !cluster.bundled() {
		return
	}
	ginkgo.It("say why JobSet can't create its Jobs, until it can", func(ctx context.Context) {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		job.Spec.Suspend = ptr.To(true)
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		job.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "example.com/none:1"}}
		usedUp(ctx, "count/jobs.batch", job)
	})

	ginkgo.It("name a Job of another client that bears its Job's name, until it is gone", func(ctx context.Context) {
		audited.ofBurst() // it holds quota for nothing until it is told why: a minute
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		other := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "named-node-0"}}
		other.Spec.Suspend = ptr.To(true)
		other.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		other.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "example.com/none:1"}}
		gomega.Expect(admin.Create(ctx, other)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("named", "torch", 1))
		gomega.Eventually(blockedBy(ctx, tj), "3m").Should(gomega.HavePrefix("PodsRefused: Job named-node-0 exists"))
		gomega.Expect(admin.Delete(ctx, other, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(
			gomega.Succeed())
		gomega.Eventually(complete(ctx, tj), "3m").Should(gomega.BeTrue())
	})

	ginkgo.It("start every runtime that Trainer ships, and Flux' example, with their Secrets", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		all := append(installShippedRuntimes(ctx), installPodGroupRuntimes(ctx)...)
		for i := range all {
			g.serviceAccounts(ctx, &all[i].Spec)
			name := fmt.Sprintf("job-%d", i)
			tj := g.submit(ctx, &api.TrainJob{
				ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name,
					Labels: map[string]string{constants.QueueLabel: localQueue}},
				Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{Suspend: ptr.To(true),
					RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
						Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: all[i].Name}}},
			})
			gomega.Eventually(func() []string { return g.list(ctx, &batchv1.JobList{}) }).Should(
				gomega.ContainElement(gomega.HavePrefix(name+"-")), "%s: %s", all[i].Name, blockedBy(ctx, tj)())
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		}
	})
})

// usedUp starts a TrainJob in a namespace whose ResourceQuota of one is used up by another object. It holds that the
// TrainJob says so, and keeps its quota, and that it runs when the other is gone.
func usedUp(ctx context.Context, counted corev1.ResourceName, other client.Object) {
	ginkgo.GinkgoHelper()
	g := newGround(ctx, map[string]int64{"a100": 8})
	for _, o := range resourceQuota(map[corev1.ResourceName]string{counted: "1"})(g.namespace) {
		gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
		q := o.(*corev1.ResourceQuota)
		gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(1))
	}
	other.SetNamespace(g.namespace)
	gomega.Eventually(func() error { return ignoreExists(admin.Create(ctx, other)) }).Should(gomega.Succeed())
	g.runtime(ctx, "torch", "1s")
	tj := g.submit(ctx, g.trainJob("starved", "torch", 1))
	gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.And(
		gomega.HavePrefix("QuotaExceeded: "), gomega.ContainSubstring("exceeded quota: "+quotaName)))
	gomega.Expect(running(ctx, tj)()).To(gomega.BeTrue())
	gomega.Expect(g.used(ctx)()).To(gomega.Equal(int64(8)))
	gomega.Eventually(eventsOf(ctx, get(ctx, tj))).Should(gomega.ContainElement(gomega.HavePrefix("QuotaExceeded: ")))
	if cluster.bundled() {
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateBlocked))
	}
	gomega.Expect(admin.Delete(ctx, other, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(
		gomega.Succeed())
	gomega.Eventually(complete(ctx, tj), "3m").Should(gomega.BeTrue())
	gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.BeEmpty())
}

// serviceAccounts creates those that a runtime names.
func (g *ground) serviceAccounts(ctx context.Context, spec *trainerapi.TrainingRuntimeSpec) {
	ginkgo.GinkgoHelper()
	for _, rj := range spec.Template.Spec.ReplicatedJobs {
		if name := rj.Template.Spec.Template.Spec.ServiceAccountName; name != "" {
			gomega.Expect(ignoreExists(admin.Create(ctx, &corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}))).To(gomega.Succeed())
		}
	}
}
