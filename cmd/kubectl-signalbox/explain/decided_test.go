package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// requests returns the requests of a PodSet's container.
func requests(f *Facts, podSet int) corev1.ResourceList {
	return f.Workload.Spec.PodSets[podSet].Template.Spec.Containers[0].Resources.Requests
}

// addFlavor adds a flavor with a quota of GPUs to a ClusterQueue.
func addFlavor(f *Facts, queue, name string, nominal int64) {
	group := &queueOf(f, queue).Spec.ResourceGroups[0]
	group.Flavors = append(group.Flavors, kueue.FlavorQuotas{Name: kueue.ResourceFlavorReference(name),
		Resources: []kueue.ResourceQuota{{Name: gpu, NominalQuota: gpus(nominal)}}})
	f.Queues.Flavors = append(f.Queues.Flavors, kueue.ResourceFlavor{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpu": name}},
	})
}

// addCPU adds a resource group of a hundred CPUs to the queue, and has the TrainJob request eight.
func addCPU(f *Facts) {
	cq := queueOf(f, "queue")
	cq.Spec.ResourceGroups = append([]kueue.ResourceGroup{{
		CoveredResources: []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory},
		Flavors: []kueue.FlavorQuotas{{Name: "cpu", Resources: []kueue.ResourceQuota{
			{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("100")},
			{Name: corev1.ResourceMemory, NominalQuota: resource.MustParse("100Gi")},
		}}},
	}}, cq.Spec.ResourceGroups...)
	f.Queues.Flavors = append(f.Queues.Flavors,
		kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "cpu"}})
	requests(f, 0)[corev1.ResourceCPU] = resource.MustParse("8")
}

// addRacks adds a topology of so many racks with one node of four GPUs each.
func addRacks(f *Facts, racks int) {
	c := &f.Queues.Cluster
	c.Topologies = []kueue.Topology{{ObjectMeta: metav1.ObjectMeta{Name: "racks"},
		Spec: kueue.TopologySpec{Levels: []kueue.TopologyLevel{{NodeLabel: "rack"}}}}}
	c.Flavors[0].Spec.TopologyName = ptr.To(kueue.TopologyReference("racks"))
	for i := range racks {
		name := string(rune('a' + i))
		capacity := corev1.ResourceList{gpu: gpus(4), corev1.ResourcePods: gpus(100)}
		c.Nodes = append(c.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": name, "gpu": "a100"}},
			Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
}

// affinity is a required node affinity.
func affinity(operator corev1.NodeSelectorOperator, values ...string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "gpu", Operator: operator, Values: values}},
		}}},
	}}
}

// lines adds Workloads that wait.
func lines(f *Facts, name, queue string, n int64, priority int32) {
	f.Queues.Workloads = append(f.Queues.Workloads, *workloadOf(name, queue, n, priority))
}

// decidedCase is a TrainJob that waits, and why Kueue's scheduler leaves it waiting.
type decidedCase struct {
	change func(*Facts)
	code   Code
	text   string
}

