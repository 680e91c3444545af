package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// stored is a fake API server. The tests of what reads and writes objects construct it here only.
type stored struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	store client.WithWatch
	sent  []string // writes, as "type subresource content"
	// fail answers a request: "patch", "get Kind" or "list Kind".
	fail map[string]error
	// rendered is what our webhook makes of spec.podTemplateOverrides with a Record; nil leaves the list as it is.
	rendered []any
}

var someTime = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func newStored(t *testing.T, objects ...client.Object) *stored {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), batchv1.AddToScheme(scheme), jobset.AddToScheme(scheme),
		api.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s := &stored{t: t, clock: clocktesting.NewFakeClock(someTime), fail: map[string]error{}}
	s.store = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&api.TrainJob{}).
		WithIndex(&corev1.Pod{}, PodIndex, PodIndexOf).WithIndex(&corev1.Pod{}, metav1.ObjectNameField, nameOf).Build()
	return s
}

// nameOf is what an API server selects by metadata.name.
func nameOf(o client.Object) []string { return []string{o.GetName()} }

// api is the API server for clients.
func (s *stored) api() client.WithWatch {
	kind := func(o any) string {
		if u, ok := o.(*metav1.PartialObjectMetadata); ok {
			return u.Kind
		}
		name := fmt.Sprintf("%T", o)
		return name[strings.LastIndex(name, ".")+1:]
	}
	return interceptor.NewClient(s.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if err := s.fail["get "+kind(o)]; err != nil {
				return err
			}
			return c.Get(ctx, k, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := s.fail["list "+strings.TrimSuffix(kind(list), "List")]; err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			asked := (&client.PatchOptions{}).ApplyOptions(opts)
			if err := s.record("", o, p, asked); err != nil {
				return err
			}
			if err := c.Patch(ctx, o, p, opts...); err != nil {
				return err
			}
			if u, ok := o.(*unstructured.Unstructured); ok && s.rendered != nil {
				return unstructured.SetNestedSlice(u.Object, s.rendered, "spec", "podTemplateOverrides")
			}
			return nil
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			asked := (&client.SubResourcePatchOptions{}).ApplyOptions(opts)
			if err := s.record(sub+" ", o, p, &asked.PatchOptions); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
}

// record notes a patch: a JSON patch by its operations, a merge patch by its JSON.
func (s *stored) record(sub string, o client.Object, p client.Patch, asked *client.PatchOptions) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	if asked.FieldManager != "signalbox" {
		s.t.Errorf("the field manager is %q", asked.FieldManager)
	}
	said := sub
	if asked.FieldValidation != "" {
		said += asked.FieldValidation + " "
	}
	if p.Type() == types.JSONPatchType {
		var operations []struct {
			Op, Path string
			Value    json.RawMessage
		}
		if err := json.Unmarshal(data, &operations); err != nil {
			return err
		}
		for i, op := range operations {
			if i > 0 {
				said += "; "
			}
			said += op.Op + " " + op.Path
			if len(op.Value) > 0 && len(op.Value) < 60 {
				said += " " + string(op.Value)
			}
		}
	} else {
		said += string(data)
	}
	s.sent = append(s.sent, strings.TrimSpace(said))
	if err := s.fail["patch"]; err != nil {
		return err
	}
	return s.fail["patch "+strings.TrimSpace(sub)]
}

// wantSent compares the writes since the last call.
func (s *stored) wantSent(reason string, want ...string) {
	s.t.Helper()
	if got := s.sent; !slices.Equal(got, want) {
		s.t.Errorf("%s: sent\n%s\nwant\n%s", reason, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	s.sent = nil
}

// writer is a Writer; extended says that the CRD is the bundled Trainer's.
func (s *stored) writer(extended bool) *Writer { return NewWriter(s.api(), s.clock, extended) }

// now reads TrainJob ns/job.
func (s *stored) now() *api.TrainJob {
	s.t.Helper()
	job := &api.TrainJob{}
	if err := s.store.Get(s.t.Context(), client.ObjectKey{Namespace: "ns", Name: "job"}, job); err != nil {
		s.t.Fatal(err)
	}
	return job
}

// storedJob is TrainJob ns/job of version 7, changed by YAML.
func storedJob(t *testing.T, text string) *api.TrainJob {
	t.Helper()
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid", ResourceVersion: "7"}}
	job.Spec.RuntimeRef = trainerapi.RuntimeRef{Name: "torch"}
	if err := yaml.UnmarshalStrict([]byte(text), job); err != nil {
		t.Fatal(err)
	}
	return job
}
