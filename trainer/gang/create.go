package gang

import (
	"context"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// groupObjects creates and replaces the Workloads and PodGroups of one plan.
type groupObjects struct {
	*Gangs
	version *version
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
	podGroup := o.object("PodGroup", o.plan.podGroup(group), part,
		o.version.podGroupSpec(workload.Name, policy, group))
	podGroup.SetOwnerReferences(append(podGroup.GetOwnerReferences(), workload))
	key := client.ObjectKeyFromObject(podGroup)
	o.created.Store(key, nil)
	created, err := o.ensure(ctx, podGroup)
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
		workload := o.object("Workload", name, partWorkload,
			o.version.workloadSpec(o.job, o.plan.policy, o.plan.chunk(n)))
		if _, err := o.ensure(ctx, workload); err != nil {
			return metav1.OwnerReference{}, err
		}
		if o.workloads == nil {
			o.workloads = map[string]types.UID{}
		}
		o.workloads[name] = workload.GetUID()
	}
	return metav1.OwnerReference{
		APIVersion: o.version.String(), Kind: "Workload", Name: name, UID: o.workloads[name],
	}, nil
}

// object returns an object that the TrainJob controls.
func (o *groupObjects) object(kind, name, part string, spec map[string]any) *unstructured.Unstructured {
	object := o.version.object(kind, types.NamespacedName{Namespace: o.job.Namespace, Name: name})
	object.SetLabels(map[string]string{partLabel: part})
	owner := metav1.NewControllerRef(o.job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	object.SetOwnerReferences([]metav1.OwnerReference{*owner})
	object.Object["spec"] = spec
	return object
}

// ensure creates an object, or accepts the existing one if the TrainJob controls it. Either way it sets the object's
// UID.
func (o *groupObjects) ensure(ctx context.Context, object *unstructured.Unstructured) (created bool, err error) {
	kind, key := object.GetKind(), client.ObjectKeyFromObject(object)
	err = o.config.Client.Create(ctx, object)
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		if apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err) {
			o.prober.expire() // the API server may have stopped serving the API
		}
		return false, fmt.Errorf("making %s %s: %w", kind, object.GetName(), err)
	}
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(object.GroupVersionKind())
	if err := o.config.Reader.Get(ctx, key, existing); err != nil {
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
