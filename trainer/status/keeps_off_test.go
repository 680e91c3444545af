package status

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestKeepsOff holds that a TrainJob that waits says which nodes it keeps off: they may be all that would fit.
func TestKeepsOff(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		remembers bool
		reserved  metav1.ConditionStatus
		want      string
	}{
		"it waits": {true, metav1.ConditionFalse,
			"no topology fits; until their time in status.avoided is over, it keeps off nodes n1, n2"},
		"it has quota":        {true, metav1.ConditionTrue, "no topology fits"},
		"its runtime's hosts": {false, metav1.ConditionFalse, "no topology fits"},
	} {
		job, wl := &api.TrainJob{}, &kueue.Workload{}
		job.Spec.Suspend = ptr.To(true)
		if c.remembers {
			job.Status.Avoided = []api.AvoidedNode{{Name: "n1", Time: metav1.NewTime(now)}}
		}
		wl.Spec.PodSets = make([]kueue.PodSet, 1)
		wl.Spec.PodSets[0].Template.Spec.Affinity = avoid.With(nil, []string{"n1", "n2"})
		wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: c.reserved,
			Reason: "Inadmissible", Message: "no topology fits"}}
		got := Of(job, nil, wl, Running{}, now).Condition(api.ConditionQuotaReserved)
		if got == nil || got.Message != c.want {
			t.Errorf("%s: got %+v, want %q", name, got, c.want)
		}
	}
}
