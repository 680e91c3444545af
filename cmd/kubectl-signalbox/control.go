package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	utilpod "sigs.k8s.io/kueue/pkg/util/pod"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// verb is a command that changes one TrainJob.
type verb struct {
	name, short, long string
	run               func(*session, context.Context, *api.TrainJob, *kueue.Workload) error
	many              bool // at once
}

var verbs = []verb{
	{
		"stop",
		"Stop a TrainJob and release its quota",
		"Stop a TrainJob: its pods get SIGTERM, its quota is released " +
			"when the last has ended, and it isn't queued until kubectl signalbox resume.\n\nA TrainJob that is stopped keeps " +
			"the time of its submission, and so its place among those of its priority. It needs the right to change " +
			"TrainJobs, nothing more.",
		(*session).stop,
		true,
	},
	{
		"resume",
		"Queue a TrainJob again that was stopped",
		"Queue a TrainJob again that kubectl signalbox stop has stopped. " +
			"It takes its place by the time of its submission.",
		(*session).resume,
		true,
	},
	{
		"restart",
		"Stop a TrainJob, and queue it again when its pods have ended",
		"Stop a TrainJob, wait until its pods " +
			"have ended, and queue it again. It releases its quota in between, so that others may get it.",
		(*session).restart,
		false,
	},
}

func controlCommand(c *cli, v verb) *cobra.Command {
	selector := ""
	cmd := &cobra.Command{
		Use: v.name + " TRAINJOB", Short: v.short, Long: v.long, Example: "  kubectl signalbox " + v.name + " resnet",
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeTrainJobs(c),
		RunE: connected(c, func(ctx context.Context, s *session, args []string) error {
			if selector != "" {
				return s.each(ctx, selector, v)
			}
			job, err := s.trainJob(ctx, args[0])
			if err != nil {
				return err
			}
			wl, err := s.workload(ctx, job)
			if err != nil {
				return err
			}
			return v.run(s, ctx, job, wl)
		}),
	}
	if v.many {
		cmd.Use = v.name + " (TRAINJOB | -l SELECTOR)"
		cmd.Flags().StringVarP(&selector, "selector", "l", "",
			"all TrainJobs with a label, such as "+api.SweepLabel+"=resnet")
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if selector == "" {
				return cobra.ExactArgs(1)(cmd, args)
			}
			return cobra.NoArgs(cmd, args)
		}
	}
	return cmd
}

// each runs a verb for all TrainJobs of the namespace that a selector selects and that have not ended.
func (s *session) each(ctx context.Context, selector string, v verb) error {
	selects, err := labels.Parse(selector)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	var jobs api.TrainJobList
	if err := s.pages(ctx, &jobs, client.InNamespace(s.namespace),
		client.MatchingLabelsSelector{Selector: selects}); err != nil {
		return fmt.Errorf("listing TrainJobs: %w", err)
	}
	going := slices.DeleteFunc(jobs.Items, func(job api.TrainJob) bool { return errEnded(&job) != nil })
	if len(going) == 0 {
		fmt.Fprintln(s.streams.ErrOut, "No TrainJobs found that have not ended.")
	}
	workloads, err := s.workloads(ctx, s.namespace)
	if err != nil {
		return err
	}
	var errs []error
	for i := range going {
		errs = append(errs, v.run(s, ctx, &going[i], workloads.WorkloadOf(&going[i])))
	}
	return errors.Join(errs...)
}

// The changes of a TrainJob, as merge patches.
const (
	stopQueued   = `{"metadata":{"annotations":{"` + api.StopAnnotation + `":"true"}}}`
	resumeQueued = `{"metadata":{"annotations":{"` + api.StopAnnotation + `":null}}}`
	suspend      = `{"spec":{"suspend":true}}`
	unsuspend    = `{"spec":{"suspend":false}}`
)

func (s *session) patch(ctx context.Context, job *api.TrainJob, change string) error {
	patch := client.RawPatch(types.MergePatchType, []byte(change))
	if err := s.client.Patch(ctx, job.DeepCopy(), patch, fieldOwner); err != nil {
		return fmt.Errorf("changing TrainJob %s: %w", job.Name, err)
	}
	return nil
}

// queued reports whether Kueue manages a TrainJob.
func queued(job *api.TrainJob, wl *kueue.Workload) bool {
	return wl != nil || job.Labels[constants.QueueLabel] != ""
}

// errOver is for what can't be done with a TrainJob that has ended.
var errOver = errors.New("it has ended")

// errEnded returns the error for a TrainJob that has ended; nil for one that hasn't.
func errEnded(job *api.TrainJob) error {
	if state := api.StateOf(&job.Status.TrainJobStatus); slices.Contains(ends, state) {
		return told{fmt.Sprintf("TrainJob %s has ended (%s); delete it and create it again to run it again", job.Name, state),
			errOver}
	}
	return nil
}

