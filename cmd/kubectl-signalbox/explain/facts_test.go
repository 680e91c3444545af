package explain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

func gpus(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

// facts are those of a TrainJob "job" of eight GPUs that waits in LocalQueue "queue" of a ClusterQueue "queue".
func facts(change ...func(*Facts)) *Facts {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "job", UID: "job", CreationTimestamp: ago(10 * time.Minute),
		Labels: map[string]string{"kueue.x-k8s.io/queue-name": "queue"},
	}}
	job.Spec.Suspend = ptr.To(true)
	job.Status.Conditions = []metav1.Condition{{Type: "Suspended", Status: metav1.ConditionTrue}}
	f := &Facts{
		Now: noon, Job: job, Queues: &Queues{},
		Read:     Read{QueuesRead: true, ClusterQueuesRead: true, OwnRead: true, OthersRead: true},
		Workload: workloadOf("job", "queue", 8, 0),
	}
	addQueue(f, "queue", "", 8)
	says(
		f,
		"couldn't assign flavors to pod set node: insufficient unused quota for nvidia.com/gpu in flavor a100, 8 more needed",
	)
	for _, c := range change {
		c(f)
	}
	if f.Workload != nil {
		f.Queues.Workloads = append(f.Queues.Workloads, *f.Workload)
	}
	f.Queues = NewQueues(f.Queues.Cluster)
	return f
}

func keyOf(wl *kueue.Workload) types.NamespacedName { return client.ObjectKeyFromObject(wl) }

// decided has a simulation decide.
func decided(t *testing.T, f *Facts) *Facts {
	t.Helper()
	c := &f.Queues.Cluster
	c.Namespaces = []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "team"}}}
	f.Queues = NewQueues(*c)
	d, err := simulate.Decide(t.Context(), &f.Queues.Cluster, keyOf(f.Workload), noon)
	if err != nil {
		t.Fatal(err)
	}
	f.Decision = d
	return f
}

func workloadOf(name, queue string, n int64, priority int32) *kueue.Workload {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "wl-" + name, UID: types.UID(name), CreationTimestamp: ago(9 * time.Minute),
		OwnerReferences: []metav1.OwnerReference{{Name: name, Controller: ptr.To(true)}},
	}}
	wl.Spec.QueueName, wl.Spec.Priority, wl.Spec.Active = kueue.LocalQueueName(queue), &priority, ptr.To(true)
	wl.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 1, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{gpu: gpus(n)}}},
		},
	}}}}
	return wl
}

func addQueue(f *Facts, name, cohort string, nominal int64) *kueue.ClusterQueue {
	cq := kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: name}}
	cq.Spec.CohortName = kueue.CohortReference(cohort)
	cq.Spec.NamespaceSelector, cq.Spec.QueueingStrategy = &metav1.LabelSelector{}, kueue.BestEffortFIFO
	cq.Spec.Preemption = &kueue.ClusterQueuePreemption{
		WithinClusterQueue: kueue.PreemptionPolicyNever, ReclaimWithinCohort: kueue.PreemptionPolicyNever,
	}
	cq.Spec.FlavorFungibility = &kueue.FlavorFungibility{
		WhenCanBorrow: kueue.MayStopSearch, WhenCanPreempt: kueue.TryNextFlavor,
	}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{{
		CoveredResources: []corev1.ResourceName{gpu},
		Flavors: []kueue.FlavorQuotas{{Name: "a100", Resources: []kueue.ResourceQuota{{
			Name: gpu, NominalQuota: gpus(nominal),
		}}}},
	}}
	f.Queues.ClusterQueues = append(f.Queues.ClusterQueues, cq)
	lq := kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	lq.Spec.ClusterQueue = kueue.ClusterQueueReference(name)
	f.Queues.LocalQueues = append(f.Queues.LocalQueues, lq)
	f.Queues.Flavors = []kueue.ResourceFlavor{{
		ObjectMeta: metav1.ObjectMeta{Name: "a100"},
		Spec:       kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpu": "a100"}},
	}}
	return &f.Queues.ClusterQueues[len(f.Queues.ClusterQueues)-1]
}

func queueOf(f *Facts, name string) *kueue.ClusterQueue {
	for i := range f.Queues.ClusterQueues {
		if cq := &f.Queues.ClusterQueues[i]; cq.Name == name {
			return cq
		}
	}
	return nil
}

// holds adds a Workload that has quota.
func holds(f *Facts, name, queue string, n int64, priority int32) {
	holdsOn(f, name, queue, "a100", n, priority)
}

