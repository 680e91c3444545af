package installed

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"sigs.k8s.io/kueue/pkg/features" // registers Kueue's feature gates

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
	gates := map[string]bool{}
	for name, specs := range utilfeature.DefaultMutableFeatureGate.GetAllVersioned() {
		last, then := specs[len(specs)-1], specOfRelease(specs, release)
		switch {
		case last.LockToDefault:
		case then != nil && then.Default != last.Default:
			gates[string(name)] = then.Default
		case then == nil && slices.Contains(countedClaims, name):
			gates[string(name)] = false
		}
	}
	return gates
}

// specOfRelease returns what a gate is in a release; nil if the release doesn't have it.
func specOfRelease(specs featuregate.VersionedSpecs, release string) *featuregate.FeatureSpec {
	emulated := version.MustParseGeneric(release)
	for i := range slices.Backward(specs) {
		if !emulated.LessThan(specs[i].Version) {
			return &specs[i]
		}
	}
	return nil
}

// stages are the names that stand for all gates of a stage.
var stages = map[string]string{"AllAlpha": string(featuregate.Alpha), "AllBeta": string(featuregate.Beta)}

// ExpandGates returns feature gates with AllAlpha and AllBeta replaced by the gates of that stage that a release of
// Kueue has, such as "0.19"; a gate that is named itself takes precedence. Set as they are, they would set the gates of
// client-go and of Kubeflow Trainer's plugins as well, which are registered in the same place.
func ExpandGates(gates map[string]bool, release string) map[string]bool {
	expanded := map[string]bool{}
	maps.Copy(expanded, gates)
	maps.DeleteFunc(expanded, func(name string, _ bool) bool { return stages[name] != "" })
	for name, specs := range utilfeature.DefaultMutableFeatureGate.GetAllVersioned() {
		spec := specOfRelease(specs, release)
		for stage, stands := range stages {
			value, named := gates[stage]
			if _, itself := gates[string(name)]; named && !itself && spec != nil && ofKueue(*spec) &&
				string(spec.PreRelease) == stands {
				expanded[string(name)] = value
			}
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
	return checkGate(preemption.Boosts(), features.PriorityBoost, kueue)
}

// CheckGrowth returns an error if TrainJobs are to grow, and Kueue with these settings would take the Workload with
// more nodes for another one: its feature gate ElasticJobsViaWorkloadSlices is off.
func CheckGrowth(growth configapi.Grow, kueue *configapi.Kueue) error {
	path := ""
	if growth.Enabled {
		path = "grow.enabled"
	}
	return checkGate(path, features.ElasticJobsViaWorkloadSlices, kueue)
}

// checkGate returns an error if Kueue doesn't have the feature gate on that a setting needs. path is "" if it isn't
// set.
func checkGate(path string, gate featuregate.Feature, kueue *configapi.Kueue) error {
	if path == "" {
		return nil
	}
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopyAndReset() // this process may run with others
	if err := gates.SetFromMap(kueue.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	if gates.Enabled(gate) {
		return nil
	}
	return fmt.Errorf("%s needs Kueue's feature gate %s, which is off. Turn it on in Kueue (its chart's value "+
		"controllerManager.featureGates, or featureGates of its configuration), and restart Kueue. If Kueue's configuration "+
		"can't be read here, set kueue.featureGates.%[2]s, too",
		path, gate)
}

// UseGates sets the feature gates of this process. It is to be called once, before anything reads one.
func UseGates(config *configapi.Kueue) error {
	if err := CheckGates(config); err != nil {
		return err
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(config.FeatureGates)
}
