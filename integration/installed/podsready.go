package installed

import (
	"fmt"

	kueueconfigv1beta1 "sigs.k8s.io/kueue/apis/config/v1beta1"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
)

// podsReadyDefault is the first release of Kueue whose waitForPodsReady is on without being configured: a Workload
// whose condition PodsReady isn't true is evicted half an hour after its admission
// (SetDefaults_Configuration, DefaultWaitForPodsReadyTimeout).
const podsReadyDefault = "0.19"

// podsReadyGate is Kueue's feature gate that turns waitForPodsReady off. Kueue will remove it in 0.21.
const podsReadyGate = "DisableWaitForPodsReady"

// podsReady adopts whether Kueue waits for pods. The feature gates must have been adopted before. The setting stays
// unset if Kueue waits by default only; v1beta1 of Kueue's configuration has no such default.
func (a *adoption) podsReady(configuration *kueueconfig.Configuration, release string) {
	theirs := configuration.WaitForPodsReady
	byDefault := !newer(podsReadyDefault, release) &&
		configuration.APIVersion != kueueconfigv1beta1.SchemeGroupVersion.String()
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
