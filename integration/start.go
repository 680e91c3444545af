package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/podset"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides"
)

// settleTimeout bounds how long an admitted TrainJob waits for Trainer and JobSet to be done with it.
const settleTimeout = 10 * time.Second

// Run implements jobframework.ComposableJob: the start, in one write, once nothing else is about to change.
func (j *job) Run(ctx context.Context, c client.Client, wl *kueue.Workload, _ []podset.PodSetInfo, recorder events.EventRecorder, msg string) error {
	if j.blocked != nil || hasEnded(&j.TrainJob) {
		return nil // its conditions say why; the quota goes when the last of its pods has ended
	}
	if !workload.IsActive(wl) || deactivating(wl) {
		return nil // Kueue counts nothing of it, although its admission may still be there
	}
	if j.waiting = j.unready(); j.waiting != "" {
		return nil
	}
	if !j.r.bundled {
		if ready, err := j.settled(ctx, wl, recorder); err != nil || !ready {
			return err
		}
	}
	if err := j.covered(ctx, wl); err != nil {
		if mismatch := (*admission.MismatchError)(nil); errors.As(err, &mismatch) {
			return j.requeue(ctx, wl, mismatch, recorder)
		}
		return err
	}
	flavors, err := flavorsOf(ctx, c, wl)
	if err != nil {
		return err
	}
	start, err := admission.Decide(admission.Input{
		Job: &j.TrainJob, Runtime: j.runtime, Dialect: j.dialect, Memo: j.r.memo, Workload: wl, Flavors: flavors, Features: j.r.features.admission(), Now: metav1.NewTime(j.r.clock.Now()),
	})
	if conflict := (*admission.ConflictError)(nil); errors.As(err, &conflict) {
		entryConflicts.Inc()
		recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeWarning, jobframework.FailedToStartFinishedReason, "Starting", "%s; then delete Workload %s to queue the TrainJob again", admission.Note(err.Error()), wl.Name)
		return &finalError{err}
	}
	if err != nil {
		return fmt.Errorf("deciding the start: %w", err)
	}
	if j.r.bundled {
		if start.Pin = j.Annotations[overrides.PinAnnotation]; start.Pin == "" {
			if start.Pin, err = overrides.Pin(j.runtime); err != nil {
				return err
			}
			start.NewPin = true
		}
	}
	way, err := j.write(ctx, start)
	j.countStart(way, wl, err)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	j.waiting = ""
	recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeNormal, jobframework.ReasonStarted, "Started", "%s; in %s, by spec.%s", msg, ways[way], j.dialect.Field)
	return nil
}

// covered returns a *admission.MismatchError where the Workload was admitted for something else than what is to run.
func (j *job) covered(ctx context.Context, wl *kueue.Workload) error {
	uncounted, err := admission.Covers(wl, j.podSets, j.reclaimable())
	if err != nil || len(uncounted) == 0 {
		return err
	}
	var cq kueue.ClusterQueue
	if err := j.r.reader.Get(ctx, client.ObjectKey{Name: string(wl.Status.Admission.ClusterQueue)}, &cq); err != nil {
		return fmt.Errorf("reading ClusterQueue %s: %w", wl.Status.Admission.ClusterQueue, err)
	}
	return admission.Uncovered(&cq, uncounted)
}

// requeue deletes a Workload that was admitted for something else; the next is of what is to run.
func (j *job) requeue(ctx context.Context, wl *kueue.Workload, mismatch *admission.MismatchError, recorder events.EventRecorder) error {
	j.waiting = "another Workload, because " + mismatch.Error()
	if err := j.r.client.Delete(ctx, wl, client.Preconditions{UID: &wl.UID, ResourceVersion: &wl.ResourceVersion}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting Workload %s: %w", wl.Name, err))
	}
	recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeWarning, "AdmissionMismatch", "Starting", "%s; Workload %s is deleted and the TrainJob queued again", admission.Note(mismatch.Error()), wl.Name)
	return nil
}

// ways says in words how a start was written.
var ways = map[string]string{oneWrite: "one write", twoWrites: "two writes"}

// write writes the start, in one request where the Trainer takes it so.
func (j *job) write(ctx context.Context, start *admission.Start) (way string, err error) {
	if j.r.bundled {
		return oneWrite, j.r.writer.Start(ctx, start)
	}
	if j.dialect.Keyed() && !j.r.installed.refuses() {
		err := j.r.writer.Start(ctx, start)
		if !admission.Refused(err) {
			return oneWrite, err
		}
		j.r.installed.refusedAtomic()
		ctrl.LoggerFrom(ctx).Info("The installed Kubeflow Trainer is v2.2.0, which refuses to change entries in the write that starts a TrainJob; starting in two", "refusal", err.Error())
	}
	return twoWrites, j.r.writer.StartInTwo(ctx, start)
}

// settled tells whether Kubeflow Trainer and JobSet have done what a start waits for, or have had their time for it.
func (j *job) settled(ctx context.Context, wl *kueue.Workload, recorder events.EventRecorder) (bool, error) {
	if j.waiting = admission.Unsettled(j.dialect, &j.TrainJob, j.jobSet, j.effective); j.waiting != "" {
		if !j.overdue(wl) {
			return false, nil
		}
		recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeWarning, "NotSettled", "Starting", "Starting %s after its admission, although %s; look at Kubeflow Trainer and JobSet", settleTimeout, j.waiting)
	}
	if j.own() != nil {
		if fresh, err := j.freshJobs(ctx); err != nil || !fresh {
			j.waiting = "its Jobs of the last admission are being replaced"
			return false, err
		}
	}
	return true, nil
}

