package admission

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

// JobSets reads the JobSets of TrainJobs from a cache, and from the API server where this process has made one that the
// cache doesn't show. That nothing runs must never be concluded from a cache that is late.
type JobSets struct {
	cache, live client.Reader

	mu   sync.Mutex
	made map[types.NamespacedName]types.UID
}

// NewJobSets returns JobSets. live must not be a cache.
func NewJobSets(cache, live client.Reader) *JobSets {
	return &JobSets{cache: cache, live: live, made: map[types.NamespacedName]types.UID{}}
}

// unknown is the UID of a JobSet whose creation had no response.
const unknown types.UID = "?"

// Attempted records that a JobSet may have been created. Of reads from the API server until the cache has one.
func (s *JobSets) Attempted(key types.NamespacedName) { s.Made(key, unknown) }

// Made notes a JobSet that was made.
func (s *JobSets) Made(key types.NamespacedName, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[key] = uid
}

// Forget drops what is noted of a TrainJob that is gone.
func (s *JobSets) Forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.made, key)
}

func (s *JobSets) expected(key types.NamespacedName) types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made[key]
}

// Of returns the TrainJob's JobSet; nil where there is none of its own. It may be the cache's own: it must not be changed.
func (s *JobSets) Of(ctx context.Context, job *api.TrainJob) (*jobset.JobSet, error) {
	key := client.ObjectKeyFromObject(job)
	js, err := read(ctx, s.cache, key)
	if err != nil {
		return nil, err
	}
	if made := s.expected(key); made == unknown {
		if js == nil || !metav1.IsControlledBy(js, job) {
			if js, err = read(ctx, s.live, key); err != nil {
				return nil, err
			}
		} else {
			s.Forget(key) // the cache has it
		}
	} else if made != "" {
		if js == nil || js.UID != made {
			if js, err = read(ctx, s.live, key); err != nil {
				return nil, err
			}
		} else {
			s.Forget(key) // the cache has it
		}
		if js == nil || js.UID != made {
			s.Forget(key) // it is gone
		}
	}
	if js == nil || !metav1.IsControlledBy(js, job) {
		return nil, nil
	}
	return js, nil
}

// Left returns the JobSet that a TrainJob which is deleted has left; nil where there is none. The TrainJob has a name alone
// where it is gone: then the JobSet is of any TrainJob of that name.
func (s *JobSets) Left(ctx context.Context, job *api.TrainJob) (*jobset.JobSet, error) {
	js, err := read(ctx, s.live, client.ObjectKeyFromObject(job))
	if err != nil || js == nil {
		return nil, err
	}
	if !ofTrainJob(js, job.Name, job.UID) {
		return nil, nil
	}
	return js, nil
}

// ofTrainJob reports whether a JobSet is controlled by the TrainJob with the name and UID; "" matches any UID.
func ofTrainJob(js *jobset.JobSet, name string, uid types.UID) bool {
	owner := metav1.GetControllerOfNoCopy(js)
	return owner != nil && owner.Kind == trainerapi.TrainJobKind && owner.APIVersion == trainerapi.GroupVersion.String() && owner.Name == name && (uid == "" || owner.UID == uid)
}

func read(ctx context.Context, c client.Reader, key types.NamespacedName) (*jobset.JobSet, error) {
	var js jobset.JobSet
	if err := c.Get(ctx, key, &js, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the JobSet: %w", err)
	} else if err != nil {
		return nil, nil
	}
	return &js, nil
}
