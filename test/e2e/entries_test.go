package e2e

import (
	"context"
	"encoding/json"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// entryFor adds a user's entry for one ReplicatedJob.
func entryFor(
	manager, replicatedJob string, fill func(*metav1.ObjectMeta, *trainerapi.PodSpecPatch),
) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		pod := &trainerapi.PodTemplatePatch{Metadata: &metav1.ObjectMeta{}, Spec: &trainerapi.PodSpecPatch{}}
		fill(pod.Metadata, pod.Spec)
		tj.Spec.RuntimePatches = append(tj.Spec.RuntimePatches, trainerapi.RuntimePatch{
			Manager: manager,
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
				Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{
					{Name: replicatedJob, Template: &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: pod}}},
				}},
			}},
		})
	}
}

// answer lets an admission check of a TrainJob's Workload come to a state, with a node selector for every PodSet.
func answer(
	ctx context.Context, tj *api.TrainJob, check string, state kueue.CheckState, nodeSelector map[string]string,
) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		wl := workloadOf(ctx, tj)
		var updates []kueue.PodSetUpdate
		for _, ps := range wl.Spec.PodSets {
			updates = append(updates, kueue.PodSetUpdate{Name: ps.Name, NodeSelector: nodeSelector})
		}
		for i := range wl.Status.AdmissionChecks {
			if c := &wl.Status.AdmissionChecks[i]; string(c.Name) == check {
				c.State, c.Message, c.PodSetUpdates, c.LastTransitionTime = state, "answered by the spec", updates, metav1.Now()
				return admin.Status().Update(ctx, wl)
			}
		}
		return fmt.Errorf("Workload %s has no admission check %s yet", wl.Name, check)
	}).Should(gomega.Succeed())
}

func toUnstructured(tj *api.TrainJob) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(tj)
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &o.Object); err != nil {
		return nil, err
	}
	delete(o.Object, "status")
	o.SetGroupVersionKind(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	return o, nil
}

// rawEntry returns an entry as the API server has it, with fields that our types don't know.
func rawEntry(ctx context.Context, tj *api.TrainJob, manager string) string {
	ginkgo.GinkgoHelper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	gomega.Expect(admin.Get(ctx, client.ObjectKeyFromObject(tj), o)).To(gomega.Succeed())
	entries, _, err := unstructured.NestedSlice(o.Object, "spec", "runtimePatches")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for _, e := range entries {
		if e.(map[string]any)["manager"] == manager {
			data, err := json.Marshal(e)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			return string(data)
		}
	}
	return ""
}

// allowFutureField lets TrainJobs have a field in a pod patch that no Trainer has today, as a later one might.
func allowFutureField(ctx context.Context) {
	ginkgo.GinkgoHelper()
	crd := get(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "trainjobs.trainer.kubeflow.org"},
	})
	before := crd.DeepCopy()
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	gomega.Expect(addProperty(root, []string{
		"spec", "runtimePatches", "*", "trainingRuntimeSpec", "template", "spec", "replicatedJobs", "*",
		"template", "spec", "template", "spec",
	}, "futureField")).To(gomega.BeTrue())
	gomega.Expect(admin.Update(ctx, crd)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		crd = get(ctx, crd)
		crd.Spec = before.Spec
		gomega.Expect(admin.Update(ctx, crd)).To(gomega.Succeed())
	})
}

// addProperty adds a string property to the object at the path of a schema; * is a list's items.
func addProperty(schema *apiextensionsv1.JSONSchemaProps, path []string, name string) bool {
	if len(path) == 0 {
		schema.Properties[name] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		return true
	}
	if path[0] == "*" {
		return schema.Items != nil && addProperty(schema.Items.Schema, path[1:], name)
	}
	child, found := schema.Properties[path[0]]
	if !found || !addProperty(&child, path[1:], name) {
		return false
	}
	schema.Properties[path[0]] = child
	return true
}
