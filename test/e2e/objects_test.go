package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

var gpuKinds = []string{"a100", "h100"}

// makeNodes makes eight nodes of each GPU kind. All carry a taint of their kind, and one ("spot") that only runtimes
// tolerate.
func makeNodes(ctx context.Context) {
	for _, kind := range gpuKinds {
		for i := range nodesOfKind {
			makeNode(ctx, kind, i)
		}
	}
}

func makeNode(ctx context.Context, kind string, i int) *corev1.Node {
	ginkgo.GinkgoHelper()
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("110"), gpu: resource.MustParse(fmt.Sprint(gpusPerNode)),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", kind, i), Labels: map[string]string{
			"gpu": kind, "has-" + kind: "true", "rack": fmt.Sprintf("%s-rack-%d", kind, i/nodesOfRack), corev1.LabelHostname: fmt.Sprintf("%s-%d", kind, i),
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "gpu", Value: kind, Effect: corev1.TaintEffectNoSchedule},
			{Key: "spot", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		}},
		Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}
	gomega.Expect(admin.Create(ctx, node)).To(gomega.Succeed())
	node.Status = corev1.NodeStatus{Allocatable: capacity, Capacity: capacity}
	gomega.Expect(admin.Status().Update(ctx, node)).To(gomega.Or(gomega.Succeed(), gomega.Satisfy(apierrors.IsConflict)))
	return node
}

// makeFlavors makes a flavor of each GPU kind. Each has a node label of its own beside the common one, and a toleration,
// so that what one flavor leaves behind shows under another.
func makeFlavors(ctx context.Context) {
	for _, kind := range gpuKinds {
		gomega.Expect(admin.Create(ctx, &kueue.ResourceFlavor{
			ObjectMeta: metav1.ObjectMeta{Name: kind},
			Spec: kueue.ResourceFlavorSpec{
				NodeLabels:  map[string]string{"gpu": kind, "has-" + kind: "true"},
				Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: kind, Effect: corev1.TaintEffectNoSchedule}},
			},
		})).To(gomega.Succeed())
	}
}

var spot = corev1.Toleration{Key: "spot", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}

// ground is what one spec stands on: a namespace, a ClusterQueue with its quota and a LocalQueue. All goes with the spec.
type ground struct {
	namespace string
	queue     string // the LocalQueue "training" admits by it
}

const localQueue = "training"

// newGround makes a namespace with a LocalQueue for a ClusterQueue of its own. quota is GPUs by flavor, tried in the
// order a100, h100.
func newGround(ctx context.Context, quota map[string]int64, change ...func(*kueue.ClusterQueue)) *ground {
	ginkgo.GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	gomega.Expect(admin.Create(ctx, namespace)).To(gomega.Succeed())
	g := &ground{namespace: namespace.Name, queue: namespace.Name}
	g.clusterQueue(ctx, g.queue, quota, change...)
	g.localQueue(ctx, localQueue, g.queue)
	ginkgo.DeferCleanup(func(ctx context.Context) {
		gomega.Expect(admin.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(g.namespace))).To(gomega.Succeed())
		gomega.Eventually(func(e gomega.Gomega) {
			e.Expect(g.list(ctx, &kueue.WorkloadList{})).To(gomega.BeEmpty())
			e.Expect(g.list(ctx, &corev1.PodList{})).To(gomega.BeEmpty())
		}).Should(gomega.Succeed())
		gomega.Expect(admin.Delete(ctx, namespace)).To(gomega.Succeed())
	})
	return g
}

func (g *ground) clusterQueue(ctx context.Context, name string, quota map[string]int64, change ...func(*kueue.ClusterQueue)) {
	ginkgo.GinkgoHelper()
	var flavors []kueue.FlavorQuotas
	for _, kind := range gpuKinds {
		if gpus, found := quota[kind]; found {
			flavors = append(flavors, kueue.FlavorQuotas{Name: kueue.ResourceFlavorReference(kind), Resources: []kueue.ResourceQuota{
				{Name: gpu, NominalQuota: *resource.NewQuantity(gpus, resource.DecimalSI)},
				{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("10000")},
			}})
		}
	}
	cq := &kueue.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kueue.ClusterQueueSpec{
			NamespaceSelector: &metav1.LabelSelector{},
			Preemption:        &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority},
			ResourceGroups:    []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{gpu, corev1.ResourceCPU}, Flavors: flavors}},
		},
	}
	for _, c := range change {
		c(cq)
	}
	gomega.Expect(admin.Create(ctx, cq)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		gomega.Expect(ignoreNotFound(admin.Delete(ctx, cq))).To(gomega.Succeed())
	})
}

func (g *ground) localQueue(ctx context.Context, name, clusterQueue string) {
	ginkgo.GinkgoHelper()
	gomega.Expect(admin.Create(ctx, &kueue.LocalQueue{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name},
		Spec:       kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(clusterQueue)},
	})).To(gomega.Succeed())
}

