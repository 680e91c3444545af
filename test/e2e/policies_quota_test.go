package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	"github.com/signalbox-dev/signalbox/admission/usage"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// sliceAnnotation on a Workload names another, by namespace and name, that Kueue ends when it admits the Workload.
const sliceAnnotation = "kueue.x-k8s.io/workload-slice-replacement-for"

// boostAnnotation on a Workload is what Kueue adds to its priority.
const boostAnnotation = "kueue.x-k8s.io/priority-boost"

var _ = ginkgo.Describe("The Workload of a TrainJob", func() {
	ofTrainJob := func(tj *api.TrainJob) metav1.OwnerReference {
		return controller(trainerapi.GroupVersion.String(), trainerapi.TrainJobKind, tj)
	}

	ginkgo.It("is the one that Signalbox has created", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.sweep(&kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "second"}},
			&kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "own"}})
		g.runtime(ctx, "torch", "forever")
		editor := g.editor(ctx)
		tj, _ := g.started(ctx, "mine", "torch")
		wl := workloadOf(ctx, tj)
		second := func(name string, change func(*kueue.Workload)) *kueue.Workload {
			second := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name},
				Spec: kueue.WorkloadSpec{QueueName: localQueue, PodSets: wl.DeepCopy().Spec.PodSets, Active: ptr.To(false)}}
			change(second)
			return second
		}
		of := func(owner metav1.OwnerReference) func(*kueue.Workload) {
			return func(wl *kueue.Workload) { wl.OwnerReferences = []metav1.OwnerReference{owner} }
		}
		shared, former := ofTrainJob(tj), ofTrainJob(tj)
		shared.Controller, former.UID = nil, "made-up"
		for what, change := range map[string]func(*kueue.Workload){
			"a second one": of(ofTrainJob(tj)), "one that it owns": of(shared), "one of a former TrainJob": of(former),
			"one with a finalizer": func(wl *kueue.Workload) { wl.Finalizers = []string{"example.com/mine"} },
			"one that says whose it is": func(other *kueue.Workload) {
				other.Annotations = map[string]string{usage.Annotation: usage.Note{User: "another"}.String()}
			},
			"one that replaces it": func(other *kueue.Workload) {
				other.Annotations = map[string]string{sliceAnnotation: wl.Namespace + "/" + wl.Name}
			},
			"one that is taken for a slice": func(other *kueue.Workload) {
				other.Labels = map[string]string{constants.JobUIDLabel: "grows-" + string(tj.UID)}
			},
			"one that preempts it": func(other *kueue.Workload) { other.Annotations = map[string]string{boostAnnotation: "1"} },
		} {
			gomega.Expect(editor.Create(ctx, second("second", change))).To(refusedBy("workloads"), what)
		}
		own := second("own", func(*kueue.Workload) {})
		gomega.Expect(editor.Create(ctx, own)).To(gomega.Succeed(), "a Workload of the editor's own")
		for what, patch := range map[string]string{
			"that is given to it":   ownedBy(ofTrainJob(tj)),
			"with a finalizer":      `{"metadata":{"finalizers":["example.com/mine"]}}`,
			"taken for a slice":     `{"metadata":{"labels":{"kueue.x-k8s.io/job-uid":"grows-x"}}}`,
			"that is to preempt it": fmt.Sprintf(`{"metadata":{"annotations":{%q:"1"}}}`, boostAnnotation),
			"that is to replace it": fmt.Sprintf(`{"metadata":{"annotations":{%q:"%s/%s"}}}`, sliceAnnotation, wl.Namespace, wl.Name),
		} {
			gomega.Expect(merge(ctx, editor, own, "", patch)).To(refusedBy("workloads"), what)
		}
		gomega.Expect(merge(ctx, editor, own, "", ownedBy(controller("example.com/v1", "Job", wl)))).To(gomega.Succeed())
		gomega.Expect(merge(ctx, editor, own, "", fmt.Sprintf(`{"metadata":{"annotations":{%q:"1"}}}`, boostAnnotation))).To(
			gomega.Succeed(), "no TrainJob can have that of another controller")
		gomega.Expect(merge(ctx, editor, own, "", `{"metadata":{"ownerReferences":null}}`)).To(refusedBy("workloads"),
			"unless it is taken from that")
		gomega.Expect(editor.Delete(ctx, own)).To(gomega.Succeed())
		foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
		gomega.Expect(editor.Delete(ctx, wl.DeepCopy(), foreground)).To(refusedBy("workloads"))
		gomega.Expect(workloadOf(ctx, tj).UID).To(gomega.Equal(wl.UID))
		gomega.Eventually(g.used(ctx)).Should(gomega.Equal(int64(8)))
		gomega.Consistently(g.used(ctx)).Should(gomega.Equal(int64(8)))
	})

	ginkgo.It("is changed by Kueue and Signalbox, and by its users where Kueue lets them", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.sweep()
		g.runtime(ctx, "torch", "forever")
		editor := g.editor(ctx)
		tj, _ := g.started(ctx, "mine", "torch")
		wl := workloadOf(ctx, tj)
		for what, patch := range map[string]string{
			"its owners":           `{"metadata":{"ownerReferences":null}}`,
			"one finalizer more":   `{"metadata":{"finalizers":["kueue.x-k8s.io/resource-in-use","example.com/mine"]}}`,
			"a gate":               `{"metadata":{"annotations":{"kueue.x-k8s.io/admission-gated-by":"example.com/mine"}}}`,
			"its boost":            `{"metadata":{"annotations":{"kueue.x-k8s.io/priority-boost":"100"}}}`,
			"what is known of it":  `{"metadata":{"annotations":{"signalbox.dev/priority-boost":"4 2099-01-01T00:00:00Z"}}}`,
			"its elasticity":       `{"metadata":{"annotations":{"kueue.x-k8s.io/elastic-job":"true"}}}`,
			"its provisioning":     `{"metadata":{"annotations":{"provreq.kueue.x-k8s.io/key":"value"}}}`,
			"its dispatch":         `{"metadata":{"annotations":{"signalbox.dev/dispatch":"2099-01-01T00:00:00Z"}}}`,
			"its stop":             `{"metadata":{"annotations":{"signalbox.dev/stop":"true"}}}`,
			"another's stop of it": `{"metadata":{"annotations":{"signalbox.dev/deactivate":"somebody"}}}`,
		} {
			gomega.Expect(merge(ctx, editor, wl, "", patch)).NotTo(gomega.Succeed(), what)
		}
		forged := wl.DeepCopy()
		for i := range forged.Status.Conditions {
			forged.Status.Conditions[i].LastTransitionTime = metav1.Unix(0, 0)
		}
		gomega.Expect(editor.Status().Update(ctx, forged)).To(refusedBy("workloads"), "when it was admitted")
		checked := wl.DeepCopy()
		checked.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "any", State: kueue.CheckStateReady,
			LastTransitionTime: metav1.Now(), PodSetUpdates: []kueue.PodSetUpdate{{Name: wl.Spec.PodSets[0].Name,
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}}}
		gomega.Expect(editor.Status().Update(ctx, checked.DeepCopy())).To(refusedBy("workloads"), "a check's answer")
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: g.namespace},
			Rules: []rbacv1.PolicyRule{may("kueue.x-k8s.io", "admissionchecks/status")}}
		gomega.Expect(admin.Create(ctx, role)).To(gomega.Succeed())
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: g.namespace},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: g.namespace},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "checker"}}}
		gomega.Expect(admin.Create(ctx, binding)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(admin.Delete(ctx, binding)).To(gomega.Succeed())
			gomega.Expect(admin.Delete(ctx, role)).To(gomega.Succeed())
		})
		checker := g.as(ctx, "checker", []rbacv1.PolicyRule{may("kueue.x-k8s.io", "workloads", "workloads/status")})
		gomega.Eventually(func() error { return checker.Status().Update(ctx, checked.DeepCopy(), client.DryRunAll) }).Should(
			gomega.Succeed(), "the check's controller")

		gomega.Expect(merge(ctx, admin, wl, "", `{"metadata":{"finalizers":["kueue.x-k8s.io/resource-in-use",`+
			`"example.com/admins"]}}`)).To(gomega.Succeed())
		for what, patch := range map[string]string{
			"its priority":           `{"spec":{"priority":7}}`,
			"labels of nobody's":     `{"metadata":{"annotations":{"example.com/mine":"too"}}}`,
			"a finalizer of nobody":  `{"metadata":{"finalizers":["kueue.x-k8s.io/resource-in-use"]}}`,
			"the deactivation of it": `{"spec":{"active":false}}`,
		} {
			gomega.Expect(merge(ctx, editor, wl, "", patch)).To(gomega.Succeed(), what)
		}
		gomega.Eventually(func() bool { return ptr.Deref(workloadOf(ctx, tj).Spec.Active, true) }).Should(gomega.BeFalse())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("may be one that an editor has prepared", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
			cq.Spec.StopPolicy = ptr.To(kueue.Hold)
		})
		g.runtime(ctx, "torch", "1s")
		editor := g.editor(ctx)
		model := g.submit(ctx, g.trainJob("model", "torch", 1))
		gomega.Eventually(func() any { return workloadOf(ctx, model) }).ShouldNot(gomega.BeNil())
		prebuilt := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "prebuilt"},
			Spec: kueue.WorkloadSpec{QueueName: localQueue, PodSets: workloadOf(ctx, model).Spec.PodSets}}
		gomega.Expect(user.Delete(ctx, model)).To(gomega.Succeed())
		gomega.Expect(editor.Create(ctx, prebuilt)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("taker", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels[constants.PrebuiltWorkloadLabel] = "prebuilt"
		}))
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Expect(workloadOf(ctx, tj).Name).To(gomega.Equal("prebuilt"))
	})
})

