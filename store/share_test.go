package store

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func amount(gpus string) corev1.ResourceList {
	return corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus), "cpu": resource.MustParse("500m")}
}

func waitingJob(queue, gpus string) *api.TrainJob {
	job := &api.TrainJob{}
	job.Labels = map[string]string{"kueue.x-k8s.io/queue-name": queue}
	job.Spec.Trainer = &trainerapi.Trainer{ResourcesPerNode: &corev1.ResourceRequirements{Requests: amount(gpus)}}
	return job
}

func waitingWorkload(pool, gpus string) *kueue.Workload {
	return &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kueue.x-k8s.io/job-uid": "1"}},
		Spec: kueue.WorkloadSpec{PodSets: []kueue.PodSet{{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": pool}, Annotations: map[string]string{"b": pool}},
			Spec: corev1.PodSpec{
				NodeSelector:   map[string]string{"pool": pool},
				InitContainers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: amount(gpus)}}},
				Containers: []corev1.Container{{
					Resources: corev1.ResourceRequirements{Requests: amount(gpus), Limits: amount(gpus)},
				}},
			},
		}}}},
		Status: kueue.WorkloadStatus{
			ResourceRequests: []kueue.PodSetRequest{{Resources: amount(gpus)}},
			Admission: &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{{
				Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": kueue.ResourceFlavorReference(pool)},
				ResourceUsage: amount(gpus),
			}}},
		},
	}
}

// mapsOf returns the maps that an object refers to, by their place in it.
func mapsOf(v reflect.Value, path string, all map[string]uintptr) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			mapsOf(v.Elem(), path, all)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			mapsOf(v.Field(i), path+"."+v.Type().Field(i).Name, all)
		}
	case reflect.Slice:
		for i := range v.Len() {
			mapsOf(v.Index(i), fmt.Sprintf("%s[%d]", path, i), all)
		}
	case reflect.Map:
		if v.Len() > 0 {
			all[path] = v.Pointer()
		}
	}
}

// Equal maps are the same, others are not, and no value changes.
func TestShared(t *testing.T) {
	s := NewShared()
	first, second, other := waitingWorkload("a100", "2"), waitingWorkload("a100", "2"), waitingWorkload("h100", "4")
	job, otherJob := waitingJob("q", "2"), waitingJob("r", "4")
	for _, wl := range []*kueue.Workload{first, other, second} {
		want := wl.DeepCopy()
		if s.Workload(wl); !equality.Semantic.DeepEqual(wl, want) {
			t.Errorf("got %+v, want %+v", wl, want)
		}
	}
	for _, job := range []*api.TrainJob{job, otherJob} {
		want := job.DeepCopy()
		if s.TrainJob(job); !equality.Semantic.DeepEqual(job, want) {
			t.Errorf("got %+v, want %+v", job, want)
		}
	}
	unset := &api.TrainJob{}
	if s.TrainJob(unset); !reflect.DeepEqual(unset, &api.TrainJob{}) {
		t.Errorf("got %+v, want an empty TrainJob", unset)
	}

	of := func(o any) map[string]uintptr {
		all := map[string]uintptr{}
		mapsOf(reflect.ValueOf(o), "", all)
		return all
	}
	all, same, different := of(first), of(second), of(other)
	if len(all) != 10 {
		t.Fatalf("the Workload has %d maps, want 10: %v", len(all), all)
	}
	for path, at := range all {
		if own := path == ".ObjectMeta.Labels"; (same[path] == at) == own {
			t.Errorf("%s: shared by equal Workloads is %t, want %t", path, same[path] == at, !own)
		}
		if different[path] == at {
			t.Errorf("%s: shared by different Workloads", path)
		}
	}
	if got, want := of(job)[".Spec.TrainJobSpec.Trainer.ResourcesPerNode.Requests"],
		all[".Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests"]; got != want {
		t.Error("a TrainJob and a Workload with equal requests don't share them")
	}
}

// However many maps there are, few are known, and each object keeps its own values.
func TestSharedManyMaps(t *testing.T) {
	s := NewShared()
	for i := range 2*knownMaps + 1 {
		queue := fmt.Sprint(i)
		job := waitingJob(queue, "1")
		if s.TrainJob(job); job.Labels["kueue.x-k8s.io/queue-name"] != queue {
			t.Fatalf("got labels %v, want those of queue %s", job.Labels, queue)
		}
		if len(s.texts.maps) > knownMaps {
			t.Fatalf("%d maps are known, want at most %d", len(s.texts.maps), knownMaps)
		}
	}
}

// Large maps are nobody's to keep: they stay with their objects.
func TestSharedLargeMaps(t *testing.T) {
	many := map[string]string{}
	for i := range knownEntries + 1 {
		many[fmt.Sprint(i)] = "a"
	}
	for name, labels := range map[string]map[string]string{
		"many entries": many,
		"a long value": {"a": strings.Repeat("a", knownBytes)},
		"a long key":   {strings.Repeat("a", knownBytes): "a"},
	} {
		s, job := NewShared(), &api.TrainJob{}
		job.Labels = maps.Clone(labels)
		if s.TrainJob(job); len(s.texts.maps) != 0 || !maps.Equal(job.Labels, labels) {
			t.Errorf("%s: %d maps are known, want none; its labels are %v", name, len(s.texts.maps), job.Labels)
		}
	}
	s, wl := NewShared(), waitingWorkload(strings.Repeat("a", knownBytes), "2")
	wl.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		corev1.ResourceName(strings.Repeat("a", knownBytes+1)): resource.MustParse("1"),
	}
	if s.Workload(wl); len(s.texts.maps) != 0 || len(s.flavors.maps) != 0 || len(s.resources.maps) != 1 {
		t.Errorf("%d texts, %d flavors and %d resources are known, want the small resources alone",
			len(s.texts.maps), len(s.flavors.maps), len(s.resources.maps))
	}
}
