// Package managed decides whether Kueue manages a TrainJob, and on whose quota it runs, in jobframework's terms.
package managed

import (
	"context"
	"fmt"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/features"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Standing is on whose quota a TrainJob runs.
type Standing int

const (
	// Unqueued is on nobody's; Kueue doesn't manage it.
	Unqueued Standing = iota
	// Queued is on its own.
	Queued
	// Owned is on that of an owner, of a kind of kueue.ownerKinds.
	Owned
)

// Policy is the configuration that decides whether Kueue manages a TrainJob.
type Policy struct {
	// All is set if Kueue manages TrainJobs without a queue.
	All bool
	// Selector is of the namespaces that Kueue manages.
	Selector labels.Selector
	// OwnerKinds are the kinds that may own TrainJobs, which run on their quota.
	OwnerKinds []schema.GroupVersionKind
	// MultiKueue is set if Kueue dispatches TrainJobs: its configuration lists them for MultiKueue.
	MultiKueue bool
}

// PolicyOf returns what the configuration says. Its errors name the field.
func PolicyOf(config *configapi.Kueue) (Policy, error) {
	p := Policy{
		All: config.ManageJobsWithoutQueueName,
		MultiKueue: ptr.Deref(config.MultiKueue, false) && features.Enabled(features.MultiKueue) &&
			features.Enabled(features.MultiKueueAdaptersForCustomJobs),
	}
	var err error
	if p.Selector, err = metav1.LabelSelectorAsSelector(config.ManagedJobsNamespaceSelector); err != nil {
		return p, fmt.Errorf("kueue.managedJobsNamespaceSelector: %w", err)
	}
	for i, kind := range config.OwnerKinds {
		parsed, _ := schema.ParseKindArg(kind)
		if parsed == nil {
			return p, fmt.Errorf("kueue.ownerKinds[%d] is %q; write Kind.version.group", i, kind)
		}
		p.OwnerKinds = append(p.OwnerKinds, *parsed)
	}
	return p, nil
}

// Queues decides on whose quota TrainJobs run, in jobframework's terms. jobframework itself is not asked about a
// TrainJob with any other owner: it would look for a ReplicaSet that a user has made up.
type Queues struct {
	client client.Client // reads from the cache; only jobframework gets it as more than a client.Reader
	live   client.Reader // the API server
	policy Policy
}

// New returns Queues that read from the cache and, what is new there maybe, from the API server.
func New(cached client.Client, live client.Reader, policy Policy) Queues {
	return Queues{cached, live, policy}
}

// Standing returns on whose quota a TrainJob runs.
func (q Queues) Standing(ctx context.Context, job *api.TrainJob) (Standing, error) {
	owner, err := q.owner(ctx, job)
	if err != nil {
		return Unqueued, err
	}
	if owner == nil && jobframework.QueueNameForObject(job) == "" && !q.policy.All {
		return Unqueued, nil
	}
	selected, err := q.Selects(ctx, job.Namespace)
	switch {
	case err != nil || !selected:
		return Unqueued, err
	case owner != nil:
		return Owned, nil
	}
	return Queued, nil
}

// Suspends reports whether a TrainJob that is sent has to be suspended, until it has quota of its own.
func (q Queues) Suspends(ctx context.Context, job *api.TrainJob) (bool, error) {
	if owner, err := q.owner(ctx, job); err != nil || owner != nil {
		return false, err
	}
	if jobframework.QueueNameForObject(job) != "" {
		return true, nil // whatever the cache says of the namespace, which may be a moment old
	}
	if !q.policy.All {
		return false, nil
	}
	return q.Selects(ctx, job.Namespace)
}

// owner returns the owner on whose quota a TrainJob runs; nil if there is none.
func (q Queues) owner(ctx context.Context, job *api.TrainJob) (client.Object, error) {
	if controller := metav1.GetControllerOfNoCopy(job); controller == nil || !q.policy.MayOwn(controller) {
		return nil, nil
	}
	owner, err := jobframework.FindAncestorJobManagedByKueue(ctx, q.client, job, q.policy.All)
	if err != nil {
		return nil, fmt.Errorf("looking for the owner of the TrainJob: %w", err)
	}
	return owner, nil
}

// Selects reports whether Kueue manages a namespace.
func (q Queues) Selects(ctx context.Context, name string) (bool, error) {
	var namespace corev1.Namespace
	if err := q.get(ctx, name, &namespace); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return q.policy.Selector.Matches(labels.Set(namespace.Labels)), nil
}

// get reads an object that is in no namespace from the cache or, if it is new there maybe, from the API server.
func (q Queues) get(ctx context.Context, name string, object client.Object) error {
	err := q.client.Get(ctx, client.ObjectKey{Name: name}, object)
	if apierrors.IsNotFound(err) {
		err = q.live.Get(ctx, client.ObjectKey{Name: name}, object)
	}
	return err
}

// MayOwn reports whether an owner is of a kind whose quota its TrainJobs run on.
func (p Policy) MayOwn(owner *metav1.OwnerReference) bool {
	kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	return slices.ContainsFunc(p.OwnerKinds, func(k schema.GroupVersionKind) bool { return k.GroupKind() == kind })
}

// LeadsAway reports whether the ClusterQueue of a LocalQueue has an admission check of MultiKueue, so that its jobs
// run in other clusters (Kueue v0.19.2, jobframework.ApplyDefaultForManagedBy, which needs Kueue's own caches). It
// reads nothing where Kueue doesn't dispatch TrainJobs. ClusterQueues are not cached.
func (q Queues) LeadsAway(ctx context.Context, namespace, queue string) (bool, error) {
	if !q.policy.MultiKueue || queue == "" {
		return false, nil
	}
	var lq kueue.LocalQueue
	found, err := find(ctx, q.client, client.ObjectKey{Namespace: namespace, Name: queue}, &lq, "LocalQueue")
	if !found {
		return false, err
	}
	var cq kueue.ClusterQueue
	found, err = find(ctx, q.live, client.ObjectKey{Name: string(lq.Spec.ClusterQueue)}, &cq, "ClusterQueue")
	if !found || cq.Spec.AdmissionChecksStrategy == nil {
		return false, err
	}
	for _, rule := range cq.Spec.AdmissionChecksStrategy.AdmissionChecks {
		var check kueue.AdmissionCheck
		found, err := find(ctx, q.client, client.ObjectKey{Name: string(rule.Name)}, &check, "AdmissionCheck")
		if err != nil || found && check.Spec.ControllerName == kueue.MultiKueueControllerName {
			return err == nil, err
		}
	}
	return false, nil
}

// HasDefaultQueue reports whether a namespace has the LocalQueue whose jobs name none.
func (q Queues) HasDefaultQueue(ctx context.Context, namespace string) (bool, error) {
	key := client.ObjectKey{Namespace: namespace, Name: string(constants.DefaultLocalQueueName)}
	return find(ctx, q.client, key, &kueue.LocalQueue{}, "LocalQueue")
}

// find reads an object, and reports whether there is one.
func find(ctx context.Context, from client.Reader, key client.ObjectKey, o client.Object, kind string) (bool, error) {
	err := from.Get(ctx, key, o)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading %s %s: %w", kind, strings.TrimPrefix(key.String(), "/"), err)
	}
	return err == nil, nil
}

