package main

import (
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/kueue/pkg/features"
)

// TestGatesOfSimulation holds that simulate runs with the feature gates on the command line of the cluster's Kueue.
func TestGatesOfSimulation(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.PartialAdmission, true)
	tr := newTrial(t, interceptor.Funcs{}, `
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: kueue-system, name: kueue-controller-manager}
spec: {template: {spec: {containers: [{name: manager, args: ["--feature-gates=PartialAdmission=false,Later=true"]}]}}}`)
	if err := tr.try("list"); err != nil || !features.Enabled(features.PartialAdmission) {
		t.Errorf("list: %v, and the gates are set by it", err)
	}
	if err := tr.try("simulate", "first"); err != nil {
		t.Fatal(err)
	}
	if features.Enabled(features.PartialAdmission) || !strings.Contains(tr.errs.String(), "Later") {
		t.Errorf("PartialAdmission is on, or a gate that isn't known is passed over: %s", tr.errs.String())
	}
}
