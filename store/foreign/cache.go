package foreign

import (
	"context"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/store"
)

// NewCache returns a cache whose Get finds the Objects, too, by a request to the API server for each read. Of its lists
// only those of a JobSet's pods, by store.PodIndex, have them. config is one that Wrap wraps.
func (o *Objects) NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	live, err := client.New(config, client.Options{
		HTTPClient: options.HTTPClient, Scheme: options.Scheme, Mapper: options.Mapper,
	})
	if err != nil {
		return nil, err
	}
	watching := watchingConfig(config)
	if options.HTTPClient, err = rest.HTTPClientFor(watching); err != nil {
		return nil, err
	}
	cached, err := cache.New(watching, options)
	return &completed{cached, live, o}, err
}

// watchingConfig returns a configuration for watches: by HTTP/1.1, each over a connection of its own. HTTP/2 takes a
// switch of goroutines and a frame to the API server more for each event, a third of what an event costs that is
// dropped. HTTP/2 finds dead connections by pings, after 45 s; here TCP does, after 30 s.
func watchingConfig(config *rest.Config) *rest.Config {
	watching := rest.CopyConfig(config)
	watching.NextProtos = []string{"http/1.1"}
	if watching.Dial == nil { // else the API server may be reached by that alone
		watching.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3,
		}}).DialContext
	}
	return watching
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

// List implements client.Reader. A JobSet that was foreign may be a TrainJob's by now, and its pods aren't all in the
// cache.
func (c *completed) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if _, pods := into.(*corev1.PodList); !pods || asked.FieldSelector == nil {
		return c.Cache.List(ctx, into, options...)
	}
	name, found := asked.FieldSelector.RequiresExactMatch(store.PodIndex)
	if !found || !c.objects.jobSets.isForeign(client.ObjectKey{Namespace: asked.Namespace, Name: name}) {
		return c.Cache.List(ctx, into, options...)
	}
	return c.live.List(ctx, into, client.InNamespace(asked.Namespace), client.MatchingLabels{jobset.JobSetNameKey: name})
}
