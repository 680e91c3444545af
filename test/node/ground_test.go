package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
)

const (
	flavor        = "simulated" // of the real nodes, whose GPUs a device plugin serves
	gpu           = corev1.ResourceName("nvidia.com/gpu")
	localQueue    = "training"
	peerImage     = "signalbox.test/peer:1"
	trainingImage = "signalbox.test/training:1"
)

func makeFlavor(ctx context.Context) {
	gomega.Expect(admin.Create(ctx, newFlavor())).To(gomega.Succeed())
	for name, value := range map[string]int32{"low": 10, "high": 1000} {
		gomega.Expect(admin.Create(ctx, &kueue.WorkloadPriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value})).To(gomega.Succeed())
	}
}

func newFlavor() *kueue.ResourceFlavor {
	return &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: flavor},
		Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpu": flavor}}}
}

// ground is what a spec stands on: a namespace, a ClusterQueue with its quota of GPUs and a LocalQueue.
type ground struct{ namespace string }

func newGround(ctx context.Context, gpus int64) *ground {
	ginkgo.GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
	gomega.Expect(admin.Create(ctx, namespace)).To(gomega.Succeed())
	g := &ground{namespace: namespace.Name}
	queue := &kueue.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: g.namespace},
		Spec: kueue.ClusterQueueSpec{
			NamespaceSelector: &metav1.LabelSelector{},
			Preemption:        &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority},
			ResourceGroups: []kueue.ResourceGroup{{
				CoveredResources: []corev1.ResourceName{gpu, corev1.ResourceMemory},
				Flavors: []kueue.FlavorQuotas{{Name: flavor, Resources: []kueue.ResourceQuota{
					{Name: gpu, NominalQuota: *resource.NewQuantity(gpus, resource.DecimalSI)},
					{Name: corev1.ResourceMemory, NominalQuota: resource.MustParse("1Ti")}}}},
			}},
		},
	}
	gomega.Expect(admin.Create(ctx, queue)).To(gomega.Succeed())
	gomega.Expect(admin.Create(ctx, &kueue.LocalQueue{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: localQueue},
		Spec:       kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(g.namespace)},
	})).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		gomega.Expect(admin.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(g.namespace))).To(gomega.Succeed())
		gomega.Eventually(func(e gomega.Gomega) {
			var workloads kueue.WorkloadList
			e.Expect(admin.List(ctx, &workloads, client.InNamespace(g.namespace))).To(gomega.Succeed())
			e.Expect(workloads.Items).To(gomega.BeEmpty())
			e.Expect(pods(ctx, client.InNamespace(g.namespace))).To(gomega.BeEmpty())
		}, "2m").Should(gomega.Succeed())
		gomega.Expect(admin.Delete(ctx, queue)).To(gomega.Succeed())
		gomega.Expect(admin.Delete(ctx, namespace)).To(gomega.Succeed())
	})
	return g
}

// used is the GPUs that the ClusterQueue counts as used.
func (g *ground) used(ctx context.Context) func() int64 {
	return func() int64 {
		ginkgo.GinkgoHelper()
		queue := get(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.namespace}})
		var sum int64
		for _, f := range queue.Status.FlavorsReservation {
			for _, r := range f.Resources {
				if r.Name == gpu {
					sum += r.Total.Value()
				}
			}
		}
		return sum
	}
}

// step is a ReplicatedJob of one container, which is named after it.
func step(name, ancestor, image string, command ...string) jobset.ReplicatedJob {
	job := jobset.ReplicatedJob{Name: name}
	if ancestor != "" {
		job.Template.Labels = map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": ancestor}
	}
	job.Template.Spec.BackoffLimit = ptr.To[int32](0)
	job.Template.Spec.Template.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: name, Image: image, ImagePullPolicy: corev1.PullNever, Command: command}},
	}
	return job
}

