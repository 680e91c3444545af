package e2e

import (
	"context"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const (
	gpu         = corev1.ResourceName("nvidia.com/gpu")
	gpusPerNode = 8
	nodesOfKind = 8
	nodesOfRack = 4
	runFor      = "sim.signalbox.dev/run-for"
	stopAfter   = "sim.signalbox.dev/stop-after"
	readyAfter  = "sim.signalbox.dev/ready-after"
	fails       = "sim.signalbox.dev/fail"
)

// step is a ReplicatedJob of one pod that asks for one CPU.
func step(name, ancestor, duration string) jobset.ReplicatedJob {
	container := name
	if ancestor == "trainer" {
		container = "node"
	}
	rj := jobset.ReplicatedJob{
		Name: name,
		Template: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{runFor: duration}},
			Spec: corev1.PodSpec{
				Tolerations: []corev1.Toleration{spot},
				Containers: []corev1.Container{{
					Name: container, Image: "example.com/train:1",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
				}},
			},
		}}},
	}
	if ancestor != "" {
		rj.Template.Labels = map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": ancestor}
	}
	return rj
}

// create creates a TrainJob as the user, again where Kubeflow Trainer's cache doesn't show its runtime yet.
func create(ctx context.Context, o client.Object) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		err := user.Create(ctx, o)
		if err != nil && !strings.Contains(err.Error(), "must be created before the TrainJob") {
			return gomega.StopTrying("it is refused").Wrap(err)
		}
		return err
	}).Should(gomega.Succeed())
}

func priority(class string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) { tj.Labels[constants.WorkloadPriorityClassLabel] = class }
}

// get reads an object again.
func get[T client.Object](ctx context.Context, o T) T {
	ginkgo.GinkgoHelper()
	gomega.Expect(admin.Get(ctx, client.ObjectKeyFromObject(o), o)).To(gomega.Succeed())
	return o
}

func running(ctx context.Context, tj *api.TrainJob) func() bool {
	return func() bool { return !ptr.Deref(get(ctx, tj).Spec.Suspend, false) }
}

func complete(ctx context.Context, tj *api.TrainJob) func() bool {
	return func() bool {
		return apimeta.IsStatusConditionTrue(get(ctx, tj).Status.Conditions, trainerapi.TrainJobComplete)
	}
}

// workloadOf returns the one Workload of a TrainJob, nil while there is none. More than one fails the spec.
func workloadOf(ctx context.Context, tj *api.TrainJob) *kueue.Workload {
	ginkgo.GinkgoHelper()
	var list kueue.WorkloadList
	gomega.Expect(admin.List(ctx, &list, client.InNamespace(tj.Namespace))).To(gomega.Succeed())
	var found *kueue.Workload
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], tj) && list.Items[i].DeletionTimestamp.IsZero() {
			gomega.Expect(found).To(gomega.BeNil(), "a second Workload of TrainJob %s", tj.Name)
			found = &list.Items[i]
		}
	}
	return found
}

// condition returns the status and reason of a Workload's condition, as "True/Reason", or "".
func condition(ctx context.Context, tj *api.TrainJob, conditionType string) func() string {
	return func() string {
		ginkgo.GinkgoHelper()
		wl := workloadOf(ctx, tj)
		if wl == nil {
			return ""
		}
		if c := apimeta.FindStatusCondition(wl.Status.Conditions, conditionType); c != nil {
			return string(c.Status) + "/" + c.Reason
		}
		return ""
	}
}

// flavor is what a Workload was admitted on, "" while it isn't.
func flavor(ctx context.Context, tj *api.TrainJob) func() string {
	return func() string {
		ginkgo.GinkgoHelper()
		wl := workloadOf(ctx, tj)
		if wl == nil || wl.Status.Admission == nil {
			return ""
		}
		var names []string
		for _, a := range wl.Status.Admission.PodSetAssignments {
			if name := string(a.Flavors[gpu]); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return strings.Join(names, "+")
	}
}

// podsOf returns the pods of a TrainJob.
func podsOf(ctx context.Context, tj *api.TrainJob) []corev1.Pod {
	ginkgo.GinkgoHelper()
	var list corev1.PodList
	gomega.Expect(admin.List(ctx, &list, client.InNamespace(tj.Namespace),
		client.MatchingLabels{jobset.JobSetNameKey: tj.Name})).To(gomega.Succeed())
	return list.Items
}

func bound(ctx context.Context, tj *api.TrainJob) func() int {
	return func() int {
		n := 0
		for _, p := range podsOf(ctx, tj) {
			if p.Spec.NodeName != "" {
				n++
			}
		}
		return n
	}
}

// eventsOf returns the events on an object, as "Reason: message".
func eventsOf(ctx context.Context, o client.Object) func() []string {
	return func() []string {
		ginkgo.GinkgoHelper()
		var list corev1.EventList
		gomega.Expect(admin.List(ctx, &list, client.InNamespace(o.GetNamespace()))).To(gomega.Succeed())
		var texts []string
		for _, e := range list.Items {
			if e.InvolvedObject.UID == o.GetUID() {
				texts = append(texts, e.Reason+": "+e.Message)
			}
		}
		return texts
	}
}

func entryOf(tj *api.TrainJob) *trainerapi.RuntimePatch { return current().Own(tj) }

func setKueueConfig(content string) {
	ginkgo.GinkgoHelper()
	ctx := context.Background()
	cm := get(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kueue-system", Name: "kueue-manager-config"},
	})
	cm.Data = map[string]string{"controller_manager_config.yaml": content}
	gomega.Expect(admin.Update(ctx, cm)).To(gomega.Succeed())
}

func intPort(port int32) intstr.IntOrString { return intstr.FromInt32(port) }
