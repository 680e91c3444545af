package integration_test

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides"
)

// TestPodsThatNeedNoOthers holds that a TrainJob runs on of which pods are gone that no Job replaces: those that have
// succeeded are deleted with their node, or by the garbage collector of pods, and a failed index has none.
func TestPodsThatNeedNoOthers(t *testing.T) {
	for name, c := range map[string]struct {
		status  batchv1.JobStatus
		stopped bool
	}{
		"one has succeeded":   {batchv1.JobStatus{Active: 1, Succeeded: 1}, false},
		"an index has failed": {batchv1.JobStatus{Active: 1, Failed: 1, FailedIndexes: ptr.To("1")}, false},
		"indexes have failed": {batchv1.JobStatus{Active: 1, Failed: 9, FailedIndexes: ptr.To("1,3-5")}, false},
		"one terminates":      {batchv1.JobStatus{Active: 1, Terminating: ptr.To[int32](1)}, false},
		"one was never made":  {batchv1.JobStatus{Active: 1}, true},
		"one has failed":      {batchv1.JobStatus{Active: 1, Failed: 1}, true},
	} {
		for _, d := range []*overrides.Dialect{overrides.Bundled, overrides.Kubeflow23} {
			t.Run(name+" beside "+d.Name, func(t *testing.T) {
				h := newHarness(t, d)
				h.run()
				js := h.build("job")
				js.Spec.ReplicatedJobs[0].Template.Spec.Parallelism = ptr.To[int32](2)
				js.Spec.ReplicatedJobs[0].Template.Spec.Completions = ptr.To[int32](2)
				h.update(js)
				h.pod(js) // of two
				job := jobOf()
				h.must(h.store.Get(t.Context(), types.NamespacedName{Namespace: team, Name: "job-node-0"}, job))
				job.Status = c.status
				job.Status.StartTime = &metav1.Time{Time: h.clock.Now()}
				h.updateStatus(job)
				for range 20 { // podsWithin, and the ten minutes of a pod that has failed
					h.settle("job")
					h.clock.Step(time.Minute)
				}
				want := ""
				if c.stopped {
					want = admission.ReasonNoPods
				}
				if h.suspended("job") != c.stopped || h.blocked("job") != want {
					t.Errorf("suspended %t, blocked %q, want %q", h.suspended("job"), h.blocked("job"), want)
				}
			})
		}
	}
}
