package avoid

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// The reasons for which a node is remembered.
const (
	// Lost: the node is gone, isn't ready, or was restarted.
	Lost = "Lost"
	// Rejected: its kubelet has rejected the pod, for a device for example.
	Rejected = "Rejected"
	// NotStarted: a container doesn't start, for its image for example, while another pod of its step has started.
	NotStarted = "NotStarted"
	// NotStartedAlone: the same of a step without another pod. It may be the program's image.
	NotStartedAlone = "NotStartedAlone"
	// FailedEarly: the pod failed soon after its start, while another pod of its step ran. It may be the program.
	FailedEarly = "FailedEarly"
)

// Says returns in words what a pod showed of a node.
func Says(n api.AvoidedNode) string {
	switch n.Reason {
	case Lost:
		return "was lost with it"
	case Rejected:
		return "was rejected by its kubelet"
	case NotStarted:
		return "doesn't start there, and others do elsewhere"
	case NotStartedAlone:
		return "doesn't start there"
	case FailedEarly:
		return "failed there soon after its start, while others ran"
	}
	return "failed there"
}

// Condition is on a pod in the cache that shows a broken node. Its reason is Lost, Rejected, NotStarted or FailedEarly,
// its message the pod's, and its time since when the pod shows that.
const Condition corev1.PodConditionType = "signalbox.dev/BrokenNode"

// notStarting are the reasons of containers that wait and that another node may start. InvalidImageName and
// CreateContainerConfigError, which names a Secret for example, are the TrainJob's own on any node.
var notStarting = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable",
	"CreateContainerError", "RunContainerError", "StartError", "PreCreateHookError", "PreStartHookError",
	"CreatePodSandboxError", "KillPodSandboxError", "ConfigPodSandboxError", "SetupNetworkError",
}

// unsupported are the reasons for which a kubelet rejects what a pod asks for, as any like it would: sysctls and
// profiles for example, or labels that the node has no more (Kubernetes v1.36, pkg/kubelet/lifecycle, sysctl).
var unsupported = []string{
	"AppArmor", "NodeAffinity", "PodFeatureUnsupported", "PodLevelResourcesNotSupported", "PodOSNotSupported",
	"PodOSSelectorNodeLabelDoesNotMatch", "SupplementalGroupsPolicyNotSupported", "SysctlForbidden",
}

// Mark adds to what a cache keeps of a pod what the pod shows of its node.
func (p Policy) Mark(kept, pod *corev1.Pod) {
	if reason, message := p.cause(pod); reason != "" {
		kept.Status.Conditions = append(kept.Status.Conditions, corev1.PodCondition{
			Type: Condition, Status: corev1.ConditionTrue, Reason: reason, Message: short(message),
			LastTransitionTime: lastChange(pod),
		})
	}
}

// MarkOf returns the reason and the message that Mark has left; "" for none.
func MarkOf(kept *corev1.Pod) (reason, message string) {
	for i := range kept.Status.Conditions {
		if c := &kept.Status.Conditions[i]; c.Type == Condition {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

// lastChange returns when a pod last changed what it shows. Conditions are asked, because a container that was lost
// with its node has no end.
func lastChange(pod *corev1.Pod) metav1.Time {
	last := pod.CreationTimestamp
	later := func(t metav1.Time) {
		if last.Before(&t) {
			last = t
		}
	}
	later(ptr.Deref(pod.Status.StartTime, metav1.Time{}))
	for _, c := range pod.Status.Conditions {
		later(c.LastTransitionTime)
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.State.Terminated != nil {
			later(c.State.Terminated.FinishedAt)
		}
	}
	return last
}

// markedAt returns since when a pod shows what Mark has left.
func markedAt(kept *corev1.Pod) time.Time {
	for i := range kept.Status.Conditions {
		if c := &kept.Status.Conditions[i]; c.Type == Condition {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// cause returns what a pod shows of its node, and the pod's own reason.
func (p Policy) cause(pod *corev1.Pod) (reason, message string) {
	if !p.On() || pod.Spec.NodeName == "" {
		return "", ""
	}
	if message = lost(pod); message != "" {
		return Lost, message
	}
	if !pod.DeletionTimestamp.IsZero() {
		return "", "" // it was told to end
	}
	switch pod.Status.Phase {
	case corev1.PodFailed:
		return p.failed(pod)
	case corev1.PodPending, corev1.PodRunning:
		if message = waits(pod); message != "" {
			return NotStarted, message
		}
	case corev1.PodSucceeded, corev1.PodUnknown:
	}
	return "", ""
}

// lost returns by what a pod was lost with its node; "" if it wasn't. A drain and a preemption are no fault of a node.
func lost(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			(c.Reason == "DeletionByTaintManager" || c.Reason == "DeletionByPodGC") {
			return c.Reason
		}
	}
	const unknown = "ContainerStatusUnknown"
	vanished := func(c corev1.ContainerStatus) bool {
		return c.State.Terminated != nil && (c.State.Terminated.Reason == unknown || c.State.Terminated.Reason == "Unknown")
	}
	if pod.Status.Phase == corev1.PodFailed && slices.ContainsFunc(pod.Status.ContainerStatuses, vanished) {
		return unknown
	}
	return ""
}

// waits returns why a container doesn't start; "" if none waits for that. One that has run before waits for a restart.
func waits(pod *corev1.Pod) string {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.State.Waiting != nil && c.LastTerminationState.Terminated == nil &&
			slices.Contains(notStarting, c.State.Waiting.Reason) {
			return c.State.Waiting.Reason
		}
	}
	return ""
}

// failed returns what a failed pod shows. Its own deadline or memory, and a kubelet that makes room for a critical pod,
// are no fault of the node. Nor is a drain, a preemption or a shutdown of the node that ends it before it has started.
func (p Policy) failed(pod *corev1.Pod) (reason, message string) {
	ran, failure := endsOf(pod)
	switch told := pod.Status.Reason; {
	case told == "DeadlineExceeded" || told == "Preempting" || slices.Contains(unsupported, told):
		return "", ""
	case ran < 0 && failure != "":
		return NotStarted, failure
	case ran < 0 && told != "" && !disrupted(pod):
		return Rejected, told
	case ran >= 0 && ran < p.FailedWithin && told == "" && failure != "" && failure != "OOMKilled":
		return FailedEarly, failure
	}
	return "", ""
}

func disrupted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

// endsOf returns for how long a pod's containers ran, less than 0 if one couldn't start or none did, and why one
// failed; "" if none has. What the kernel killed for its memory comes first.
func endsOf(pod *corev1.Pod) (ran time.Duration, failure string) {
	var first, last time.Time
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		ended := c.State.Terminated
		if ended == nil {
			continue
		}
		if ended.Reason == "StartError" || ended.Reason == "ContainerCannotRun" { // its start is in 1970
			return -1, ended.Reason
		}
		if ended.StartedAt.IsZero() {
			continue
		}
		if first.IsZero() || ended.StartedAt.Time.Before(first) {
			first = ended.StartedAt.Time
		}
		if ended.FinishedAt.After(last) {
			last = ended.FinishedAt.Time
		}
		if ended.ExitCode != 0 && failure != "OOMKilled" {
			failure = cmp.Or(ended.Reason, "Error")
		}
	}
	if first.IsZero() {
		return -1, ""
	}
	return last.Sub(first), failure
}

// short bounds what is kept of a reason.
func short(reason string) string {
	const most = 64
	return reason[:min(len(reason), most)]
}
