package explain

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/signalbox-dev/signalbox/admission/stalled"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
