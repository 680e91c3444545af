package trainer

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// gangCache is a cache of groups that is never stale and sends nothing.
type gangCache struct {
	client.Reader
	indexes map[string]client.IndexerFunc
}

func (c *gangCache) IndexField(_ context.Context, _ client.Object, field string, of client.IndexerFunc) error {
	c.indexes[field] = of
	return nil
}

func (*gangCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return silent{}, nil
}

func (*gangCache) GetInformerForKind(context.Context, schema.GroupVersionKind,
	...cache.InformerGetOption) (cache.Informer,
	error) {
	return silent{}, nil
}

func (*gangCache) RemoveInformer(context.Context, client.Object) error { return nil }

func (*gangCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (*gangCache) WaitForCacheSync(context.Context) bool { return true }

// silent is an informer that sends nothing.
type silent struct{ cache.Informer }

func (silent) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}

type indexerFunc func(field string, of client.IndexerFunc)

func (f indexerFunc) IndexField(_ context.Context, _ client.Object, field string, of client.IndexerFunc) error {
	f(field, of)
	return nil
}
