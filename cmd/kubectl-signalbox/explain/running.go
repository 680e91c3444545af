package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/jobset/pkg/constants"
	utilpod "sigs.k8s.io/kueue/pkg/util/pod"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/admission/stalled"
	"github.com/signalbox-dev/signalbox/admission/ttl"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// podCreationFailed is the reason of a Job's event that a pod can't be created (k8s.io/kubernetes, pkg/controller).
const podCreationFailed = "FailedCreate"

// stopReleases is what helps while a TrainJob that can't run holds quota.
const stopReleases = "the TrainJob holds its quota meanwhile: kubectl signalbox stop releases it"

// running is about a TrainJob that was started.
func (f *Facts) running() *Cause {
	if f.suspended() {
		return nil
	}
	if c := f.Job.Status.Condition(api.ConditionGangScheduled); c != nil && c.Status == metav1.ConditionFalse {
		cause := said(CodeGang, c)
		cause.Do = []string{"nodes of the admitted flavor must have room for the whole gang at once; ask your batch admin " +
			"if quota is above what the nodes have (kubectl signalbox doctor)"}
		return cause
	}
	for _, rule := range []func(*corev1.Pod) *Cause{imagePull, crashing, unschedulable} {
		for i := range f.Pods {
			if c := rule(&f.Pods[i]); c != nil {
				return f.keepsOff(c)
			}
		}
	}
	cause := &Cause{Code: CodeRunning, Text: "it runs"}
	if f.State() == api.StateStarting {
		cause.Code, cause.Text = CodeStarting, "its pods are starting"
		if e := f.notCreated(); e != nil {
			return &Cause{Code: CodeStarting, Reason: e.Reason, Text: fmt.Sprintf("%s %s doesn't have all it creates: %s",
				e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message), Since: since(lastSeen(e)), Do: []string{
				"correct what the message names; its controller tries again by itself", stopReleases}}
		}
	}
	if start := f.Job.Status.StartTime; start != nil {
		cause.Since = since(*start)
	}
	if f.Workload != nil && f.Workload.Status.Admission != nil {
		cause.Text += " on " + strings.Join(podsets.Flavors(f.Workload), ", ")
	} else if f.queueName() == "" {
		cause.Text += ", and not on quota: it is in no queue"
	}
	cause.Text += f.saved()
	return cause
}

// saved says what a TrainJob that runs has saved, and until when it runs on to save more; "" if it reports nothing.
func (f *Facts) saved() (text string) {
	if saved := f.Job.Status.Checkpoint; saved != nil {
		text = fmt.Sprintf("; its last checkpoint, %s, was saved %s ago", saved.Value,
			duration.HumanDuration(max(f.Now.Sub(saved.Time.Time), 0)))
	}
	if f.Workload == nil {
		return text
	}
	if until := checkpoint.Announced(f.Workload, f.Now); !until.IsZero() {
		text += fmt.Sprintf("; it was preempted, and runs on until its next checkpoint, until %s at the latest",
			until.Local().Format(time.TimeOnly))
	}
	if until := boost.ProtectedUntil(f.Workload, f.Now); !until.IsZero() {
		text += "; within its minimum runtime, no equal preempts it until " + until.Local().Format(time.TimeOnly)
	}
	return text
}

// notCreated returns the last event that says why a Job or a pod wasn't created since the start; nil for none. The API
// server may refuse to their controllers what a dry run of Signalbox may create.
func (f *Facts) notCreated() *corev1.Event {
	var last *corev1.Event
	for i := range f.Events {
		e := &f.Events[i]
		if e.Reason != podCreationFailed && e.Reason != constants.JobCreationFailedReason {
			continue
		}
		at, start := lastSeen(e), f.Job.Status.StartTime
		if (start == nil || !at.Before(start)) && (last == nil || !at.Time.Before(lastSeen(last).Time)) {
			last = e
		}
	}
	return last
}

// waitingFor returns the first container of a pod that waits for one of the reasons; nil for none.
func waitingFor(p *corev1.Pod, reasons ...string) *corev1.ContainerStatus {
	for _, s := range statuses(p) {
		if w := s.State.Waiting; w != nil && slices.Contains(reasons, w.Reason) {
			return &s
		}
	}
	return nil
}

func imagePull(p *corev1.Pod) *Cause {
	s := waitingFor(p, "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
	if s == nil {
		return nil
	}
	w := s.State.Waiting
	return &Cause{Code: CodeImage, Reason: w.Reason, Text: fmt.Sprintf("pod %s: image %s of container %s can't be "+
		"pulled: %s", p.Name, s.Image, s.Name, w.Message), Do: []string{"correct the image of the runtime or of " +
		"spec.trainer.image, or give the pods an imagePullSecret", stopReleases}}
}

func crashing(p *corev1.Pod) *Cause {
	s := waitingFor(p, "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError")
	if s == nil {
		return nil
	}
	w := s.State.Waiting
	text := fmt.Sprintf("pod %s: container %s doesn't start: %s %s", p.Name, s.Name, w.Reason, w.Message)
	if last := s.LastTerminationState.Terminated; last != nil {
		text += fmt.Sprintf(" (exit code %d, %s)", last.ExitCode, last.Reason)
	}
	return &Cause{Code: CodeCrash, Reason: w.Reason, Text: text}
}

func unschedulable(p *corev1.Pod) *Cause {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return &Cause{Code: CodeNoNode, Reason: c.Reason, Text: fmt.Sprintf("pod %s has no node: %s", p.Name, c.Message),
				Since: since(c.LastTransitionTime), Do: []string{"the quota is above what the nodes have, or the flavor's " +
					"labels are no node's: kubectl signalbox doctor"}}
		}
	}
	return nil
}

