package simulate

import (
	"slices"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"sigs.k8s.io/kueue/pkg/features"
)

// TestUseGates holds that simulations run with the gates of the cluster's Kueue, and that a gate of another release of
// Kueue is named and changes nothing.
func TestUseGates(t *testing.T) {
	gate := utilfeature.DefaultFeatureGate
	featuregatetesting.SetFeatureGateDuringTest(t, gate, features.PartialAdmission, true) // restores it at the end
	unknown, err := UseGates(map[string]bool{string(features.PartialAdmission): false, "Later": true, "Earlier": false})
	if err != nil || !slices.Equal(unknown, []string{"Earlier", "Later"}) || features.Enabled(features.PartialAdmission) {
		t.Errorf("UseGates: %v, %v, PartialAdmission %v", unknown, err, features.Enabled(features.PartialAdmission))
	}
	if unknown, err := UseGates(nil); len(unknown) > 0 || err != nil {
		t.Errorf("no gates: %v, %v", unknown, err)
	}
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		if spec.LockToDefault && spec.Default {
			if _, err := UseGates(map[string]bool{string(name): false}); err == nil {
				t.Errorf("gate %s can't be off, and no error says so", name)
			}
			return
		}
	}
	t.Error("no gate is locked to its default: try an invalid value otherwise")
}
