package e2e

import (
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// differOnPurpose changes a JobSet of Kubeflow Trainer to what differs on purpose (docs/trainer.md): the runtime's
// claims are the TrainJob's, and MPI's nodes have its image.
func differOnPurpose(theirs *unstructured.Unstructured, tj *api.TrainJob, rt *api.ClusterTrainingRuntime) {
	ginkgo.GinkgoHelper()
	if theirs.GetKind() != "JobSet" {
		return
	}
	unstructured.RemoveNestedField(theirs.Object, "spec", "volumeClaimPolicies")
	if rt.Spec.MLPolicy == nil || rt.Spec.MLPolicy.MPI == nil || tj.Spec.Trainer == nil || tj.Spec.Trainer.Image == nil {
		return
	}
	replicatedJobs := theirs.Object["spec"].(map[string]any)["replicatedJobs"].([]any)
	for _, rj := range replicatedJobs {
		if rj.(map[string]any)["name"] != "node" {
			continue
		}
		path := []string{"template", "spec", "template", "spec", "containers"}
		containers, _, err := unstructured.NestedSlice(rj.(map[string]any), path...)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for _, c := range containers {
			if c.(map[string]any)["name"] == "node" {
				c.(map[string]any)["image"] = *tj.Spec.Trainer.Image
			}
		}
		gomega.Expect(unstructured.SetNestedSlice(rj.(map[string]any), containers, path...)).To(gomega.Succeed())
	}
}
