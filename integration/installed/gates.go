package installed

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"sigs.k8s.io/kueue/pkg/features"

	_ "sigs.k8s.io/kueue/pkg/features" // registers Kueue's feature gates

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

// countedClaims are the gates by which Kueue counts or rejects resource claims. A release that doesn't know them does
// neither, and Signalbox rejects claims itself.
var countedClaims = []featuregate.Feature{features.KueueDRAIntegration, features.KueueDRARejectWorkloadsWhenDRADisabled}

// renamedGates are the present names of gates that earlier releases of Kueue have by others.
var renamedGates = map[string]featuregate.Feature{"DynamicResourceAllocation": features.KueueDRAIntegration}

// defaultGates returns the gates whose default in a release of Kueue is not that of the library, with that default. Of
// gates that the release doesn't know, the library's holds: they are about what the library does by itself.
func defaultGates(release string) map[string]bool {
	emulated := version.MustParseGeneric(release)
	gates := map[string]bool{}
	for name, specs := range utilfeature.DefaultMutableFeatureGate.GetAllVersioned() {
		last := specs[len(specs)-1]
		at := slices.IndexFunc(specs, func(s featuregate.FeatureSpec) bool { return emulated.LessThan(s.Version) })
		switch {
		case at < 0 || last.LockToDefault:
		case at > 0 && specs[at-1].Default != last.Default:
			gates[string(name)] = specs[at-1].Default
		case at == 0 && slices.Contains(countedClaims, name):
			gates[string(name)] = false
		}
	}
	return gates
}

// stages are the names that stand for all gates of a stage.
var stages = map[string]string{"AllAlpha": string(featuregate.Alpha), "AllBeta": string(featuregate.Beta)}

// ExpandGates returns feature gates with AllAlpha and AllBeta replaced by the gates of that stage that a release of
// Kueue has, such as "0.19"; a gate that is named itself takes precedence. Set as they are, they would set the gates of
// client-go and of Kubeflow Trainer's plugins as well, which are registered in the same place.
func ExpandGates(gates map[string]bool, release string) map[string]bool {
	emulated := version.MustParseGeneric(release)
	expanded := map[string]bool{}
	for stage, stands := range stages {
		value, named := gates[stage]
		for name, specs := range utilfeature.DefaultMutableFeatureGate.GetAllVersioned() {
			at := slices.IndexFunc(specs, func(s featuregate.FeatureSpec) bool { return emulated.LessThan(s.Version) })
			if at < 0 {
				at = len(specs)
			}
			if !named || at == 0 || !ofKueue(specs[at-1]) || string(specs[at-1].PreRelease) != stands {
				continue
			}
			expanded[string(name)] = value
		}
	}
	for name, value := range gates {
		if stages[name] == "" {
			expanded[name] = value
		}
	}
	return expanded
}

// ofKueue reports whether a gate is Kueue's, by the release that it is from: Kubernetes' are 1.0 and later, and
// Kubeflow Trainer's say none.
func ofKueue(spec featuregate.FeatureSpec) bool {
	return spec.Version.Major() == 0 && spec.Version.Minor() > 0 && !spec.LockToDefault
}

// CheckGates returns an error for feature gates that Kueue doesn't have. It changes nothing.
func CheckGates(config *configapi.Kueue) error {
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(config.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	return nil
}

// CheckBoosts returns an error for a setting of preemption that Kueue, with these settings, would ignore: its feature
// gate PriorityBoost is off.
func CheckBoosts(preemption configapi.Preemption, kueue *configapi.Kueue) error {
	path := preemption.Boosts()
	if path == "" {
		return nil
	}
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetFromMap(kueue.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	if gates.Enabled(features.PriorityBoost) {
		return nil
	}
	return fmt.Errorf("%s needs Kueue's feature gate %s, which is off. Turn it on in Kueue (its chart's value "+
		"controllerManager.featureGates, or featureGates of its configuration), and restart Kueue. If Kueue's configuration "+
		"can't be read here, set kueue.featureGates.%[2]s, too",
		path, features.PriorityBoost)
}

// UseGates sets the feature gates of this process. It is to be called once, before anything reads one.
func UseGates(config *configapi.Kueue) error {
	if err := CheckGates(config); err != nil {
		return err
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(config.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	return nil
}
