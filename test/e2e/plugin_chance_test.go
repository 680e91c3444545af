package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// countsMore has Kueue count CPU that the Workloads of the namespace don't request: by a LimitRange's default, and by
// the overhead of a RuntimeClass.
func (g *ground) countsMore(ctx context.Context) {
	ginkgo.GinkgoHelper()
	half := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	gomega.Expect(admin.Create(ctx, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "defaults"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
			{Type: corev1.LimitTypeContainer, DefaultRequest: half},
		}},
	})).To(gomega.Succeed())
	class := &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: g.namespace}, Handler: "kata", Overhead: &nodev1.Overhead{PodFixed: half},
	}
	gomega.Expect(admin.Create(ctx, class)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, class)).To(gomega.Succeed()) })
}

// special adds what Kueue counts and decides in ways of its own: quota of the cohort, lending limits, CPU that nobody
// has requested, the fewest pods, and PodSets on flavors of their own.
func (c *chancy) special() {
	if c.IntN(3) == 0 {
		c.cohort = &kueue.Cohort{ObjectMeta: metav1.ObjectMeta{Name: c.name}}
		c.cohort.Spec.ResourceGroups = []kueue.ResourceGroup{c.group(func(kind string) []kueue.ResourceQuota {
			return []kueue.ResourceQuota{queueQuota(gpu, int64(c.IntN(3)*4)), queueQuota(corev1.ResourceCPU, 1000)}
		})}
	}
	for _, cq := range c.queues {
		cpu := int64(1000)
		if c.IntN(4) == 0 {
			cpu = int64(c.IntN(6))
		}
		group := &cq.Spec.ResourceGroups[0]
		group.CoveredResources = append(group.CoveredResources, corev1.ResourceCPU)
		for i := range group.Flavors {
			gpus := &group.Flavors[i].Resources[0]
			if cq.Spec.CohortName != "" && c.IntN(4) == 0 {
				gpus.LendingLimit = resource.NewQuantity(gpus.NominalQuota.Value()/2, resource.DecimalSI)
			}
			group.Flavors[i].Resources = append(group.Flavors[i].Resources, queueQuota(corev1.ResourceCPU, cpu))
		}
	}
	for _, wl := range append(slices.Clone(c.before), c.asked) {
		first := &wl.Spec.PodSets[0]
		switch c.IntN(5) {
		case 0:
			first.MinCount = ptr.To(1 + c.Int32N(first.Count))
		case 1:
			first.Template.Spec.RuntimeClassName = ptr.To(c.g.namespace)
		case 2:
			c.choose(first)
			second := *first.DeepCopy()
			second.Name, second.Count = "second", 1+c.Int32N(2)
			second.Template.Spec.Affinity, second.Template.Spec.NodeSelector = nil, nil
			c.choose(&second)
			wl.Spec.PodSets = append(wl.Spec.PodSets, second)
		case 3:
			c.choose(first)
		}
	}
}

// choose has a PodSet choose its flavor, or not.
func (c *chancy) choose(podSet *kueue.PodSet) {
	kind := pick(c, gpuKinds...)
	switch c.IntN(3) {
	case 0:
		podSet.Template.Spec.NodeSelector = map[string]string{"gpu": kind}
	case 1:
		podSet.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "gpu", Operator: corev1.NodeSelectorOpNotIn, Values: []string{kind}},
				},
			}}},
		}}
	}
}

// group is a resource group of GPUs and CPU in all flavors.
func (c *chancy) group(quotas func(kind string) []kueue.ResourceQuota) kueue.ResourceGroup {
	group := kueue.ResourceGroup{CoveredResources: []corev1.ResourceName{gpu, corev1.ResourceCPU}}
	for _, kind := range gpuKinds {
		group.Flavors = append(group.Flavors, kueue.FlavorQuotas{
			Name: kueue.ResourceFlavorReference(kind), Resources: quotas(kind),
		})
	}
	return group
}

func queueQuota(name corev1.ResourceName, n int64) kueue.ResourceQuota {
	return kueue.ResourceQuota{Name: name, NominalQuota: *resource.NewQuantity(n, resource.DecimalSI)}
}