// runtime makes a TrainingRuntime for PyTorch in the namespace, with one step "node" that is the trainer.
func (g *ground) runtime(
	ctx context.Context, name, image string, change ...func(*trainerapi.TrainingRuntimeSpec),
) {
	ginkgo.GinkgoHelper()
	rt := &api.TrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name,
			Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}},
		Spec: trainerapi.TrainingRuntimeSpec{
			MLPolicy: &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1),
				MLPolicySource: trainerapi.MLPolicySource{Torch: &trainerapi.TorchMLPolicySource{}}},
			Template: trainerapi.JobSetTemplateSpec{Spec: jobset.JobSetSpec{
				ReplicatedJobs: []jobset.ReplicatedJob{step("node", "trainer", image)}}},
		},
	}
	for _, c := range change {
		c(&rt.Spec)
	}
	gomega.Expect(admin.Create(ctx, rt)).To(gomega.Succeed())
}

// trainerPod is the pod of the step "node" of a runtime.
func trainerPod(spec *trainerapi.TrainingRuntimeSpec) *corev1.PodSpec {
	for i := range spec.Template.Spec.ReplicatedJobs {
		if job := &spec.Template.Spec.ReplicatedJobs[i]; job.Name == "node" {
			return &job.Template.Spec.Template.Spec
		}
	}
	ginkgo.Fail("the runtime has no step node")
	return nil
}

// submit creates a TrainJob as the user: so many nodes of so many GPUs, with that command.
func (g *ground) submit(
	ctx context.Context, name, runtime string, nodes int32, gpus int64, command []string, change ...func(*api.TrainJob),
) *api.TrainJob {
	ginkgo.GinkgoHelper()
	each := corev1.ResourceList{gpu: *resource.NewQuantity(gpus, resource.DecimalSI)}
	tj := &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.namespace, Name: name, Labels: map[string]string{constants.QueueLabel: localQueue},
		},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
				Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: runtime},
			Trainer: &trainerapi.Trainer{NumNodes: &nodes, Command: command,
				ResourcesPerNode: &corev1.ResourceRequirements{Requests: each, Limits: each}},
			Suspend: ptr.To(true),
		}},
	}
	for _, c := range change {
		c(tj)
	}
	gomega.Eventually(func() error { return user.Create(ctx, tj) }, "20s").Should(gomega.Or(gomega.Succeed(),
		gomega.Satisfy(apierrors.IsAlreadyExists)))
	return tj
}

// peer is a command of the static program.
func peer(args ...string) []string { return append([]string{"/peer"}, args...) }

func priority(name string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) { tj.Labels[constants.WorkloadPriorityClassLabel] = name }
}

// of are the pods of a TrainJob's step; of all steps where it is empty.
func of(ctx context.Context, tj *api.TrainJob, step string) []corev1.Pod {
	ginkgo.GinkgoHelper()
	labels := client.MatchingLabels{jobset.JobSetNameKey: tj.Name}
	if step != "" {
		labels[jobset.ReplicatedJobNameKey] = step
	}
	return pods(ctx, client.InNamespace(tj.Namespace), labels)
}

// running is how many pods of the TrainJob run.
func running(ctx context.Context, tj *api.TrainJob) func() int {
	return func() int { return len(places(ctx, tj)()) }
}

// places are the nodes of the pods of the TrainJob that run, one for each pod.
func places(ctx context.Context, tj *api.TrainJob) func() []string {
	return func() (nodes []string) {
		ginkgo.GinkgoHelper()
		for _, p := range of(ctx, tj, "") {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp.IsZero() {
				nodes = append(nodes, p.Spec.NodeName)
			}
		}
		return nodes
	}
}

// eventsOf are what events say of an object.
func eventsOf(ctx context.Context, o client.Object) func() []string {
	return func() (texts []string) {
		ginkgo.GinkgoHelper()
		var list corev1.EventList
		gomega.Expect(admin.List(ctx, &list, client.InNamespace(o.GetNamespace()))).To(gomega.Succeed())
		for _, e := range list.Items {
			if e.InvolvedObject.UID == o.GetUID() {
				texts = append(texts, e.Reason+": "+e.Message)
			}
		}
		return texts
	}
}

