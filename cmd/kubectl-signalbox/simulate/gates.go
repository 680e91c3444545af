package simulate

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"sigs.k8s.io/kueue/pkg/features"
)

// UseGates sets Kueue's feature gates for all simulations of this process: Kueue's scheduler reads them from a variable
// of its package. Gates that aren't named keep Kueue's defaults. It returns the names that this release of Kueue
// doesn't have, sorted; they are ignored. The error names gates that can't have the value; the others are set.
func UseGates(gates map[string]bool) (unknown []string, err error) {
	has := utilfeature.DefaultMutableFeatureGate.GetAll()
	known := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		spec, ok := has[featuregate.Feature(name)]
		switch {
		case spec.LockToDefault && gates[name] != spec.Default:
			err = errors.Join(err, fmt.Errorf("feature gate %s is always %t in this release of Kueue", name, spec.Default))
		case ok:
			known[name] = gates[name]
		default:
			unknown = append(unknown, name)
		}
	}
	return unknown, errors.Join(err, utilfeature.DefaultMutableFeatureGate.SetFromMap(known))
}

// CountsBoosts reports whether Kueue adds annotation kueue.x-k8s.io/priority-boost to priorities.
func CountsBoosts() bool { return features.Enabled(features.PriorityBoost) }
