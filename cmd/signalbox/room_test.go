package main

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"context"

	"github.com/signalbox-dev/signalbox/admission/grow"
)

// TestRoom holds how many pods a slice would be admitted with, by all that the API server has of its ClusterQueue.
func TestRoom(t *testing.T) {
	const gpu = corev1.ResourceName("nvidia.com/gpu")
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	running := func(name string, count int32) *kueue.Workload {
		wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		wl.Spec.QueueName, wl.Spec.Active = "queue", ptr.To(true)
		wl.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 8, MinCount: ptr.To[int32](2)}}
		wl.Spec.PodSets[0].Template.Spec.RuntimeClassName = ptr.To("kata")
		one := corev1.ResourceRequirements{Requests: corev1.ResourceList{gpu: resource.MustParse("1")}}
		wl.Spec.PodSets[0].Template.Spec.Containers = []corev1.Container{{Name: "node", Resources: one}}
		workload.SetQuotaReservation(wl, &kueue.Admission{ClusterQueue: "cluster",
			PodSetAssignments: []kueue.PodSetAssignment{{Name: "node", Count: &count,
				Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a"},
				ResourceUsage: corev1.ResourceList{gpu: *resource.NewQuantity(int64(count), resource.DecimalSI)}}},
		}, clocktesting.NewFakeClock(now))
		workload.SyncAdmittedCondition(wl, now)
		return wl
	}
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{gpu},
		Flavors: []kueue.FlavorQuotas{{Name: "a", Resources: []kueue.ResourceQuota{
			{Name: gpu, NominalQuota: resource.MustParse("10")}}}}}}
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "queue"}}
	lq.Spec.ClusterQueue = "cluster"
	scheme, err := newScheme(nodev1.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	grows := running("grows", 3)
	want := grow.Want{PodSet: "node", Have: 3, Least: 4, Most: 8}
	for name, c := range map[string]struct {
		others []client.Object
		fails  bool
		most   int32
	}{
		"alone":        {nil, false, 8},
		"with another": {[]client.Object{running("other", 4)}, false, 6},
		"no room":      {[]client.Object{running("other", 7)}, false, 0},
		"no answer":    {nil, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append([]client.Object{cq, lq, grows,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
				&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
				&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata"}}, c.others...)
			cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
			live := interceptor.NewClient(cached, interceptor.Funcs{
				List: func(
					ctx context.Context, below client.WithWatch, list client.ObjectList, options ...client.ListOption,
				) error {
					if c.fails {
						return errors.New("no answer")
					}
					return below.List(ctx, list, options...)
				},
			})
			r := &room{cached: cached, live: live, clock: clocktesting.NewFakePassiveClock(now)}
			slice := want.Slice(grows, 8, 3)
			slice.Name = "slice"
			got, err := r.Most(t.Context(), slice, "node", want.Least)
			if got != c.most || (err != nil) != c.fails {
				t.Errorf("got %d, %v; want %d", got, err, c.most)
			}
		})
	}
}
