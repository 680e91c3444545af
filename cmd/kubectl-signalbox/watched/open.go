package watched

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Options are what is watched, and who is told.
type Options struct {
	// Kinds are watched, as far as the user may and the cluster has them.
	Kinds []client.Object
	// Namespace is the one that is watched if the user may not watch all.
	Namespace string
	// Changed is called at each change of an object, with what it is and what it was; one of them may be nil.
	Changed func(old, now any)
	// Failed is called when a watch has ended with an error. It is tried again.
	Failed func(error)
}

// Open watches until the context ends. It returns before all has been read; Synced waits for that.
func Open(ctx context.Context, config *rest.Config, c client.WithWatch, o Options) (*Client, error) {
	w := &Client{WithWatch: c, kinds: map[schema.GroupVersionKind]kind{}, namespace: o.Namespace,
		memory: newMemory()}
	options := cache.Options{
		Scheme: c.Scheme(), Mapper: c.RESTMapper(), ByObject: map[client.Object]cache.ByObject{},
		DefaultTransform: slim, ReaderFailOnMissingInformer: true,
		DefaultWatchErrorHandler: func(_ context.Context, _ *toolscache.Reflector, err error) { o.Failed(err) },
	}
	for _, object := range o.Kinds {
		if err := w.ask(ctx, object, &options); err != nil {
			return nil, err
		}
	}
	watches, err := cache.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("watching: %w", err)
	}
	w.reader = watches
	for object := range options.ByObject {
		informer, err := watches.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", object, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(now any) { o.Changed(nil, now) },
			UpdateFunc: o.Changed,
			DeleteFunc: func(old any) {
				if gone, is := old.(toolscache.DeletedFinalStateUnknown); is {
					old = gone.Obj
				}
				o.Changed(old, nil)
			},
		}); err != nil {
			return nil, fmt.Errorf("watching %T: %w", object, err)
		}
	}
	go func() {
		if err := watches.Start(ctx); err != nil {
			o.Failed(err)
		}
	}()
	return w, nil
}

// Remembering returns a client that watches nothing, and asks the API server at most once in Remembered.
func Remembering(c client.WithWatch) *Client { return &Client{WithWatch: c, memory: newMemory()} }

// Synced waits until all that is watched has been read. It reports whether it has.
func (c *Client) Synced(ctx context.Context) bool {
	watches, is := c.reader.(cache.Cache)
	return is && watches.WaitForCacheSync(ctx)
}

// ask asks whether the user may watch a kind, everywhere or in the own namespace.
func (c *Client) ask(ctx context.Context, object client.Object, options *cache.Options) error {
	gvk, err := apiutil.GVKForObject(object, c.Scheme())
	if err != nil {
		return err
	}
	mapping, err := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if unknown(err) {
		return nil // a list of it is refused as the API server would
	}
	if err != nil {
		return fmt.Errorf("finding %s: %w", gvk.Kind, err)
	}
	k := kind{resource: mapping.Resource.GroupResource()}
	k.namespaced = mapping.Scope.Name() == apimeta.RESTScopeNameNamespace
	namespaces := []string{""}
	if k.namespaced {
		namespaces = append(namespaces, c.namespace)
	}
	for _, namespace := range namespaces {
		may, err := c.may(ctx, k.resource, namespace)
		switch {
		case err != nil:
			return err
		case may && namespace == "":
			k.scope, options.ByObject[object] = all, cache.ByObject{}
		case may:
			k.scope = own
			options.ByObject[object] = cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
		}
		if may {
			break
		}
	}
	c.kinds[gvk] = k
	return nil
}

// may reports whether the user may list and watch a resource.
func (c *Client) may(ctx context.Context, resource schema.GroupResource, namespace string) (bool, error) {
	for _, verb := range []string{"list", "watch"} {
		may, err := c.May(ctx, authorizationv1.ResourceAttributes{Verb: verb, Group: resource.Group,
			Resource: resource.Resource, Namespace: namespace})
		if err != nil || !may {
			return false, err
		}
	}
	return true, nil
}

// May reports whether the user may do something. The API server is asked at most once in Remembered.
func (c *Client) May(ctx context.Context, what authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what},
	}
	switch err := c.memory.get("may "+what.String(), review, func() error { return c.Create(ctx, review) }); {
	case apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("asking for your rights: %w", err)
	}
	return review.Status.Allowed, nil
}

// slim leaves out of objects what nobody is shown: most of a pod, and who has written which field.
func slim(in any) (any, error) {
	o, is := in.(client.Object)
	if !is {
		return in, nil
	}
	o.SetManagedFields(nil)
	switch o := o.(type) {
	case *corev1.Pod:
		slimPod(&o.Spec)
	case *kueue.Workload:
		for i := range o.Spec.PodSets {
			slimPod(&o.Spec.PodSets[i].Template.Spec)
		}
	}
	return o, nil
}

func slimPod(spec *corev1.PodSpec) {
	spec.Volumes = nil
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Command, c.Args, c.Env, c.EnvFrom, c.VolumeMounts = nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
}
