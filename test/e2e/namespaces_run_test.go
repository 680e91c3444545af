package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const (
	// poolName is the flavor of the table's nodes, and the default StorageClass.
	poolName  = "rows"
	poolLabel = "example.com/pool"
	// zoneLabel is a label of these nodes that RuntimeClasses and policies ask for.
	zoneLabel = "example.com/zone"
)

// column is a runtime of the table, and how many nodes its TrainJobs ask for.
type column struct {
	name, runtime string
	nodes         int32
}

// columns are the runtimes that each row has, and more those of the first row beside them: all that the chart of
// runtimes has. The others are like one of these.
func tableColumns() (all, more []column) {
	all = []column{{"torch", "torch-distributed", 2}, {"jax", "jax-distributed", 1}}
	if cluster.bundled() { // Kubeflow Trainer gives a runtime without an ML policy none of the TrainJob's resources
		all = append(all, column{plain, plain, 1}, column{"torchtune", "torchtune-llama3.2-1b", 1},
			column{"mpi", "deepspeed-distributed", 2}, column{"flux", "flux-distributed", 2})
		more = []column{{"mlx", "mlx-distributed", 2}, {"xgboost", "xgboost-distributed", 2},
			{"llama-3b", "torchtune-llama3.2-3b", 1}, {"qwen", "torchtune-qwen2.5-1.5b", 1}}
	}
	return all, more
}

// plain is a runtime without an ML policy.
const plain = "plain"

func plainRuntime() api.ClusterTrainingRuntime {
	node := step("node", "trainer", "1s")
	node.Template.Spec.Template.Spec.Tolerations = nil
	return api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: plain},
		Spec: trainerapi.TrainingRuntimeSpec{Template: trainerapi.JobSetTemplateSpec{Spec: jobset.JobSetSpec{
			ReplicatedJobs: []jobset.ReplicatedJob{node}}}}}
}

// table is all cells, by row.
type table struct {
	runtimes map[string]api.ClusterTrainingRuntime
	// built are the JobSets of the first row's TrainJobs, by runtime: the pods of the twins.
	built map[string]jobset.JobSetSpec
	cells map[string][]cell
}

// claimOfVolume is a claim that one of the table's volumes satisfies.
var claimOfVolume = corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{
	corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage=20Gi")}}

// prepare makes nodes with a flavor, volumes with a default StorageClass, and the runtimes.
func (t *table) prepare(ctx context.Context) {
	ginkgo.GinkgoHelper()
	created := func(o client.Object) {
		ginkgo.GinkgoHelper()
		gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(ignoreNotFound(admin.Delete(ctx, o))).To(gomega.Succeed())
		})
	}
	capacity := amounts("cpu=10000", "memory=100Ti", "pods=1000", string(gpu)+"=1000")
	for i := range 4 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", poolName, i),
			// Without a taint: pods that request nothing get no flavor, and so no toleration.
			Labels: map[string]string{poolLabel: poolName, zoneLabel: "a"}},
			Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity}}
		created(node)
		gomega.Eventually(func() error {
			get(ctx, node).Status.Capacity, node.Status.Allocatable = capacity, capacity
			return admin.Status().Update(ctx, node)
		}).Should(gomega.Succeed())
	}
	created(&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: poolName}, Spec: kueue.ResourceFlavorSpec{
		NodeLabels: map[string]string{poolLabel: poolName},
		Tolerations: []corev1.Toleration{{Key: poolLabel, Operator: corev1.TolerationOpEqual, Value: poolName,
			Effect: corev1.TaintEffectNoSchedule}}}})
	if cluster.bundled() {
		created(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: poolName, Annotations: map[string]string{
			"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "kubernetes.io/no-provisioner"})
		for i := range 3 * len(rows) {
			created(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", poolName, i)},
				Spec: corev1.PersistentVolumeSpec{Capacity: amounts("storage=20Gi"), StorageClassName: poolName,
					AccessModes:                   claimOfVolume.AccessModes,
					PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
					PersistentVolumeSource: corev1.PersistentVolumeSource{
						HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}}})
		}
	}
	rt := plainRuntime()
	created(&rt)
	for _, rt := range append(installShippedRuntimes(ctx), rt) {
		t.runtimes[rt.Name] = rt
	}
}

