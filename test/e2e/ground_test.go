package e2e

import (
	"context"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// ground is what one spec stands on: a namespace, a ClusterQueue with its quota and a LocalQueue.
// All goes with the spec.
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
			g.endTerminating(ctx)
			e.Expect(g.list(ctx, &kueue.WorkloadList{})).To(gomega.BeEmpty())
			e.Expect(g.list(ctx, &corev1.PodList{})).To(gomega.BeEmpty())
		}, "5m").Should(gomega.Succeed(), "chaos leaves hundreds of TrainJobs")
		gomega.Expect(admin.Delete(ctx, namespace)).To(gomega.Succeed())
	})
	return g
}

func (g *ground) clusterQueue(
	ctx context.Context, name string, quota map[string]int64, change ...func(*kueue.ClusterQueue),
) {
	ginkgo.GinkgoHelper()
	var flavors []kueue.FlavorQuotas
	for _, kind := range gpuKinds {
		if gpus, found := quota[kind]; found {
			flavors = append(flavors, kueue.FlavorQuotas{
				Name: kueue.ResourceFlavorReference(kind),
				Resources: []kueue.ResourceQuota{
					{Name: gpu, NominalQuota: *resource.NewQuantity(gpus, resource.DecimalSI)},
					{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("10000")},
				},
			})
		}
	}
	cq := &kueue.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kueue.ClusterQueueSpec{
			NamespaceSelector: &metav1.LabelSelector{},
			Preemption:        &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority},
			ResourceGroups: []kueue.ResourceGroup{{
				CoveredResources: []corev1.ResourceName{gpu, corev1.ResourceCPU}, Flavors: flavors,
			}},
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
func (g *ground) runtime(
	ctx context.Context, name, duration string, change ...func(*api.TrainingRuntime),
) *api.TrainingRuntime {
	ginkgo.GinkgoHelper()
	rt := &api.TrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.namespace, Name: name,
			Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"},
		},
		Spec: trainerapi.TrainingRuntimeSpec{
			MLPolicy: &trainerapi.MLPolicy{
				NumNodes:       ptr.To[int32](1),
				MLPolicySource: trainerapi.MLPolicySource{Torch: &trainerapi.TorchMLPolicySource{}},
			},
			Template: trainerapi.JobSetTemplateSpec{Spec: jobset.JobSetSpec{
				ReplicatedJobs: []jobset.ReplicatedJob{step("node", "trainer", duration)},
			}},
		},
	}
	for _, c := range change {
		c(rt)
	}
	gomega.Expect(admin.Create(ctx, rt)).To(gomega.Succeed())
	return rt
}

// trainJob returns a suspended TrainJob of that many whole nodes, queued at LocalQueue training.
func (g *ground) trainJob(name, runtime string, nodes int32, change ...func(*api.TrainJob)) *api.TrainJob {
	gpus := corev1.ResourceList{gpu: resource.MustParse(fmt.Sprint(gpusPerNode))}
	tj := &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.namespace, Name: name, Labels: map[string]string{constants.QueueLabel: localQueue},
		},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{
				APIGroup: ptr.To(trainerapi.GroupVersion.Group), Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: runtime,
			},
			Trainer: &trainerapi.Trainer{
				NumNodes: &nodes, ResourcesPerNode: &corev1.ResourceRequirements{Requests: gpus, Limits: gpus},
			},
			Suspend: ptr.To(true),
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
			Key: "gpu", Operator: corev1.TolerationOpEqual,
			Value: p.Spec.NodeSelector["gpu"], Effect: corev1.TaintEffectNoSchedule,
		}))
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
