package explain

import (
	"strings"
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
	"github.com/signalbox-dev/signalbox/simulate"
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
		f.Queues.Cluster.Workloads = append(f.Queues.Cluster.Workloads, *f.Workload)
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
	f.Queues.Cluster.ClusterQueues = append(f.Queues.Cluster.ClusterQueues, cq)
	lq := kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	lq.Spec.ClusterQueue = kueue.ClusterQueueReference(name)
	f.Queues.Cluster.LocalQueues = append(f.Queues.Cluster.LocalQueues, lq)
	f.Queues.Cluster.Flavors = []kueue.ResourceFlavor{{
		ObjectMeta: metav1.ObjectMeta{Name: "a100"},
		Spec:       kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpu": "a100"}},
	}}
	return &f.Queues.Cluster.ClusterQueues[len(f.Queues.Cluster.ClusterQueues)-1]
}

func queueOf(f *Facts, name string) *kueue.ClusterQueue {
	for i := range f.Queues.Cluster.ClusterQueues {
		if cq := &f.Queues.Cluster.ClusterQueues[i]; cq.Name == name {
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
	f.Queues.Cluster.Workloads = append(f.Queues.Cluster.Workloads, *wl)
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

func waitsFor(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "node", Image: "x:1", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}}}
	}
}

func TestExplain(t *testing.T) {
	check := func(state kueue.CheckState) func(*Facts) {
		return func(f *Facts) {
			f.Workload.Status.Conditions = []metav1.Condition{
				{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue},
			}
			f.Workload.Status.AdmissionChecks = []kueue.AdmissionCheckState{
				{Name: "capacity", State: state, Message: "no nodes"},
			}
		}
	}
	cases := map[string]struct {
		change func(*Facts)
		code   Code
		text   string
	}{
		"complete": {func(f *Facts) {
			f.Job.Status.Conditions = []metav1.Condition{{Type: "Complete", Status: metav1.ConditionTrue, Message: "done"}}
		}, CodeComplete, "done"},
		"failed": {func(f *Facts) {
			f.Job.Status.Conditions = []metav1.Condition{{Type: "Failed", Status: metav1.ConditionTrue, Message: "exit 1"}}
		}, CodeFailed, "exit 1"},
		"pods that terminate": {func(f *Facts) {
			f.Job.Status.JobsStatus = nil
			f.Job.Status.State = api.StateStopping
			pod(f, func(*corev1.Pod) {})
		}, CodeStopping, "1 pod (job-node-0-0)"},
		"a pod that doesn't end": {func(f *Facts) {
			f.Job.Status.Conditions = append(f.Job.Status.Conditions,
				metav1.Condition{Type: api.ConditionStopOverdue, Status: metav1.ConditionTrue, Message: "pod x on node n"})
		}, CodeOverdue, "pod x on node n"},
		"blocked": {func(f *Facts) {
			f.Job.Status.Conditions = append(
				f.Job.Status.Conditions,
				metav1.Condition{
					Type:    api.ConditionBlocked,
					Status:  metav1.ConditionTrue,
					Reason:  "RuntimeNotFound",
					Message: "no r",
				},
			)
		}, CodeBlocked, "no r"},
		"in another cluster": {func(f *Facts) {
			f.Job.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
			admitted(f)
			f.Workload.Status.ClusterName = ptr.To("worker1")
		}, CodeElsewhere, "worker1"},
		"runs": {runs, CodeStarting, "on a100"},
		"runs outside quota": {func(f *Facts) {
			f.Job.Spec.Suspend, f.Job.Labels, f.Workload = nil, nil, nil
			f.Job.Status.Conditions = nil
		}, CodeStarting, "not on quota"},
		"gang": {func(f *Facts) {
			runs(f)
			f.Job.Status.Queue = &api.QueueStatus{Conditions: []metav1.Condition{{Type: api.ConditionGangScheduled,
				Status: metav1.ConditionFalse, Message: "2 of 4 fit"}}}
		}, CodeGang, "2 of 4 fit"},
		"image": {func(f *Facts) { runs(f); pod(f, waitsFor("ImagePullBackOff", "not found")) }, CodeImage, "x:1"},
		"crash": {func(f *Facts) { runs(f); pod(f, waitsFor("CrashLoopBackOff", "back-off")) }, CodeCrash, "back-off"},
		"no node": {func(f *Facts) {
			runs(f)
			pod(f, func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
					Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes"}}
			})
		}, CodeNoNode, "0/3 nodes"},
		"suspended by its user": {func(f *Facts) { f.Job.Labels, f.Workload = nil, nil }, CodeSuspended, "no queue"},
		"no LocalQueue":         {func(f *Facts) { f.Workload.Spec.QueueName = "other" }, CodeNoQueue, "there are queue"},
		"LocalQueue held": {func(f *Facts) {
			f.Queues.Cluster.LocalQueues[0].Spec.StopPolicy = ptr.To(kueue.Hold)
		}, CodeQueueHeld, "Hold"},
		"no ClusterQueue": {func(f *Facts) { f.Queues.Cluster.ClusterQueues = nil }, CodeNoCQ, "ClusterQueue queue"},
		"ClusterQueue stopped": {func(f *Facts) {
			queueOf(f, "queue").Spec.StopPolicy = ptr.To(kueue.HoldAndDrain)
		}, CodeCQStopped, "HoldAndDrain"},
		"ClusterQueue inactive": {func(f *Facts) {
			queueOf(f, "queue").Status.Conditions = []metav1.Condition{{Type: kueue.ClusterQueueActive,
				Status: metav1.ConditionFalse, Reason: "FlavorNotFound", Message: "references missing ResourceFlavor(s): x"}}
		}, CodeCQInactive, "missing ResourceFlavor"},
		"no Workload":           {func(f *Facts) { f.Workload = nil }, CodeNoWorkload, "Signalbox doesn't run"},
		"admitted, not started": {admitted, CodeNoWorkload, "hasn't started"},
		"deactivated":           {func(f *Facts) { f.Workload.Spec.Active = ptr.To(false) }, CodeStopped, "deactivated"},
		"check pending":         {check(kueue.CheckStatePending), CodeCheck, "capacity: no nodes"},
		"check rejected":        {check(kueue.CheckStateRejected), CodeRejected, "capacity"},
		"check again":           {check(kueue.CheckStateRetry), CodeRetry, "capacity"},
		"Kueue silent":          {func(f *Facts) { f.Workload.Status.Conditions = nil }, CodeKueueDown, "9m"},
		"Kueue's webhook":       {func(f *Facts) { f.WebhookDown = "mtrainjob.kb.io" }, CodeKueueDown, "mtrainjob.kb.io"},
		"our webhook": {
			func(f *Facts) { f.WebhookDown = "mtrainjob.signalbox.dev" },
			CodeNoWorkload,
			"Signalbox is down",
		},
		"behind the head of a strict queue": {func(f *Facts) {
			f.Workload.Status.Conditions = nil
			f.Queues.Cluster.Workloads = append(f.Queues.Cluster.Workloads, *workloadOf("older", "queue", 8, 7))
		}, CodeBehind, "considered before it"},
		"stopped by its user": {func(f *Facts) {
			f.Workload.Spec.Active, f.Workload.Annotations = ptr.To(false), map[string]string{api.StopAnnotation: "true"}
		}, CodeStopped, "kubectl signalbox stop"},
		"rejected, and deactivated for it": {func(f *Facts) {
			f.Workload.Spec.Active = ptr.To(false)
			f.Workload.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue,
				Reason: "DeactivatedDueToAdmissionCheck", Message: "no"}}
		}, CodeRejected, "no"},
		"Kueue not seen": {func(f *Facts) { f.KueueSeen = ptr.To(noon.Add(-5 * time.Minute)) }, CodeKueueDown, "5m"},
		"backoff": {func(f *Facts) {
			f.Workload.Status.RequeueState = &kueue.RequeueState{
				Count:     ptr.To[int32](2),
				RequeueAt: ptr.To(ago(-time.Minute)),
			}
		}, CodeBackoff, "2 times"},
		"namespace": {func(f *Facts) { says(f, "workload namespace doesn't match ClusterQueue selector") }, CodeNamespace,
			"selector"},
		"LimitRange": {
			func(f *Facts) { says(f, "resources didn't satisfy LimitRange constraints: cpu") },
			CodeInvalid,
			"cpu",
		},
		"resource": {
			func(f *Facts) { says(f, "resource memory unavailable in ClusterQueue") },
			CodeNoResource,
			"memory",
		},
		"topology": {
			func(f *Facts) { says(f, `topology "racks" allows to fit only 1 out of 2 pod(s)`) },
			CodeTopology,
			"racks",
		},
		"preempting": {
			func(f *Facts) { says(f, "x. Pending the preemption of 2 workload(s)") },
			CodePreempting,
			"2 workload",
		},
		"selector, without the right to read flavors": {func(f *Facts) {
			f.Assumed = true
			says(f, "couldn't assign flavors to pod set node: flavor a100 doesn't match node affinity")
		}, CodeNoFlavor, "a100 doesn't match"},
		"stopped when it was created": {func(f *Facts) {
			f.Workload, f.Job.Annotations = nil, map[string]string{api.StopAnnotation: ""}
		}, CodeStopped, "kubectl signalbox stop"},
		"stopped, before its Workload is on hold": {func(f *Facts) {
			f.Workload.Status.Conditions, f.Job.Annotations = nil, map[string]string{api.StopAnnotation: "true"}
		}, CodeStopped, "kubectl signalbox stop"},
		"deactivated by an admin, and stopped": {func(f *Facts) {
			f.Workload.Spec.Active, f.Job.Annotations = ptr.To(false), map[string]string{api.StopAnnotation: "true"}
		}, CodeStopped, "its Workload is deactivated"},
		"nothing said, without the right to read others": {func(f *Facts) {
			f.Workload.Status.Conditions, f.OthersRead = nil, false
			queueOf(f, "queue").Status.PendingWorkloads = 5
		}, CodeBehind, "others of its queue are considered before it"},
		"nothing said, alone, without the right to read others": {func(f *Facts) {
			f.Workload.Status.Conditions, f.OthersRead = nil, false
		}, CodeKueueDown, "Kueue has said nothing"},
		"just queued": {func(f *Facts) {
			f.Workload.Status.Conditions, f.Workload.CreationTimestamp = nil, ago(time.Second)
		}, CodeUnknown, "has not considered it yet"},
		"without rights": {func(f *Facts) {
			f.Queues.Cluster.ClusterQueues, f.ClusterQueuesRead, f.OthersRead = nil, false, false
		}, CodeShort, "8 more needed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := facts(c.change)
			e := Explain(f)
			if e.Cause.Code != c.code || !strings.Contains(e.Cause.Text, c.text) {
				t.Errorf("got %s: %s, want %s: …%s…", e.Cause.Code, e.Cause.Text, c.code, c.text)
			}
			for i := 1; i < len(e.Timeline); i++ {
				if e.Timeline[i].Time.Before(e.Timeline[i-1].Time) {
					t.Errorf("the timeline goes back at %v", e.Timeline[i])
				}
			}
		})
	}
}

func TestPosition(t *testing.T) {
	f := facts(func(f *Facts) {
		for name, priority := range map[string]int32{"higher": 3, "lower": -1} {
			f.Queues.Cluster.Workloads = append(f.Queues.Cluster.Workloads, *workloadOf(name, "queue", 8, priority))
		}
	})
	if e := Explain(f); e.Place != 2 || e.Waiting != 3 || len(e.Ahead) != 1 || e.Ahead[0].Name != "higher" {
		t.Errorf("got place %d of %d, ahead %v", e.Place, e.Waiting, e.Ahead)
	}
}
