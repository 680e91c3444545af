package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func (h *harness) serve(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&api.TrainJob{}, &kueue.Workload{}, &jobset.JobSet{}, &batchv1.Job{}, &corev1.Pod{})
	for _, i := range h.indexes {
		b = b.WithIndex(i.object, i.field, i.extract)
	}
	return b.Build()
}

// errDead is the answer to a write of a process that doesn't exist any more.
var errDead = errors.New("the process is dead")

func kindOf(o runtime.Object) string {
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return strings.TrimSuffix(kind, "List")
	}
	return strings.TrimSuffix(reflect.TypeOf(o).Elem().Name(), "List")
}

// client is the API server for the integration. The cached one reads what freeze has kept.
func (h *harness) client(cached bool) client.Client {
	failing := func(what string) error {
		h.did[what] = true
		return h.fail[what]
	}
	write := func(verb, sub string, o client.Object, dry []string, patch client.Patch) error {
		if len(dry) > 0 {
			return nil
		}
		what := verb + " " + kindOf(o) + sub
		if h.dies != nil {
			if err := h.dies(); err != nil {
				return err
			}
		}
		h.sent = append(h.sent, what+" "+o.GetName())
		if patch != nil {
			body, err := patch.Data(o)
			if err != nil {
				return err
			}
			h.bodies = append(h.bodies, string(body))
		}
		return failing(what)
	}
	reads := func(kind string, c client.Client) client.Client {
		if shown := h.shown[kind]; cached && shown != nil {
			return shown
		}
		return c
	}
	return interceptor.NewClient(h.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if err := failing("get " + kindOf(o)); err != nil {
				return err
			}
			return reads(kindOf(o), c).Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if err := failing("list " + kindOf(l)); err != nil {
				return err
			}
			return reads(kindOf(l), c).List(ctx, l, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			asked := (&client.CreateOptions{}).ApplyOptions(opts)
			if err := write("create", "", o, asked.DryRun, nil); err != nil {
				return err
			}
			h.name(o)
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := write("update", "", o, nil, nil); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := write("delete", "", o, nil, nil); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			if err := write("patch", "", o, nil, p); err != nil {
				return err
			}
			if kindOf(o) == "TrainJob" && !h.dialect.Keyed() {
				return h.rendered(ctx, o, func() error { return c.Patch(ctx, o, p, opts...) })
			}
			return errors.Join(c.Patch(ctx, o, p, opts...), h.lose["patch "+kindOf(o)])
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := write("patch", "/"+sub, o, nil, p); err != nil {
				return err
			}
			if wl, ok := o.(*kueue.Workload); ok && p.Type() == types.ApplyPatchType && isPodsReady(wl.Status.Conditions) {
				return h.applied(ctx, c, wl)
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			if err := write("update", "/"+sub, o, nil, nil); err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
}

func isPodsReady(conditions []metav1.Condition) bool {
	return len(conditions) == 1 && conditions[0].Type == kueue.WorkloadPodsReady
}

// applied applies a condition as the API server does, which merges conditions by their type. The fake one doesn't know
// that they have keys, and would drop the others.
func (h *harness) applied(ctx context.Context, c client.Client, wl *kueue.Workload) error {
	condition := wl.Status.Conditions[0]
	if err := c.Get(ctx, client.ObjectKeyFromObject(wl), wl); err != nil {
		return err
	}
	apimeta.SetStatusCondition(&wl.Status.Conditions, condition)
	return c.Status().Update(ctx, wl)
}

// rendered writes a TrainJob, and does with it what the API server does by the mutating webhook.
func (h *harness) rendered(ctx context.Context, o client.Object, write func() error) error {
	var before api.TrainJob
	if err := h.store.Get(ctx, client.ObjectKeyFromObject(o), &before); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	var after api.TrainJob
	if err := h.store.Get(ctx, client.ObjectKeyFromObject(o), &after); err != nil {
		return err
	}
	answer := h.ask("/mutate-trainjob", self, encoded(h.t, &before), encoded(h.t, &after))
	if !answer.Allowed {
		return fmt.Errorf("the webhook refuses: %v", answer.Result)
	}
	if len(answer.Patches) == 0 {
		return nil
	}
	body, err := json.Marshal(answer.Patches)
	if err != nil {
		return err
	}
	return h.store.Patch(ctx, o, client.RawPatch(types.JSONPatchType, body))
}

func encoded(t *testing.T, o any) string {
	t.Helper()
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