// decidedCases are by what is special.
var decidedCases = map[string]decidedCase{
	"quota used": {func(f *Facts) { holds(f, "other", "queue", 6, 0) }, CodeShort,
		"6 of nvidia.com/gpu are missing in flavor a100: it asks for 8, and 2 are free; held by team/other (6)"},
	"by an equal within its minimum runtime": {func(f *Facts) {
		holds(f, "other", "queue", 6, 0)
		withinMinimum(f, &f.Queues.Workloads[0])
	}, CodeShort, "held by team/other (6, within its minimum runtime until "},
	"too large": {func(f *Facts) {
		f.Workload.Spec.PodSets[0].Count = 3
	}, CodeTooLarge, "asks for 24 of nvidia.com/gpu, and its queue never has more than 8"},
	"borrowed away": {func(f *Facts) {
		queueOf(f, "queue").Spec.CohortName = "all"
		addQueue(f, "other", "all", 4)
		holds(f, "guest", "other", 12, 0)
	}, CodeBorrowed, "have borrowed 8; held by team/guest (12)"},
	"borrowing limit": {func(f *Facts) {
		queueOf(f, "queue").Spec.CohortName = "all"
		queueOf(f, "queue").Spec.ResourceGroups[0].Flavors[0].Resources[0].BorrowingLimit = ptr.To(gpus(2))
		addQueue(f, "other", "all", 8)
		holds(f, "mine", "queue", 8, 0)
	}, CodeLimit, "6 of nvidia.com/gpu are missing"},
	"cohort full": {func(f *Facts) {
		queueOf(f, "queue").Spec.CohortName = "all"
		queueOf(f, "queue").Spec.ResourceGroups[0].Flavors[0].Resources[0].NominalQuota = gpus(4)
		addQueue(f, "other", "all", 8)
		holds(f, "theirs", "other", 8, 0)
	}, CodeCohort, "no more to lend"},
	"no preemption": {func(f *Facts) {
		f.Workload.Spec.Priority = ptr.To[int32](5)
		holds(f, "lower", "queue", 8, 1)
	}, CodeNoPreempt, "team/lower of lower priority would be enough, but ClusterQueue queue preempts no Workload"},
	"selector": {func(f *Facts) {
		f.Workload.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": "h100"}
	}, CodeNoFlavor, "no flavor suits its pods: couldn't assign flavors to pod set node: flavor a100 doesn't match"},
	"taint": {func(f *Facts) {
		f.Queues.Flavors[0].Spec.NodeTaints = []corev1.Taint{
			{Key: "spot", Value: "yes", Effect: corev1.TaintEffectNoSchedule},
		}
	}, CodeNoFlavor, "taint spot=yes:NoSchedule"},
	"behind others": {func(f *Facts) {
		f.Queues.Workloads = append(f.Queues.Workloads, *workloadOf("older", "queue", 8, 7))
	}, CodeBehind, "considered before it"},
	"both groups have room": {addCPU, CodeBehind, "there is quota"},
	"GPUs are used": {func(f *Facts) { addCPU(f); holds(f, "other", "queue", 6, 0) }, CodeShort,
		"6 of nvidia.com/gpu are missing in flavor a100"},
	"too many GPUs beside CPU": {func(f *Facts) { addCPU(f); f.Workload.Spec.PodSets[0].Count = 3 }, CodeTooLarge,
		"asks for 24 of nvidia.com/gpu"},
	"too much CPU": {func(f *Facts) {
		addCPU(f)
		requests(f, 0)[corev1.ResourceCPU] = resource.MustParse("200")
	}, CodeTooLarge, "asks for 200 of cpu, and its queue never has more than 100"},
	"more memory than CPU": {func(f *Facts) {
		addCPU(f)
		requests(f, 0)[corev1.ResourceMemory] = resource.MustParse("101Gi")
		requests(f, 0)[corev1.ResourceCPU] = resource.MustParse("300")
	}, CodeTooLarge, "asks for 300 of cpu"},
	"required affinity": {func(f *Facts) {
		f.Workload.Spec.PodSets[0].Template.Spec.Affinity = affinity(corev1.NodeSelectorOpIn, "h100", "b200")
	}, CodeNoFlavor, "flavor a100 doesn't match node affinity"},
	"required affinity to the second flavor": {func(f *Facts) {
		addFlavor(f, "queue", "h100", 8)
		f.Workload.Spec.PodSets[0].Template.Spec.Affinity = affinity(corev1.NodeSelectorOpNotIn, "a100")
		f.Workload.Spec.PodSets[0].Count = 2
	}, CodeTooLarge, "asks for 16 of nvidia.com/gpu, and its queue never has more than 8 in flavor h100"},
	"required affinity to a flavor that is used": {func(f *Facts) {
		addFlavor(f, "queue", "h100", 4)
		requests(f, 0)[gpu] = gpus(4)
		f.Workload.Spec.PodSets[0].Template.Spec.Affinity = affinity(corev1.NodeSelectorOpIn, "a100")
		holds(f, "other", "queue", 6, 0)
	}, CodeShort, "2 of nvidia.com/gpu are missing in flavor a100: it asks for 4, and 2 are free"},
	"the cohort's own quota": {func(f *Facts) {
		queueOf(f, "queue").Spec.CohortName = "all"
		queueOf(f, "queue").Spec.ResourceGroups[0].Flavors[0].Resources[0].NominalQuota = gpus(0)
		f.Queues.Cohorts = []kueue.Cohort{{ObjectMeta: metav1.ObjectMeta{Name: "all"}}}
		f.Queues.Cohorts[0].Spec.ResourceGroups = []kueue.ResourceGroup{{
			CoveredResources: []corev1.ResourceName{gpu}, Flavors: []kueue.FlavorQuotas{{Name: "a100",
				Resources: []kueue.ResourceQuota{{Name: gpu, NominalQuota: gpus(12)}}}},
		}}
		holds(f, "mine", "queue", 6, 0)
	}, CodeCohort, "2 of nvidia.com/gpu are missing in flavor a100: it asks for 8, and 6 are free"},
	"a lending limit": {func(f *Facts) {
		queueOf(f, "queue").Spec.CohortName = "all"
		queueOf(f, "queue").Spec.ResourceGroups[0].Flavors[0].Resources[0].NominalQuota = gpus(4)
		addQueue(f, "other", "all", 8).Spec.ResourceGroups[0].Flavors[0].Resources[0].LendingLimit = ptr.To(gpus(2))
	}, CodeTooLarge, "asks for 8 of nvidia.com/gpu, and its queue never has more than 6"},
	"fewer nodes are enough": {func(f *Facts) {
		f.Workload.Spec.PodSets[0].Count, f.Workload.Spec.PodSets[0].MinCount = 4, ptr.To[int32](1)
		holds(f, "other", "queue", 6, 0)
	}, CodeShort, "6 of nvidia.com/gpu are missing in flavor a100: it asks for 8, and 2 are free"},
	"the fewest nodes are too many": {func(f *Facts) {
		f.Workload.Spec.PodSets[0].Count, f.Workload.Spec.PodSets[0].MinCount = 4, ptr.To[int32](2)
	}, CodeTooLarge, "asks for 16 of nvidia.com/gpu, and its queue never has more than 8"},
	"PodSets on two flavors": {func(f *Facts) {
		addFlavor(f, "queue", "h100", 8)
		requests(f, 0)[gpu] = gpus(4)
		f.Workload.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": "a100"}
		addPodSet(f, "h100", 8)
		holdsOn(f, "other", "queue", "h100", 2, 0)
	}, CodeShort, "2 of nvidia.com/gpu are missing in flavor h100: it asks for 8, and 6 are free"},
	"the second PodSet is too large": {func(f *Facts) {
		addFlavor(f, "queue", "h100", 4)
		requests(f, 0)[gpu] = gpus(4)
		addPodSet(f, "h100", 8)
	}, CodeTooLarge, "asks for 8 of nvidia.com/gpu, and its queue never has more than 4 in flavor h100"},
	"the second PodSet's flavor is taken by the first": {func(f *Facts) {
		addFlavor(f, "queue", "h100", 8)
		requests(f, 0)[gpu] = gpus(8)
		addPodSet(f, "h100", 8)
		holds(f, "other", "queue", 4, 0)
	}, CodeShort, "are missing in flavor a100"},
	"overhead": {func(f *Facts) {
		addCPU(f)
		requests(f, 0)[corev1.ResourceCPU] = resource.MustParse("99")
		f.Workload.Spec.PodSets[0].Template.Spec.RuntimeClassName = ptr.To("kata")
		f.Queues.RuntimeClasses = []nodev1.RuntimeClass{{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata",
			Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}
	}, CodeTooLarge, "asks for 101 of cpu, and its queue never has more than 100"},
	"a LimitRange's default": {func(f *Facts) {
		addCPU(f)
		delete(requests(f, 0), corev1.ResourceCPU)
		f.Queues.LimitRanges = []corev1.LimitRange{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "defaults"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer,
				DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("150")}}}},
		}}
	}, CodeTooLarge, "asks for 150 of cpu"},
	"a LimitRange's maximum": {func(f *Facts) {
		f.Queues.LimitRanges = []corev1.LimitRange{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "most"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer,
				Max: corev1.ResourceList{gpu: gpus(4)}}}},
		}}
	}, CodeInvalid, "LimitRange"},
	"a transformation": {func(f *Facts) {
		const mig = corev1.ResourceName("nvidia.com/mig-1g.5gb")
		group := &queueOf(f, "queue").Spec.ResourceGroups[0]
		group.CoveredResources = append(group.CoveredResources, "example.com/credits")
		group.Flavors[0].Resources = append(group.Flavors[0].Resources,
			kueue.ResourceQuota{Name: "example.com/credits", NominalQuota: gpus(30)})
		f.Queues.Config = &kueueconfig.Configuration{Resources: &kueueconfig.Resources{
			Transformations: []kueueconfig.ResourceTransformation{{Input: mig, Strategy: ptr.To(kueueconfig.Replace),
				Outputs: corev1.ResourceList{"example.com/credits": gpus(5)}}},
		}}
		delete(requests(f, 0), gpu)
		requests(f, 0)[mig] = gpus(7)
	}, CodeTooLarge, "asks for 35 of example.com/credits, and its queue never has more than 30"},
	"a resource without quota": {func(f *Facts) { requests(f, 0)["example.com/nic"] = gpus(1) }, CodeNoResource,
		"resource example.com/nic unavailable in ClusterQueue"},
	"another namespace": {func(f *Facts) {
		queueOf(f, "queue").Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "other"}}
	}, CodeNamespace, "selector"},
	"behind the head of a strict queue": {func(f *Facts) {
		queueOf(f, "queue").Spec.QueueingStrategy = kueue.StrictFIFO
		f.Workload.Status.Conditions = nil
		requests(f, 0)[gpu] = gpus(2)
		holds(f, "running", "queue", 4, 0)
		lines(f, "head", "queue", 8, 7)
	}, CodeBehind, "its queue is strict (StrictFIFO), and others are considered before it; team/head is the first"},
	"behind a head that never fits": {func(f *Facts) {
		queueOf(f, "queue").Spec.QueueingStrategy = kueue.StrictFIFO
		f.Workload.Status.Conditions = nil
		lines(f, "head", "queue", 80, 7)
	}, CodeBehind, "team/head is the first"},
	"behind a head, and too large itself": {func(f *Facts) {
		queueOf(f, "queue").Spec.QueueingStrategy = kueue.StrictFIFO
		f.Workload.Status.Conditions = nil
		f.Workload.Spec.PodSets[0].Count = 2
		lines(f, "head", "queue", 8, 7)
	}, CodeTooLarge, "asks for 16 of nvidia.com/gpu"},
	"like another that waits": {func(f *Facts) {
		f.Workload.Status.Conditions = nil
		holds(f, "running", "queue", 4, 0)
		lines(f, "twin", "queue", 8, 7)
	}, CodeShort, "4 of nvidia.com/gpu are missing"},
	"it preempts": {func(f *Facts) {
		queueOf(f, "queue").Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyLowerPriority
		f.Workload.Spec.Priority = ptr.To[int32](5)
		holds(f, "lower", "queue", 8, 1)
	}, CodePreempting, "team/lower are preempted for it"},
	"a cascade": {func(f *Facts) { // what it preempts preempts another in its turn
		queueOf(f, "queue").Spec.CohortName = "all"
		queueOf(f, "queue").Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyLowerPriority
		f.Workload.Spec.Priority = ptr.To[int32](9)
		holds(f, "high", "queue", 4, 5)
		holds(f, "low", "queue", 4, 1)
		requests(f, 0)[gpu] = gpus(5)
	}, CodePreempting, "are preempted for it"},
	"the pods of others are ending": {func(f *Facts) {
		holds(f, "victim", "queue", 8, 0)
		apimeta.SetStatusCondition(&f.Queues.Workloads[0].Status.Conditions, metav1.Condition{
			Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByPreemption})
		f.Workload.Spec.Priority = ptr.To[int32](5)
	}, CodePreempting, "it gets quota when the pods of team/victim have ended"},
	"another saves its work before": {func(f *Facts) {
		holds(f, "victim", "queue", 8, 0)
		savesFirst(f, &f.Queues.Workloads[0])
		f.Workload.Spec.Priority = ptr.To[int32](5)
	}, CodePreempting, "at the latest, for a checkpoint of team/victim"},
	"fair sharing": {func(f *Facts) { // the other queue has more than its share, and nothing is preempted for it
		f.Queues.Config = &kueueconfig.Configuration{FairSharing: &kueueconfig.FairSharing{
			PreemptionStrategies: []kueueconfig.PreemptionStrategy{kueueconfig.LessThanOrEqualToFinalShare}}}
		queueOf(f, "queue").Spec.CohortName = "all"
		queueOf(f, "queue").Spec.ResourceGroups[0].Flavors[0].Resources[0].NominalQuota = gpus(4)
		queueOf(f, "queue").Spec.Preemption.ReclaimWithinCohort = kueue.PreemptionPolicyAny
		requests(f, 0)[gpu] = gpus(4)
		addQueue(f, "other", "all", 4)
		holds(f, "guest", "other", 4, 0)
		holds(f, "second", "other", 4, 0)
	}, CodePreempting, "are preempted for it"},
	"no rack has room": {func(f *Facts) {
		addRacks(f, 2)
		f.Workload.Spec.PodSets[0].Count = 2
		requests(f, 0)[gpu] = gpus(4)
		f.Workload.Spec.PodSets[0].TopologyRequest = &kueue.PodSetTopologyRequest{Required: ptr.To("rack")}
	}, CodeTopology, `topology "racks" allows to fit only 1 out of 2 pod(s)`},
}

