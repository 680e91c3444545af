// Package watched has a client that reads what changes often from watches, with the rights of one user: however often
// it is asked, the API server is asked once.
package watched

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
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
	resource schema.GroupResource
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
		return c.memory.get(
			fmt.Sprintf("%T %s", o, key),
			o,
			func() error { return c.WithWatch.Get(ctx, key, o, opts...) },
		)
	case k.scope == none || k.scope == own && key.Namespace != c.namespace:
		return c.forbidden(k, key.Name)
	}
	return c.reader.Get(ctx, key, o, opts...)
}

// List implements client.Reader. Of kinds that are watched it returns all at once, whatever the limit; what is in their
// objects mustn't be changed.
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
	// What is listed is read only: ten thousand copies for each look would cost a second and a gigabyte.
	err := c.reader.List(ctx, list, client.InNamespace(o.Namespace), selecting(o), client.UnsafeDisableDeepCopy)
	list.SetContinue("") // a cache says of all lists that they don't go on here
	return err
}

// selecting returns the label selector of options.
func selecting(o *client.ListOptions) client.ListOption {
	if o.LabelSelector == nil {
		return client.MatchingLabels{}
	}
	return client.MatchingLabelsSelector{Selector: o.LabelSelector}
}

// Lacks returns the rights to watch that the user lacks, such as "list nodes".
func (c *Client) Lacks() []string {
	var rights []string
	for _, k := range c.kinds {
		switch k.scope {
		case none:
			rights = append(rights, "list and watch "+k.resource.String())
		case own:
			rights = append(rights, "list and watch "+k.resource.String()+" of all namespaces")
		case all: // nothing is missing
		}
	}
	return rights
}
