package gang

import (
	"context"
	"fmt"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// DeleteOutdated deletes the Workloads and PodGroups of scheduling.k8s.io/v1alpha2 that Signalbox has made, in all
// namespaces: Kubernetes 1.37 can't read them. PodGroups go without the finalizer that keeps them while their pods run;
// the pods stay as they are, and the manager makes their groups again in the version that is served then. It must not
// run meanwhile, because it would do so at once. deleted is called for each object; remaining are those that are still
// there, others' among them. Where the version isn't served there are none.
func DeleteOutdated(ctx context.Context, c client.Client, deleted func(*metav1.PartialObjectMetadata)) (
	remaining []metav1.PartialObjectMetadata, err error) {
	for _, kind := range []string{"PodGroup", "Workload"} {
		ours, err := outdated(ctx, c, kind, client.MatchingLabelsSelector{Selector: Selector()})
		if err != nil {
			return nil, err
		}
		for i := range ours {
			if err := deleteUnprotected(ctx, c, &ours[i]); err != nil {
				return nil, fmt.Errorf("%s %s: %w", kind, client.ObjectKeyFromObject(&ours[i]), err)
			}
			deleted(&ours[i])
		}
		left, err := outdated(ctx, c, kind)
		if err != nil {
			return nil, err
		}
		remaining = append(remaining, left...)
	}
	return remaining, nil
}

// outdated lists the objects of a kind in version v1alpha2.
func outdated(ctx context.Context, c client.Client, kind string, options ...client.ListOption) (
	[]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha2.WithKind(kind + "List"))
	if err := c.List(ctx, list, options...); apimeta.IsNoMatchError(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("listing each %s of %s: %w", kind, v1alpha2, err)
	}
	return list.Items, nil
}

// deleteUnprotected deletes an object, with the finalizer that protects a PodGroup while its pods run.
func deleteUnprotected(ctx context.Context, c client.Client, o *metav1.PartialObjectMetadata) error {
	err := c.Delete(ctx, o, client.Preconditions{UID: &o.UID})
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if !controllerutil.ContainsFinalizer(o, protection) {
		return nil
	}
	protected := v1alpha2.object("PodGroup", client.ObjectKeyFromObject(o))
	protected.SetUID(o.UID)
	protected.SetFinalizers(o.Finalizers)
	return unprotect(ctx, c, protected)
}
