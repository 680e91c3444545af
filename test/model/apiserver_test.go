package model

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// apiServer is the API server's storage.
type apiServer struct {
	client.WithWatch
	tracker clienttesting.ObjectTracker
	// listed is what was listed of a kind since the last write. Reading takes most of the time of a search.
	listed map[string][]client.Object
}

// stored are the kinds that a world consists of, with an empty list of each.
var stored = map[string]func() client.ObjectList{
	"TrainJob": func() client.ObjectList { return &api.TrainJobList{} },
	"Workload": func() client.ObjectList { return &kueue.WorkloadList{} },
	"JobSet":   func() client.ObjectList { return &jobset.JobSetList{} },
	"Job":      func() client.ObjectList { return &batchv1.JobList{} },
	"Pod":      func() client.ObjectList { return &corev1.PodList{} },
	// Anything of a user that names an owner.
	"ConfigMap":              func() client.ObjectList { return &corev1.ConfigMapList{} },
	"Namespace":              func() client.ObjectList { return &corev1.NamespaceList{} },
	"Node":                   func() client.ObjectList { return &corev1.NodeList{} },
	"ClusterTrainingRuntime": func() client.ObjectList { return &api.ClusterTrainingRuntimeList{} },
	"ResourceFlavor":         func() client.ObjectList { return &kueue.ResourceFlavorList{} },
	"QuotaUsage":             func() client.ObjectList { return &usageapi.QuotaUsageList{} },
}

// newAPIServer returns an API server with the objects. Its tracker knows no field managers: nothing here depends on
// them, and building their schemas for each tracker takes two thirds of the time.
func newAPIServer(objects []client.Object) *apiServer {
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	s := &apiServer{tracker: tracker, listed: map[string][]client.Object{}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
		WithStatusSubresource(&api.TrainJob{}, &kueue.Workload{}, &jobset.JobSet{}, &batchv1.Job{}, &corev1.Pod{}).Build()
	s.WithWatch = interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			clear(s.listed)
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			clear(s.listed)
			return c.Update(ctx, o, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			clear(s.listed)
			return c.Delete(ctx, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
			options ...client.PatchOption) error {
			clear(s.listed)
			return c.Patch(ctx, o, patch, options...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			options ...client.SubResourceUpdateOption) error {
			clear(s.listed)
			return c.SubResource(sub).Update(ctx, o, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
			options ...client.SubResourcePatchOption) error {
			clear(s.listed)
			return c.SubResource(sub).Patch(ctx, o, patch, options...)
		},
	})
	return s
}

// all returns the objects of a kind, sorted by name. They must not be changed.
func (s *apiServer) all(kind string) []client.Object {
	if all, known := s.listed[kind]; known {
		return all
	}
	list := stored[kind]()
	must(s.List(context.Background(), list))
	all := []client.Object{}
	must(apimeta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, o.(client.Object))
		return nil
	}))
	slices.SortFunc(all, func(a, b client.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	s.listed[kind] = all
	return all
}

// everything returns all objects.
func (s *apiServer) everything() []client.Object {
	var all []client.Object
	for kind := range stored {
		all = append(all, s.all(kind)...)
	}
	return all
}

// stamp sets when an object was deleted: the fake client takes the wall clock.
func (s *apiServer) stamp(o client.Object, at time.Time, grace *int64) {
	gvk, err := s.GroupVersionKindFor(o)
	must(err)
	gvr, _ := apimeta.UnsafeGuessKindToResource(gvk)
	there, err := s.tracker.Get(gvr, o.GetNamespace(), o.GetName())
	if apierrors.IsNotFound(err) {
		return
	}
	must(err)
	meta, err := apimeta.Accessor(there)
	must(err)
	meta.SetDeletionTimestamp(&metav1.Time{Time: at})
	meta.SetDeletionGracePeriodSeconds(grace)
	must(s.tracker.Update(gvr, there, o.GetNamespace()))
	clear(s.listed)
}

// api is the API server as its clients see it. Unlike the fake client it assigns UIDs and times, implements propagation
// of deletions, and lets pods terminate.
func (w *world) api() client.WithWatch {
	return interceptor.NewClient(w.store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			var asked client.CreateOptions
			if asked.ApplyOptions(options); len(asked.DryRun) == 0 {
				w.uids++
			}
			o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
			o.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
			return c.Create(ctx, o, options...)
		},
		Delete: func(ctx context.Context, _ client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			var asked client.DeleteOptions
			asked.ApplyOptions(options)
			return w.remove(ctx, o, asked)
		},
	})
}

// remove deletes an object as an API server does. It sets the finalizer of the propagation, and of background removes
// both: without one, an object that has one keeps it (k8s.io/apiserver, deletionFinalizersForGarbageCollection).
func (w *world) remove(ctx context.Context, o client.Object, asked client.DeleteOptions) error {
	there := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	there.GetObjectKind().SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	if err := w.store.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
		return err
	}
	if p := asked.Preconditions; p != nil && (p.UID != nil && *p.UID != there.GetUID() ||
		p.ResourceVersion != nil && *p.ResourceVersion != there.GetResourceVersion()) {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("the precondition doesn't hold"))
	}
	if how := asked.PropagationPolicy; how != nil {
		finalizers := slices.DeleteFunc(slices.Clone(there.GetFinalizers()), func(name string) bool {
			return name == metav1.FinalizerDeleteDependents || name == metav1.FinalizerOrphanDependents
		})
		switch *how {
		case metav1.DeletePropagationForeground:
			finalizers = append(finalizers, metav1.FinalizerDeleteDependents)
		case metav1.DeletePropagationOrphan:
			finalizers = append(finalizers, metav1.FinalizerOrphanDependents)
		case metav1.DeletePropagationBackground:
		}
		slices.Sort(finalizers)
		before := slices.Sorted(slices.Values(there.GetFinalizers()))
		if there.SetFinalizers(finalizers); !slices.Equal(before, finalizers) {
			if err := w.store.Update(ctx, there); err != nil || gone(there) {
				return err // the last finalizer of one that was deleted before
			}
		}
	}
	if !there.GetDeletionTimestamp().IsZero() {
		return nil
	}
	grace := int64(0)
	if pod, ok := there.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		grace = ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 30)
		if !terminates(pod) {
			pod.Finalizers = append(pod.Finalizers, kubelet)
			if err := w.store.Update(ctx, pod); err != nil {
				return err
			}
		}
	}
	if err := w.store.Delete(ctx, there); err != nil {
		return err
	}
	w.store.stamp(there, w.clock.Now().Add(time.Duration(grace)*time.Second), &grace)
	return nil
}

// kubelet stands for what keeps a bound pod until its containers have ended: the fake client keeps nothing without a
// finalizer.
const kubelet = "model/kubelet"

func terminates(pod *corev1.Pod) bool { return slices.Contains(pod.Finalizers, kubelet) }

// gone reports whether an update has removed the last finalizer of a deleted object.
func gone(o client.Object) bool {
	return !o.GetDeletionTimestamp().IsZero() && len(o.GetFinalizers()) == 0
}