// is reports whether a condition of a TrainJob is true. Waiting for Complete ends when the TrainJob has failed.
func is(ctx context.Context, tj *api.TrainJob, condition string) func() (bool, error) {
	return func() (bool, error) {
		ginkgo.GinkgoHelper()
		conditions := get(ctx, tj).Status.Conditions
		failed := apimeta.FindStatusCondition(conditions, trainerapi.TrainJobFailed)
		if failed != nil && failed.Status == metav1.ConditionTrue && condition == trainerapi.TrainJobComplete {
			return false, gomega.StopTrying(fmt.Sprintf("TrainJob %s has failed: %s", tj.Name, failed.Message))
		}
		return apimeta.IsStatusConditionTrue(conditions, condition), nil
	}
}

// logs are what a pod's container has printed, as kubectl shows it.
func logs(p corev1.Pod) func() string {
	return func() string {
		ginkgo.GinkgoHelper()
		text, err := tryKubectl("-n", p.Namespace, "logs", p.Name, "-c", p.Spec.Containers[0].Name)
		if err != nil { // it may not have started
			return ""
		}
		return text
	}
}

// rank is the pod with that index of the step node.
func rank(ctx context.Context, tj *api.TrainJob, index int) corev1.Pod {
	ginkgo.GinkgoHelper()
	for _, p := range of(ctx, tj, "node") {
		if p.Annotations[batchv1.JobCompletionIndexAnnotation] == fmt.Sprint(index) && p.DeletionTimestamp.IsZero() {
			return p
		}
	}
	ginkgo.Fail(fmt.Sprintf("TrainJob %s has no pod of rank %d", tj.Name, index))
	return corev1.Pod{}
}

// volume makes a volume that every node has, as a network file system is, and a claim of it in the namespace.
func (g *ground) volume(ctx context.Context, name string) {
	ginkgo.GinkgoHelper()
	path := filepath.Join(dir, "volumes", g.namespace, name)
	gomega.Expect(os.MkdirAll(path, 0o777)).To(gomega.Succeed())
	gomega.Expect(os.Chmod(path, 0o777)).To(gomega.Succeed()) // whoever pods run as
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: g.namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: path, Type: ptr.To(corev1.HostPathDirectory)}},
		},
	}
	gomega.Expect(admin.Create(ctx, pv)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, pv)).To(gomega.Succeed()) })
	gomega.Expect(admin.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeName: pv.Name,
			StorageClassName: ptr.To(""), Resources: corev1.VolumeResourceRequirements{Requests: size}},
	})).To(gomega.Succeed())
}

// mount gives a pod's container a claim at a path.
func mount(pod *corev1.PodSpec, claim, path string) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: claim, MountPath: path})
}

// What `signalbox audit --watch` finds, beside the whole suite.
var (
	found     []string
	foundLock sync.Mutex
	stopAudit = func() {}
)

func startAudit(scheme *runtime.Scheme) {
	config, err := clientcmd.BuildConfigFromFlags("", dir+"/kubeconfig")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	stopAudit = cancel
	watcher, err := audit.NewWatcher(config, scheme)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	tell := func(finding string) {
		foundLock.Lock()
		defer foundLock.Unlock()
		found = append(found, finding)
	}
	lasting := new(audit.Lasting)
	lasting.SetPatience(10*time.Second, 3*time.Minute) // a node that dies takes minutes, and its TrainJobs hold quota
	go func() {
		if err := watcher.Run(ctx, time.Second, lasting, func(f audit.Finding) { tell(f.String()) }, nil); err != nil &&
			ctx.Err() == nil {
			tell("the audit has ended: " + err.Error())
		}
	}()
}

// findings are those since the last call.
func findings() []string {
	foundLock.Lock()
	defer foundLock.Unlock()
	some := found
	found = nil
	return some
}
