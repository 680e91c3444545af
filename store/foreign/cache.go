package foreign

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NewCache returns a cache whose Get finds the Objects, too, by a request to the API server for each read. Its lists
// don't have them. config is one that Wrap wraps.
func (o *Objects) NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	cached, err := cache.New(config, options)
	if err != nil {
		return nil, err
	}
	live, err := client.New(config, client.Options{
		HTTPClient: options.HTTPClient, Scheme: options.Scheme, Mapper: options.Mapper,
	})
	return &completed{cached, live, o}, err
}

// completed is a cache that has all objects.
type completed struct {
	cache.Cache
	live    client.Reader
	objects *Objects
}

// Get implements client.Reader.
func (c *completed) Get(
	ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption,
) error {
	err := c.Cache.Get(ctx, key, into, options...)
	if k := c.objects.kindOf(into); k != nil && apierrors.IsNotFound(err) && k.isForeign(key) {
		return c.live.Get(ctx, key, into, options...)
	}
	return err
}
