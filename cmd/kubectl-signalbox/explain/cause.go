package explain

import (
	"cmp"
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// cause finds the cause. Each rule looks at one part of the TrainJob's way, in its order; the first that says something
// is right, because what comes later can't have happened yet.
func (f *Facts) cause() Cause {
	for _, rule := range []func(*Facts) *Cause{
		(*Facts).ended, (*Facts).deleted, (*Facts).stopping, (*Facts).blocked, (*Facts).stalled, (*Facts).elsewhere,
		(*Facts).running, (*Facts).unmanaged, (*Facts).unreachable, (*Facts).stopped, (*Facts).queue, (*Facts).runsAfter,
		(*Facts).noWorkload, (*Facts).deactivated, (*Facts).checks, (*Facts).admittedWaits, (*Facts).silent, (*Facts).backoff,
	} {
		if c := rule(f); c != nil {
			return *c
		}
	}
	return f.quota()
}

// stopping is about pods that hold quota although the TrainJob is suspended.
func (f *Facts) stopping() *Cause {
	if c := f.Job.Status.Condition(api.ConditionStopOverdue); c != nil {
		cause := said(CodeOverdue, c)
		cause.Do = []string{"see whether the node's kubelet answers; if the node is gone for good, delete the Node object"}
		return cause
	}
	if f.State() != api.StateStopping {
		return nil
	}
	text := cmp.Or(f.unended(), "its pods have not ended, and hold its quota until they have")
	if c := f.condition(kueue.WorkloadEvicted); isTrue(c) {
		text = "it was evicted (" + c.Message + "); " + text
	}
	return &Cause{Code: CodeStopping, Text: text, Do: []string{"wait for their grace period, " +
		"terminationGracePeriodSeconds of the pods"}}
}

func (f *Facts) blocked() *Cause {
	if c := f.Job.Status.Condition(api.ConditionBlocked); isTrue(c) {
		return said(CodeBlocked, c)
	}
	return nil
}

func (f *Facts) elsewhere() *Cause {
	if ptr.Deref(f.Job.Spec.ManagedBy, "") != kueue.MultiKueueControllerName || !f.is(kueue.WorkloadAdmitted) {
		return nil
	}
	return &Cause{Code: CodeElsewhere, Text: "it runs in cluster " + ptr.Deref(f.Workload.Status.ClusterName, "unknown") +
		", by MultiKueue; its pods and logs are there"}
}

// unmanaged is about a suspended TrainJob that is in no queue.
func (f *Facts) unmanaged() *Cause {
	if f.queueName() != "" || f.Workload != nil {
		return nil
	}
	return &Cause{Code: CodeSuspended, Text: "it is suspended and in no queue", Do: []string{
		"kubectl label trainjob " + f.Job.Name + " kueue.x-k8s.io/queue-name=QUEUE puts it into a queue",
	}}
}

// unreachable is about webhooks that don't answer: their controllers are down, and nothing goes on.
func (f *Facts) unreachable() *Cause {
	switch {
	case f.WebhookDown == "":
		return nil
	case strings.HasSuffix(f.WebhookDown, ".signalbox.dev"):
		return &Cause{Code: CodeNoWorkload, Reason: f.WebhookDown,
			Text: "Signalbox's webhook doesn't answer: Signalbox is down", Do: []string{"kubectl signalbox doctor"}}
	}
	return &Cause{Code: CodeKueueDown, Reason: f.WebhookDown,
		Text: "webhook " + f.WebhookDown + " doesn't answer: Kueue is down, or can't be reached",
		Do:   []string{"kubectl -n kueue-system get pods", "kubectl signalbox doctor"}}
}

func (f *Facts) queue() *Cause {
	if f.is(kueue.WorkloadQuotaReserved) || !f.QueuesRead {
		return nil
	}
	lq := f.localQueue()
	if lq == nil {
		text := fmt.Sprintf("LocalQueue %q isn't in namespace %s", f.queueName(), f.Job.Namespace)
		if names := f.Queues.names[f.Job.Namespace]; len(names) > 0 {
			text += "; there are " + list(names)
		}
		return &Cause{Code: CodeNoQueue, Text: text, Do: []string{
			"name another queue in label kueue.x-k8s.io/queue-name, or have your batch admin create it",
		}}
	}
	if policy := ptr.Deref(lq.Spec.StopPolicy, kueue.None); policy != kueue.None {
		return &Cause{Code: CodeQueueHeld, Reason: string(policy),
			Text: fmt.Sprintf("LocalQueue %s is stopped (stopPolicy %s)", lq.Name, policy),
			Do:   []string{"ask your batch admin, or use another queue"}}
	}
	return f.clusterQueueCause(lq)
}

func (f *Facts) clusterQueueCause(lq *kueue.LocalQueue) *Cause {
	cq := f.clusterQueue()
	active := apimeta.FindStatusCondition(lq.Status.Conditions, kueue.LocalQueueActive)
	switch {
	case cq == nil && f.ClusterQueuesRead || active != nil && active.Reason == "ClusterQueueDoesNotExist":
		return &Cause{Code: CodeNoCQ, Text: fmt.Sprintf("ClusterQueue %s of LocalQueue %s doesn't exist",
			lq.Spec.ClusterQueue, lq.Name), Do: []string{"ask your batch admin"}}
	case cq == nil && active != nil && active.Status == metav1.ConditionFalse:
		return &Cause{Code: CodeCQInactive, Reason: active.Reason, Text: active.Message, Do: []string{"ask your batch admin"}}
	case cq == nil:
		return nil
	}
	if policy := ptr.Deref(cq.Spec.StopPolicy, kueue.None); policy != kueue.None {
		return &Cause{Code: CodeCQStopped, Reason: string(policy), Text: fmt.Sprintf("ClusterQueue %s is stopped "+
			"(stopPolicy %s)", cq.Name, policy), Do: []string{"ask your batch admin, or use another queue"}}
	}
	c := apimeta.FindStatusCondition(cq.Status.Conditions, kueue.ClusterQueueActive)
	if c != nil && c.Status == metav1.ConditionFalse {
		cause := said(CodeCQInactive, c)
		cause.Text, cause.Do = fmt.Sprintf("ClusterQueue %s: %s", cq.Name, c.Message), []string{"ask your batch admin"}
		return cause
	}
	return nil
}

func (f *Facts) noWorkload() *Cause {
	if f.Workload != nil {
		return nil
	}
	if !f.OwnRead {
		return &Cause{Code: CodeUnknown, Text: "you may not read the Workloads of namespace " + f.Job.Namespace +
			", which say what it waits for", Do: []string{"ask for the right to list workloads.kueue.x-k8s.io in the namespace"}}
	}
	age := f.Now.Sub(f.Job.CreationTimestamp.Time)
	text := "it was submitted a moment ago"
	var do []string
	if age > silence {
		text = fmt.Sprintf("it has no Workload %s after it was submitted: Signalbox doesn't run, or doesn't manage "+
			"namespace %s", duration.HumanDuration(age), f.Job.Namespace)
		do = []string{"kubectl signalbox doctor"}
	}
	return &Cause{Code: CodeNoWorkload, Text: text, Since: since(f.Job.CreationTimestamp), Do: do}
}

// stopped is about a TrainJob that its user has stopped, maybe on creation: before it has a Workload. What an admin or
// Kueue has deactivated stays so when it is resumed. A Signalbox before v0.2 deactivated the Workload for a stop.
func (f *Facts) stopped() *Cause {
	why, stopped := f.Job.Annotations[api.StopAnnotation]
	if wl := f.Workload; wl != nil && !workload.IsActive(wl) {
		stopped = wl.Annotations[api.StopAnnotation] != ""
	}
	if !stopped || f.is(kueue.WorkloadQuotaReserved) {
		return nil
	}
	reason, text := stoppedText(why)
	return &Cause{Code: CodeStopped, Reason: reason, Text: text,
		Do: []string{"kubectl signalbox resume " + f.Job.Name}}
}

func (f *Facts) deactivated() *Cause {
	if workload.IsActive(f.Workload) {
		return nil
	}
	cause := &Cause{Code: CodeStopped, Text: "its Workload is deactivated (spec.active is false)", Do: []string{
		"an admin may set spec.active of Workload " + f.Workload.Name + " to true; or submit the TrainJob again",
	}}
	if c := f.condition(kueue.WorkloadEvicted); isTrue(c) {
		cause.Reason, cause.Since = c.Reason, since(c.LastTransitionTime)
		if c.Message != "" {
			cause.Text += ": " + c.Message
		}
		if strings.Contains(c.Reason, "AdmissionCheck") {
			cause.Code = CodeRejected
		}
	}
	return cause
}

// runsAfter is about a TrainJob that waits until others have ended.
func (f *Facts) runsAfter() *Cause {
	if !after.Waits(f.Job) {
		return nil
	}
	var others, do []string
	for _, d := range after.Of(f.Job) {
		text := fmt.Sprintf("%s %s", d.Name, d.When)
		for _, known := range f.Dependencies {
			if known.Depth == 0 && known.Name == d.Name {
				text += " (it is " + known.State + ")"
			}
		}
		others, do = append(others, text), append(do, "kubectl signalbox explain "+d.Name)
	}
	if len(others) == 0 {
		return nil // its gate is about to be opened
	}
	const most = 3
	return &Cause{Code: CodeAfter, Text: "it runs after " + strings.Join(others, ", and after "),
		Since: since(f.Job.CreationTimestamp), Do: do[:min(most, len(do))]}
}

func (f *Facts) checks() *Cause {
	for _, state := range []kueue.CheckState{kueue.CheckStateRejected, kueue.CheckStateRetry, kueue.CheckStatePending} {
		for _, check := range f.Workload.Status.AdmissionChecks {
			if check.State != state || state == kueue.CheckStatePending && !f.is(kueue.WorkloadQuotaReserved) {
				continue
			}
			code, text := CodeCheck, "it has quota and waits for admission check %s: %s"
			switch state {
			case kueue.CheckStateRejected:
				code, text = CodeRejected, "admission check %s has rejected it: %s"
			case kueue.CheckStateRetry:
				code, text = CodeRetry, "admission check %s tries again: %s"
			default: // it is pending
			}
			return &Cause{Code: code, Since: since(check.LastTransitionTime), Reason: string(check.Name),
				Text: fmt.Sprintf(text, check.Name, cmp.Or(check.Message, "it has no message"))}
		}
	}
	return nil
}

// admittedWaits is about a TrainJob that is admitted and hasn't started.
func (f *Facts) admittedWaits() *Cause {
	if !f.is(kueue.WorkloadAdmitted) {
		return nil
	}
	c := f.condition(kueue.WorkloadAdmitted)
	cause := &Cause{Code: CodeStarting, Text: "it is admitted and about to start", Since: since(c.LastTransitionTime)}
	if age := f.Now.Sub(c.LastTransitionTime.Time); age > silence {
		cause.Code = CodeNoWorkload
		cause.Text = fmt.Sprintf("it was admitted %s ago and hasn't started: Signalbox doesn't run",
			duration.HumanDuration(age))
		cause.Do = []string{"kubectl signalbox doctor"}
	}
	return cause
}

// silent is about a Kueue that decides nothing.
func (f *Facts) silent() *Cause {
	age := f.Now.Sub(f.Workload.CreationTimestamp.Time)
	unseen := f.KueueSeen != nil && f.Now.Sub(*f.KueueSeen) > silence
	if !unseen && (f.condition(kueue.WorkloadQuotaReserved) != nil || age < silence || !f.next()) {
		return nil
	}
	text := fmt.Sprintf("Kueue has written no status of Workload %s in %s", f.Workload.Name, duration.HumanDuration(age))
	if unseen {
		text = fmt.Sprintf("Kueue's controller was last seen %s ago", duration.HumanDuration(f.Now.Sub(*f.KueueSeen)))
	}
	return &Cause{Code: CodeKueueDown, Text: text, Do: []string{
		"kubectl -n kueue-system get pods; kubectl signalbox doctor",
	}}
}

// next reports whether the TrainJob is known to be the next that Kueue considers.
func (f *Facts) next() bool {
	if f.OthersRead {
		place, _ := f.Position()
		return place < 2
	}
	cq := f.clusterQueue()
	return cq != nil && cq.Status.PendingWorkloads < 2
}

func (f *Facts) backoff() *Cause {
	s := f.Workload.Status.RequeueState
	if s == nil || s.RequeueAt == nil || s.RequeueAt.Time.Before(f.Now) {
		return nil
	}
	text := fmt.Sprintf("it was evicted %d times and is queued again in %s", ptr.Deref(s.Count, 1),
		duration.HumanDuration(s.RequeueAt.Sub(f.Now)))
	if c, timeout := workloadevict.IsEvictedByPodsReadyTimeout(f.Workload); timeout {
		text += ": " + c.Message
	}
	return &Cause{Code: CodeBackoff, Text: text}
}