// surroundings reads what Kueue counts by, and the cohort.
func (c *chancy) surroundings(ctx context.Context, view *simulate.Cluster) {
	ginkgo.GinkgoHelper()
	var limits corev1.LimitRangeList
	gomega.Expect(admin.List(ctx, &limits, client.InNamespace(c.g.namespace))).To(gomega.Succeed())
	view.LimitRanges = limits.Items
	class := get(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: c.g.namespace}})
	view.RuntimeClasses = []nodev1.RuntimeClass{*class}
	if c.cohort != nil {
		view.Cohorts = []kueue.Cohort{*get(ctx, c.cohort)}
	}
}

// causes are the verdicts that a cause may come with.
func causes(code explain.Code) []simulate.Verdict {
	switch {
	case code.Never():
		return []simulate.Verdict{simulate.Never}
	case code == explain.CodePreempting:
		return []simulate.Verdict{simulate.Preempts}
	case code == explain.CodeBehind:
		return []simulate.Verdict{simulate.Waits, simulate.Stuck, simulate.Admitted}
	}
	return []simulate.Verdict{simulate.Waits, simulate.Stuck}
}

// explained returns what explain, with a simulation and from Kueue's message alone, and doctor say that doesn't agree
// with the verdict.
func (c *chancy) explained(ctx context.Context) (disagreements []string) {
	ginkgo.GinkgoHelper()
	if get(ctx, c.asked); workload.HasQuotaReservation(c.asked) {
		return nil
	}
	view := c.view(ctx)
	view.Workloads = append(view.Workloads, *c.asked)
	f := &explain.Facts{
		Now: time.Now(), Workload: c.asked, Queues: explain.NewQueues(*view),
		Job: &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
			Namespace: c.asked.Namespace, Name: c.asked.Name, Labels: map[string]string{
				constants.QueueLabel: string(c.asked.Spec.QueueName)},
		}},
		Read: explain.Read{QueuesRead: true, ClusterQueuesRead: true, OwnRead: true, OthersRead: true},
	}
	f.Job.Spec.Suspend = ptr.To(true)
	said := explain.Brief(f).Cause
	unsure := f.Unsure(said)
	var err error
	f.Decision, err = simulate.Decide(ctx, view, client.ObjectKeyFromObject(c.asked), f.Now)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	sure := explain.Brief(f).Cause
	doctor := said.Code
	if unsure {
		doctor = sure.Code
	}
	for who, cause := range map[string]explain.Cause{
		"explain": sure, "Kueue's message": said, "doctor": {Code: doctor},
	} {
		if who == "Kueue's message" && unsure {
			continue // doctor doesn't believe it either
		}
		if !slices.Contains(causes(cause.Code), c.answer.Verdict) {
			disagreements = append(disagreements, fmt.Sprintf("%s says %s: %s", who, cause.Code, cause.Text))
		}
	}
	return disagreements
}

// String describes the situation.
func (c *chancy) String() string {
	var b strings.Builder
	if c.cohort != nil {
		fmt.Fprintf(&b, "  cohort: %s\n", quotasText(c.cohort.Spec.ResourceGroups[0]))
	}
	for _, cq := range c.queues {
		fmt.Fprintf(&b, "  %s cohort %q %s within %s reclaim %s fungibility %v: %s\n", cq.Name, cq.Spec.CohortName,
			cq.Spec.QueueingStrategy, cq.Spec.Preemption.WithinClusterQueue, cq.Spec.Preemption.ReclaimWithinCohort,
			*cq.Spec.FlavorFungibility, quotasText(cq.Spec.ResourceGroups[0]))
	}
	for _, wl := range append(slices.Clone(c.before), c.asked) {
		fmt.Fprintf(&b, "  %s in %s priority %d quota %t:", wl.Name, wl.Spec.QueueName, *wl.Spec.Priority,
			workload.HasQuotaReservation(wl))
		for i := range wl.Spec.PodSets {
			p := &wl.Spec.PodSets[i]
			ask := p.Template.Spec.Containers[0].Resources.Requests[gpu]
			fmt.Fprintf(&b, " %d (%d) × %s %v %v %v;", p.Count, ptr.Deref(p.MinCount, p.Count), ask.String(),
				p.Template.Spec.NodeSelector, p.Template.Spec.Affinity, ptr.Deref(p.Template.Spec.RuntimeClassName, ""))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

func quotasText(group kueue.ResourceGroup) string {
	var parts []string
	for _, fq := range group.Flavors {
		for _, r := range fq.Resources {
			parts = append(parts, fmt.Sprintf("%s %s %s limit %v lends %v", fq.Name, r.Name, r.NominalQuota.String(),
				r.BorrowingLimit, r.LendingLimit))
		}
	}
	return strings.Join(parts, ", ")
}