// namespaceOf makes the namespace of a row, with all that it has.
func namespaceOf(ctx context.Context, r *row) *ground {
	ginkgo.GinkgoHelper()
	g := newGround(ctx, nil, func(cq *kueue.ClusterQueue) {
		group := kueue.ResourceGroup{Flavors: []kueue.FlavorQuotas{{Name: poolName}}}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, gpu} {
			group.CoveredResources = append(group.CoveredResources, name)
			group.Flavors[0].Resources = append(group.Flavors[0].Resources,
				kueue.ResourceQuota{Name: name, NominalQuota: quantity("100Ti")})
		}
		cq.Spec.ResourceGroups = []kueue.ResourceGroup{group}
	})
	if r.labels != nil {
		gomega.Eventually(func() error {
			namespace := get(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: g.namespace}})
			maps.Copy(namespace.Labels, r.labels)
			return admin.Update(ctx, namespace)
		}).Should(gomega.Succeed())
	}
	if r.given == nil {
		return g
	}
	for _, o := range r.given(g.namespace) {
		gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed(), r.name)
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(ignoreNotFound(admin.Delete(ctx, o))).To(gomega.Succeed())
		})
	}
	return g
}

// awaitGiven waits until the API server acts on what the namespace has.
func awaitGiven(ctx context.Context, r *row, namespace string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() bool {
		var quotas corev1.ResourceQuotaList
		gomega.Expect(admin.List(ctx, &quotas, client.InNamespace(namespace))).To(gomega.Succeed())
		return !slices.ContainsFunc(quotas.Items,
			func(q corev1.ResourceQuota) bool { return len(q.Status.Hard) < len(q.Spec.Hard) })
	}).Should(gomega.BeTrue(), r.name)
	if r.acts == nil {
		return
	}
	var err error
	gomega.Eventually(func() bool {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "asks"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/train:1"}}}}
		err = admin.Create(ctx, pod, client.DryRunAll)
		return r.acts(pod, err)
	}).Should(gomega.BeTrue(), func() string { return fmt.Sprintf("%s: %v", r.name, err) })
}

// submit creates the TrainJobs of a row.
func (t *table) submit(ctx context.Context, r *row, g *ground, columns []column) {
	ginkgo.GinkgoHelper()
	for _, c := range columns {
		source := t.runtimes[c.runtime]
		kind := trainerapi.ClusterTrainingRuntimeKind
		if r.pods != nil {
			kind = trainerapi.TrainingRuntimeKind
			rt := &api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: c.runtime,
				Labels: source.Labels}, Spec: *source.Spec.DeepCopy()}
			for i := range rt.Spec.Template.Spec.ReplicatedJobs {
				r.pods(g.namespace, &rt.Spec.Template.Spec.ReplicatedJobs[i].Template.Spec.Template.Spec)
			}
			gomega.Expect(admin.Create(ctx, rt)).To(gomega.Succeed(), r.name)
		}
		limits := amounts("cpu=4", string(gpu)+"=1")
		tj := &api.TrainJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: c.name,
				Labels: map[string]string{constants.QueueLabel: localQueue}},
			Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
				RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group), Kind: &kind, Name: c.runtime},
				Trainer: &trainerapi.Trainer{NumNodes: &c.nodes,
					ResourcesPerNode: &corev1.ResourceRequirements{Limits: limits}},
			}},
		}
		if r.job != nil {
			r.job(tj)
		}
		create(ctx, tj)
		t.cells[r.name] = append(t.cells[r.name], cell{row: r, column: c, job: tj})
	}
}

// submitTwins creates what runs the same pods, beside the TrainJobs of a row. That the API server refuses to is what
// the row may be for.
func (t *table) submitTwins(ctx context.Context, r *row) {
	ginkgo.GinkgoHelper()
	for i, c := range t.cells[r.name] {
		built, found := t.built[c.column.runtime]
		if !found {
			continue
		}
		spec := built.DeepCopy()
		if r.pods != nil {
			for j := range spec.ReplicatedJobs {
				r.pods(c.job.Namespace, &spec.ReplicatedJobs[j].Template.Spec.Template.Spec)
			}
		}
		twin := metav1.ObjectMeta{Namespace: c.job.Namespace, Name: "twin-" + c.column.name, Labels: c.job.Labels}
		if c.column.name == plain && !r.asJobSet {
			c.twin = &batchv1.Job{ObjectMeta: twin, Spec: spec.ReplicatedJobs[0].Template.Spec}
		} else {
			c.twin = &jobset.JobSet{ObjectMeta: twin, Spec: *spec}
		}
		err := admin.Create(ctx, c.twin)
		gomega.Expect(err == nil || c.refused()).To(gomega.BeTrue(), "%s, %s: %v", r.name, c.column.name, err)
		t.cells[r.name][i] = c
	}
}

