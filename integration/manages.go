package integration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// standing is on whose quota a TrainJob runs.
type standing int

const (
	// unqueued: on nobody's; Kueue doesn't manage it.
	unqueued standing = iota
	// queued: on its own.
	queued
	// owned: on that of an owner, of a kind of kueue.ownerKinds.
	owned
)

// queues decides on whose quota TrainJobs run, in jobframework's terms. jobframework itself is not asked about a
// TrainJob with any other owner: it would look for a ReplicaSet that a user has made up.
type queues struct {
	client client.Client
	live   client.Reader // the API server
	policy policy
}

// standing returns on whose quota a TrainJob runs.
func (q queues) standing(ctx context.Context, job *api.TrainJob) (standing, error) {
	owner, err := q.owner(ctx, job)
	if err != nil {
		return unqueued, err
	}
	if owner == nil && jobframework.QueueNameForObject(job) == "" && !q.policy.manageAll {
		return unqueued, nil
	}
	selected, err := q.selects(ctx, job.Namespace)
	switch {
	case err != nil || !selected:
		return unqueued, err
	case owner != nil:
		return owned, nil
	}
	return queued, nil
}

// suspends reports whether a TrainJob that is sent has to be suspended, until it has quota of its own.
func (q queues) suspends(ctx context.Context, job *api.TrainJob) (bool, error) {
	if owner, err := q.owner(ctx, job); err != nil || owner != nil {
		return false, err
	}
	if jobframework.QueueNameForObject(job) != "" {
		return true, nil // whatever the cache says of the namespace, which may be a moment old
	}
	if !q.policy.manageAll {
		return false, nil
	}
	return q.selects(ctx, job.Namespace)
}

// owner returns the owner on whose quota a TrainJob runs; nil if there is none.
func (q queues) owner(ctx context.Context, job *api.TrainJob) (client.Object, error) {
	if controller := metav1.GetControllerOfNoCopy(job); controller == nil || !q.policy.mayOwn(controller) {
		return nil, nil
	}
	owner, err := jobframework.FindAncestorJobManagedByKueue(ctx, q.client, job, q.policy.manageAll)
	if err != nil {
		return nil, fmt.Errorf("looking for the owner of the TrainJob: %w", err)
	}
	return owner, nil
}

// selects reports whether Kueue manages a namespace.
func (q queues) selects(ctx context.Context, name string) (bool, error) {
	var namespace corev1.Namespace
	err := q.client.Get(ctx, client.ObjectKey{Name: name}, &namespace)
	if apierrors.IsNotFound(err) { // it is new, maybe
		err = q.live.Get(ctx, client.ObjectKey{Name: name}, &namespace)
	}
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return q.policy.selector.Matches(labels.Set(namespace.Labels)), nil
}

// mayOwn reports whether an owner is of a kind whose quota its TrainJobs run on.
func (p policy) mayOwn(owner *metav1.OwnerReference) bool {
	kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	return slices.ContainsFunc(p.ownerKinds, func(k schema.GroupVersionKind) bool { return k.GroupKind() == kind })
}