// finalized returns a merge patch that sets the finalizers.
func finalized(names []string) string {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": names}})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return string(raw)
}

var _ = ginkgo.Describe("JobSet and Jobs of a TrainJob", func() {
	ginkgo.It("are kept by no user's finalizer, and read no user's annotation", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.sweep()
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		master := g.master(ctx)
		tj, job := g.started(ctx, "mine", "slow")
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: tj.Name}})
		for policy, o := range map[string]client.Object{"jobsets": js, "jobs": job} {
			own := o.GetFinalizers() // the bundled Trainer sets one
			more := [][]string{append(slices.Clone(own), "example.com/mine"), {metav1.FinalizerOrphanDependents}}
			if !slices.Contains(own, metav1.FinalizerDeleteDependents) {
				more = append(more, append(slices.Clone(own), metav1.FinalizerDeleteDependents))
			}
			for _, names := range more {
				gomega.Expect(merge(ctx, master, o, "", finalized(names))).To(refusedBy(policy), "%v", names)
			}
			for _, patch := range []string{
				`{"metadata":{"annotations":{"alpha.jobset.sigs.k8s.io/exclusive-topology":"rack"}}}`,
				`{"metadata":{"annotations":{"batch.kubernetes.io/job-tracking":"no"}}}`,
				`{"metadata":{"annotations":{"kueue.x-k8s.io/job-min-parallelism":"1"}}}`,
			} {
				gomega.Expect(merge(ctx, master, o, "", patch)).To(refusedBy(policy), patch)
			}
			gomega.Expect(merge(ctx, master, o, "", `{"metadata":{"annotations":{"example.com/mine":"too"}}}`)).To(gomega.Succeed())
			gomega.Expect(merge(ctx, master, o, "status", `{"metadata":{"labels":{"mine":"too"}},"status":{}}`)).To(
				refusedBy(policy), "by the status")
			others := finalized(append(slices.Clone(own), "example.com/admins"))
			gomega.Expect(merge(ctx, admin, o, "", others)).To(gomega.Succeed())
			gomega.Expect(merge(ctx, master, o, "", finalized(own))).To(gomega.Succeed(), "removing one")
		}
		gomega.Eventually(g.used(ctx)).Should(gomega.Equal(int64(8)))
		gomega.Expect(user.Delete(ctx, tj, client.PropagationPolicy(metav1.DeletePropagationForeground))).To(gomega.Succeed())
		for policy, o := range map[string]client.Object{"jobsets": js, "jobs": job} {
			gomega.Eventually(func() []string { return get(ctx, o).GetFinalizers() }).Should(
				gomega.ContainElement(metav1.FinalizerDeleteDependents))
			gomega.Expect(merge(ctx, master, o, "", `{"metadata":{"finalizers":null}}`)).To(refusedBy(policy),
				"that it is gone would say that its pods have ended")
		}
		gomega.Expect(g.inUse(ctx)()).To(gomega.Equal(int64(8)))
		gomega.Expect(g.used(ctx)()).To(gomega.Equal(int64(8)))
		g.endTerminating(ctx)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(g.inUse(ctx)()).To(gomega.BeZero())
	})

	ginkgo.It("are what was counted when they start: the Jobs of a suspended JobSet", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "own"}, Spec: jobset.JobSetSpec{
			Suspend: ptr.To(true), ReplicatedJobs: []jobset.ReplicatedJob{step("node", "", "1s")}}}
		js.Spec.ReplicatedJobs[0].Replicas = 1
		g.sweep(js.DeepCopy())
		editor := g.editor(ctx)
		gomega.Expect(editor.Create(ctx, js)).To(gomega.Succeed())
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "own-node-0"}}
		gomega.Eventually(func() error { return admin.Get(ctx, client.ObjectKeyFromObject(job), job) }).Should(
			gomega.Succeed())
		for _, patch := range []string{
			`{"spec":{"parallelism":8}}`, `{"spec":{"suspend":false}}`,
			`{"spec":{"template":{"spec":{"nodeSelector":{"gpu":"h100"}}}}}`, `{"metadata":{"finalizers":["example.com/mine"]}}`,
		} {
			gomega.Expect(merge(ctx, editor, job, "", patch)).To(refusedBy("jobs"), patch)
		}
		gomega.Expect(editor.Delete(ctx, js)).To(gomega.Succeed(), "the JobSet is the editor's own")
	})

	ginkgo.It("are blocked by no other TrainJob", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj, job := g.started(ctx, "mine", "torch")
		pod := podsOf(ctx, tj)[0]
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: tj.Name}})
		waits := g.submit(ctx, g.trainJob("waits", "torch", 1))
		for _, owner := range []metav1.OwnerReference{
			controller("jobset.x-k8s.io/v1alpha2", "JobSet", js), controller("batch/v1", "Job", job),
			controller("v1", "Pod", &pod), controller(kueue.SchemeGroupVersion.String(), "Workload", workloadOf(ctx, tj)),
		} {
			owner.Controller = nil
			blocks := owner
			blocks.BlockOwnerDeletion = ptr.To(true)
			created := g.trainJob("blocks", "torch", 1, func(tj *api.TrainJob) {
				tj.OwnerReferences, tj.Finalizers = []metav1.OwnerReference{blocks}, []string{"example.com/mine"}
			})
			gomega.Expect(user.Create(ctx, created)).To(refusedBy("trainjobs"), owner.Kind)
			gomega.Expect(merge(ctx, user, waits, "", ownedBy(blocks))).To(refusedBy("trainjobs"), owner.Kind)
			raw, err := json.Marshal([]metav1.OwnerReference{owner})
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(merge(ctx, user, waits, "", fmt.Sprintf(`{"metadata":{"ownerReferences":%s}}`, raw))).To(
				gomega.Succeed(), "one that doesn't block")
			gomega.Expect(merge(ctx, user, waits, "", `{"metadata":{"ownerReferences":null}}`)).To(gomega.Succeed())
		}
	})
})
