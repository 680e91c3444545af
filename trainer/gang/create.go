package gang

import (
	"context"
	"fmt"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// partLabel is on all objects that this package creates; its values are the kinds of them.
const (
	partLabel    = "signalbox.dev/gang-part"
	partWorkload = "workload"
	partFirst    = "first" // a PodGroup whose pods are created at the start
	partLater    = "later" // a PodGroup whose pods are created after others
)

// writer writes Workloads and PodGroups.
type writer struct {
	client client.Client
	// reader reads from the API server.
	reader client.Reader
	// created holds the types.NamespacedName of PodGroups that this process has created and that the cache doesn't show
	// yet.
	created *sync.Map
	// expire is called when the API server doesn't know the version.
	expire func()
}

// groupObjects creates and replaces the Workloads and PodGroups of one plan.
type groupObjects struct {
	writer
	version version
	job     *api.TrainJob
	plan    *plan
	// workloads are the UIDs, by name, of the Workloads that were created or found.
	workloads map[string]types.UID
}

// create creates the nth group's PodGroup. Its Workload is created first: the API server refuses a PodGroup without it.
// Objects that exist stay as they are.
func (o *groupObjects) create(ctx context.Context, n int, policy api.GangPolicy) error {
	workload, err := o.ensureWorkload(ctx, n)
	if err != nil {
		return err
	}
	group, part := o.plan.groups[n], partFirst
	if group.Later {
		part = partLater
	}
	meta := o.meta(o.plan.podGroup(group), part)
	meta.OwnerReferences = append(meta.OwnerReferences, workload)
	podGroup := o.version.podGroup(meta, workload.Name, policy, group)
	key := client.ObjectKeyFromObject(podGroup)
	o.created.Store(key, nil)
	created, err := o.ensure(ctx, podGroup, "PodGroup")
	if created {
		gangsMade.WithLabelValues(string(policy)).Inc()
	} else {
		o.created.Delete(key)
	}
	return err
}

// ensureWorkload creates the nth group's Workload unless it exists, and returns a reference to it for the PodGroup.
func (o *groupObjects) ensureWorkload(ctx context.Context, n int) (metav1.OwnerReference, error) {
	name := o.plan.workload(n)
	if o.workloads[name] == "" {
		workload := o.version.workload(o.meta(name, partWorkload), o.job, o.plan.policy, o.plan.chunk(n))
		if _, err := o.ensure(ctx, workload, "Workload"); err != nil {
			return metav1.OwnerReference{}, err
		}
		if o.workloads == nil {
			o.workloads = map[string]types.UID{}
		}
		o.workloads[name] = workload.GetUID()
	}
	return metav1.OwnerReference{
		APIVersion: o.version.groupVersion().String(), Kind: "Workload", Name: name, UID: o.workloads[name],
	}, nil
}

// meta returns the metadata of an object that the TrainJob controls.
func (o *groupObjects) meta(name, part string) metav1.ObjectMeta {
	owner := *metav1.NewControllerRef(o.job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	return metav1.ObjectMeta{
		Namespace: o.job.Namespace, Name: name, Labels: map[string]string{partLabel: part},
		OwnerReferences: []metav1.OwnerReference{owner},
	}
}

// ensure creates an object, or accepts the existing one if the TrainJob controls it. Either way it sets the object's
// UID.
func (o *groupObjects) ensure(ctx context.Context, object client.Object, kind string) (created bool, err error) {
	err = o.client.Create(ctx, object)
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		if apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err) {
			o.expire() // the API server may have stopped serving the API
		}
		return false, fmt.Errorf("making %s %s: %w", kind, object.GetName(), err)
	}
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(o.version.groupVersion().WithKind(kind))
	key := client.ObjectKeyFromObject(object)
	if err := o.reader.Get(ctx, key, existing); err != nil {
		return false, fmt.Errorf("reading %s %s: %w", kind, object.GetName(), err)
	}
	if !metav1.IsControlledBy(existing, o.job) {
		return false, fmt.Errorf("there is a %s %s already that is not the TrainJob's; delete it", kind, key)
	}
	if !existing.DeletionTimestamp.IsZero() {
		return false, fmt.Errorf("the previous %s %s is not deleted yet", kind, object.GetName())
	}
	object.SetUID(existing.UID)
	return false, nil
}
