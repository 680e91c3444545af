package overrides

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

func find(replicatedJobs []jobset.ReplicatedJob, name string) *jobset.ReplicatedJob {
	return first(replicatedJobs, func(rj *jobset.ReplicatedJob) bool { return rj.Name == name })
}

func findContainer(containers []corev1.Container, name string) *corev1.Container {
	return first(containers, func(c *corev1.Container) bool { return c.Name == name })
}

// first returns the first element that matches, nil where none does.
func first[T any](list []T, matches func(*T) bool) *T {
	for i := range list {
		if matches(&list[i]) {
			return &list[i]
		}
	}
	return nil
}

func names(replicatedJobs []jobset.ReplicatedJob) []string {
	all := make([]string, 0, len(replicatedJobs))
	for _, rj := range replicatedJobs {
		all = append(all, rj.Name)
	}
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
