package explain

import (
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"

	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/overrides"
)

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
		"complete, with a time to live": {func(f *Facts) {
			f.Job.Annotations = map[string]string{api.TTLAnnotation: "60"}
			f.Job.Status.Conditions = []metav1.Condition{{Type: "Complete", Status: metav1.ConditionTrue, Message: "done",
				LastTransitionTime: metav1.NewTime(noon)}}
		}, CodeComplete, "done; it is deleted at " + noon.Add(time.Minute).Local().Format(time.DateTime)},
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
		"started, and its pods are refused": {func(f *Facts) {
			runs(f)
			f.Job.Status.Conditions = append(f.Job.Status.Conditions, metav1.Condition{Type: api.ConditionBlocked,
				Status: metav1.ConditionTrue, Reason: "QuotaExceeded", Message: "exceeded quota: q"})
		}, CodeBlocked, "exceeded quota: q"},
		"in another cluster, where its pods are refused": {func(f *Facts) {
			f.Job.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
			admitted(f)
			f.Job.Status.Conditions = append(f.Job.Status.Conditions, metav1.Condition{Type: api.ConditionBlocked,
				Status: metav1.ConditionTrue, Reason: "QuotaExceeded", Message: "exceeded quota: q"})
		}, CodeBlocked, "exceeded quota: q"},
		"runs after others": {func(f *Facts) {
			f.Job.Annotations = map[string]string{api.AfterAnnotation: "a=ok,b=any",
				kueueconstants.AdmissionGatedByAnnotation: after.Gate}
			f.Dependencies = []Dependency{{Name: "a", When: after.OK, State: "Running"},
				{Name: "b", When: after.Any, State: "Queued", Depth: 1}}
		}, CodeAfter, "it runs after a has succeeded (it is Running), and after b has ended"},
		"has run after others": {func(f *Facts) {
			f.Job.Annotations = map[string]string{kueueconstants.AdmissionGatedByAnnotation: after.Gate}
		}, CodeShort, "8 more needed"},
		"in another cluster": {func(f *Facts) {
			f.Job.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
			admitted(f)
			f.Workload.Status.ClusterName = ptr.To("worker1")
		}, CodeElsewhere, "worker1"},
		"runs": {runs, CodeStarting, "on a100"},
		"its Jobs' pods are refused": {func(f *Facts) {
			runs(f)
			f.Events = []corev1.Event{
				failedCreate(ago(2*time.Minute), "of an earlier start"), failedCreate(ago(30*time.Second), "policy p denied it"),
				failedCreate(ago(40*time.Second), "policy o denied it"),
			}
		}, CodeStarting, "Job job-node-0 doesn't have all it creates: policy p denied it"},
		"its Jobs' pods were refused": {func(f *Facts) {
			runs(f)
			f.Job.Status.State = api.StateRunning
			f.Events = []corev1.Event{failedCreate(ago(30*time.Second), "policy p denied it")}
		}, CodeRunning, "it runs on a100"},
		"runs outside quota": {func(f *Facts) {
			f.Job.Spec.Suspend, f.Job.Labels, f.Workload = nil, nil, nil
			f.Job.Status.Conditions = nil
		}, CodeStarting, "not on quota"},
		"gang": {func(f *Facts) {
			runs(f)
			f.Job.Status.Queue = &api.QueueStatus{Conditions: []metav1.Condition{{Type: api.ConditionGangScheduled,
				Status: metav1.ConditionFalse, Message: "2 of 4 fit"}}}
		}, CodeGang, "2 of 4 fit"},
		"image":   {func(f *Facts) { runs(f); pod(f, waitsFor("ImagePullBackOff", "not found")) }, CodeImage, "x:1"},
		"crash":   {func(f *Facts) { runs(f); pod(f, waitsFor("CrashLoopBackOff", "back-off")) }, CodeCrash, "back-off"},
		"no node": {func(f *Facts) { runs(f); pod(f, hasNoNode) }, CodeNoNode, "0/3 nodes"},
		"no node but those that it keeps off": {func(f *Facts) {
			runs(f)
			pod(f, hasNoNode)
			f.Job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager,
				TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
					Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{{Name: "node",
						Template: &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{
							Template: &trainerapi.PodTemplatePatch{Spec: &trainerapi.PodSpecPatch{
								Affinity: avoid.With(nil, []string{"n1", "n2"})}}}}}}}}}}}
		}, CodeNoNode, "its pods keep off nodes n1, n2"},
		"suspended by its user": {func(f *Facts) { f.Job.Labels, f.Workload = nil, nil }, CodeSuspended, "no queue"},
		"no LocalQueue":         {func(f *Facts) { f.Workload.Spec.QueueName = "other" }, CodeNoQueue, "there are queue"},
		"LocalQueue held": {func(f *Facts) {
			f.Queues.LocalQueues[0].Spec.StopPolicy = ptr.To(kueue.Hold)
		}, CodeQueueHeld, "Hold"},
		"no ClusterQueue": {func(f *Facts) { f.Queues.ClusterQueues = nil }, CodeNoCQ, "ClusterQueue queue"},
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
			f.Queues.Workloads = append(f.Queues.Workloads, *workloadOf("older", "queue", 8, 7))
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
		}, CodeKueueDown, "Kueue has written no status of Workload"},
		"just queued": {func(f *Facts) {
			f.Workload.Status.Conditions, f.Workload.CreationTimestamp = nil, ago(time.Second)
		}, CodeUnknown, "has not considered it yet"},
		"a simulation that can't decide": {func(f *Facts) {
			f.Decision = &simulate.Decision{Verdict: simulate.Never} // its ClusterQueue isn't active there
		}, CodeShort, "8 more needed"},
		"what isn't simulated": {func(f *Facts) {
			f.Decision = &simulate.Decision{Verdict: simulate.Never, Message: "What its claims count isn't simulated"}
		}, CodeUnknown, "isn't simulated"},
		"without rights": {func(f *Facts) {
			f.Queues.ClusterQueues, f.ClusterQueuesRead, f.OthersRead = nil, false, false
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
			f.Queues.Workloads = append(f.Queues.Workloads, *workloadOf(name, "queue", 8, priority))
		}
	})
	if e := Explain(f); e.Place != 2 || e.Waiting != 3 || len(e.Ahead) != 1 || e.Ahead[0].Name != "higher" {
		t.Errorf("got place %d of %d, ahead %v", e.Place, e.Waiting, e.Ahead)
	}
}

// hasNoNode has a pod wait for the scheduler.
func hasNoNode(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes"}}
}