// PriorityClassExists reports whether there is a WorkloadPriorityClass of a name.
func (q Queues) PriorityClassExists(ctx context.Context, name string) (bool, error) {
	err := q.get(ctx, name, &kueue.WorkloadPriorityClass{})
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("looking for WorkloadPriorityClass %s: %w", name, err)
	}
	return err == nil, nil
}

// ownersOf is how many owners Kueue looks at, one after the other (managedOwnersChainLimit).
const ownersOf = 10

// PartOf returns the Job or JobSet, in a queue of its own, that controls a TrainJob, itself or by others; nil if there
// is none. Kueue takes the TrainJob's JobSet for a part of it, and suspends it until that has quota
// (jobframework.FindAncestorJobManagedByKueue). The JobSet of a TrainJob with an owner of other kinds may be suspended
// too; it counts as one without pods.
func (q Queues) PartOf(ctx context.Context, job *api.TrainJob) (*metav1.OwnerReference, error) {
	if Elsewhere(job) {
		return nil, nil // its JobSet is in another cluster, where it has no owner
	}
	var object client.Object = job
	for range ownersOf {
		ref := metav1.GetControllerOfNoCopy(object)
		if ref == nil {
			return nil, nil
		}
		kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
		if group := kind.GroupKind(); group != jobKind && group != jobSetKind {
			return nil, nil
		}
		owner := &metav1.PartialObjectMetadata{}
		owner.SetGroupVersionKind(kind)
		err := q.live.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: ref.Name}, owner)
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, nil // Kueue's webhook refuses the JobSet
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s %s, which controls the TrainJob: %w", ref.Kind, ref.Name, err)
		}
		if owner.UID != ref.UID {
			return nil, nil
		}
		if jobframework.QueueNameForObject(owner) != "" || q.policy.All {
			return ref, nil
		}
		object = owner
	}
	return nil, nil
}

var (
	jobKind    = batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
	jobSetKind = jobset.SchemeGroupVersion.WithKind("JobSet").GroupKind()
)

// Kind is a TrainJob's.
var Kind = trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)

// IsTrainJob reports whether an owner is a TrainJob. It may be nil.
func IsTrainJob(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == Kind.Kind && owner.APIVersion == Kind.GroupVersion().String()
}

// Elsewhere reports whether a TrainJob is managed by MultiKueue: it runs in another cluster.
func Elsewhere(job *api.TrainJob) bool {
	return ptr.Deref(job.Spec.ManagedBy, "") == kueue.MultiKueueControllerName
}
