package avoid

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var (
	now    = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	policy = Policy{For: time.Hour, FailedWithin: time.Minute, AtMost: 3}
)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// waiting is a container that doesn't start.
func waiting(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

// ended is a container that ran for so long.
func ended(code int32, reason string, ran time.Duration) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, StartedAt: ago(ran), FinishedAt: ago(0),
	}}}
}

// TestMark holds what a pod shows of its node, and what doesn't count.
func TestMark(t *testing.T) {
	disrupted := func(reason string, status corev1.ConditionStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.DisruptionTarget, Status: status, Reason: reason},
		}}
	}
	failed := func(reason string, containers ...corev1.ContainerStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, ContainerStatuses: containers}
	}
	pending := func(containers ...corev1.ContainerStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: containers}
	}
	again := waiting("ErrImagePull")
	again.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	for name, c := range map[string]struct {
		status          corev1.PodStatus
		change          func(*corev1.Pod)
		policy          *Policy
		reason, message string
	}{
		"it runs": {status: corev1.PodStatus{Phase: corev1.PodRunning}},
		"the node isn't ready": {status: disrupted("DeletionByTaintManager", "True"), reason: Lost,
			message: "DeletionByTaintManager"},
		"the node is gone": {status: disrupted("DeletionByPodGC", "True"), reason: Lost, message: "DeletionByPodGC"},
		"lost, and terminates": {status: disrupted("DeletionByTaintManager", "True"), reason: Lost,
			message: "DeletionByTaintManager",
			change:  func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }},
		"a drain":            {status: disrupted("EvictionByEvictionAPI", "True")},
		"a preemption":       {status: disrupted("PreemptionByScheduler", "True")},
		"not lost after all": {status: disrupted("DeletionByTaintManager", "False")},
		"the node was restarted": {status: failed("", ended(137, "ContainerStatusUnknown", 0)), reason: Lost,
			message: "ContainerStatusUnknown"},
		"the kubelet rejects it": {status: failed("UnexpectedAdmissionError"), reason: Rejected,
			message: "UnexpectedAdmissionError"},
		"rejected, containers listed": {status: failed("OutOfnvidia.com/gpu", waiting("ContainerCreating")),
			reason: Rejected, message: "OutOfnvidia.com/gpu"},
		"rejected for what it asks for": {status: failed("SysctlForbidden")},
		"rejected for labels":           {status: failed("NodeAffinity")},
		"rejected, without a policy":    {status: failed("UnexpectedAdmissionError"), policy: &Policy{}},
		"the node shuts down, and it hasn't started": {status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Terminated",
			Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: "True",
				Reason: "TerminationByKubelet"}},
			ContainerStatuses: []corev1.ContainerStatus{waiting("PodInitializing")}}},
		"the node shuts down, and takes none": {status: failed("NodeShutdown"), reason: Rejected, message: "NodeShutdown"},
		"its deadline":                        {status: failed("DeadlineExceeded")},
		"room for a critical pod":             {status: failed("Preempting")},
		"evicted after it ran":                {status: failed("Evicted", ended(137, "Error", time.Second))},
		"the image": {status: pending(waiting("ImagePullBackOff")), reason: NotStarted,
			message: "ImagePullBackOff"},
		"an initializer's image": {status: corev1.PodStatus{Phase: corev1.PodPending,
			InitContainerStatuses: []corev1.ContainerStatus{waiting("ErrImagePull")}}, reason: NotStarted,
			message: "ErrImagePull"},
		"another container starts": {status: corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{
				{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, waiting("RunContainerError")}},
			reason: NotStarted, message: "RunContainerError"},
		"the image's name is wrong":  {status: pending(waiting("InvalidImageName"))},
		"a Secret is missing":        {status: pending(waiting("CreateContainerConfigError"))},
		"it starts":                  {status: pending(waiting("ContainerCreating"))},
		"the program's own hook":     {status: pending(waiting("PostStartHookError"))},
		"it has run before":          {status: pending(again)},
		"it crashes again and again": {status: pending(waiting("CrashLoopBackOff"))},
		"it fails at once": {status: failed("", ended(1, "Error", 59*time.Second)), reason: FailedEarly,
			message: "Error"},
		"it fails after a minute": {status: failed("", ended(1, "Error", time.Minute))},
		"one of two fails at once": {status: failed("", ended(0, "Completed", 5*time.Second),
			ended(1, "Error", 9*time.Second)), reason: FailedEarly, message: "Error"},
		"it can't start": {status: failed("", ended(128, "StartError", 500000*time.Hour)), reason: NotStarted,
			message: "StartError"},
		"its memory": {status: failed("", ended(137, "OOMKilled", time.Second))},
		"it fails at once, and is told": {status: failed("", ended(1, "Error", 0)),
			change: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }},
		"failures don't count": {status: failed("", ended(1, "Error", 0)), policy: &Policy{For: time.Hour}},
		"it has no node": {status: failed("UnexpectedAdmissionError"),
			change: func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"it succeeds": {status: corev1.PodStatus{Phase: corev1.PodSucceeded,
			ContainerStatuses: []corev1.ContainerStatus{ended(0, "Completed", 0)}}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, kept, p := &corev1.Pod{Status: c.status}, &corev1.Pod{}, policy
			pod.Spec.NodeName = "n1"
			if c.change != nil {
				c.change(pod)
			}
			if c.policy != nil {
				p = *c.policy
			}
			p.Mark(kept, pod)
			if reason, message := MarkOf(kept); reason != c.reason || message != c.message {
				t.Errorf("got %q, %q; want %q, %q", reason, message, c.reason, c.message)
			}
		})
	}
}

