package main

import (
	"reflect"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// Of a cached TrainJob only what nobody reads is missing; the mark of a missed deletion passes as it is.
func TestWithoutManifests(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "mine": "1"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
	got, err := withoutManifests(job.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	want := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"mine": "1"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	missed := cache.DeletedFinalStateUnknown{Key: "ns/a"}
	if got, err := withoutManifests(missed); err != nil || !reflect.DeepEqual(got, missed) {
		t.Errorf("got %+v and %v, want what was given", got, err)
	}
}

// What the caches of TrainJobs and Workloads hold shares equal maps, across kinds, and has no managed fields.
func TestCachedObjectsShare(t *testing.T) {
	shared := store.NewShared()
	resources := corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}}
	job.Spec.Trainer = &trainerapi.Trainer{ResourcesPerNode: resources.DeepCopy()}
	wl := &kueue.Workload{ObjectMeta: job.ObjectMeta}
	wl.Spec.PodSets = []kueue.PodSet{{Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: *resources.DeepCopy()}}},
	}}}
	for object, transform := range map[client.Object]cache.TransformFunc{
		job: cachedTrainJob(shared), wl: cachedWorkload(shared),
	} {
		if got, err := transform(object); err != nil || got != object || object.GetManagedFields() != nil {
			t.Errorf("got %+v and %v, want %T without managed fields", got, err, object)
		}
		missed := cache.DeletedFinalStateUnknown{Key: "ns/a"}
		if got, err := transform(missed); err != nil || !reflect.DeepEqual(got, missed) {
			t.Errorf("got %+v and %v, want what was given", got, err)
		}
	}
	ofJob := job.Spec.Trainer.ResourcesPerNode.Requests
	ofWorkload := wl.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests
	if reflect.ValueOf(ofJob).Pointer() != reflect.ValueOf(ofWorkload).Pointer() {
		t.Error("the TrainJob and its Workload don't share their equal requests")
	}
}
