package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("kubectl signalbox simulate", ginkgo.Label("plugin", "kueue"), func() {
			ginkgo.It("agrees with Kueue, explain and doctor in 400 random situations", agreement)
		})
	}
}

// agreement lets Kueue decide about Workloads without jobs, in cohorts that have nothing to do with each other, twenty
// at a time, and compares what it does with the prediction.
func agreement(ctx context.Context) {
	const situations, together = 400, 20
	g := newGround(ctx, map[string]int64{"a100": 0})
	g.countsMore(ctx)
	var mu sync.Mutex
	verdicts, wrong := map[string]int{}, []string{}
	for first := 0; first < situations; first += together {
		var all sync.WaitGroup
		for n := first; n < first+together; n++ {
			all.Go(func() {
				defer ginkgo.GinkgoRecover()
				s := newChance(g, n)
				defer s.delete(ctx)
				s.create(ctx)
				foretold, happened := s.compare(ctx)
				disagreements := s.explained(ctx)
				mu.Lock()
				defer mu.Unlock()
				for _, text := range disagreements {
					wrong = append(wrong, fmt.Sprintf("situation %d: simulate says %s; %s\n%s", n, foretold, text, s))
				}
				verdict, _, _ := strings.Cut(foretold, " ")
				verdicts[verdict]++
				if foretold != happened {
					wrong = append(wrong, fmt.Sprintf("situation %d: foretold %q, Kueue %q\n%s", n, foretold, happened, s))
				}
			})
		}
		all.Wait()
	}
	fmt.Fprintf(ginkgo.GinkgoWriter, "simulate: %d situations, %v, %d wrong\n", situations, verdicts, len(wrong))
	ginkgo.AddReportEntry(fmt.Sprintf("simulate: %d situations, %v, %d wrong", situations, verdicts, len(wrong)), wrong)
	gomega.Expect(wrong).To(gomega.BeEmpty(), strings.Join(wrong, "\n"))
	for _, verdict := range []simulate.Verdict{simulate.Admitted, simulate.Preempts, simulate.Waits, simulate.Never} {
		gomega.Expect(verdicts[string(verdict)]).To(gomega.BeNumerically(">=", 10), "%s is tried too", verdict)
	}
}

// chancy is a random cohort with Workloads, and one more that is asked about.
type chancy struct {
	*rand.Rand
	g      *ground
	name   string
	queues []*kueue.ClusterQueue
	locals []*kueue.LocalQueue
	before []*kueue.Workload
	asked  *kueue.Workload
	cohort *kueue.Cohort
	answer *simulate.Answer
	// by is for whom a Workload was preempted.
	by map[string]types.UID
}

func newChance(g *ground, n int) *chancy {
	c := &chancy{Rand: rand.New(rand.NewPCG(uint64(n), 23)), g: g, name: fmt.Sprintf("%s-%d", g.namespace, n),
		by: map[string]types.UID{}}
	for i := range 1 + c.IntN(3) {
		c.queues = append(c.queues, c.queue(i))
		c.locals = append(c.locals, &kueue.LocalQueue{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: c.queues[i].Name},
			Spec:       kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(c.queues[i].Name)},
		})
	}
	for i := range 1 + c.IntN(6) {
		c.before = append(c.before, c.workload(fmt.Sprintf("%s-w%d", c.name, i)))
	}
	c.asked = c.workload(c.name + "-asked")
	if c.IntN(2) == 0 {
		c.asked.Spec.Priority = ptr.To[int32](3) // so that it may preempt
	}
	c.special()
	return c
}

func pick[T any](c *chancy, of ...T) T { return of[c.IntN(len(of))] }

