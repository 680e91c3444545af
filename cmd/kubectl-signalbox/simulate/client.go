package simulate

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
)

// indexed registers Kueue's indexes with a fake client.
type indexed struct{ *fake.ClientBuilder }

// IndexField implements client.FieldIndexer.
func (i indexed) IndexField(_ context.Context, o client.Object, field string, f client.IndexerFunc) error {
	i.WithIndex(o, field, f)
	return nil
}

// client returns what Kueue reads the cluster from. It keeps what Kueue writes about Workloads.
func (r *round) client(ctx context.Context, cluster *Cluster) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kueue.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	if err := indexer.Setup(ctx, indexed{builder}); err != nil {
		return nil, err
	}
	builder.WithObjects(objects(cluster)...)
	return builder.WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(
			_ context.Context, _ client.Client, _ string, o client.Object, _ ...client.SubResourceUpdateOption,
		) error {
			r.keep(o)
			return nil
		},
		SubResourcePatch: func(
			_ context.Context, _ client.Client, _ string, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption,
		) error {
			r.keep(o)
			return nil
		},
	}).Build(), nil
}

// keep keeps the status of a Workload that Kueue has written.
func (r *round) keep(o client.Object) {
	if wl, is := o.(*kueue.Workload); is {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.written[keyOf(wl)] = wl.DeepCopy()
	}
}

// objects returns copies of all that Kueue reads with its client.
func objects(c *Cluster) []client.Object {
	return slices.Concat(copies(c.Namespaces), copies(c.LimitRanges), copies(c.RuntimeClasses), copies(c.ClusterQueues),
		copies(c.LocalQueues), copies(c.Topologies), copies(c.Workloads))
}

func copies[T any, P interface {
	*T
	client.Object
}](items []T) []client.Object {
	return utilslices.Map(items, func(item *T) client.Object {
		o, _ := P(item).DeepCopyObject().(client.Object)
		o.SetResourceVersion("")
		o.SetDeletionTimestamp(nil) // the fake client takes none without a finalizer, such as a namespace's
		return o
	})
}
