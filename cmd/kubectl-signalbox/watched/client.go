// Package watched has a client that reads what changes often from watches, with the rights of one user: however often
// it is asked, the API server is asked once.
package watched

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// scope is of which namespaces the user may watch a kind.
type scope int

const (
	none scope = iota
	own        // the user's namespace
	all
)

// kind is what is known of a kind that is watched.
type kind struct {
	scope
	namespaced bool
	resource   schema.GroupResource
}

// Client reads watched kinds from the watches, and what else it is asked for from the API server, at most once in
// Remembered. What the user may not watch is forbidden. It writes as the client that it is made of.
type Client struct {
	client.WithWatch
	reader    client.Reader
	kinds     map[schema.GroupVersionKind]kind
	namespace string
	memory    *memory
}

// watched returns what is known of a kind of objects or of their lists; false if it isn't watched.
func (c *Client) watched(o runtime.Object) (kind, bool) {
	gvk, err := apiutil.GVKForObject(o, c.Scheme())
	if err != nil {
		return kind{}, false
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	k, is := c.kinds[gvk]
	return k, is
}

// forbidden returns the error that the API server would return.
func (c *Client) forbidden(k kind, name string) error {
	return apierrors.NewForbidden(k.resource, name, fmt.Errorf("you may not list and watch %s", k.resource))
}

// Get implements client.Reader.
func (c *Client) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	k, is := c.watched(o)
	switch {
	case !is:
		return c.memory.get(fmt.Sprintf("%T %s", o, key), o,
			func() error { return c.WithWatch.Get(ctx, key, o, opts...) })
	case k.scope == none || k.scope == own && key.Namespace != c.namespace:
		return c.forbidden(k, key.Name)
	}
	return c.reader.Get(ctx, key, o, opts...)
}

// List implements client.Reader. Of kinds that are watched it returns all at once, whatever the limit.
func (c *Client) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	k, is := c.watched(list)
	switch {
	case !is:
		key := fmt.Sprintf("%T %s %v %v %s %d", list, o.Namespace, o.LabelSelector, o.FieldSelector, o.Continue, o.Limit)
		return c.memory.get(key, list, func() error { return c.WithWatch.List(ctx, list, opts...) })
	case k.scope == none || k.scope == own && o.Namespace != c.namespace:
		return c.forbidden(k, "")
	}
	err := c.reader.List(ctx, list, append(shared(list), client.InNamespace(o.Namespace), selecting(o))...)
	list.SetContinue("") // a cache says of all lists that they don't go on here
	return err
}

// shared returns the option that objects of kinds of which there may be ten thousand aren't copied: copies for each
// look would cost a second and a gigabyte. Nothing in these may be changed. Others are copied, because a quantity that
// is no value of a map keeps its text when it is first asked for.
func shared(list client.ObjectList) []client.ListOption {
	switch list.(type) {
	case *api.TrainJobList, *kueue.WorkloadList, *corev1.PodList:
		return []client.ListOption{client.UnsafeDisableDeepCopy}
	}
	return nil
}

// selecting returns the label selector of options.
func selecting(o *client.ListOptions) client.ListOption {
	if o.LabelSelector == nil {
		return client.MatchingLabels{}
	}
	return client.MatchingLabelsSelector{Selector: o.LabelSelector}
}

// Narrow reports whether the user may watch a kind in one namespace alone, or in none, so that it matters which
// namespace is shown.
func (c *Client) Narrow() bool {
	for _, k := range c.kinds {
		if k.namespaced && k.scope != all {
			return true
		}
	}
	return false
}
