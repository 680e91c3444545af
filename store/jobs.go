package store

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// JobsEnded reports whether every Job of the JobSets of a name whose UIDs match has ended, so that none creates another
// pod. It asks the API server: a JobSet's status has its end before the Jobs have ended, and the JobSet may be gone
// before them.
func (p *Pods) JobsEnded(
	ctx context.Context, key types.NamespacedName, match func(jobSet types.UID) bool,
) (bool, error) {
	jobs, err := p.jobsOf(ctx, key, match)
	return err == nil && !slices.ContainsFunc(jobs, func(job batchv1.Job) bool { return !jobEnded(&job) }), err
}

// JobsOf returns the Jobs of a JobSet, from the API server.
func (p *Pods) JobsOf(ctx context.Context, js *jobset.JobSet) ([]batchv1.Job, error) {
	return p.jobsOf(ctx, client.ObjectKeyFromObject(js), OfJobSet(js))
}

// JobNamed returns a Job of any JobSet of the name, from the API server; nil if there is none.
func (p *Pods) JobNamed(ctx context.Context, key types.NamespacedName) (*batchv1.Job, error) {
	jobs, err := p.jobsOf(ctx, key, OfJobSet(nil))
	if len(jobs) == 0 {
		return nil, err
	}
	return &jobs[0], nil
}

// jobsOf returns the Jobs of the JobSets of a name whose UIDs match, from the API server. A Job is of its controller;
// its labels only narrow the search.
func (p *Pods) jobsOf(
	ctx context.Context, key types.NamespacedName, match func(jobSet types.UID) bool,
) ([]batchv1.Job, error) {
	var jobs batchv1.JobList
	if err := p.live.List(ctx, &jobs, named(key)...); err != nil {
		return nil, fmt.Errorf("listing the Jobs of JobSet %s: %w", key.Name, err)
	}
	return slices.DeleteFunc(jobs.Items, func(job batchv1.Job) bool {
		owner := metav1.GetControllerOfNoCopy(&job)
		return !isJobSet(owner) || owner.Name != key.Name || !match(owner.UID)
	}), nil
}

// OfJobSet returns a function that reports whether a UID is that of the JobSet; for nil it is true for any UID.
func OfJobSet(js *jobset.JobSet) func(types.UID) bool {
	return func(uid types.UID) bool { return js == nil || uid == js.UID }
}

// jobEnded reports whether a Job creates no more pods: it has ended, or it is being deleted.
func jobEnded(job *batchv1.Job) bool {
	ended := func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	}
	return !job.DeletionTimestamp.IsZero() || slices.ContainsFunc(job.Status.Conditions, ended)
}

// EndedCleanly reports whether all Jobs of a JobSet have succeeded, by its status: then none is left that creates pods.
func EndedCleanly(js *jobset.JobSet) bool {
	succeeded := func(rj jobset.ReplicatedJob) bool {
		return slices.ContainsFunc(js.Status.ReplicatedJobsStatus, func(s jobset.ReplicatedJobStatus) bool {
			return s.Name == rj.Name && s.Succeeded >= rj.Replicas
		})
	}
	return len(js.Status.ReplicatedJobsStatus) == len(js.Spec.ReplicatedJobs) &&
		!slices.ContainsFunc(js.Spec.ReplicatedJobs, func(rj jobset.ReplicatedJob) bool { return !succeeded(rj) })
}
