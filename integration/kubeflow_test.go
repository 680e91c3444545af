package integration

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

func TestStale(t *testing.T) {
	js := &jobset.JobSet{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{{Name: "node"}}}}
	template := &js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	template.Tolerations = []corev1.Toleration{{Key: "spot"}}
	cases := map[string]struct {
		reason string
		change func(*batchv1.Job)
		want   bool
	}{
		"as the template says": {"it can be resumed", func(*batchv1.Job) {}, false},
		"another selector": {"JobSet would merge it into the next flavor's", func(j *batchv1.Job) {
			j.Spec.Template.Spec.NodeSelector = map[string]string{"gpu": "a100"}
		}, true},
		"another toleration": {"the same", func(j *batchv1.Job) { j.Spec.Template.Spec.Tolerations = nil }, true},
		"another gate": {"the same", func(j *batchv1.Job) {
			j.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		}, true},
		"of no ReplicatedJob": {"a Job that the JobSet doesn't have any more", func(j *batchv1.Job) { j.Labels = nil }, true},
		"resumed": {"JobSet doesn't merge into a Job that runs", func(j *batchv1.Job) {
			j.Labels, j.Spec.Suspend = nil, nil
		}, false},
		"completed": {"it isn't resumed", func(j *batchv1.Job) {
			j.Labels, j.Status.CompletionTime = nil, &metav1.Time{Time: now}
		}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			child := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{jobset.ReplicatedJobNameKey: "node"}}}
			child.Spec.Suspend = ptr.To(true)
			child.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "spot"}}
			c.change(child)
			if got := stale(child, js); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}
