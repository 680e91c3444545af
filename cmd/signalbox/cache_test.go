package main

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
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
