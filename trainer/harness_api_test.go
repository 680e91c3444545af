package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// freeze keeps the cache at what it shows of an object now.
func (h *harness) freeze(o client.Object, name string) {
	h.t.Helper()
	key := h.keyOf(o, name)
	if h.get(o, name) {
		h.stale[key] = o
	} else {
		h.stale[key] = nil
	}
}

// hide keeps the cache from showing an object.
func (h *harness) hide(kind, name string) { h.stale[kind+" "+name] = nil }

// thaw makes the cache current.
func (h *harness) thaw() { clear(h.stale) }

func (h *harness) keyOf(o runtime.Object, name string) string {
	h.t.Helper()
	gvk, err := apiutil.GVKForObject(o, h.store.Scheme())
	if err != nil {
		h.t.Fatal(err)
	}
	return gvk.Kind + " " + name
}

// api is the API server. Unlike the fake client it assigns UIDs and creation times, checks preconditions and implements
// foreground deletion. It records writes and injects faults.
func (h *harness) api() client.WithWatch {
	return interceptor.NewClient(h.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if err := h.fail.of("get " + h.keyOf(o, key.Name)); err != nil {
				return err
			}
			return c.Get(ctx, key, o, options...)
		},
		List: h.list,
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			asked := (&client.CreateOptions{}).ApplyOptions(options)
			request := "create " + h.keyOf(o, o.GetName())
			if len(asked.DryRun) > 0 {
				request = "dry-run " + h.keyOf(o, o.GetName())
			}
			return h.write(request, func() error {
				sent := apiRequest{user: managerUser, object: h.defaulted(o), dryRun: len(asked.DryRun) > 0}
				if err := shippedAccess().check(sent); err != nil {
					return err
				}
				if !sent.dryRun {
					h.created = append(h.created, sent.object)
				}
				there := o.DeepCopyObject().(client.Object)
				if err := c.Get(ctx, client.ObjectKeyFromObject(o), there); err == nil {
					return apierrors.NewAlreadyExists(schema.GroupResource{}, o.GetName())
				}
				h.mu.Lock()
				h.uids++
				o.SetUID(types.UID(fmt.Sprintf("uid-%d", h.uids)))
				h.mu.Unlock()
				o.SetCreationTimestamp(metav1.NewTime(h.clock.Now()))
				return c.Create(ctx, o, options...)
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return h.write("update "+h.keyOf(o, o.GetName()), func() error { return c.Update(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			options ...client.PatchOption) error {
			return h.write("patch "+h.keyOf(o, o.GetName()), func() error { return c.Patch(ctx, o, p, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption) error {
			kind, name, _ := strings.Cut(h.keyOf(o, o.GetName()), " ")
			return h.write("patch "+kind+"/"+sub+" "+name, func() error {
				return c.SubResource(sub).Patch(ctx, o, p, options...)
			})
		},
		Delete: h.delete,
	})
}

func (h *harness) delete(ctx context.Context, c client.WithWatch, o client.Object,
	options ...client.DeleteOption) error {
	asked := (&client.DeleteOptions{}).ApplyOptions(options)
	foreground := ptr.Deref(asked.PropagationPolicy, "") == metav1.DeletePropagationForeground
	request := "delete " + h.keyOf(o, o.GetName())
	if foreground {
		request += " foreground"
	}
	p := asked.Preconditions
	if p != nil && p.UID != nil {
		request += " uid"
	}
	if p != nil && p.ResourceVersion != nil {
		request += " version"
	}
	return h.write(request, func() error {
		there := o.DeepCopyObject().(client.Object)
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
			return err
		}
		if p != nil && (p.UID != nil && *p.UID != there.GetUID() ||
			p.ResourceVersion != nil && *p.ResourceVersion != there.GetResourceVersion()) {
			return conflict(o.GetName())
		}
		if err := shippedAccess().check(apiRequest{user: managerUser, old: h.defaulted(there)}); err != nil {
			return err
		}
		if foreground && !slices.Contains(there.GetFinalizers(), metav1.FinalizerDeleteDependents) {
			there.SetFinalizers(append(there.GetFinalizers(), metav1.FinalizerDeleteDependents))
			if err := c.Update(ctx, there); err != nil {
				return err
			}
		}
		return c.Delete(ctx, there)
	})
}

func (h *harness) write(request string, do func() error) error {
	h.mu.Lock()
	h.sent = append(h.sent, request)
	h.mu.Unlock()
	if err := h.fail.of(request); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return h.lost.of(request)
}

// list lists by the indexes, which the fake client takes only before it is built.
func (h *harness) list(ctx context.Context, c client.WithWatch, into client.ObjectList,
	options ...client.ListOption) error {
	kind := strings.TrimSuffix(strings.TrimSpace(h.keyOf(into, "")), "List")
	if err := h.fail.of("list " + kind); err != nil {
		return err
	}
	asked := (&client.ListOptions{}).ApplyOptions(options)
	plain := &client.ListOptions{Namespace: asked.Namespace, LabelSelector: asked.LabelSelector}
	if err := c.List(ctx, into, plain); err != nil || asked.FieldSelector == nil {
		return err
	}
	all, err := apimeta.ExtractList(into)
	if err != nil {
		return err
	}
	for _, r := range asked.FieldSelector.Requirements() {
		of := h.indexes[r.Field]
		if of == nil {
			h.t.Errorf("no index %q", r.Field)
			return errors.New("no index")
		}
		all = slices.DeleteFunc(all, func(o runtime.Object) bool {
			return !slices.Contains(of(o.(client.Object)), r.Value)
		})
	}
	return apimeta.SetList(into, all)
}

// cached is the manager's client: it reads from a cache and writes to the API server.
func (h *harness) cached() client.WithWatch {
	return interceptor.NewClient(h.api(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if err := h.fail.of("cache " + h.keyOf(o, key.Name)); err != nil {
				return err
			}
			old, found := h.stale[h.keyOf(o, key.Name)]
			switch {
			case !found:
				return h.store.Get(ctx, key, o, options...)
			case old == nil:
				return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
			}
			return convert(old, o)
		},
	})
}

// convert copies an object into another of its type.
func convert(from, into client.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(from)
	if err != nil {
		return err
	}
	if u, ok := into.(*unstructured.Unstructured); ok {
		u.Object = content
		return nil
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(content, into)
}

func conflict(name string) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "any"}, name, errors.New("it has changed"))
}
