package main

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
