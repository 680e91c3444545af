package installed

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kueue/pkg/features"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

// TestCheckBoosts holds that what Kueue would ignore isn't accepted, and that nothing else is refused.
func TestCheckBoosts(t *testing.T) {
	minute := metav1.Duration{Duration: time.Minute}
	by := func(d metav1.Duration) map[string]metav1.Duration { return map[string]metav1.Duration{"a": d} }
	on := map[string]bool{"PriorityBoost": true}
	for name, c := range map[string]struct {
		preemption configapi.Preemption
		gates      map[string]bool
		want       string // "" for no error
	}{
		"nothing is set": {},
		"all is 0": {preemption: configapi.Preemption{CheckpointWithin: minute, MinimumRuntime: configapi.MinimumRuntime{
			PriorityClasses: by(metav1.Duration{}), ClusterQueues: by(metav1.Duration{})}}},
		"a default": {configapi.Preemption{MinimumRuntime: configapi.MinimumRuntime{Default: minute}}, nil,
			"preemption.minimumRuntime needs"},
		"a class's": {configapi.Preemption{MinimumRuntime: configapi.MinimumRuntime{PriorityClasses: by(minute)}}, nil,
			"preemption.minimumRuntime needs"},
		"a queue's": {configapi.Preemption{MinimumRuntime: configapi.MinimumRuntime{ClusterQueues: by(minute)}},
			map[string]bool{"PriorityBoost": false}, "set kueue.featureGates.PriorityBoost, too"},
		"the cheapest": {configapi.Preemption{CheapestVictim: true}, nil, "preemption.cheapestVictim needs"},
		"the gate is on": {configapi.Preemption{
			CheapestVictim: true, MinimumRuntime: configapi.MinimumRuntime{Default: minute}}, on, ""},
		"a gate that nobody knows": {configapi.Preemption{CheapestVictim: true}, map[string]bool{"Nothing": true},
			"kueue.featureGates"},
		"all that are alpha": {configapi.Preemption{CheapestVictim: true},
			ExpandGates(map[string]bool{"AllAlpha": true}, "0.19"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckBoosts(c.preemption, &configapi.Kueue{FeatureGates: c.gates})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestCheckGrowth holds that TrainJobs grow only where Kueue replaces Workloads, which releases before 0.18 don't by
// default.
func TestCheckGrowth(t *testing.T) {
	const gate = "ElasticJobsViaWorkloadSlices"
	for name, c := range map[string]struct {
		enabled bool
		gates   map[string]bool
		refused bool
	}{
		"off": {false, map[string]bool{gate: false}, false}, "on": {true, nil, false},
		"the gate is off": {true, map[string]bool{gate: false}, true}, "Kueue 0.17": {true, defaultGates("0.17"), true},
	} {
		err := CheckGrowth(configapi.Grow{Enabled: c.enabled}, &configapi.Kueue{FeatureGates: c.gates})
		says := "grow.enabled needs Kueue's feature gate " + gate
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A gate that this process runs with isn't Kueue's any more when it is taken out of Kueue's configuration: the manager
// would end for that, and not start again.
func TestCheckBoostsWhileRunning(t *testing.T) {
	features.SetFeatureGateDuringTest(t, features.PriorityBoost, true)
	if err := CheckBoosts(configapi.Preemption{CheapestVictim: true}, &configapi.Kueue{}); err == nil {
		t.Error("Kueue's default holds where nothing is set")
	}
}