// wrong returns what is wrong with each cell of a row, by a test of it.
func (t *table) wrong(r *row, test func(cell) string) func() []string {
	return func() []string {
		ginkgo.GinkgoHelper()
		var all []string
		for _, c := range t.cells[r.name] {
			if what := test(c); what != "" {
				all = append(all, c.column.name+": "+what)
			}
		}
		return all
	}
}

// check holds what a row says of each TrainJob and its twin.
func (t *table) check(ctx context.Context, r *row, until time.Time) {
	ginkgo.GinkgoHelper()
	eventually := func(test func(cell) string) {
		ginkgo.GinkgoHelper()
		gomega.Eventually(t.wrong(r, test), max(time.Minute, time.Until(until)), time.Second).Should(gomega.BeEmpty())
	}
	eventually(func(c cell) string {
		if c.refused() {
			return c.isBlocked(ctx)
		}
		if what := c.isComplete(ctx); what != "" {
			return what
		}
		if !c.completed(ctx) {
			return "it is complete, and its twin isn't"
		}
		return ""
	})
	gomega.Expect(t.wrong(r, func(c cell) string {
		if c.refused() && c.completed(ctx) {
			return "its twin is complete"
		}
		return ""
	})()).To(gomega.BeEmpty())
	if r.fix != nil {
		r.fix(ctx, t.cells[r.name][0].job.Namespace)
		eventually(func(c cell) string { return c.isComplete(ctx) })
	}
}

// run submits all TrainJobs and their twins. Those of the first row run before, because the twins are made of their
// JobSets.
func (t *table) run(ctx context.Context, all []*row) {
	ginkgo.GinkgoHelper()
	t.prepare(ctx)
	columns, more := tableColumns()
	grounds := map[string]*ground{}
	for _, r := range all {
		grounds[r.name] = namespaceOf(ctx, r)
	}
	ginkgo.DeferCleanup(func(ctx context.Context) {
		for _, g := range grounds {
			for _, o := range []client.Object{&api.TrainJob{}, &jobset.JobSet{}, &batchv1.Job{}} {
				gomega.Expect(admin.DeleteAllOf(ctx, o, client.InNamespace(g.namespace),
					client.PropagationPolicy(metav1.DeletePropagationBackground))).To(gomega.Succeed())
			}
		}
	})
	audited.ofBurst()
	first := all[0]
	t.submit(ctx, first, grounds[first.name], append(slices.Clone(columns), more...))
	for _, r := range all[1:] {
		awaitGiven(ctx, r, grounds[r.name].namespace)
		t.submit(ctx, r, grounds[r.name], columns)
	}
	quietly := gomega.NewGomega(func(string, ...int) {}) // the first row says what doesn't complete
	for _, c := range t.cells[first.name] {
		if quietly.Eventually(complete(ctx, c.job), "3m").Should(gomega.BeTrue()) {
			source := t.runtimes[c.column.runtime]
			t.built[c.column.runtime] = twinOf(ctx, c.job, &source.Spec)
		}
	}
	for _, r := range all {
		t.submitTwins(ctx, r)
	}
}

var _ = ginkgo.Describe("Real namespaces, with", ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
	var all []*row
	for i := range rows {
		if cluster.bundled() || !rows[i].bundled {
			all = append(all, &rows[i])
		}
	}
	t := &table{runtimes: map[string]api.ClusterTrainingRuntime{}, built: map[string]jobset.JobSetSpec{},
		cells: map[string][]cell{}}
	var until time.Time
	ginkgo.BeforeAll(func(ctx context.Context) {
		t.run(ctx, all)
		until = time.Now().Add(8 * time.Minute)
	})
	// What completes is checked first: by then, a twin that doesn't complete had the time to.
	inOrder := slices.Clone(all)
	slices.SortStableFunc(inOrder, func(a, b *row) int { return min(1, len(a.says)) - min(1, len(b.says)) })
	for _, r := range inOrder {
		ginkgo.It(r.name, func(ctx context.Context) { t.check(ctx, r, until) })
	}
})