// queue makes a random ClusterQueue of the cohort.
func (c *chancy) queue(i int) *kueue.ClusterQueue {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-q%d", c.name, i)}}
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	if i > 0 || c.IntN(2) == 0 {
		cq.Spec.CohortName = kueue.CohortReference(c.name)
	}
	cq.Spec.QueueingStrategy = pick(c, kueue.BestEffortFIFO, kueue.StrictFIFO)
	cq.Spec.Preemption = &kueue.ClusterQueuePreemption{
		WithinClusterQueue: pick(c, kueue.PreemptionPolicyNever, kueue.PreemptionPolicyLowerPriority,
			kueue.PreemptionPolicyLowerOrNewerEqualPriority),
		ReclaimWithinCohort: pick(c, kueue.PreemptionPolicyNever, kueue.PreemptionPolicyLowerPriority,
			kueue.PreemptionPolicyAny),
	}
	cq.Spec.FlavorFungibility = &kueue.FlavorFungibility{
		WhenCanBorrow:  pick(c, kueue.MayStopSearch, kueue.TryNextFlavor),
		WhenCanPreempt: pick(c, kueue.MayStopSearch, kueue.TryNextFlavor),
	}
	group := kueue.ResourceGroup{CoveredResources: []corev1.ResourceName{gpu}}
	for _, kind := range gpuKinds[:1+c.IntN(2)] {
		quota := kueue.ResourceQuota{
			Name:         gpu,
			NominalQuota: *resource.NewQuantity(int64(c.IntN(5)*4), resource.DecimalSI),
		}
		if cq.Spec.CohortName != "" && c.IntN(3) == 0 {
			quota.BorrowingLimit = resource.NewQuantity(int64(c.IntN(3)*4), resource.DecimalSI)
		}
		group.Flavors = append(group.Flavors, kueue.FlavorQuotas{
			Name: kueue.ResourceFlavorReference(kind), Resources: []kueue.ResourceQuota{quota},
		})
	}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{group}
	return cq
}

// workload makes a random Workload.
func (c *chancy) workload(name string) *kueue.Workload {
	gpus := corev1.ResourceList{gpu: *resource.NewQuantity(int64(1+c.IntN(4)), resource.DecimalSI)}
	return &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.g.namespace, Name: name},
		Spec: kueue.WorkloadSpec{
			QueueName: kueue.LocalQueueName(
				pick(c, c.queues...).Name,
			),
			Priority: ptr.To(int32(c.IntN(3))),
			Active:   ptr.To(true),
			PodSets: []kueue.PodSet{{Name: "node", Count: int32(1 + c.IntN(4)), Template: corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{
					{
						Name:      "node",
						Image:     "example.com/train:1",
						Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus},
					},
				}},
			}}},
		},
	}
}

// create creates all but the one that is asked about, one after the other, so that Kueue decides about each by itself.
func (c *chancy) create(ctx context.Context) {
	ginkgo.GinkgoHelper()
	if c.cohort != nil {
		gomega.Expect(admin.Create(ctx, c.cohort)).To(gomega.Succeed())
	}
	for i := range c.queues {
		gomega.Expect(admin.Create(ctx, c.queues[i])).To(gomega.Succeed())
		gomega.Expect(admin.Create(ctx, c.locals[i])).To(gomega.Succeed())
	}
	for _, cq := range c.queues {
		gomega.Eventually(func() bool {
			return apimeta.IsStatusConditionTrue(get(ctx, cq).Status.Conditions, kueue.ClusterQueueActive)
		}).Should(gomega.BeTrue())
	}
	for _, wl := range c.before {
		gomega.Expect(admin.Create(ctx, wl)).To(gomega.Succeed())
		c.settle(ctx, wl)
	}
}

// settle waits until Kueue has decided about a Workload, and plays the jobs of those that it evicts: they give their
// quota back. It returns the names of those.
func (c *chancy) settle(ctx context.Context, wl *kueue.Workload) (evicted []string) {
	ginkgo.GinkgoHelper()
	quiet := 0
	gomega.Eventually(func() bool {
		before := len(evicted)
		evicted = append(evicted, c.release(ctx)...)
		decided := apimeta.FindStatusCondition(get(ctx, wl).Status.Conditions, kueue.WorkloadQuotaReserved) != nil
		enough := 4
		if !decided {
			enough = 12 // Kueue says nothing of one behind the head of a strict queue, nor of one that is like another
		}
		if quiet++; len(evicted) != before {
			quiet = 0
		}
		return quiet >= enough && (workload.HasQuotaReservation(wl) || !pendingPreemption(wl))
	}, "1m", "250ms").Should(gomega.BeTrue(), "%s: %+v", wl.Name, wl.Status)
	return evicted
}

func pendingPreemption(wl *kueue.Workload) bool {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved)
	return c != nil && strings.Contains(c.Message, "Pending the preemption")
}

