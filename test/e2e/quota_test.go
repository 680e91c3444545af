package e2e

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// as returns a client of a user that has the rules in the ground's namespace, and Kubernetes' own ClusterRoles of the
// names.
func (g *ground) as(ctx context.Context, name string, rules []rbacv1.PolicyRule, roles ...string) client.Client {
	ginkgo.GinkgoHelper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}, Rules: rules}
	gomega.Expect(admin.Create(ctx, role)).To(gomega.Succeed())
	refs := []rbacv1.RoleRef{{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}}
	for _, r := range roles {
		refs = append(refs, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r})
	}
	for i, ref := range refs {
		gomega.Expect(admin.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: fmt.Sprintf("%s-%d", name, i)}, RoleRef: ref,
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		})).To(gomega.Succeed())
	}
	c := rest.CopyConfig(config(cluster.kubeconfig("")))
	c.Impersonate.UserName = name
	as, err := client.New(c, client.Options{Scheme: admin.Scheme()})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return as
}

func may(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"*"}}
}

// editor may do what Kubernetes' edit may, and all with TrainJobs, runtimes, JobSets and Workloads.
func (g *ground) editor(ctx context.Context) client.Client {
	return g.as(ctx, "editor", []rbacv1.PolicyRule{
		may("trainer.kubeflow.org", "*"), may("jobset.x-k8s.io", "*"), may("kueue.x-k8s.io", "workloads", "workloads/status"),
	}, "edit")
}

// drainer may evict pods and cordon nodes.
func (g *ground) drainer(ctx context.Context) client.Client {
	ginkgo.GinkgoHelper()
	name := g.namespace + "-drainer"
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{may("", "nodes")}}
	gomega.Expect(admin.Create(ctx, role)).To(gomega.Succeed())
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}
	gomega.Expect(admin.Create(ctx, binding)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		gomega.Expect(admin.Delete(ctx, binding)).To(gomega.Succeed())
		gomega.Expect(admin.Delete(ctx, role)).To(gomega.Succeed())
	})
	return g.as(ctx, name, nil, "edit")
}

// inUse is how many GPUs the pods of the namespace use: those that are bound and whose containers have not ended.
func (g *ground) inUse(ctx context.Context) func() int64 {
	return func() int64 {
		ginkgo.GinkgoHelper()
		var pods corev1.PodList
		gomega.Expect(admin.List(ctx, &pods, client.InNamespace(g.namespace))).To(gomega.Succeed())
		return gpusOf(pods.Items)
	}
}

// gpusOf is how many GPUs pods use that are bound and whose containers have not ended.
func gpusOf(pods []corev1.Pod) int64 {
	var sum int64
	for _, p := range pods {
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, c := range p.Spec.Containers {
			sum += ptr.To(c.Resources.Requests[gpu]).Value()
		}
	}
	return sum
}

// untilEnded is how long pods take to terminate that a spec ends: longer than it needs to look, on a busy machine too.
const untilEnded = "5m"

// slowly makes the pods of a runtime take that long to terminate.
func slowly(stop string) func(*api.TrainingRuntime) {
	return func(rt *api.TrainingRuntime) {
		pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template
		pod.Annotations[stopAfter] = stop
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
	}
}

