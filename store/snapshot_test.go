package store

import (
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestFromSnapshot(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "job", UID: "uid"}}
	job.Spec.RuntimeRef = trainerapi.RuntimeRef{Kind: ptr.To("TrainingRuntime"), Name: "torch"}
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "uid", Controller: ptr.To(true)}}},
		Data: map[string]string{"runtime": "kind: TrainingRuntime\nmetadata: {name: torch}\n" +
			"spec: {template: {spec: {replicatedJobs: [{name: node}]}}}"},
	}
	if spec, err := fromSnapshot(job, object); err != nil || spec.Template.Spec.ReplicatedJobs[0].Name != "node" {
		t.Errorf("the runtime is read: got %v, %v", spec, err)
	}
	job.Spec.RuntimeRef.Name = "other"
	if spec, err := fromSnapshot(job, object); err != nil || spec != nil {
		t.Errorf("another runtime's is none: got %v, %v", spec, err)
	}
	job.Spec.RuntimeRef.Name = "torch"
	object.OwnerReferences[0].UID = "other"
	if spec, err := fromSnapshot(job, object); err != nil || spec != nil {
		t.Errorf("an earlier TrainJob's is none: got %v, %v", spec, err)
	}
	object.OwnerReferences[0].UID, object.Data["runtime"] = "uid", "{"
	if _, err := fromSnapshot(job, object); err == nil || !strings.Contains(err.Error(), `key "runtime"`) {
		t.Errorf("what can't be read is named: got %v", err)
	}
}