// release takes the quota of evicted Workloads, as their jobs' integration does.
func (c *chancy) release(ctx context.Context) (evicted []string) {
	ginkgo.GinkgoHelper()
	for _, wl := range append(slices.Clone(c.before), c.asked) {
		if wl.UID == "" {
			continue
		}
		if wl = get(ctx, wl); !workloadevict.IsEvicted(wl) || !workload.HasQuotaReservation(wl) {
			continue
		}
		after := wl.DeepCopy()
		workload.UnsetQuotaReservationWithCondition(after, "Pending", "Evicted", time.Now())
		workload.SetRequeuedCondition(after, kueue.WorkloadEvictedByPreemption, "Evicted", true)
		if err := admin.Status().Update(ctx, after); err == nil {
			evicted = append(evicted, wl.Name)
			if why := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted); why != nil {
				c.by[wl.Name] = simulate.Preemptor(why.Message)
			}
		}
	}
	return evicted
}

// compare returns the prediction for the Workload, and what Kueue does with it.
func (c *chancy) compare(ctx context.Context) (foretold, happened string) {
	ginkgo.GinkgoHelper()
	now := time.Now()
	view := c.view(ctx)
	asked := c.asked.DeepCopy()
	asked.UID, asked.CreationTimestamp = "asked", metav1.NewTime(now)
	view.Workloads = append(view.Workloads, *asked)
	answer, err := simulate.Ask(ctx, view, client.ObjectKeyFromObject(asked), nil, now)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	c.answer = answer
	gomega.Expect(admin.Create(ctx, c.asked)).To(gomega.Succeed())
	evicted := c.settle(ctx, c.asked)
	if !workload.HasQuotaReservation(c.asked) {
		if slices.Contains([]simulate.Verdict{simulate.Waits, simulate.Stuck, simulate.Never}, answer.Verdict) {
			return string(answer.Verdict), string(answer.Verdict)
		}
		why := ""
		if said := apimeta.FindStatusCondition(c.asked.Status.Conditions, kueue.WorkloadQuotaReserved); said != nil {
			why = said.Message
		}
		return summaryOf(answer), "waits: " + why
	}
	verdict := simulate.Admitted
	var victims []types.NamespacedName
	for _, name := range evicted {
		if c.by[name] != c.asked.UID {
			continue // one that was preempted has preempted it in its turn
		}
		victims = append(victims, types.NamespacedName{Namespace: c.g.namespace, Name: name})
		verdict = simulate.Preempts
	}
	return summaryOf(answer), summaryOf(&simulate.Answer{
		Verdict: verdict, Admission: c.asked.Status.Admission, Victims: victims,
	})
}

// summaryOf puts an answer into one line.
func summaryOf(a *simulate.Answer) string {
	var victims []string
	for _, v := range a.Victims {
		victims = append(victims, v.Name)
	}
	slices.Sort(victims)
	if a.Verdict != simulate.Admitted && a.Verdict != simulate.Preempts {
		return string(a.Verdict)
	}
	var flavors []string
	for _, assignment := range a.Admission.PodSetAssignments {
		flavors = append(flavors, string(assignment.Flavors[gpu]))
	}
	slices.Sort(flavors)
	return fmt.Sprintf("%s on %v, victims %v", a.Verdict, slices.Compact(flavors), victims)
}

// view reads the cohort as the plugin does.
func (c *chancy) view(ctx context.Context) *simulate.Cluster {
	ginkgo.GinkgoHelper()
	view := &simulate.Cluster{}
	var flavors kueue.ResourceFlavorList
	gomega.Expect(admin.List(ctx, &flavors)).To(gomega.Succeed())
	view.Flavors = flavors.Items
	view.Namespaces = []corev1.Namespace{
		*get(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.g.namespace}}),
	}
	c.surroundings(ctx, view)
	for i := range c.queues {
		view.ClusterQueues = append(view.ClusterQueues, *get(ctx, c.queues[i]))
		view.LocalQueues = append(view.LocalQueues, *get(ctx, c.locals[i]))
	}
	for _, wl := range c.before {
		view.Workloads = append(view.Workloads, *get(ctx, wl))
	}
	return view
}

func (c *chancy) delete(ctx context.Context) {
	for _, wl := range append(slices.Clone(c.before), c.asked) {
		if wl.UID != "" {
			wl.Finalizers = nil
			gomega.Expect(ignoreNotFound(admin.Delete(ctx, wl))).To(gomega.Succeed())
		}
	}
	for i := range c.queues {
		gomega.Expect(ignoreNotFound(admin.Delete(ctx, c.locals[i]))).To(gomega.Succeed())
		gomega.Expect(ignoreNotFound(admin.Delete(ctx, c.queues[i]))).To(gomega.Succeed())
	}
	if c.cohort != nil {
		gomega.Expect(ignoreNotFound(admin.Delete(ctx, c.cohort))).To(gomega.Succeed())
	}
}