// keepsOff adds to the cause of pods without a node which nodes they keep off.
func (f *Facts) keepsOff(c *Cause) *Cause {
	own := overrides.OwnIndex(f.Job)
	if c.Code != CodeNoNode || own < 0 {
		return c
	}
	if hosts := avoid.Started(&f.Job.Spec.RuntimePatches[own]); len(hosts) > 0 {
		c.Text += "; its pods keep off nodes " + strings.Join(hosts, ", ")
		placed := slices.ContainsFunc(f.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName != "" })
		do := "wait for room on other nodes, or until the time of one of these is over (nodes.avoidFor): then it is " +
			"started again on its quota; kubectl signalbox nodes says why they are avoided"
		if placed {
			do = "wait for room on other nodes: one that has some of its nodes isn't started again when the time of the " +
				"others is over; kubectl signalbox stop and resume have it queued for all nodes that count then"
		}
		c.Do = slices.Insert(c.Do, 0, do, stopReleases)
	}
	return c
}

// stateStalled is shown of a running TrainJob that has stalled. Its status says Running: its pods are ready.
const stateStalled = "Stalled"

// hasStalled returns condition Stalled of a running TrainJob that has stalled; nil for any other.
func (f *Facts) hasStalled() *metav1.Condition {
	c := f.Job.Status.Condition(api.ConditionStalled)
	if c == nil || c.Status != metav1.ConditionTrue || f.State() != api.StateRunning {
		return nil
	}
	return c
}

// shown returns the state for people.
func (f *Facts) shown() string {
	if f.hasStalled() != nil {
		return stateStalled
	}
	return string(f.State())
}

// stalled is about a TrainJob that runs, here or in another cluster, and reports nothing.
func (f *Facts) stalled() *Cause {
	c := f.hasStalled()
	if c == nil {
		return nil
	}
	return &Cause{Code: CodeStalled, Reason: c.Reason, Text: c.Message + f.saved(), Since: since(c.LastTransitionTime),
		Do: []string{
			"kubectl signalbox logs " + f.Job.Name + " shows what its processes do",
			"kubectl signalbox restart " + f.Job.Name + " starts it again, and kubectl signalbox stop " + f.Job.Name +
				" releases its quota",
			"if it does work, let it report more often, or raise annotation " + api.StalledAfterAnnotation,
		}}
}

// stoppedText says who has stopped a TrainJob, by the value of the annotation.
func stoppedText(why string) (reason, text string) {
	if since, by := stalled.StoppedSince(why); by {
		return stateStalled, "it was stopped because it had stalled: its training process had reported nothing since " + since
	}
	return "StoppedByUser", "it was stopped with kubectl signalbox stop"
}

func (f *Facts) ended() *Cause {
	if c := f.Job.Status.Condition(trainerapi.TrainJobComplete); isTrue(c) {
		cause := said(CodeComplete, c)
		cause.Text += f.expires()
		return cause
	}
	if c := f.Job.Status.Condition(trainerapi.TrainJobFailed); isTrue(c) {
		cause := said(CodeFailed, c)
		cause.Text += f.expires()
		cause.Do = []string{"kubectl signalbox logs " + f.Job.Name + " shows what its processes said"}
		return cause
	}
	return nil
}

// expires says when a TrainJob that has ended is deleted by its time to live; "" if it stays. With MultiKueue, what its
// runtime says doesn't count.
func (f *Facts) expires() string {
	var runtime map[string]string
	if f.JobSet != nil {
		runtime = f.JobSet.Annotations
	}
	left, set, err := ttl.Left(f.Job, runtime, f.Now)
	if err != nil || !set {
		return ""
	}
	return "; it is deleted at " + f.Now.Add(max(left, 0)).Local().Format(time.DateTime)
}

// deleted is about a TrainJob that is being deleted: its status isn't written any more.
func (f *Facts) deleted() *Cause {
	if f.Job.DeletionTimestamp.IsZero() {
		return nil
	}
	text := "it is being deleted"
	if pods := f.unended(); pods != "" {
		text += "; " + pods
	}
	if len(f.Job.Finalizers) > 0 {
		text += "; it stays as long as it has finalizer " + list(f.Job.Finalizers)
	}
	return &Cause{Code: CodeStopping, Text: text, Since: since(*f.Job.DeletionTimestamp)}
}

// unended says which pods have not ended; "" for none.
func (f *Facts) unended() string {
	var names []string
	for i := range f.Pods {
		if p := &f.Pods[i]; !utilpod.IsTerminated(p) {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s) hold its quota until they have ended", count(len(names), "pod"), list(names))
}