// unready says what tidy has still to do before a start; a start without it would not be right.
func (j *job) unready() string {
	switch {
	case j.stale:
		return "Trainer has not taken the edited runtime yet"
	case j.r.bundled && j.jobSet != nil:
		return "the JobSet of the last admission is not gone yet"
	case j.record != nil:
		return "what it said in spec." + j.record.Field + " is not brought to spec." + j.dialect.Field + " yet"
	case !admission.IsNeutral(j.own()):
		return "the last admission is not cleared yet"
	}
	return ""
}

// clearable tells whether nothing is left that runs on the last admission, and nobody is about to write the TrainJob.
func (j *job) clearable() (bool, error) {
	if j.IsActive() {
		return false, nil
	}
	if j.r.bundled || j.jobSet == nil || j.matched != nil && j.overdue(j.matched) {
		return true, nil
	}
	before, err := j.dialect.Compute(&j.TrainJob, j.runtime, j.dialect.Entries(&j.TrainJob))
	return err == nil && admission.Unsettled(j.dialect, &j.TrainJob, j.jobSet, before) == "", err
}

// overdue tells whether an admitted job has waited long enough, since its admission and since its entry was cleared: a
// JobSet that has not followed a cleared entry would bring the last admission's pods back.
func (j *job) overdue(wl *kueue.Workload) bool {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
	if c == nil || j.r.clock.Since(c.LastTransitionTime.Time) <= settleTimeout {
		return false
	}
	own := j.own()
	return own == nil || own.Time == nil || !admission.IsNeutral(own) || j.r.clock.Since(own.Time.Time) > settleTimeout
}

// freshJobs deletes Jobs that were made or resumed under an earlier admission, and tells whether there were none. JobSet
// merges selectors and tolerations into a Job that it resumes (jobset#1294), so such a Job would keep the last flavor's;
// it makes a deleted one anew from its template. A Job that differs even so was changed by somebody else, and stays.
func (j *job) freshJobs(ctx context.Context) (bool, error) {
	if j.jobSet == nil {
		return true, nil
	}
	var jobs batchv1.JobList
	if err := j.r.reader.List(ctx, &jobs, client.InNamespace(j.Namespace), client.MatchingLabels{jobset.JobSetNameKey: j.Name}); err != nil {
		return false, fmt.Errorf("listing the Jobs of the last admission: %w", err)
	}
	cleared := j.own().Time
	replaced := j.r.memory.of(j.key(), j.UID).replaced
	fresh := true
	for i := range jobs.Items {
		child := &jobs.Items[i]
		if !metav1.IsControlledBy(child, j.jobSet) || !ptr.Deref(child.Spec.Suspend, false) || child.Status.CompletionTime != nil || followsTemplate(child, j.jobSet) {
			continue
		}
		if !child.DeletionTimestamp.IsZero() {
			fresh = false
			continue
		}
		if cleared != nil && replaced[child.Name].Equal(cleared) {
			continue
		}
		fresh = false
		err := j.r.client.Delete(ctx, child, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &child.UID})
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("deleting Job %s of the last admission: %w", child.Name, err)
		}
		j.r.memory.keep(j.key(), j.UID, func(r *record) {
			r.replaced = maps.Clone(r.replaced)
			if r.replaced == nil {
				r.replaced = map[string]*metav1.Time{}
			}
			r.replaced[child.Name] = cleared
		})
	}
	return fresh, nil
}

// followsTemplate tells whether a Job would place its pods as its JobSet's template says now.
func followsTemplate(child *batchv1.Job, js *jobset.JobSet) bool {
	e := overrides.Effective{ReplicatedJobs: js.Spec.ReplicatedJobs}
	rj := e.ReplicatedJob(child.Labels[jobset.ReplicatedJobNameKey])
	if rj == nil {
		return false
	}
	have, want := &child.Spec.Template.Spec, &rj.Template.Spec.Template.Spec
	return equality.Semantic.DeepEqual(have.NodeSelector, want.NodeSelector) &&
		equality.Semantic.DeepEqual(have.Tolerations, want.Tolerations) &&
		equality.Semantic.DeepEqual(have.SchedulingGates, want.SchedulingGates)
}

// flavorsOf reads the ResourceFlavors that a Workload was assigned.
func flavorsOf(ctx context.Context, c client.Reader, wl *kueue.Workload) (map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec, error) {
	flavors := map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec{}
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		for _, name := range assignment.Flavors {
			if _, known := flavors[name]; known {
				continue
			}
			var flavor kueue.ResourceFlavor
			if err := c.Get(ctx, client.ObjectKey{Name: string(name)}, &flavor); err != nil {
				return nil, fmt.Errorf("reading ResourceFlavor %s: %w", name, err)
			}
			flavors[name] = flavor.Spec
		}
	}
	return flavors, nil
}

// finalError fails a start for good; jobframework finishes the Workload, which frees its quota.
type finalError struct{ error }

func (e *finalError) Unwrap() error        { return e.error }
func (e *finalError) Is(target error) bool { return target == podset.ErrInvalidPodsetInfo }