func holdsOn(f *Facts, name, queue, flavor string, n int64, priority int32) {
	wl := workloadOf(name, queue, n, priority)
	wl.Status.Admission = &kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(queue),
		PodSetAssignments: []kueue.PodSetAssignment{{
			Name: "node", Count: ptr.To[int32](1), ResourceUsage: corev1.ResourceList{gpu: gpus(n)},
			Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: kueue.ResourceFlavorReference(flavor)},
		}}}
	wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue,
		LastTransitionTime: ago(time.Hour)}}
	f.Queues.Workloads = append(f.Queues.Workloads, *wl)
}

func says(f *Facts, message string) {
	f.Workload.Status.Conditions = []metav1.Condition{{
		Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionFalse, Reason: "Pending", Message: message,
		LastTransitionTime: ago(8 * time.Minute),
	}}
}

// admitted gives the TrainJob its quota.
func admitted(f *Facts) {
	f.Workload.Status.Conditions = []metav1.Condition{
		{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue, LastTransitionTime: ago(time.Minute)},
		{Type: kueue.WorkloadAdmitted, Status: metav1.ConditionTrue, LastTransitionTime: ago(time.Minute)},
	}
	f.Workload.Status.Admission = &kueue.Admission{ClusterQueue: "queue", PodSetAssignments: []kueue.PodSetAssignment{{
		Name: "node", Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a100"},
	}}}
}

// runs starts it.
func runs(f *Facts) {
	admitted(f)
	f.Job.Spec.Suspend = ptr.To(false)
	f.Job.Status.Conditions = nil
	f.Job.Status.StartTime = ptr.To(ago(time.Minute))
}

func pod(f *Facts, change func(*corev1.Pod)) {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job-node-0-0"}}
	change(&p)
	f.Pods = append(f.Pods, p)
}

func failedCreate(at metav1.Time, message string) corev1.Event {
	return corev1.Event{Reason: "FailedCreate", Message: message, LastTimestamp: at,
		InvolvedObject: corev1.ObjectReference{Kind: "Job", Name: "job-node-0"}}
}

func waitsFor(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "node", Image: "x:1", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}}}
	}
}

// TestRead holds what Kueue's messages mean without a simulation.
func TestRead(t *testing.T) {
	const (
		large = "insufficient quota for nvidia.com/gpu in flavor a100, previously considered podsets requests (0) + " +
			"current podset request (32) > maximum capacity (16)"
		unused = "insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed"
		to     = "couldn't assign flavors to pod set "
		flat   = `Flavor "a100" does not support TopologyAwareScheduling`
		other  = "flavor a100 doesn't match node affinity"
		spot   = "untolerated taint {spot yes NoSchedule <nil>} in flavor a100"
	)
	fewer := &kueue.Workload{}
	fewer.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 8, MinCount: ptr.To[int32](4)}}
	for name, c := range map[string]struct {
		message string
		wl      *kueue.Workload
		code    Code
		flavor  string
	}{
		"too large":                    {to + "node: " + large, nil, CodeTooLarge, "a100"},
		"fewer nodes fit":              {to + "node: " + large, fewer, CodeShort, ""},
		"another flavor is used":       {to + "node: " + large + ", " + unused, nil, CodeShort, "h100"},
		"the last PodSet":              {to + "a: " + unused + "; " + to + "node: " + large, nil, CodeTooLarge, "a100"},
		"no flavor":                    {to + "node: " + other, nil, CodeNoFlavor, ""},
		"one flavor of two":            {to + "node: " + other + ", " + unused, nil, CodeShort, "h100"},
		"a taint":                      {to + "node: " + spot, nil, CodeNoFlavor, ""},
		"no topology":                  {to + "node: " + flat, nil, CodeNoFlavor, ""},
		"no topology, and another":     {to + "node: " + flat + ", " + unused, nil, CodeShort, "h100"},
		"no rack":                      {to + `node: topology "racks" doesn't allow to fit any of 2 pod(s)`, nil, CodeTopology, ""},
		"pending preemption":           {unused + ". Pending the preemption of 1 workload(s)", nil, CodePreempting, ""},
		"a resource":                   {to + "node: resource memory unavailable in ClusterQueue", nil, CodeNoResource, ""},
		"something of another release": {"nobody knows", nil, CodeUnknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if r := read(c.message, c.wl); r.Code != c.code || r.flavor != c.flavor {
				t.Errorf("got %s of %q, want %s of %q", r.Code, r.flavor, c.code, c.flavor)
			}
		})
	}
}
