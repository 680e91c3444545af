package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// paged answers lists as an API server does: at most as many objects as are asked for. It appends the sizes of the
// answers with Workloads. Tokens expire after some pages; 0 for never.
func paged(sizes *[]int, expires int) interceptor.Funcs {
	return interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
	) error {
		options := (&client.ListOptions{}).ApplyOptions(opts)
		from, _ := strconv.Atoi(options.Continue)
		if expires > 0 && from >= expires*int(options.Limit) && from > 0 {
			return apierrors.NewResourceExpired("the token is too old")
		}
		limit := int(options.Limit)
		options.Limit, options.Continue = 0, ""
		if err := c.List(ctx, list, options); err != nil {
			return err
		}
		ptr, err := apimeta.GetItemsPtr(list)
		if err != nil {
			return err
		}
		items := reflect.ValueOf(ptr).Elem()
		to := items.Len()
		if limit > 0 && from+limit < to {
			to = from + limit
			list.SetContinue(strconv.Itoa(to))
		}
		items.Set(items.Slice(from, to))
		if _, is := list.(*kueue.WorkloadList); is {
			*sizes = append(*sizes, items.Len())
		}
		return nil
	}}
}

// TestPages holds that what a large cluster has is read in pages, completely, also if the cluster changes too much.
func TestPages(t *testing.T) {
	const n = 1200
	var more []string
	for i := range n {
		more = append(more, fmt.Sprintf(`apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: many-%[1]d, namespace: team, uid: many-%[1]d, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: true, runtimeRef: {name: torch}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: wl-many-%[1]d, namespace: team, uid: wl-many-%[1]d, creationTimestamp: "2026-11-24T11:00:00Z", ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: many-%[1]d, uid: many-%[1]d, controller: true}]}
spec: {queueName: queue, active: true, priority: 0, podSets: [{name: node, count: 3, template: {spec: {containers: [{name: node, image: i}]}}}]}`, i))
	}
	for _, expires := range []int{0, 2} {
		var sizes []int
		tr := newTrial(t, paged(&sizes, expires), strings.Join(more, "\n---\n"))
		if err := tr.try("list"); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(tr.out.String(), "\n"); got != n+3 {
			t.Errorf("got %d lines", got)
		}
		if want := fmt.Sprintf("of %d", n+1); strings.Count(tr.out.String(), want) != n+1 {
			t.Errorf("want %q on each line of one that waits", want)
		}
		if want := map[int][]int{0: {500, 500, 202}, 2: {500, 500, 1202}}[expires]; !reflect.DeepEqual(sizes, want) {
			t.Errorf("got pages of %v, want %v", sizes, want)
		}
	}
}

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
