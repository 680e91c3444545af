package explain

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

var chances = flag.Int("chances", 60, "how many random situations are tried")

// chance draws a cohort, and Workloads that Kueue has decided about one after the other.
type chance struct {
	*rand.Rand
	simulate.Cluster
}

func pick[T any](c *chance, of ...T) T { return of[c.IntN(len(of))] }

// TestByChance holds that explain agrees with simulate, with Kueue's message and without, in random situations.
func TestByChance(t *testing.T) {
	verdicts := map[simulate.Verdict]int{}
	for n := range *chances {
		c := &chance{Rand: rand.New(rand.NewPCG(uint64(n), 41))}
		c.draw()
		asked := c.decide(t)
		answer, err := simulate.Ask(t.Context(), &c.Cluster, keyOf(asked), nil, noon)
		if err != nil {
			t.Fatal(err)
		}
		f := facts(func(f *Facts) {
			f.Workload = asked
			f.Queues.Cluster = *c.With(slices.DeleteFunc(slices.Clone(c.Workloads),
				func(wl kueue.Workload) bool { return wl.Name == asked.Name }))
			f.KueueSeen = ptr.To(noon)
		})
		if verdicts[answer.Verdict]++; answer.Verdict == simulate.Running {
			continue
		}
		said := Brief(f).Cause
		unsure := f.Unsure(said)
		if f.Decision, err = simulate.Decide(t.Context(), &f.Queues.Cluster, keyOf(asked), noon); err != nil {
			t.Fatal(err)
		}
		for who, cause := range map[string]Cause{"a simulation": Brief(f).Cause, "Kueue's message": said} {
			if (who == "a simulation" || !unsure) && !slices.Contains(answers(cause.Code), answer.Verdict) {
				t.Errorf("situation %d: simulate says %s: %s\nby %s it is %s: %s", n, answer.Verdict, answer.Message, who,
					cause.Code, cause.Text)
			}
		}
	}
	t.Log(verdicts)
}

// draw draws the queues.
func (c *chance) draw() {
	half := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	c.Namespaces = []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "team"}}}
	c.LimitRanges = []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "defaults"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, DefaultRequest: half}}}}}
	c.RuntimeClasses = []nodev1.RuntimeClass{{ObjectMeta: metav1.ObjectMeta{Name: "kata"},
		Overhead: &nodev1.Overhead{PodFixed: half}}}
	for _, kind := range []string{"a100", "h100"} {
		c.Flavors = append(c.Flavors, kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: kind},
			Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpu": kind}}})
	}
	if c.IntN(3) == 0 {
		cohort := kueue.Cohort{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
		cohort.Spec.ResourceGroups = []kueue.ResourceGroup{c.group(2, "all", 1000)}
		c.Cohorts = []kueue.Cohort{cohort}
	}
	for i := range 1 + c.IntN(3) {
		c.queue(i)
	}
}

func (c *chance) queue(i int) {
	name := fmt.Sprintf("queue-%d", i)
	f := &Facts{Queues: &Queues{}}
	cq := *addQueue(f, name, pick(c, "", "all", "all"), 0)
	cq.Spec.QueueingStrategy = pick(c, kueue.BestEffortFIFO, kueue.StrictFIFO)
	cq.Spec.Preemption.WithinClusterQueue = pick(c, kueue.PreemptionPolicyNever, kueue.PreemptionPolicyLowerPriority,
		kueue.PreemptionPolicyLowerOrNewerEqualPriority)
	cq.Spec.Preemption.ReclaimWithinCohort = pick(c, kueue.PreemptionPolicyNever, kueue.PreemptionPolicyLowerPriority,
		kueue.PreemptionPolicyAny)
	cq.Spec.FlavorFungibility.WhenCanBorrow = pick(c, kueue.MayStopSearch, kueue.TryNextFlavor)
	cq.Spec.FlavorFungibility.WhenCanPreempt = pick(c, kueue.MayStopSearch, kueue.TryNextFlavor)
	cpu := int64(1000)
	if c.IntN(4) == 0 {
		cpu = c.Int64N(6)
	}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{c.group(1+c.IntN(2), string(cq.Spec.CohortName), cpu)}
	c.ClusterQueues = append(c.ClusterQueues, cq)
	c.LocalQueues = append(c.LocalQueues, f.Queues.LocalQueues...)
}

// group draws quotas of GPUs.
func (c *chance) group(flavors int, cohort string, cpu int64) kueue.ResourceGroup {
	group := kueue.ResourceGroup{CoveredResources: []corev1.ResourceName{gpu, corev1.ResourceCPU}}
	for _, kind := range []string{"a100", "h100"}[:flavors] {
		q := kueue.ResourceQuota{Name: gpu, NominalQuota: gpus(c.Int64N(5) * 4)}
		if cohort != "" && c.IntN(3) == 0 {
			q.BorrowingLimit = ptr.To(gpus(c.Int64N(3) * 4))
		}
		if cohort != "" && c.IntN(4) == 0 {
			q.LendingLimit = ptr.To(gpus(q.NominalQuota.Value() / 2))
		}
		group.Flavors = append(group.Flavors, kueue.FlavorQuotas{Name: kueue.ResourceFlavorReference(kind),
			Resources: []kueue.ResourceQuota{q, {Name: corev1.ResourceCPU, NominalQuota: gpus(cpu)}}})
	}
	return group
}

