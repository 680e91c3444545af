package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestDeleteGangs(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	group := func(name string, labels map[string]string) *schedulingv1alpha2.PodGroup {
		return &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: labels,
			Finalizers: []string{"scheduling.k8s.io/podgroup-protection"}}}
	}
	ours := map[string]string{"signalbox.dev/gang-part": "first"}
	lease := func(holder string, renewed time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "managers", Name: leaseName},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15),
				RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-renewed)))}}
	}
	cases := map[string]struct {
		reason    string
		objects   []client.Object
		fails     bool
		out, err  string
		remaining int
	}{
		"ours": {"pods keep them otherwise", []client.Object{group("a", ours), group("b", ours)}, false,
			"podgroup team/a deleted\npodgroup team/b deleted\n", "", 0},
		"none": {"there may be no gangs", nil, false, "", "", 0},
		"others'": {"only their owners know", []client.Object{group("a", ours), group("theirs", nil)}, false,
			"podgroup team/a deleted\n", "1 are left that are not Signalbox's", 1},
		"a manager that runs": {"it would make them again", []client.Object{group("a", ours), lease("pod-1", time.Second)},
			false, "", "held by pod-1", 1},
		"a manager that has gone": {"its Lease expires",
			[]client.Object{group("a", ours), lease("pod-1", time.Minute)}, false,
			"podgroup team/a deleted\n", "", 0},
		"a manager that has said goodbye": {"nobody holds it",
			[]client.Object{group("a", ours), lease("", time.Second)}, false,
			"podgroup team/a deleted\n", "", 0},
		"an unreadable Lease": {"a manager may run", []client.Object{group("a", ours)}, true, "",
			"looking for a running manager: timeout", 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).WithInterceptorFuncs(
				interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
					options ...client.GetOption) error {
					if c.fails {
						return errors.New("timeout")
					}
					return w.Get(ctx, key, o, options...)
				}}).Build()
			var out, errs bytes.Buffer
			err := deleteGangs(t.Context(), cluster, "managers", now, genericiooptions.IOStreams{Out: &out, ErrOut: &errs})
			if out.String() != c.out || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %q, %v", c.reason, out.String(), err)
			}
			var list schedulingv1alpha2.PodGroupList
			if err := cluster.List(t.Context(), &list); err != nil || len(list.Items) != c.remaining {
				t.Errorf("%s: %d are left, %v", c.reason, len(list.Items), err)
			}
		})
	}
}
