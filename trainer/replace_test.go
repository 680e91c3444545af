package trainer

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
)

// The Job controller replaces a pod of a queued TrainJob only after its end, whatever its runtime says.
func TestReplaceEnded(t *testing.T) {
	b := testBuilder(t, testClient(t))
	const (
		queue = "metadata: {labels: {kueue.x-k8s.io/queue-name: team-a}}\n"
		entry = "spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager}]}"
	)
	for name, c := range map[string]struct {
		reason, job string
		runtime     *batchv1.PodReplacementPolicy
		want        *batchv1.PodReplacementPolicy
	}{
		"in a queue": {"it is checked as it will be built", queue + stopped, nil, ptr.To(batchv1.Failed)},
		"admitted":   {"Kueue may manage TrainJobs without a queue's label", entry, nil, ptr.To(batchv1.Failed)},
		"against its runtime": {"it would use more than it was admitted for", queue + entry,
			ptr.To(batchv1.TerminatingOrFailed), ptr.To(batchv1.Failed)},
		"not queued":             {"it is built as before", started, nil, nil},
		"not queued, by runtime": {"as its runtime says", started, ptr.To(batchv1.Failed), ptr.To(batchv1.Failed)},
	} {
		t.Run(name, func(t *testing.T) {
			spec := runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)
			for i := range spec.Template.Spec.ReplicatedJobs {
				spec.Template.Spec.ReplicatedJobs[i].Template.Spec.PodReplacementPolicy = c.runtime
			}
			_, js, err := b.Build(t.Context(), jobOf(t, "torch", c.job), spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, rj := range js.Spec.ReplicatedJobs {
				if got := rj.Template.Spec.PodReplacementPolicy; !ptr.Equal(got, c.want) {
					t.Errorf("%s: podReplacementPolicy of %s is %q", c.reason, *rj.Name, ptr.Deref(got, "unset"))
				}
			}
		})
	}
}
