package integration

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission"
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
	client client.Client // reads from the cache; only jobframework gets it as more than a client.Reader
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

// ownersOf is how many owners Kueue looks at, one after the other (managedOwnersChainLimit).
const ownersOf = 10

// partOfAnother rejects a TrainJob with quota of its own that a Job or a JobSet controls, itself or by others, which
// Kueue manages. Kueue takes the TrainJob's JobSet for a part of that Job, and suspends it until that has quota
// (jobframework.FindAncestorJobManagedByKueue). The JobSet of one with an owner of other kinds may be suspended too; it
// counts as one without pods.
func (q queues) partOfAnother(ctx context.Context, job *api.TrainJob) error {
	if elsewhere(job) {
		return nil // its JobSet is in another cluster, where it has no owner
	}
	var object client.Object = job
	for range ownersOf {
		ref := metav1.GetControllerOfNoCopy(object)
		if ref == nil {
			return nil
		}
		kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
		if group := kind.GroupKind(); group != jobKind && group != jobSetKind {
			return nil
		}
		owner := &metav1.PartialObjectMetadata{}
		owner.SetGroupVersionKind(kind)
		err := q.live.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: ref.Name}, owner)
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil // Kueue's webhook refuses the JobSet
		}
		if err != nil {
			return fmt.Errorf("reading %s %s, which controls the TrainJob: %w", ref.Kind, ref.Name, err)
		}
		if owner.UID != ref.UID {
			return nil
		}
		if jobframework.QueueNameForObject(owner) != "" || q.policy.manageAll {
			return &admission.BlockedError{Reason: ReasonPartOfAnother, RetryAfter: setbackLook, Err: fmt.Errorf(
				"%s %s controls it and is in a queue itself, so that Kueue suspends its JobSet as a part of that; take "+
					"controller: true out of its ownerReferences, or the label %s from the %s", ref.Kind, ref.Name,
				constants.QueueLabel, ref.Kind)}
		}
		object = owner
	}
	return nil
}

var (
	jobKind    = batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
	jobSetKind = jobset.SchemeGroupVersion.WithKind("JobSet").GroupKind()
)

// selects reports whether Kueue manages a namespace.
func (q queues) selects(ctx context.Context, name string) (bool, error) {
	var namespace corev1.Namespace
	if err := q.get(ctx, name, &namespace); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return q.policy.selector.Matches(labels.Set(namespace.Labels)), nil
}

// get reads an object that is in no namespace from the cache or, if it is new there maybe, from the API server.
func (q queues) get(ctx context.Context, name string, object client.Object) error {
	err := q.client.Get(ctx, client.ObjectKey{Name: name}, object)
	if apierrors.IsNotFound(err) {
		err = q.live.Get(ctx, client.ObjectKey{Name: name}, object)
	}
	return err
}

// mayOwn reports whether an owner is of a kind whose quota its TrainJobs run on.
func (p policy) mayOwn(owner *metav1.OwnerReference) bool {
	kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	return slices.ContainsFunc(p.ownerKinds, func(k schema.GroupVersionKind) bool { return k.GroupKind() == kind })
}
