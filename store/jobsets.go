package store

import (
	"context"
	"fmt"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// JobSets reads the JobSets of TrainJobs from a cache, and from the API server while the cache doesn't show a JobSet
// that this process has created: that nothing runs must never be concluded from a stale cache.
type JobSets struct {
	cache, live client.Reader

	mu      sync.Mutex
	created map[types.NamespacedName]types.UID
}

// NewJobSets returns JobSets. live must not be a cache.
func NewJobSets(cache, live client.Reader) *JobSets {
	return &JobSets{cache: cache, live: live, created: map[types.NamespacedName]types.UID{}}
}

// unknown is the UID of a JobSet whose creation had no response.
const unknown types.UID = "?"

// Attempted records that a JobSet may have been created. Of reads from the API server until the cache has one.
func (s *JobSets) Attempted(key types.NamespacedName) { s.Created(key, unknown) }

// Created records a JobSet that was created. Of reads from the API server until the cache has it.
func (s *JobSets) Created(key types.NamespacedName, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created[key] = uid
}

// Forget drops what is recorded of a TrainJob that is gone.
func (s *JobSets) Forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.created, key)
}

func (s *JobSets) expected(key types.NamespacedName) types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.created[key]
}

// Of returns the TrainJob's JobSet; nil if it has none of its own. The JobSet may be the cache's own: it must not be
// changed.
func (s *JobSets) Of(ctx context.Context, job *api.TrainJob) (*jobset.JobSet, error) {
	key := client.ObjectKeyFromObject(job)
	js, err := JobSetNamed(ctx, s.cache, key)
	if err != nil {
		return nil, err
	}
	if expected := s.expected(key); expected != "" {
		if js, err = s.confirm(ctx, job, js, expected); err != nil {
			return nil, err
		}
	}
	if js == nil || !metav1.IsControlledBy(js, job) {
		return nil, nil
	}
	return js, nil
}

// confirm returns the JobSet that this process has created, from the API server if the cache doesn't have it yet.
func (s *JobSets) confirm(
	ctx context.Context, job *api.TrainJob, cached *jobset.JobSet, expected types.UID,
) (*jobset.JobSet, error) {
	key := client.ObjectKeyFromObject(job)
	is := func(js *jobset.JobSet) bool {
		return js != nil && (js.UID == expected || expected == unknown && metav1.IsControlledBy(js, job))
	}
	if is(cached) {
		s.Forget(key)
		return cached, nil
	}
	js, err := JobSetNamed(ctx, s.live, key)
	if err == nil && expected != unknown && !is(js) {
		s.Forget(key) // it was deleted
	}
	return js, err
}

// Left returns the JobSet that a deleted TrainJob has left, from the API server; nil if there is none. A TrainJob that
// is gone has only a name: then the JobSet is of any TrainJob of that name.
func (s *JobSets) Left(ctx context.Context, job *api.TrainJob) (*jobset.JobSet, error) {
	js, err := JobSetNamed(ctx, s.live, client.ObjectKeyFromObject(job))
	if err != nil || js == nil || !OfTrainJob(js, job.Name, job.UID) {
		return nil, err
	}
	return js, nil
}

// OfTrainJob reports whether a JobSet is controlled by the TrainJob with the name and UID; "" matches any UID.
func OfTrainJob(js *jobset.JobSet, name string, uid types.UID) bool {
	owner := metav1.GetControllerOfNoCopy(js)
	return owner != nil && owner.Kind == trainerapi.TrainJobKind &&
		owner.APIVersion == trainerapi.GroupVersion.String() && owner.Name == name && (uid == "" || owner.UID == uid)
}

// JobSetNamed returns the JobSet of a name; nil if there is none. It may be a cache's own: it must not be changed.
func JobSetNamed(ctx context.Context, c client.Reader, key types.NamespacedName) (*jobset.JobSet, error) {
	var js jobset.JobSet
	err := c.Get(ctx, key, &js, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the JobSet: %w", err)
	}
	if err != nil {
		return nil, nil
	}
	return &js, nil
}
