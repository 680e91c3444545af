package trainer

import (
	"fmt"
	"testing"

	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// TestEditedThenStarted holds that what an initializer has done for an earlier entry isn't taken for done, also if the
// TrainJob starts before its status says so.
func TestEditedThenStarted(t *testing.T) {
	const stopped = "spec: {suspend: true, runtimePatches: [{manager: a.com/a, time: '2026-11-23T%s:00Z'}]}\n" +
		"status: {conditions: [{type: Suspended, status: 'True', reason: X, lastTransitionTime: '2026-11-23T11:00:00Z'}], " +
		"jobsStatus: [{name: dataset-initializer, succeeded: 1, ready: 0, active: 0, failed: 0, suspended: 0}, " +
		"{name: node, succeeded: 0, ready: 0, active: 0, failed: 0, suspended: 0}]}"
	for edited, runsAgain := range map[string]bool{"10:30": false, "11:30": true} {
		h := newHarness(t)
		h.put(h.pinned(h.trainJob("torch", fmt.Sprintf(stopped, edited))))
		h.reconcile("job")
		h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
		h.reconcile("job")
		js := &jobset.JobSet{}
		if !h.get(js, "job") || (podsets.ReplicatedJob(js.Spec.ReplicatedJobs, "dataset-initializer") != nil) != runsAgain {
			t.Errorf("edited at %s: got %v", edited, js.Spec.ReplicatedJobs)
		}
	}
}
