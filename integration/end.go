package integration

import (
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store/events"
)

// release returns the steps that free the quota of a TrainJob that has ended, or that Kueue doesn't manage any more.
// They wait for its pods, and for nothing else: neither its queue label nor its namespace's labels matter, nor its
// Workload's.
func release(o *observed) []step {
	if o.left.active {
		return nil
	}
	var steps []step
	for _, wl := range o.workloads.own {
		switch end := endOf(o.job); {
		case workloadfinish.IsFinished(wl):
		case end != nil:
			steps = append(steps, remember{finished: o.now}, declareEnd(wl, end),
				tell{events.FinishedWorkload.Of(workload.Key(wl))})
		case wl.DeletionTimestamp.IsZero():
			steps = append(steps, deleteWorkload{workload: wl})
		case podsets.Finalized(wl):
			steps = append(steps, releaseWorkload{wl})
		}
	}
	return append(steps, freeKept(o)...)
}

func declareEnd(wl *kueue.Workload, end *metav1.Condition) step {
	reason := kueue.WorkloadFinishedReasonSucceeded
	if end.Type == trainerapi.TrainJobFailed || end.Type == string(jobset.JobSetFailed) {
		reason = kueue.WorkloadFinishedReasonFailed
	}
	return finishWorkload{wl, reason, end.Message}
}

// unwrittenAfter is how long after this process has seen the end of its JobSet a TrainJob's quota is free although its
// Trainer hasn't written the end: it may be unable to. Before, it may not have been asked: the bundled one is a part of
// this process, and restarts a TrainJob that has lost a pod.
const unwrittenAfter = time.Minute

// unwrittenEnd returns what follows for a TrainJob whose JobSet has ended, and whose Trainer hasn't written that.
func unwrittenEnd(o *observed) declaration {
	end := unwritten(o)
	if end == nil {
		return declaration{}
	}
	if wait := unwrittenAfter - o.now.Sub(o.memory.end.at); wait > 0 {
		return declaration{again: wait}
	}
	d := declaration{all: o.left.over}
	for _, wl := range o.workloads.own {
		if o.left.over && podsets.HoldsQuota(wl) {
			d.release = append(d.release, declareEnd(wl, end), count{endsNotWritten},
				tell{events.EndNotWritten.Of(o.jobSet.Name)})
		}
	}
	return d
}

// unwritten returns the end of the JobSet of a TrainJob that has not ended; nil if there is none. A Trainer that
// restarts the TrainJob after a loss suspends it, and deletes the JobSet. After a stall, a success is the end.
func unwritten(o *observed) *metav1.Condition {
	end := jobSetEnd(o.jobSet)
	switch {
	case end == nil || o.ended():
		return nil
	case !o.suspended():
		return end
	}
	lost := o.job.Status.Lost
	restarts := lost != nil && lost.JobSet == o.jobSet.UID && lost.Restarting &&
		(lost.Pod != "" || end.Type != string(jobset.JobSetCompleted))
	if restarts || !o.jobSet.DeletionTimestamp.IsZero() {
		return nil
	}
	return end
}

// overdueEnd reports whether the end of a JobSet should have been written by now.
func overdueEnd(o *observed) bool {
	return unwritten(o) != nil && o.now.Sub(o.memory.end.at) >= unwrittenAfter
}

// declaration says whether the end of a TrainJob has been declared to Kueue.
type declaration struct {
	all     bool // nothing is left for jobframework
	release []step
	again   time.Duration
}

// finishedSeen bounds how long the cache may take to have the end of a Workload that this process has declared.
const finishedSeen = 10 * time.Second

// declaredLeft returns for how long a declaration that the cache doesn't have counts. The cache never gets it if Kueue
// v0.19.2, from a stale cache, overwrites the conditions: then the end is declared again.
func declaredLeft(o *observed) time.Duration {
	if !o.ended() {
		return 0
	}
	return finishedSeen - o.now.Sub(o.memory.finished)
}

// declared decides whether the TrainJob's end has been declared, so that no later event repeats it, and which
// finalizers are to be removed.
func declared(o *situation) (d declaration) {
	ended := o.stage == stageEnded
	if !ended && o.stage != stageSuspended || failedToStart(o.observed, o.origin) != nil {
		return d
	}
	left := declaredLeft(o.observed)
	if len(o.workloads.own)+len(o.workloads.earlier) == 0 {
		return declaration{all: ended && left > 0}
	}
	if len(o.workloads.earlier) > 0 && left <= 0 {
		return declaration{}
	}
	d.all = true
	for _, wl := range o.workloads.own {
		one := declaredBy(o.observed, wl, left)
		if !one.all {
			return declaration{}
		}
		d.release = append(d.release, one.release...)
		if one.again > 0 {
			d.again = one.again
		}
	}
	return d
}

// declaredBy decides the same for one Workload of the TrainJob. left is for how long a declaration counts that the
// cache doesn't have.
func declaredBy(o *observed, wl *kueue.Workload, left time.Duration) declaration {
	switch {
	case !workloadfinish.IsFinished(wl):
		return declaration{all: left > 0, again: left}
	case !podsets.Finalized(wl):
		return declaration{all: true}
	case o.stage != stageEnded:
		return declaration{} // jobframework removes it
	}
	if wait := releaseWait(o, wl); wait > 0 {
		return declaration{all: true, again: wait}
	}
	return declaration{all: true, release: []step{releaseWorkload{wl}}}
}

// releaseAtLeast is for how long after its end a Workload keeps its finalizer. For as long after its start, a manager
// removes no finalizers: it doesn't know yet how many other TrainJobs there are, and starts what was admitted
// meanwhile.
const releaseAtLeast = time.Minute

// releaseDelay returns for how long after its end a TrainJob's Workload keeps the finalizer, with so many others that
// have not ended: a minute, and 200 ms for each of the others, at most ten minutes. Nobody waits for that write: it
// follows the burst that the TrainJob was part of, or the deletion of the Workload.
func releaseDelay(others int) time.Duration {
	return min(releaseAtLeast+time.Duration(others)*200*time.Millisecond, 10*time.Minute)
}

// releaseWait returns how long a finished Workload still keeps its finalizer; 0 or less if it is due.
func releaseWait(o *observed, wl *kueue.Workload) time.Duration {
	if !wl.DeletionTimestamp.IsZero() {
		return 0
	}
	ended := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished).LastTransitionTime
	return max(releaseDelay(o.memory.unfinished)-o.now.Sub(ended.Time), releaseAtLeast-o.now.Sub(o.memory.since))
}
