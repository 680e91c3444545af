package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// author may write TrainJobs, runtimes, ConfigMaps and pods, and each subresource of pods.
func (g *ground) author(ctx context.Context) client.Client {
	return g.as(ctx, "author", []rbacv1.PolicyRule{
		may("trainer.kubeflow.org", "trainjobs", "trainingruntimes"), may("", "configmaps", "pods", "pods/status",
			"pods/resize", "pods/ephemeralcontainers"),
	})
}

// master has the rights of an editor, and those to write the status of pods and Jobs, which Kubernetes' edit lacks.
func (g *ground) master(ctx context.Context) client.Client {
	return g.as(ctx, "master", []rbacv1.PolicyRule{
		may("trainer.kubeflow.org", "*"), may("jobset.x-k8s.io", "*"), may("kueue.x-k8s.io", "workloads", "workloads/status"),
		may("", "pods", "pods/status", "pods/resize", "pods/ephemeralcontainers"), may("batch", "jobs", "jobs/status"),
	}, "edit")
}

// refusedBy matches what a policy of the chart answers.
func refusedBy(policy string) gomegatypes.GomegaMatcher {
	return gomega.MatchError(gomega.ContainSubstring("ValidatingAdmissionPolicy 'signalbox-" + policy + "'"))
}

// merge sends a merge patch; subResource is "" for the object itself.
func merge(ctx context.Context, as client.Client, o client.Object, subResource, patch string) error {
	o, raw := o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch))
	if subResource == "" {
		return as.Patch(ctx, o, raw)
	}
	return as.SubResource(subResource).Patch(ctx, o, raw)
}

// ownPod returns a pod of a user's own, with the metadata.
func (g *ground) ownPod(name string, labels map[string]string, owners ...metav1.OwnerReference) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Labels: labels, OwnerReferences: owners},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{"no": "where"}, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: "example.com/none:1"}}},
	}
}

// sweep removes what a spec's users have made when it ends, whatever it found: finalizers, and objects by their names.
func (g *ground) sweep(made ...client.Object) {
	ginkgo.DeferCleanup(func(ctx context.Context) {
		for _, o := range made {
			o.SetNamespace(g.namespace)
			gomega.Expect(ignoreNotFound(admin.Delete(ctx, o, client.GracePeriodSeconds(0),
				client.PropagationPolicy(metav1.DeletePropagationBackground)))).To(gomega.Succeed())
		}
		for _, list := range []client.ObjectList{&kueue.WorkloadList{}, &jobset.JobSetList{}, &batchv1.JobList{}} {
			gomega.Expect(admin.List(ctx, list, client.InNamespace(g.namespace))).To(gomega.Succeed())
			gomega.Expect(apimeta.EachListItem(list, func(o runtimeObject) error {
				object := o.(client.Object)
				patch := client.MergeFrom(object.DeepCopyObject().(client.Object))
				object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(f string) bool {
					return strings.HasPrefix(f, "example.com/")
				}))
				return ignoreNotFound(admin.Patch(ctx, object, patch))
			})).To(gomega.Succeed())
		}
	})
}

// podTemplate returns a template of pods that no node takes.
func (g *ground) podTemplate(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: g.ownPod("", nil).Spec}
}

func controller(apiVersion, kind string, o metav1.Object) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: o.GetName(), UID: o.GetUID(),
		Controller: ptr.To(true)}
}

func ownedBy(owner metav1.OwnerReference) string {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{owner}}})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return string(raw)
}

// started submits a TrainJob of one node, waits for its pod and returns its Job too.
func (g *ground) started(ctx context.Context, name, runtime string) (*api.TrainJob, *batchv1.Job) {
	ginkgo.GinkgoHelper()
	tj := g.submit(ctx, g.trainJob(name, runtime, 1))
	gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
	return tj, get(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name + "-node-0"}})
}