func (s *session) stop(ctx context.Context, job *api.TrainJob, wl *kueue.Workload) error {
	if err := errEnded(job); err != nil {
		return err
	}
	if wl != nil && isFinished(wl) && !failedToStart(wl) {
		return fmt.Errorf("workload %s of TrainJob %s has finished, and nothing starts the TrainJob; delete the Workload to "+
			"queue it again", wl.Name, job.Name)
	}
	change, resumed := stopQueued, "queues it again, in its place"
	if !queued(job, wl) {
		change, resumed = suspend, "runs it again, outside quota"
	}
	if err := s.patch(ctx, job, change); err != nil {
		return err
	}
	fmt.Fprintf(s.streams.Out, "TrainJob %s is stopping; kubectl signalbox resume %s %s\n", job.Name, job.Name, resumed)
	return nil
}

// failedToStart reports whether a Workload is finished because its TrainJob could not be started. The manager replaces
// it when the TrainJob is stopped.
func failedToStart(wl *kueue.Workload) bool {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == admission.ReasonFailedToStart
}

// stopped reports whether a TrainJob that is stopping has no pods any more. Of one in a queue its Workload says so,
// which is returned, too.
func (s *session) stopped(ctx context.Context, job *api.TrainJob) (wl *kueue.Workload, is bool, err error) {
	if wl, err = s.workload(ctx, job); err != nil {
		return nil, false, err
	}
	if wl != nil {
		over := isFinished(wl) && !failedToStart(wl)
		return wl, !workload.IsActive(wl) || workload.IsOnHold(wl) || over, nil
	}
	pods, err := s.pods(ctx, job.Name)
	if err != nil {
		return nil, false, err
	}
	runs := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !utilpod.IsTerminated(&p) })
	return nil, !runs && (queued(job, nil) || ptr.Deref(job.Spec.Suspend, false)), nil
}

func (s *session) resume(ctx context.Context, job *api.TrainJob, wl *kueue.Workload) error {
	if err := errEnded(job); err != nil {
		return err
	}
	_, stopped := job.Annotations[api.StopAnnotation]
	change, becomes := "", "was not stopped"
	switch {
	case stopped:
		change, becomes = resumeQueued, "is queued again"
	case !queued(job, wl) && ptr.Deref(job.Spec.Suspend, false):
		change, becomes = unsuspend, "runs, outside quota"
	case wl != nil && !workload.IsActive(wl):
		return fmt.Errorf("workload %s of TrainJob %s was deactivated by Kueue or by an admin, not with kubectl signalbox "+
			"stop; an admin may set its spec.active to true", wl.Name, job.Name)
	}
	if change != "" {
		if err := s.patch(ctx, job, change); err != nil {
			return err
		}
	}
	fmt.Fprintf(s.streams.Out, "TrainJob %s %s\n", job.Name, becomes)
	return nil
}

// hadNoPods reports whether a TrainJob is kept out of its queue because it had no pods. The manager takes that back
// when it sees that a user has stopped the TrainJob.
func hadNoPods(job *api.TrainJob) bool {
	c := job.Status.Condition(api.ConditionBlocked)
	return c != nil && admission.LackedPods(c.Reason)
}

// mostTries is how often, once a second, restart looks whether a Blocked TrainJob was stopped. One that has failed to
// start twice isn't queued again for a time.
const mostTries = 15

func (s *session) restart(ctx context.Context, job *api.TrainJob, wl *kueue.Workload) error {
	if _, stopped := job.Annotations[api.StopAnnotation]; stopped {
		return s.resume(ctx, job, wl)
	}
	if err := s.stop(ctx, job, wl); err != nil {
		return err
	}
	for tries := 1; ; tries++ {
		current, err := s.trainJob(ctx, job.Name)
		if err != nil {
			return err
		}
		wl, stopped, err := s.stopped(ctx, current)
		if err = errors.Join(err, errEnded(current)); err != nil {
			return err
		}
		if stopped && !hadNoPods(current) {
			return s.resume(ctx, current, wl)
		}
		if tries > mostTries && apimeta.IsStatusConditionTrue(current.Status.Conditions, api.ConditionBlocked) {
			return errors.Join(s.resume(ctx, current, wl), fmt.Errorf("TrainJob %s isn't tried again yet; kubectl signalbox "+
				"explain %s says why, and when it is", job.Name, job.Name))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("TrainJob %s is stopped; kubectl signalbox resume %s queues it again: %w", job.Name, job.Name,
				ctx.Err())
		case <-time.After(time.Second):
		}
	}
}