// answers are the verdicts that a cause may come with.
func answers(code Code) []simulate.Verdict {
	switch {
	case code.Never():
		return []simulate.Verdict{simulate.Never}
	case code == CodePreempting:
		return []simulate.Verdict{simulate.Preempts, simulate.Admitted}
	case code == CodeTopology:
		return []simulate.Verdict{simulate.Never, simulate.Waits}
	case code == CodeUnknown:
		return []simulate.Verdict{simulate.Admitted}
	case code == CodeBehind:
		return []simulate.Verdict{simulate.Waits, simulate.Stuck, simulate.Admitted}
	}
	return []simulate.Verdict{simulate.Waits, simulate.Stuck}
}

// TestDecided holds that causes are those of Kueue's scheduler, and agree with what simulate says.
func TestDecided(t *testing.T) {
	for name, c := range decidedCases {
		t.Run(name, func(t *testing.T) {
			f := decided(t, facts(c.change))
			e := Explain(f)
			if e.Cause.Code != c.code || !strings.Contains(e.Cause.Text, c.text) {
				t.Errorf("got %s: %s, want %s: …%s…", e.Cause.Code, e.Cause.Text, c.code, c.text)
			}
			answer, err := simulate.Ask(t.Context(), &f.Queues.Cluster, keyOf(f.Workload), nil, noon.Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			agree := false
			for _, verdict := range answers(c.code) {
				agree = agree || answer.Verdict == verdict
			}
			if !agree {
				t.Errorf("the cause is %s, and simulate says %s: %s", c.code, answer.Verdict, answer.Message)
			}
		})
	}
}