var _ = ginkgo.Describe("A pod is of the Job that created it", func() {
	const jobSetLabel = jobset.JobSetUIDKey

	ginkgo.It("and no user's pod becomes one of a TrainJob's", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.sweep(g.ownPod("p", nil), g.ownPod("own", nil))
		g.runtime(ctx, "torch", "forever")
		author, editor := g.author(ctx), g.editor(ctx)
		tj, job := g.started(ctx, "mine", "torch")
		annotated := g.ownPod("p", nil)
		annotated.Annotations = map[string]string{kueue.WorkloadAnnotation: workloadOf(ctx, tj).Name}
		never := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "never", UID: "made-up",
			Controller: ptr.To(true)}
		ofJobSet, selector := podsOf(ctx, tj)[0].Labels, map[string]string{batchv1.ControllerUidLabel: string(job.UID)}
		for what, pod := range map[string]*corev1.Pod{
			"the controller is a Job that never existed": g.ownPod("p", nil, never),
			"the same, with JobSet's labels":             g.ownPod("p", ofJobSet, never),
			"the controller is the TrainJob's Job":       g.ownPod("p", nil, controller("batch/v1", "Job", job)),
			"the Job's selector":                         g.ownPod("p", selector),
			"the Job's selector, and a controller of another group by the Job's UID": g.ownPod("p", selector,
				controller("example.com/v1", "Job", job)),
			"the Job's selector before Kubernetes 1.27": g.ownPod("p", map[string]string{"controller-uid": string(job.UID)}),
			"JobSet's labels":                g.ownPod("p", map[string]string{jobset.JobSetNameKey: tj.Name}),
			"the annotation of its Workload": annotated,
		} {
			for name, as := range map[string]client.Client{"author": author, "editor": editor} {
				pod := pod.DeepCopy()
				pod.Spec.NodeSelector, pod.Spec.NodeName = nil, podsOf(ctx, tj)[0].Spec.NodeName
				gomega.Expect(as.Create(ctx, pod)).To(refusedBy("pod-identities"), "%s: %s", name, what)
			}
		}
		own := g.ownPod("own", map[string]string{"mine": "too"})
		gomega.Expect(author.Create(ctx, own)).To(gomega.Succeed(), "a pod of the author's own")
		for what, patch := range map[string]string{
			"its controller":    ownedBy(controller("batch/v1", "Job", job)),
			"a Job to come":     ownedBy(never),
			"a Job's selector":  fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, batchv1.ControllerUidLabel, job.UID),
			"JobSet's label":    fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, jobSetLabel, ofJobSet[jobSetLabel]),
			"JobSet's priority": `{"metadata":{"labels":{"jobset.sigs.k8s.io/priority":"1"}}}`,
			"its Workload":      fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, kueue.WorkloadAnnotation, workloadOf(ctx, tj).Name),
		} {
			gomega.Expect(merge(ctx, author, own, "", patch)).To(refusedBy("pod-identities"), what)
			if !strings.Contains(patch, "ownerReferences") { // the API server ignores them there
				gomega.Expect(merge(ctx, author, own, "status", patch)).To(refusedBy("pod-identities"), what+", by the status")
			}
		}
		gomega.Expect(merge(ctx, author, own, "", `{"metadata":{"labels":{"mine":null,"other":"1"}}}`)).To(gomega.Succeed())
		gomega.Expect(author.Delete(ctx, own)).To(gomega.Succeed())
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(g.list(ctx, &corev1.PodList{})).To(gomega.BeEmpty())
	})

	ginkgo.It("and neither does a pod that a controller creates from a user's template", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
		g.sweep(&appsv1.ReplicaSet{ObjectMeta: named("orphans")}, &batchv1.Job{ObjectMeta: named("manual")},
			&batchv1.Job{ObjectMeta: named("labelled")}, &jobset.JobSet{ObjectMeta: named("labelled")})
		g.runtime(ctx, "torch", "forever")
		editor := g.editor(ctx)
		tj, job := g.started(ctx, "mine", "torch")
		selector := map[string]string{"app": "mine", batchv1.ControllerUidLabel: string(job.UID)}
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "orphans"},
			Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mine"}},
				Template: g.podTemplate(selector)}}
		rs.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		manual := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "manual"},
			Spec: batchv1.JobSpec{ManualSelector: ptr.To(true), Template: g.podTemplate(selector),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mine"}}}}
		background := client.PropagationPolicy(metav1.DeletePropagationBackground)
		for _, o := range []client.Object{rs, manual} {
			gomega.Expect(editor.Create(ctx, o)).To(gomega.Succeed())
			gomega.Eventually(eventsOf(ctx, o)).Should(gomega.ContainElement(
				gomega.And(gomega.HavePrefix("FailedCreate: "), gomega.ContainSubstring("signalbox-pod-identities"))))
			gomega.Expect(editor.Delete(ctx, o, background)).To(gomega.Succeed())
		}
		labelled := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "labelled"},
			Spec: batchv1.JobSpec{Suspend: ptr.To(true),
				Template: g.podTemplate(map[string]string{jobSetLabel: podsOf(ctx, tj)[0].Labels[jobSetLabel]})}}
		gomega.Expect(editor.Create(ctx, labelled.DeepCopy())).To(refusedBy("job-identities"))
		cron := &batchv1.CronJob{ObjectMeta: labelled.ObjectMeta, Spec: batchv1.CronJobSpec{Schedule: "* * * * *",
			JobTemplate: batchv1.JobTemplateSpec{Spec: labelled.Spec}}}
		gomega.Expect(editor.Create(ctx, cron)).To(gomega.Succeed(), "its Jobs are refused")
		gomega.Expect(editor.Delete(ctx, cron)).To(gomega.Succeed())
		own := &jobset.JobSet{ObjectMeta: labelled.ObjectMeta, Spec: jobset.JobSetSpec{Suspend: ptr.To(true),
			ReplicatedJobs: []jobset.ReplicatedJob{step("own", "", "1s")}}}
		own.Spec.ReplicatedJobs[0].Template.Spec.Template.Annotations[kueue.WorkloadAnnotation] = workloadOf(ctx, tj).Name
		gomega.Expect(editor.Create(ctx, own)).To(refusedBy("jobset-identities"))
		labels := labelled.Spec.Template.Labels
		labelled.Spec.Template.Labels = map[string]string{"app": "mine"}
		gomega.Expect(editor.Create(ctx, labelled)).To(gomega.Succeed())
		maps.Copy(labelled.Spec.Template.Labels, labels)
		raw, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"labels": labels}}}})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(merge(ctx, editor, labelled, "", string(raw))).To(refusedBy("job-identities"))
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: tj.Name}})
		gomega.Expect(merge(ctx, editor, labelled, "", ownedBy(controller("jobset.x-k8s.io/v1alpha2", "JobSet", js)))).To(
			refusedBy("jobs"))
		gomega.Expect(merge(ctx, editor, labelled, "", `{"metadata":{"finalizers":["example.com/mine"]}}`)).To(
			gomega.Succeed(), "a Job of the editor's own")
		gomega.Expect(merge(ctx, editor, labelled, "", `{"metadata":{"finalizers":null}}`)).To(gomega.Succeed())
		gomega.Expect(editor.Delete(ctx, labelled)).To(gomega.Succeed())
		gomega.Expect(podsOf(ctx, tj)).To(gomega.HaveLen(1))
		gomega.Expect(bound(ctx, tj)()).To(gomega.Equal(1))
	})

	ginkgo.It("and a runtime's Jobs select no others", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			template := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec
			template.ManualSelector = ptr.To(true)
			template.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mine"}}
			template.Template.Labels = map[string]string{"app": "mine"}
		})
		own := g.ownPod("own", map[string]string{"app": "mine"})
		g.sweep(own.DeepCopy())
		gomega.Expect(g.author(ctx).Create(ctx, own)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("mine", "torch", 1))
		if cluster.bundled() {
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionBlocked) }).Should(
				gomega.ContainSubstring("manualSelector"))
			gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
		} else {
			gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue(), "Kubeflow Trainer can't create its JobSet")
		}
		gomega.Consistently(func() []metav1.OwnerReference { return get(ctx, own).OwnerReferences }).Should(gomega.BeEmpty())
	})
})