func (g *ground) list(ctx context.Context, list client.ObjectList) []string {
	ginkgo.GinkgoHelper()
	gomega.Expect(admin.List(ctx, list, client.InNamespace(g.namespace))).To(gomega.Succeed())
	var names []string
	gomega.Expect(apimeta.EachListItem(list, func(o runtimeObject) error {
		names = append(names, o.(client.Object).GetName())
		return nil
	})).To(gomega.Succeed())
	return names
}

// runtime makes a TrainingRuntime in the namespace: one trainer step of one node, which tolerates the nodes' own taint
// and runs for the given time.
func (g *ground) runtime(ctx context.Context, name, duration string, change ...func(*api.TrainingRuntime)) *api.TrainingRuntime {
	ginkgo.GinkgoHelper()
	rt := &api.TrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}},
		Spec: trainerapi.TrainingRuntimeSpec{
			MLPolicy: &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1), MLPolicySource: trainerapi.MLPolicySource{Torch: &trainerapi.TorchMLPolicySource{}}},
			Template: trainerapi.JobSetTemplateSpec{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{step("node", "trainer", duration)}}},
		},
	}
	for _, c := range change {
		c(rt)
	}
	gomega.Expect(admin.Create(ctx, rt)).To(gomega.Succeed())
	return rt
}

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

// trainJob returns a suspended TrainJob of that many whole nodes, queued at LocalQueue training.
func (g *ground) trainJob(name, runtime string, nodes int32, change ...func(*api.TrainJob)) *api.TrainJob {
	gpus := corev1.ResourceList{gpu: resource.MustParse(fmt.Sprint(gpusPerNode))}
	tj := &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Labels: map[string]string{constants.QueueLabel: localQueue}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group), Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: runtime},
			Trainer:    &trainerapi.Trainer{NumNodes: &nodes, ResourcesPerNode: &corev1.ResourceRequirements{Requests: gpus, Limits: gpus}},
			Suspend:    ptr.To(true),
		}},
	}
	for _, c := range change {
		c(tj)
	}
	return tj
}

// submit creates a TrainJob as the user.
func (g *ground) submit(ctx context.Context, tj *api.TrainJob) *api.TrainJob {
	ginkgo.GinkgoHelper()
	create(ctx, tj)
	return tj
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
	gomega.Expect(admin.List(ctx, &list, client.InNamespace(tj.Namespace), client.MatchingLabels{jobset.JobSetNameKey: tj.Name})).To(gomega.Succeed())
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

// used is the ClusterQueue's usage of GPUs, over all flavors.
func (g *ground) used(ctx context.Context) func() int64 {
	return func() int64 {
		ginkgo.GinkgoHelper()
		cq := get(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.queue}})
		var sum int64
		for _, f := range cq.Status.FlavorsReservation {
			for _, r := range f.Resources {
				if r.Name == gpu {
					sum += r.Total.Value()
				}
			}
		}
		return sum
	}
}

// startsOf is how often the TrainJobs of one pod each were started. It holds that each had its pod, with exactly the
// tolerations of its runtime and its flavor.
func (g *ground) startsOf(ctx context.Context, all []*api.TrainJob) int {
	ginkgo.GinkgoHelper()
	var pods corev1.PodList
	gomega.Expect(admin.List(ctx, &pods, client.InNamespace(g.namespace))).To(gomega.Succeed())
	gomega.Expect(pods.Items).To(gomega.HaveLen(len(all)))
	for _, p := range pods.Items {
		gomega.Expect(own(p.Spec.Tolerations)).To(gomega.ConsistOf(spot, corev1.Toleration{
			Key: "gpu", Operator: corev1.TolerationOpEqual, Value: p.Spec.NodeSelector["gpu"], Effect: corev1.TaintEffectNoSchedule}))
	}
	starts := 0
	for _, tj := range all {
		starts += watched.startsOf(tj)
	}
	return starts
}

// finished is how many TrainJobs of the namespace are complete.
func (g *ground) finished(ctx context.Context) func() int {
	return func() int {
		ginkgo.GinkgoHelper()
		finished := 0
		var list api.TrainJobList
		gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
		for _, tj := range list.Items {
			if apimeta.IsStatusConditionTrue(tj.Status.Conditions, trainerapi.TrainJobComplete) {
				finished++
			}
		}
		return finished
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

func entryOf(tj *api.TrainJob) *trainerapi.RuntimePatch { return dialect().Own(tj) }

func setKueueConfig(content string) {
	ginkgo.GinkgoHelper()
	ctx := context.Background()
	cm := get(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kueue-system", Name: "kueue-manager-config"}})
	cm.Data = map[string]string{"controller_manager_config.yaml": content}
	gomega.Expect(admin.Update(ctx, cm)).To(gomega.Succeed())
}

func intPort(port int32) intstr.IntOrString { return intstr.FromInt32(port) }
