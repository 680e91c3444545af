package main

import (
	"cmp"
	"context"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// runtime returns the spec of a TrainJob's runtime, nil where the cluster doesn't have it.
func (s *session) runtime(ctx context.Context, job *api.TrainJob) (*trainerapi.TrainingRuntimeSpec, error) {
	stored := s.defaulted(job)
	live, err := store.LiveRuntime(ctx, s.client, stored)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", store.Describe(stored), err)
	}
	if live == nil {
		return nil, nil
	}
	return &live.Spec, nil
}

// defaulted returns a TrainJob as the cluster would store it, as far as its runtime is concerned.
func (s *session) defaulted(job *api.TrainJob) *api.TrainJob {
	job = job.DeepCopy()
	job.Namespace = cmp.Or(job.Namespace, s.namespace)
	ref := &job.Spec.RuntimeRef
	ref.APIGroup = cmp.Or(ref.APIGroup, ptr.To(trainerapi.GroupVersion.Group))
	ref.Kind = cmp.Or(ref.Kind, ptr.To(trainerapi.ClusterTrainingRuntimeKind))
	return job
}

// check has the cluster check a TrainJob as if it were created, or applied over the one that is there.
func (s *session) check(ctx context.Context, job *unstructured.Unstructured) error {
	job = job.DeepCopy()
	job.SetNamespace(cmp.Or(job.GetNamespace(), s.namespace))
	strict := client.WithFieldValidation(s.client, metav1.FieldValidationStrict)
	err := strict.Create(ctx, job.DeepCopy(), client.DryRunAll)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"} {
		unstructured.RemoveNestedField(job.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(job.Object, "status")
	return s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(job), fieldOwner, client.ForceOwnership,
		client.DryRunAll)
}
