package overrides

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

func find(replicatedJobs []jobset.ReplicatedJob, name string) *jobset.ReplicatedJob {
	return pipeline.Find(replicatedJobs, func(rj *jobset.ReplicatedJob) bool { return rj.Name == name })
}

func findContainer(containers []corev1.Container, name string) *corev1.Container {
	return pipeline.Find(containers, func(c *corev1.Container) bool { return c.Name == name })
}

func names(replicatedJobs []jobset.ReplicatedJob) []string {
	all := utilslices.Map(replicatedJobs, func(rj *jobset.ReplicatedJob) string { return rj.Name })
	slices.Sort(all)
	return all
}

func hasMetadata(m *metav1.ObjectMeta) bool { return m != nil && len(m.Labels)+len(m.Annotations) > 0 }

// MetadataPatch returns the labels and annotations of an override's metadata, the only part that Trainer reads.
func MetadataPatch(meta *metav1.ObjectMeta) *metav1.ObjectMeta {
	if meta == nil {
		return nil
	}
	return &metav1.ObjectMeta{Labels: meta.Labels, Annotations: meta.Annotations}
}