// endTerminating ends the pods of the namespace that terminate.
func (g *ground) endTerminating(ctx context.Context) {
	ginkgo.GinkgoHelper()
	var pods corev1.PodList
	gomega.Expect(admin.List(ctx, &pods, client.InNamespace(g.namespace))).To(gomega.Succeed())
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp.IsZero() || p.Annotations[stopAfter] == "" || p.Annotations[stopAfter] == "0s" {
			continue
		}
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"0s"}}}`, stopAfter)
		gomega.Expect(ignoreNotFound(admin.Patch(ctx, p, client.RawPatch(types.MergePatchType, patch)))).To(gomega.Succeed())
	}
}

// waitsFor holds that a TrainJob isn't admitted as long as pods of the others use its GPUs, and that it is after it has
// ended them.
func (g *ground) waitsFor(ctx context.Context, next *api.TrainJob, quota int64) {
	ginkgo.GinkgoHelper()
	gomega.Consistently(flavor(ctx, next), "2s").Should(gomega.BeEmpty(), "its GPUs are still in use")
	gomega.Expect(g.inUse(ctx)()).To(gomega.BeNumerically(">", 0), "the pods of the other still terminate")
	gomega.Eventually(func() int {
		g.endTerminating(ctx)
		return bound(ctx, next)()
	}).Should(gomega.BeNumerically(">", 0))
	gomega.Expect(g.inUse(ctx)()).To(gomega.BeNumerically("<=", quota))
}

var _ = ginkgo.Describe("What starts is what was admitted", func() {
	ginkgo.It("and not a runtime that has grown since", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			rt.Labels["trainer.kubeflow.org/webhook-validation"] = "disabled" // its webhook is down during the edit
		})
		stopPolicy(ctx, g.queue, kueue.Hold)
		tj := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(func() *kueue.Workload { return workloadOf(ctx, tj) }).ShouldNot(gomega.BeNil())
		before := workloadOf(ctx, tj)
		gomega.Expect(cluster.act("stop", "signalbox")).To(gomega.Succeed())
		ginkgo.DeferCleanup(func() { gomega.Expect(cluster.ensure("signalbox")).To(gomega.Succeed()) })
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(flavor(ctx, tj)).Should(gomega.Equal("a100"))
		more := step("more", "", "forever")
		gpus := corev1.ResourceList{gpu: resource.MustParse("8")}
		more.Template.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: gpus, Limits: gpus}
		rt.Spec.Template.Spec.ReplicatedJobs = append(rt.Spec.Template.Spec.ReplicatedJobs, more)
		gomega.Eventually(func() error {
			rt.ResourceVersion = get(ctx, rt.DeepCopy()).ResourceVersion
			return admin.Update(ctx, rt)
		}).Should(gomega.Succeed())
		gomega.Expect(cluster.ensure("signalbox")).To(gomega.Succeed())
		gomega.Eventually(func() bool {
			wl := workloadOf(ctx, tj)
			return wl != nil && wl.UID != before.UID
		}).Should(gomega.BeTrue(), "it is queued as what it is now")
		gomega.Consistently(g.inUse(ctx), "3s").Should(gomega.BeZero(), "16 GPUs are not admitted on 8")
	})

	ginkgo.It("and not more than an admission counts", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		stopPolicy(ctx, g.queue, kueue.Hold)
		tj := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(func() *kueue.Workload { return workloadOf(ctx, tj) }).ShouldNot(gomega.BeNil())
		before := workloadOf(ctx, tj)
		asKueue, err := client.New(config(cluster.kubeconfig("kueue")), client.Options{Scheme: admin.Scheme()})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		now := metav1.Now()
		patch, err := json.Marshal(map[string]any{"status": map[string]any{
			"conditions": []metav1.Condition{
				{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue, Reason: "QuotaReserved", Message: "by the spec",
					LastTransitionTime: now},
				{Type: kueue.WorkloadAdmitted, Status: metav1.ConditionTrue, Reason: "Admitted", Message: "by the spec",
					LastTransitionTime: now},
			},
			"admission": kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(g.queue),
				PodSetAssignments: []kueue.PodSetAssignment{{
					Name: before.Spec.PodSets[0].Name, Count: ptr.To[int32](1),
					Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a100"},
					ResourceUsage: corev1.ResourceList{gpu: resource.MustParse("1")},
				}}},
		}})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(asKueue.Status().Patch(ctx, before.DeepCopy(), client.RawPatch(types.MergePatchType, patch))).To(
			gomega.Succeed())
		gomega.Eventually(eventsOf(ctx, tj)).Should(
			gomega.ContainElement(gomega.And(gomega.HavePrefix("AdmissionMismatch: "),
				gomega.ContainSubstring("resourceUsage"))))
		gomega.Eventually(func() bool {
			wl := workloadOf(ctx, tj)
			return wl != nil && wl.UID != before.UID
		}).Should(gomega.BeTrue(), "it is queued again")
		gomega.Expect(g.inUse(ctx)()).To(gomega.BeZero())
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1), "with an admission of what it asks for")
	})
})

// labelled returns a pod that carries the labels of a TrainJob's pods and isn't one. The policies refuse it to users.
// The specs create it as an administrator, because what counts doesn't depend on the policies.
func (g *ground) labelled(name, trainJob string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Labels: map[string]string{
			jobset.JobSetNameKey: trainJob, jobset.JobSetUIDKey: "made-up", jobset.ReplicatedJobNameKey: "node"}},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{"no": "where"},
			Containers: []corev1.Container{{Name: "c", Image: "example.com/none:1"}}},
	}
}

var _ = ginkgo.Describe("Whose pods count is decided by ownership", func() {
	ginkgo.It("for a TrainJob that is yet to come, that waits and that is evicted", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		for i, pod := range []*corev1.Pod{g.labelled("alone", "mine"), g.labelled("kept", "mine")} {
			if i == 1 {
				pod.Finalizers = []string{"example.com/mine"}
			}
			gomega.Expect(admin.Create(ctx, pod)).To(gomega.Succeed())
			ginkgo.DeferCleanup(func(ctx context.Context) {
				gomega.Expect(ignoreNotFound(admin.Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(gomega.Succeed())
				gomega.Expect(ignoreNotFound(admin.Delete(ctx, pod))).To(gomega.Succeed())
			})
		}
		mine := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(running(ctx, mine)).Should(gomega.BeTrue())
		gomega.Eventually(g.inUse(ctx)).Should(gomega.Equal(int64(8)))
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(running(ctx, mine)).Should(gomega.BeFalse())
	})

	ginkgo.It("and not by a Job of the user's own that labels its pods so", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		pod := g.labelled("", "mine")
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		gomega.Expect(admin.Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "own"},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels},
				Spec: pod.Spec}}})).To(gomega.Succeed())
		gomega.Eventually(func() int { return len(podsOf(ctx, g.trainJob("mine", "torch", 1))) }).Should(gomega.Equal(1))
		mine := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(g.inUse(ctx)).Should(gomega.Equal(int64(8)))
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(running(ctx, mine)()).To(gomega.BeFalse())
		gomega.Expect(admin.Delete(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "own"}},
			client.PropagationPolicy(metav1.DeletePropagationBackground))).To(gomega.Succeed())
	})
})

var _ = ginkgo.Describe("What was built is left to those who build it", func() {
	ginkgo.It("children of a TrainJob can't be changed by those who may edit their kinds", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		editor := g.editor(ctx)
		tj := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "mine"}})
		child := get(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "mine-node-0"}})
		pod, wl := podsOf(ctx, tj)[0], workloadOf(ctx, tj)
		for _, patch := range []struct {
			what   string
			object client.Object
			merge  string
		}{
			{"a Job's parallelism", child, `{"spec":{"parallelism":8}}`},
			{"a Job's suspend", child, `{"spec":{"suspend":true}}`},
			{"a Job's owners", child, `{"metadata":{"ownerReferences":null}}`},
			{"a JobSet's suspend", js, `{"spec":{"suspend":true}}`},
			{"a JobSet's owners", js, `{"metadata":{"ownerReferences":null}}`},
			{"a JobSet's labels", js, `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"other"}}}`},
			{"a pod's owners", &pod, `{"metadata":{"ownerReferences":null}}`},
			{"a pod's JobSet", &pod, `{"metadata":{"labels":{"jobset.sigs.k8s.io/jobset-name":"other"}}}`},
			{"a Workload's PodSets", wl, `{"spec":{"podSets":[{"name":"node","count":0,"template":{"spec":{"containers":[{"name":"node"}]}}}]}}`},
			{"a Workload's owners", wl, `{"metadata":{"ownerReferences":null}}`},
			{"the finalizer of a Workload", wl, `{"metadata":{"finalizers":null}}`},
			{"the UID label of a Workload", wl, `{"metadata":{"labels":{"kueue.x-k8s.io/job-uid":"other"}}}`},
			{"a Job's orphaning finalizer", child, `{"metadata":{"finalizers":["orphan"]}}`},
			{"a JobSet's orphaning of Jobs", js, `{"metadata":{"finalizers":["orphan"]}}`},
		} {
			err := editor.Patch(ctx, patch.object.DeepCopyObject().(client.Object),
				client.RawPatch(types.MergePatchType, []byte(patch.merge)))
			gomega.Expect(err).To(gomega.HaveOccurred(), patch.what)
			gomega.Expect(apierrors.IsForbidden(err) || apierrors.IsInvalid(err)).To(gomega.BeTrue(), "%s: %v", patch.what, err)
		}
		for _, forged := range []string{
			`{"status":{"admission":null}}`, `{"status":{"reclaimablePods":[{"name":"node","count":1}]}}`,
		} {
			gomega.Expect(editor.Status().Patch(ctx, wl.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(forged)))).
				NotTo(gomega.Succeed(), forged)
		}
		for _, o := range []client.Object{js, child, &pod} {
			gomega.Expect(apierrors.IsForbidden(editor.Delete(ctx, o))).To(gomega.BeTrue(), "deleting %T", o)
		}
		resized := pod.DeepCopy()
		resized.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		gomega.Expect(editor.SubResource("resize").Update(ctx, resized)).NotTo(gomega.Succeed())
		gomega.Expect(editor.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"mine":"too"}}}`)))).To(gomega.Succeed(), "a label of the user's own")
		gomega.Expect(g.inUse(ctx)()).To(gomega.Equal(int64(8)))
		gomega.Expect(bound(ctx, tj)()).To(gomega.Equal(1))
	})

	ginkgo.It("pods of a TrainJob are evicted by those alone who drain nodes", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", slowly("15s"))
		editor, drainer := g.editor(ctx), g.drainer(ctx)
		tj := g.submit(ctx, g.trainJob("mine", "slow", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "own"}}
		own.Spec.Containers = []corev1.Container{{Name: "own", Image: "example.com/own:1"}}
		gomega.Expect(editor.Create(ctx, own)).To(gomega.Succeed())
		pod := podsOf(ctx, tj)[0]
		evict := func(as client.Client, pod *corev1.Pod, options *metav1.DeleteOptions) error {
			return as.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{DeleteOptions: options})
		}
		refused := evict(editor, &pod, nil)
		gomega.Consistently(bound(ctx, tj)).Should(gomega.Equal(1), "an evicted pod ends while another takes its place")
		gomega.Expect(apierrors.IsForbidden(refused)).To(gomega.BeTrue(), "%v", refused)
		gomega.Expect(refused).To(gomega.MatchError(gomega.ContainSubstring("the quota of TrainJob mine")))
		gomega.Expect(evict(editor, own, nil)).To(gomega.Succeed(), "a pod that is no TrainJob's")
		gomega.Expect(evict(drainer, &pod, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})).To(gomega.Succeed())
		gomega.Expect(g.inUse(ctx)()).To(gomega.Equal(int64(8)))
	})
})
