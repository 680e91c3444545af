package installed

import (
	"fmt"

	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
)

// podsReadyDefault is the first release of Kueue whose waitForPodsReady is on without being configured: a Workload
// whose condition PodsReady isn't true is evicted half an hour after its admission
// (SetDefaults_Configuration, DefaultWaitForPodsReadyTimeout).
const podsReadyDefault = "0.19"

// podsReadyGate is Kueue's feature gate that turns waitForPodsReady off. Kueue will remove it in 0.21.
const podsReadyGate = "DisableWaitForPodsReady"

// podsReady adopts whether Kueue waits for pods. The feature gates must have been adopted before. The setting stays
// unset if Kueue waits by default only.
func (a *adoption) podsReady(theirs *kueueconfig.WaitForPodsReady, release string) {
	byDefault := !newer(podsReadyDefault, release)
	waits := (theirs != nil || byDefault) && !a.FeatureGates[podsReadyGate]
	switch ours := a.WaitForPodsReady; {
	case ours != nil && *ours != waits:
		why := ""
		if waits && theirs == nil {
			why = fmt.Sprintf(" (by default since Kueue %s, unless feature gate %s is on)", podsReadyDefault, podsReadyGate)
		}
		a.errs = append(a.errs, fmt.Errorf("waitForPodsReady is on there: %t%s, and kueue.waitForPodsReady is %t here; "+
			"take it out here", waits, why, *ours))
	case ours == nil && (theirs != nil || !waits):
		a.WaitForPodsReady = &waits
	}
}
