package explain

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Code names the cause of a TrainJob's state. Scripts may rely on it.
type Code string

// The causes.
const (
	CodeRunning    Code = "Running"
	CodeStalled    Code = "Stalled" // it runs, and has reported nothing for too long
	CodeComplete   Code = "Complete"
	CodeFailed     Code = "Failed"
	CodeUnmanaged  Code = "NotManaged"      // it has no queue: nobody queues it
	CodeSuspended  Code = "SuspendedByUser" // it is suspended and in no queue
	CodeBlocked    Code = "Blocked"         // condition Blocked has the reason
	CodeNoQueue    Code = "LocalQueueMissing"
	CodeQueueHeld  Code = "LocalQueueStopped"
	CodeNoCQ       Code = "ClusterQueueMissing"
	CodeCQStopped  Code = "ClusterQueueStopped"
	CodeCQInactive Code = "ClusterQueueInactive"
	CodeNamespace  Code = "NamespaceNotAllowed"
	CodeStopped    Code = "Deactivated"
	CodeNoWorkload Code = "SignalboxSilent" // no Workload was created
	CodeKueueDown  Code = "KueueSilent"     // Kueue has decided nothing
	CodeBackoff    Code = "RequeueBackoff"
	CodeNoFlavor   Code = "NoFlavorSuits" // node selector or taints
	CodeNoResource Code = "ResourceNotCovered"
	CodeTooLarge   Code = "ExceedsQuota" // more than the queue may ever have
	CodeBorrowed   Code = "QuotaBorrowed"
	CodeLimit      Code = "BorrowingLimit"
	CodeCohort     Code = "CohortFull"
	CodeShort      Code = "QuotaUsed"
	CodeNoPreempt  Code = "PreemptionNotAllowed"
	CodePreempting Code = "Preempting"
	CodeBehind     Code = "BehindOthers"
	CodeTopology   Code = "TopologyDoesNotFit"
	CodeCheck      Code = "AdmissionCheckPending"
	CodeRejected   Code = "AdmissionCheckRejected"
	CodeRetry      Code = "AdmissionCheckRetry"
	CodeInvalid    Code = "InvalidResources"
	CodeGang       Code = "GangUnschedulable"
	CodeImage      Code = "ImagePullFailed"
	CodeCrash      Code = "ContainerFailing"
	CodeNoNode     Code = "PodsUnschedulable"
	CodeStarting   Code = "Starting"
	CodeStopping   Code = "PodsTerminating"
	CodeOverdue    Code = "StopOverdue"
	CodeAfter      Code = "RunsAfterOthers" // annotation signalbox.dev/after
	CodeElsewhere  Code = "RunsInAnotherCluster"
	CodeUnknown    Code = "Unknown"
)

// Never reports whether a cause passes only after a change: the TrainJob doesn't fit into empty queues.
func (c Code) Never() bool {
	switch c {
	case CodeTooLarge, CodeNoFlavor, CodeNoResource, CodeNamespace, CodeInvalid:
		return true
	default:
		return false
	}
}

// Cause is why a TrainJob is in its state.
type Cause struct {
	Code Code `json:"code"`
	// Reason is the reason of the condition that says so; "" for none.
	Reason string `json:"reason,omitempty"`
	Text   string `json:"text"`
	// Since is when it began; nil if that isn't known.
	Since *time.Time `json:"since,omitempty"`
	// Do is what helps, the best first.
	Do []string `json:"do,omitempty"`
}

// silence is after how long it is strange that a controller has done nothing.
const silence = 30 * time.Second

// said returns a cause that a condition names.
func said(code Code, c *metav1.Condition) *Cause {
	return &Cause{Code: code, Reason: c.Reason, Text: c.Message, Since: since(c.LastTransitionTime)}
}

func since(t metav1.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t.Time
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// list puts names into a text, at most five of them.
func list(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