// TestMarkedAt holds since when a pod shows what it shows: by its condition, the end of a container, or its start.
func TestMarkedAt(t *testing.T) {
	created := ago(5 * time.Hour)
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   metav1.Time
	}{
		"lost": {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: "True",
			Reason: "DeletionByPodGC", LastTransitionTime: ago(time.Minute)}}}, ago(time.Minute)},
		"restarted": {corev1.PodStatus{Phase: corev1.PodFailed,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, LastTransitionTime: ago(time.Minute)}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown"}}}}}, ago(time.Minute)},
		"failed": {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
			ended(1, "Error", time.Second)}}, ago(0)},
		"rejected": {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", StartTime: &metav1.Time{
			Time: now.Add(-time.Hour)}}, ago(time.Hour)},
		"nothing else is known": {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}, created},
	} {
		pod, kept := &corev1.Pod{Status: c.status}, &corev1.Pod{}
		pod.Spec.NodeName, pod.CreationTimestamp = "n1", created
		policy.Mark(kept, pod)
		if got := kept.Status.Conditions[0].LastTransitionTime; !got.Equal(&c.want) {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// TestShared holds what TrainJobs of a namespace tell each other: what isn't a program's own failure, of nodes that
// there are and that one doesn't count itself, the latest of a node, and no more than it may keep off.
func TestShared(t *testing.T) {
	jobOf := func(nodes ...api.AvoidedNode) (job api.TrainJob) {
		job.Status.Avoided = nodes
		return job
	}
	jobs := []api.TrainJob{
		jobOf(remembered("own", Lost, 0), remembered("alone", NotStartedAlone, 0), remembered("early", FailedEarly, 0)),
		jobOf(remembered("old", Lost, 2*time.Hour), remembered("image", NotStarted, time.Minute)),
		jobOf(remembered("image", NotStarted, 0), remembered("lost", Lost, 3*time.Minute), remembered("gone", Lost, 0),
			remembered("rejects", Rejected, 2*time.Minute)),
	}
	var nodes []corev1.Node
	for _, name := range []string{"own", "alone", "early", "old", "image", "lost", "rejects"} {
		nodes = append(nodes, nodeOf(name, "a", 8))
	}
	for name, c := range map[string]struct {
		policy Policy
		want   string
	}{
		"three":   {policy, "image, rejects"},
		"more":    {Policy{For: time.Hour, AtMost: 9}, "image, rejects, lost"},
		"no room": {Policy{For: time.Hour, AtMost: 1}, ""},
		"off":     {Policy{AtMost: 9}, ""},
	} {
		if got := Names(c.policy.Further(jobs[0].Status.Avoided[:1], c.policy.Shared(jobs, nodes, now))); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got := policy.Shared(nil, nodes, now); got != nil {
		t.Errorf("nobody remembers: got %v", got)
	}
	there := jobOf(remembered("own", Lost, 0))
	if got := IndexOf(&there); !slices.Equal(got, []string{Remembers}) {
		t.Errorf("it remembers: got %v", got)
	}
	there.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
	for _, o := range []client.Object{&api.TrainJob{}, &corev1.Pod{}, &there} {
		if got := IndexOf(o); got != nil {
			t.Errorf("%T remembers none of this cluster: got %v", o, got)
		}
	}
}
