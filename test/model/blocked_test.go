package model

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestBlockedIsWrittenOnce holds that the two reconcilers agree on condition Blocked of a started TrainJob that the
// bundled Trainer can't build: neither removes what the other writes.
func TestBlockedIsWrittenOnce(t *testing.T) {
	w := newWorld()
	for !w.quiet() && len(w.all("Pod")) == 0 {
		next(w).do(w)
	}
	job := &api.TrainJob{}
	must(w.store.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: names[0]}, job))
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.GangModeAnnotation, string(api.GangRequired))
	w.update(job)
	for _, kind := range []string{"Pod", "Job", "JobSet"} {
		for _, o := range w.all(kind) {
			o = o.DeepCopyObject().(client.Object)
			o.SetFinalizers(nil)
			w.update(o)
			must(client.IgnoreNotFound(w.store.Delete(context.Background(), o)))
		}
	}
	before, until := w.writes, w.clock.Now().Add(4*time.Minute)
	for n := 0; n < 500 && w.clock.Now().Before(until); n++ {
		for _, kind := range watched {
			w.sync(kind)
		}
		w.reconcile(names[0])
	}
	must(w.store.Get(context.Background(), client.ObjectKeyFromObject(job), job))
	if c := job.Status.Condition(api.ConditionBlocked); c == nil || w.writes-before > 10 {
		t.Errorf("%d writes, conditions %+v", w.writes-before, job.Status.Conditions)
	}
}