// decide has Kueue decide about Workloads one after the other, and returns the last.
func (c *chance) decide(t *testing.T) *kueue.Workload {
	t.Helper()
	most := 2 + c.IntN(6)
	var last *kueue.Workload
	for i := range most {
		last = c.workload(i)
		c.Workloads = append(c.Workloads, *last)
		if i == most-1 && c.IntN(2) == 0 {
			break // Kueue hasn't looked at it
		}
		settled, err := simulate.Settle(t.Context(), &c.Cluster, noon)
		if err != nil {
			t.Fatal(err)
		}
		c.Workloads = settled.Workloads
	}
	return c.Workload(keyOf(last))
}

func (c *chance) workload(i int) *kueue.Workload {
	name := fmt.Sprintf("w%d", i)
	wl := workloadOf(name, pick(c, c.LocalQueues...).Name, 1+c.Int64N(4), c.Int32N(4))
	wl.CreationTimestamp = ago(20*time.Second - time.Duration(i)*time.Second)
	wl.UID = types.UID(name)
	first := &wl.Spec.PodSets[0]
	first.Count = 1 + c.Int32N(4)
	switch c.IntN(5) {
	case 0:
		first.MinCount = ptr.To(1 + c.Int32N(first.Count))
	case 1:
		first.Template.Spec.RuntimeClassName = ptr.To("kata")
	case 2:
		second := *first.DeepCopy()
		second.Name, second.Count = "second", 1+c.Int32N(2)
		wl.Spec.PodSets = append(wl.Spec.PodSets, second)
	}
	for i := range wl.Spec.PodSets {
		spec := &wl.Spec.PodSets[i].Template.Spec
		switch kind := pick(c, "a100", "h100"); c.IntN(6) {
		case 0:
			spec.NodeSelector = map[string]string{"gpu": kind}
		case 1:
			spec.Affinity = affinity(corev1.NodeSelectorOpNotIn, kind)
		}
	}
	return wl
}

// many returns TrainJobs that wait in ten queues, and the facts of each.
func many(n int) (jobs []*Facts, queues *Queues) {
	f := &Facts{Queues: &Queues{}}
	for i := range 10 {
		addQueue(f, fmt.Sprintf("queue-%d", i), "", 8)
	}
	c := f.Queues.Cluster
	for i := range n {
		name := fmt.Sprintf("job-%d", i)
		wl := workloadOf(name, fmt.Sprintf("queue-%d", i%10), 8, int32(i*7919%97))
		wl.OwnerReferences[0].UID = types.UID("owner-" + name)
		says(&Facts{Workload: wl}, "insufficient unused quota for nvidia.com/gpu in flavor a100, 8 more needed")
		c.Workloads = append(c.Workloads, *wl)
	}
	queues = NewQueues(c)
	for i := range n {
		name := fmt.Sprintf("job-%d", i)
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("owner-" + name)}}
		job.Spec.Suspend = ptr.To(true)
		jobs = append(jobs, &Facts{Now: noon, Job: job, Workload: queues.WorkloadOf(job), Queues: queues,
			Read: Read{QueuesRead: true, ClusterQueuesRead: true, OwnRead: true, OthersRead: true}})
	}
	return jobs, queues
}

// TestManyBrief holds that a row of a list is read from the index, which is computed once: no row goes through all
// Workloads.
func TestManyBrief(t *testing.T) {
	const n = 1000
	jobs, queues := many(n)
	var before []*Explanation
	for _, f := range jobs {
		before = append(before, Brief(f))
	}
	queues.Cluster = simulate.Cluster{}
	for i, f := range jobs {
		if after := Brief(f); !reflect.DeepEqual(before[i], after) {
			t.Fatalf("%s reads all Workloads: %+v, and without them %+v", f.Job.Name, before[i], after)
		}
	}
	if last := before[n-1]; last.Cause.Code != CodeShort || last.Waiting != n/10 || last.Place == 0 {
		t.Errorf("got %+v", last)
	}
}

// TestTimelineBound holds that a timeline has an end, and shows the first moment and the last.
func TestTimelineBound(t *testing.T) {
	f := facts(func(f *Facts) {
		for i := range 5000 {
			f.Events = append(f.Events, corev1.Event{Reason: "Failed", Message: fmt.Sprint(i),
				LastTimestamp: ago(5*time.Minute - time.Duration(i)*time.Millisecond)})
		}
	})
	timeline := Explain(f).Timeline
	if len(timeline) != mostMoments+1 || timeline[0].Text != "submitted" || timeline[mostMoments].Text != "Failed: 4999" {
		t.Errorf("got %d lines, from %q to %q", len(timeline), timeline[0].Text, timeline[len(timeline)-1].Text)
	}
	if between := timeline[1]; between.Text != "4953 more until then are left out" {
		t.Errorf("got %q", between.Text)
	}
}

// TestMovedQueue holds that a TrainJob runs in the ClusterQueue that has admitted it, wherever its LocalQueue leads.
func TestMovedQueue(t *testing.T) {
	f := facts(runs, func(f *Facts) {
		addQueue(f, "new", "", 8)
		f.Queues.LocalQueues[0].Spec.ClusterQueue = "new"
	})
	if e := Explain(f); e.ClusterQueue != "queue" {
		t.Errorf("got %q", e.ClusterQueue)
	}
}
