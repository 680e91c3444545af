package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
)

// Moment is something that has happened to a TrainJob.
type Moment struct {
	Time time.Time `json:"time"`
	// Source is the kind of object that shows it: TrainJob, Workload, JobSet, Pod or Event; "" for what is left out.
	Source string `json:"source"`
	Text   string `json:"text"`
}

// timeline returns what has happened, in its order. Conditions show the last time only; events fill what was before,
// for as long as the API server keeps them.
func (f *Facts) timeline() []Moment {
	var all []Moment
	add := func(t metav1.Time, source, text string) {
		if !t.IsZero() {
			all = append(all, Moment{t.Time, source, text})
		}
	}
	add(f.Job.CreationTimestamp, "TrainJob", "submitted")
	if start := f.Job.Status.StartTime; start != nil {
		add(*start, "TrainJob", "started")
	}
	for _, c := range f.Job.Status.Conditions {
		if c.Type == "Complete" || c.Type == "Failed" || c.Type == "Blocked" {
			add(c.LastTransitionTime, "TrainJob", conditionText(c))
		}
	}
	f.workloadMoments(add)
	f.podMoments(add)
	f.eventMoments(add)
	slices.SortStableFunc(all, func(a, b Moment) int { return cmp.Compare(a.Time.Unix(), b.Time.Unix()) })
	return bounded(slices.CompactFunc(all, func(a, b Moment) bool { return a.Text == b.Text && a.Source == b.Source }))
}

// mostMoments bounds a timeline: pods that fail over and over have thousands of moments.
const mostMoments = 50

// bounded returns the first moment and the last ones, with a line for those between that are left out.
func bounded(all []Moment) []Moment {
	left := len(all) - mostMoments
	if left <= 0 {
		return all
	}
	between := Moment{all[left].Time, "", fmt.Sprintf("%d more until then are left out", left)}
	return append([]Moment{all[0], between}, all[left+1:]...)
}

// adding adds a moment to a timeline.
type adding = func(at metav1.Time, source, text string)

// workloadMoments adds what the Workload and the JobSet show.
func (f *Facts) workloadMoments(add adding) {
	if f.Workload != nil {
		add(f.Workload.CreationTimestamp, "Workload", "queued in "+string(f.Workload.Spec.QueueName))
		for _, c := range f.Workload.Status.Conditions {
			if c.Type != kueue.WorkloadPodsReady || c.Status == metav1.ConditionTrue {
				add(c.LastTransitionTime, "Workload", conditionText(c))
			}
		}
		for _, check := range f.Workload.Status.AdmissionChecks {
			add(check.LastTransitionTime, "Workload", fmt.Sprintf("admission check %s: %s %s", check.Name, check.State,
				check.Message))
		}
	}
	if f.JobSet != nil {
		add(f.JobSet.CreationTimestamp, "JobSet", "created")
		for _, c := range f.JobSet.Status.Conditions {
			if c.Status == metav1.ConditionTrue {
				add(c.LastTransitionTime, "JobSet", conditionText(c))
			}
		}
	}
}

func (f *Facts) eventMoments(add adding) {
	for i := range f.Events {
		e := &f.Events[i]
		text := e.Reason + ": " + e.Message
		if e.Count > 1 {
			text += fmt.Sprintf(" (%d times)", e.Count)
		}
		add(lastSeen(e), e.InvolvedObject.Kind+" event", text)
	}
}

// lastSeen returns when an event has last happened.
func lastSeen(e *corev1.Event) metav1.Time {
	if e.LastTimestamp.IsZero() {
		return metav1.NewTime(e.EventTime.Time)
	}
	return e.LastTimestamp
}

// podMoments adds the first and the last start of a pod, and the ends.
func (f *Facts) podMoments(add adding) {
	for i := range f.Pods {
		p := &f.Pods[i]
		for _, s := range statuses(p) {
			if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
				add(t.FinishedAt, "Pod", fmt.Sprintf("%s: container %s ended with exit code %d %s", p.Name, s.Name, t.ExitCode,
					t.Reason))
			}
		}
	}
	started := utilslices.Pick(f.Pods, func(p *corev1.Pod) bool { return p.Status.StartTime != nil })
	if len(started) == 0 {
		return
	}
	byStart := func(a, b corev1.Pod) int { return a.Status.StartTime.Compare(b.Status.StartTime.Time) }
	first, last := slices.MinFunc(started, byStart), slices.MaxFunc(started, byStart)
	add(*first.Status.StartTime, "Pod", first.Name+" is on its node, the first of "+count(len(f.Pods), "pod"))
	if last.Name != first.Name {
		add(*last.Status.StartTime, "Pod", last.Name+" is on its node, the last")
	}
}

func conditionText(c metav1.Condition) string {
	text := c.Type
	if c.Status != metav1.ConditionTrue {
		text += " is " + string(c.Status)
	}
	if c.Reason != "" && c.Reason != c.Type {
		text += " (" + c.Reason + ")"
	}
	if c.Message != "" {
		text += ": " + c.Message
	}
	return text
}

func statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}
