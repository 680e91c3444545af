package v1alpha1

import (
	"encoding/json"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// AddToScheme registers the kinds of this package. It always returns nil.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(trainerapi.GroupVersion,
		&TrainJob{}, &TrainJobList{}, &TrainingRuntime{}, &TrainingRuntimeList{},
		&ClusterTrainingRuntime{}, &ClusterTrainingRuntimeList{})
	metav1.AddToGroupVersion(scheme, trainerapi.GroupVersion)
	return nil
}

// UnmarshalJSON reads a TrainJob of any Kubeflow Trainer since v2.0.
func (j *TrainJob) UnmarshalJSON(data []byte) error {
	type plain TrainJob
	strict := kjson.UnmarshalCaseSensitivePreserveInts(data, (*plain)(j))
	if strict == nil {
		return nil
	}
	// Before Kubeflow Trainer v2.2 this field could be a word (auto, cpu, gpu). It affects only environment variables
	// that Trainer sets itself, so that the word can be dropped.
	path := []string{"spec", "trainer", "numProcPerNode"}
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &object); err != nil {
		return strict
	}
	if _, found, err := unstructured.NestedString(object, path...); err != nil || !found {
		return strict
	}
	unstructured.RemoveNestedField(object, path...)
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(data, (*plain)(j))
}
