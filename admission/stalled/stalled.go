// Package stalled knows whether a running TrainJob has stalled: its training process has reported nothing for as long
// as the annotation of the TrainJob, or of its runtime, allows. It reads and writes nothing.
//
// Only times of Signalbox's own clocks count: its status server writes when a report arrived, and condition Stalled has
// since when the pods have been ready. Both survive a restart of the manager.
package stalled

import (
	"fmt"
	"slices"
	"time"

	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Reasons of condition Stalled.
const (
	// ReasonNoReport: it is True.
	ReasonNoReport = "NoReport"
	// ReasonReports: it is False. The time of the condition is since when that counts.
	ReasonReports = "Reports"
	// ReasonInvalid: it is False, because the annotation can't be read.
	ReasonInvalid = "InvalidAnnotation"
)

// skew is how far the clock of another replica may be ahead. What is later counts as now: a clock that is wrong stops
// nothing that reports.
const skew = time.Minute

// serverURL is the environment variable by which a container knows where to report (Trainer v2.3.0,
// plugins/trainjobstatus). A JobSet from before trainer.progress was enabled has none.
const serverURL = "KUBEFLOW_TRAINER_SERVER_URL"

// Run is the run of a TrainJob that is judged.
type Run struct {
	Job *api.TrainJob
	// JobSet and Workload are nil if there is none.
	JobSet   *jobset.JobSet
	Workload *kueue.Workload
	// Restarts is how many restarts its budget has left.
	Restarts int32
	// Listening is since when this process takes reports; zero if it takes none.
	Listening time.Time
}

// Verdict is what follows for a TrainJob.
type Verdict struct {
	// Condition is the TrainJob's condition Stalled; nil if it is to have none. Its time, too, is as it is to be: since
	// when nothing was reported, of one that has stalled.
	Condition *metav1.Condition
	// Then is what is to follow now.
	Then Action
	// Again is when to judge again although nothing happens; 0 for never.
	Again time.Duration
}

// Judge judges a TrainJob. What was reported while no manager took reports is lost: nothing follows before this process
// has taken reports for as long as the TrainJob may be silent.
func Judge(run Run, now time.Time) Verdict {
	value, set := valueOf(run.Job, run.JobSet)
	if !set || run.Listening.IsZero() || !run.watched() {
		return Verdict{}
	}
	was := written(run.Job, now)
	setting, err := parse(value)
	if err != nil {
		message := fmt.Sprintf("annotation %s is ignored: %q %v", api.StalledAfterAnnotation, cut(value), err)
		return Verdict{Condition: becomes(was, metav1.ConditionFalse, ReasonInvalid, message, was.LastTransitionTime)}
	}
	since := was.LastTransitionTime
	if reported := reportedAt(run.Job, now); since.Before(&reported) {
		since = reported
	}
	if left := since.Add(setting.After).Sub(now); left > 0 {
		message := "it has stalled after " + duration.HumanDuration(setting.After) + " without a report"
		return Verdict{Condition: becomes(was, metav1.ConditionFalse, ReasonReports, message, since), Again: left}
	}
	then, says := run.follows(setting.Then)
	message := fmt.Sprintf("its training process has reported nothing since %s, for longer than %s (annotation %s); %s",
		since.UTC().Format(time.RFC3339), duration.HumanDuration(setting.After), api.StalledAfterAnnotation, says)
	v := Verdict{Condition: becomes(was, metav1.ConditionTrue, ReasonNoReport, message, since), Then: then}
	if left := run.Listening.Add(setting.After).Sub(now); then != Nothing && left > 0 {
		v.Then, v.Again = Nothing, left
	}
	return v
}

// written returns the condition that a TrainJob has: for one that has none, or an impossible one, that of a TrainJob
// whose pods become ready now.
func written(job *api.TrainJob, now time.Time) *metav1.Condition {
	if c := job.Status.Condition(api.ConditionStalled); c != nil && c.LastTransitionTime.Sub(now) <= skew {
		return c
	}
	return &metav1.Condition{Type: api.ConditionStalled, Status: metav1.ConditionFalse,
		LastTransitionTime: metav1.NewTime(now)}
}

// becomes returns the condition that follows on one. Its time is since, unless it stays False: a report isn't worth a
// write.
func becomes(
	was *metav1.Condition, status metav1.ConditionStatus, reason, message string, since metav1.Time,
) *metav1.Condition {
	c := *was
	if was.Status == metav1.ConditionTrue || status == metav1.ConditionTrue {
		c.LastTransitionTime = since
	}
	c.Status, c.Reason, c.Message = status, reason, message
	return &c
}

// follows returns what is to follow, and how that is told.
func (r Run) follows(asked Action) (Action, string) {
	switch {
	case asked == Nothing:
		return Nothing, "see what it does: kubectl signalbox logs " + r.Job.Name
	case asked == Stop && r.received():
		// Kueue would dispatch it again if it were stopped here alone.
		return Nothing, "stop it in the cluster that it was submitted to: kubectl signalbox stop " + r.Job.Name
	case asked == Stop:
		return Stop, "it is stopped"
	case r.Workload == nil:
		return Nothing, "it isn't restarted, because it is in no queue and nothing would start it again"
	case r.Restarts <= 0:
		return Nothing, "it isn't restarted: the restarts of annotation " + api.RestartsAnnotation + " are used up"
	}
	return Restart, "it is restarted"
}

// received reports whether MultiKueue has created the TrainJob for another cluster.
func (r Run) received() bool { return r.Job.Labels[kueue.MultiKueueOriginLabel] != "" }

// watched reports whether a TrainJob is to report: it runs, its pods are ready, and nothing is about to stop it.
func (r Run) watched() bool {
	_, stopped := r.Job.Annotations[api.StopAnnotation]
	return !stopped && !ptr.Deref(r.Job.Spec.Suspend, false) && r.Job.DeletionTimestamp.IsZero() &&
		!trainjobutil.IsTrainJobFinished(r.Job.Upstream()) && r.keepsQuota() && r.ready()
}

// ready reports whether all pods of a TrainJob are ready and may report, and its JobSet isn't about to be deleted.
func (r Run) ready() bool {
	js, lost := r.JobSet, r.Job.Status.Lost
	if js == nil || !js.DeletionTimestamp.IsZero() || js.Status.TerminalState != "" ||
		lost != nil && lost.JobSet == js.UID && lost.Restarting {
		return false
	}
	return podsets.Ready(js.Spec.ReplicatedJobs, podsets.Statuses(js)) && mayReport(js)
}

// keepsQuota reports whether a TrainJob has no Workload, or one that is admitted and not evicted. One that waits for a
// checkpoint after a preemption is about to be stopped.
func (r Run) keepsQuota() bool {
	wl := r.Workload
	return wl == nil || workload.IsAdmitted(wl) && workload.IsActive(wl) && !workloadevict.IsEvicted(wl) &&
		!workloadfinish.IsFinished(wl)
}

// mayReport reports whether a container of a JobSet knows where to report.
func mayReport(js *jobset.JobSet) bool {
	return slices.ContainsFunc(js.Spec.ReplicatedJobs, func(rj jobset.ReplicatedJob) bool {
		return slices.ContainsFunc(rj.Template.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == serverURL })
		})
	})
}

// reportedAt returns when the last report arrived; zero for never.
func reportedAt(job *api.TrainJob, now time.Time) metav1.Time {
	reported := job.Status.TrainerStatus
	switch {
	case reported == nil:
		return metav1.Time{}
	case reported.LastUpdatedTime.Sub(now) > skew:
		return metav1.NewTime(now)
	}
	return reported.LastUpdatedTime
}

// cut bounds what a condition repeats of an annotation.
func cut(value string) string {
	const most = 64
	if len(value) <= most {
		return value
	}
	return value[:most] + "…"
}