var _ = ginkgo.Describe("A running TrainJob's pod", func() {
	ginkgo.It("is what was counted, whatever its users patch", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj, _ := g.started(ctx, "mine", "torch")
		pod := podsOf(ctx, tj)[0]
		tolerating, err := json.Marshal(map[string]any{"spec": map[string]any{"tolerations": append(pod.Spec.Tolerations,
			corev1.Toleration{Key: "any", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: ptr.To[int64](1)})}})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for name, as := range map[string]client.Client{"author": g.author(ctx), "editor": g.master(ctx)} {
			for what, patch := range map[string]string{
				"its index":          `{"metadata":{"annotations":{"batch.kubernetes.io/job-completion-index":"7"}}}`,
				"its failures":       `{"metadata":{"annotations":{"batch.kubernetes.io/job-index-failure-count":"7"}}}`,
				"its in-place tries": `{"metadata":{"annotations":{"jobset.sigs.k8s.io/in-place-restart-attempt":"7"}}}`,
				"its topology":       `{"metadata":{"annotations":{"alpha.jobset.sigs.k8s.io/exclusive-topology":"rack"}}}`,
				"its Workload":       `{"metadata":{"annotations":{"kueue.x-k8s.io/workload":"other"}}}`,
				"its forced end":     `{"metadata":{"annotations":{"kueue.x-k8s.io/safe-to-forcefully-delete":"true"}}}`,
				"its gang":           `{"metadata":{"labels":{"scheduling.x-k8s.io/pod-group":"other"}}}`,
				"its PodSet":         `{"metadata":{"labels":{"kueue.x-k8s.io/podset":null}}}`,
				"its Job's name":     `{"metadata":{"labels":{"job-name":"other"}}}`,
				"its finalizers":     `{"metadata":{"finalizers":null}}`,
				"one finalizer more": `{"metadata":{"finalizers":["batch.kubernetes.io/job-tracking","example.com/mine"]}}`,
				"its owners":         `{"metadata":{"ownerReferences":null}}`,
				"its deadline":       `{"spec":{"activeDeadlineSeconds":1}}`,
				"its image":          `{"spec":{"containers":[{"name":"node","image":"example.com/other:1"}]}}`,
				"its tolerations":    string(tolerating),
			} {
				raw := client.RawPatch(types.StrategicMergePatchType, []byte(patch))
				if strings.Contains(patch, "null") {
					raw = client.RawPatch(types.MergePatchType, []byte(patch))
				}
				gomega.Expect(as.Patch(ctx, pod.DeepCopy(), raw)).To(refusedBy("pods"), "%s: %s", name, what)
			}
			for what, patch := range map[string]string{
				"phase":      `{"status":{"phase":"Failed"}}`,
				"disruption": `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True"}]}}`,
				"index":      `{"metadata":{"annotations":{"batch.kubernetes.io/job-completion-index":"7"}}}`,
			} {
				gomega.Expect(as.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType,
					[]byte(patch)))).To(refusedBy("pods"), "%s: %s by the status", name, what)
			}
			gomega.Expect(as.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType,
				[]byte(`{"status":{"conditions":[{"type":"example.com/ready","status":"True"}]}}`)))).To(gomega.Succeed(),
				"a readiness gate")
			debugged, resized := pod.DeepCopy(), pod.DeepCopy()
			debugged.ResourceVersion, resized.ResourceVersion = "", ""
			debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "example.com/debug:1"}}}
			gomega.Expect(as.SubResource("ephemeralcontainers").Update(ctx, debugged)).To(refusedBy("pods"), name)
			resized.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
			gomega.Expect(as.SubResource("resize").Update(ctx, resized)).NotTo(gomega.Succeed(), name)
			gomega.Expect(as.Delete(ctx, pod.DeepCopy())).To(refusedBy("pods"), name)
			gomega.Expect(as.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0))).To(refusedBy("pods"), name)
			gomega.Expect(merge(ctx, as, &pod, "", `{"metadata":{"labels":{"mine":"too"},"annotations":{"mine":"too"}}}`)).To(
				gomega.Succeed(), "%s: labels and annotations of the user's own", name)
		}
		gomega.Consistently(g.inUse(ctx)).Should(gomega.Equal(int64(8)))
		gomega.Expect(podsOf(ctx, tj)).To(gomega.HaveLen(1))
	})

	ginkgo.It("keeps its index, so that the Job controller doesn't replace it", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", slowly("15s"))
		author := g.author(ctx)
		tj, _ := g.started(ctx, "mine", "slow")
		pod := podsOf(ctx, tj)[0]
		refused := merge(ctx, author, &pod, "", `{"metadata":{"annotations":{"batch.kubernetes.io/job-completion-index":"7"}}}`)
		gomega.Consistently(g.inUse(ctx), "3s").Should(gomega.Equal(int64(8)))
		gomega.Expect(refused).To(refusedBy("pods"))
	})

	ginkgo.It("may be let go by those who gate it, and by nobody else's gate", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "gated", "forever", func(rt *api.TrainingRuntime) {
			pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
			pod.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/mine"}, {Name: "scheduling.volcano.sh/queue"}}
		})
		editor := g.editor(ctx)
		tj := g.submit(ctx, g.trainJob("mine", "gated", 1))
		gomega.Eventually(func() []corev1.Pod { return podsOf(ctx, tj) }).Should(gomega.HaveLen(1))
		pod := podsOf(ctx, tj)[0]
		gates := func(names ...string) string {
			list := []corev1.PodSchedulingGate{}
			for _, name := range names {
				list = append(list, corev1.PodSchedulingGate{Name: name})
			}
			raw, err := json.Marshal(map[string]any{"spec": map[string]any{"schedulingGates": list}})
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			return string(raw)
		}
		gomega.Expect(merge(ctx, editor, &pod, "", gates("example.com/mine"))).To(refusedBy("pods"), "a scheduler's gate")
		gomega.Expect(merge(ctx, editor, &pod, "", `{"spec":{"nodeSelector":{"gpu":"h100","a":"b"}}}`)).NotTo(gomega.Succeed())
		gomega.Expect(merge(ctx, editor, &pod, "", `{"spec":{"nodeSelector":{"a":"b"}}}`)).To(refusedBy("pods"))
		gomega.Expect(merge(ctx, editor, &pod, "", gates("scheduling.volcano.sh/queue"))).To(gomega.Succeed())
		gomega.Expect(merge(ctx, admin, &pod, "", gates())).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
	})
})
