package installed

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainerfeatures "github.com/kubeflow/trainer/v2/pkg/features"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/kueue/pkg/features"
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

// released returns the CRD that a module of Kueue or JobSet is released with, as go.mod pins it.
func released(t *testing.T, module, file string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/components/crd/bases", file))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// older returns a CRD that has less: versions that aren't served, and fields by the paths of those that have them.
func older(crd *apiextensionsv1.CustomResourceDefinition, unserved string,
	without ...string) *apiextensionsv1.CustomResourceDefinition {
	crd = crd.DeepCopy()
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		v.Served = v.Served && v.Name != unserved
		for _, path := range without {
			names := strings.Split(path, ".")
			fields := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties
			for _, name := range names[:len(names)-1] {
				next := fields[name]
				if next.Items != nil {
					next = *next.Items.Schema
				}
				fields = next.Properties
			}
			delete(fields, names[len(names)-1])
		}
	}
	return crd
}

// withMax sets how many PodSets a Workload may have.
func withMax(crd *apiextensionsv1.CustomResourceDefinition, most int64) *apiextensionsv1.CustomResourceDefinition {
	crd = crd.DeepCopy()
	for _, v := range crd.Spec.Versions {
		spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
		podSets := spec.Properties["podSets"]
		podSets.MaxItems = &most
		spec.Properties["podSets"] = podSets
	}
	return crd
}

// versionServed is a cluster with a version of Kubernetes that serves some kinds.
type versionServed struct {
	kindsServed
	kubernetes string
}

func (s *versionServed) ServerVersion() (*version.Info, error) {
	if s.kubernetes == "" {
		return nil, errDown
	}
	return &version.Info{GitVersion: s.kubernetes}, nil
}

func TestFindReleases(t *testing.T) {
	workloads := released(t, "sigs.k8s.io/kueue", "kueue.x-k8s.io_workloads.yaml")
	jobSets := released(t, "sigs.k8s.io/jobset", "jobset.x-k8s.io_jobsets.yaml")
	const group = "replicatedJobs.template.spec.template.spec.schedulingGroup"
	const patterns = "failurePolicy.rules.onJobFailureMessagePatterns"
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, "a", nil)
	cases := map[string]struct {
		reason      string
		kubernetes  string
		kinds       []string // served; all where there are none
		crds        []*apiextensionsv1.CustomResourceDefinition
		err         error // of each read of a CRD
		assumed     Releases
		want        Releases
		unsupported []string
		problems    []string
	}{
		"as built": {reason: "the modules are of the newest that are supported",
			want: Releases{"1.36", "0.19", "0.12", 18}},
		"a provider's Kubernetes": {reason: "versions have suffixes", kubernetes: "v1.34.8-gke.100",
			want: Releases{"1.34", "0.19", "0.12", 18}},
		"Kueue 0.18": {reason: "its Workloads hold 10 PodSets", crds: []*apiextensionsv1.CustomResourceDefinition{
			withMax(workloads, 10), jobSets}, want: Releases{"1.36", "0.18", "0.12", 10}},
		"JobSet 0.11": {reason: "no groups of pods",
			crds: []*apiextensionsv1.CustomResourceDefinition{workloads, older(jobSets, "", group)},
			want: Releases{"1.36", "0.19", "0.11", 18}},
		"JobSet 0.10": {reason: "no volume claims either", crds: []*apiextensionsv1.CustomResourceDefinition{
			workloads, older(jobSets, "", group, "volumeClaimPolicies")}, want: Releases{"1.36", "0.19", "0.10", 18}},
		"later": {reason: "they are only reported", kubernetes: "v1.38.0-alpha.1",
			crds:        []*apiextensionsv1.CustomResourceDefinition{older(workloads, "v1beta1"), jobSets},
			want:        Releases{"1.38", "0.20", "0.12", 18},
			unsupported: []string{"Kubernetes 1.38", "Kueue 0.20"}},
		"earlier": {reason: "what to upgrade is named, all at once", kubernetes: "v1.33.9",
			crds: []*apiextensionsv1.CustomResourceDefinition{
				withMax(workloads, 8), older(jobSets, "", group, "volumeClaimPolicies", patterns)},
			problems: []string{"Kubernetes v1.33.9 is older than Kubernetes 1.34; upgrade it to 1.34 or later",
				"is older than Kueue 0.18; upgrade it to 0.18 or later", "is older than JobSet 0.10; upgrade it to 0.10"}},
		"an earlier role": {reason: "a rollback brings it while the manager still runs, with what it has found",
			err: forbidden, assumed: Releases{"1.35", "0.18", "0.11", 10}, want: Releases{"1.36", "0.18", "0.11", 10}},
		"an earlier role at the start": {reason: "nothing was found before", err: forbidden, assumed: Newest(),
			want: Releases{"1.36", "0.19", "0.12", 18}},
		"unreadable": {reason: "nothing is known then", err: errDown, problems: []string{errDown.Error()}},
		"unreachable": {reason: "nothing is known then", kubernetes: "none",
			problems: []string{"asking for the version of Kubernetes: "}},
		"no version": {reason: "it can't be compared", kubernetes: "main", problems: []string{`it is version "main": `}},
		"nothing installed": {reason: "both are missing", kinds: []string{"Other"}, problems: []string{
			"install Kueue v0.18 or later", "install JobSet v0.10 or later"}},
		"no JobSet": {reason: "one is missing", kinds: []string{"Workload"},
			want: Releases{Kubernetes: "1.36", Kueue: "0.19", MaxPodSets: 18}, problems: []string{"install JobSet"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			disco := &versionServed{kubernetes: "v1.36.3", kindsServed: kindsServed{kinds: []string{"Workload", "JobSet"}}}
			switch {
			case c.kubernetes == "none":
				disco.kubernetes = ""
			case c.kubernetes != "":
				disco.kubernetes = c.kubernetes
			}
			if c.kinds != nil {
				disco.kinds = c.kinds
			}
			if c.crds == nil {
				c.crds = []*apiextensionsv1.CustomResourceDefinition{workloads, jobSets}
			}
			scheme := runtime.NewScheme()
			if err := apiextensionsv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.crds[0].DeepCopy(), c.crds[1].DeepCopy())
			if c.err != nil {
				reader = reader.WithInterceptorFuncs(interceptor.Funcs{
					Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
						return c.err
					},
				})
			}
			got, err := FindReleases(t.Context(), reader.Build(), disco, c.assumed)
			for _, problem := range c.problems {
				if err == nil || !strings.Contains(err.Error(), problem) {
					t.Errorf("%s: got %v, want %q in it", c.reason, err, problem)
				}
			}
			if len(c.problems) == 0 && err != nil {
				t.Errorf("%s: got %v", c.reason, err)
			}
			if c.want.Kueue != "" && got != c.want {
				t.Errorf("%s: got %+v, want %+v", c.reason, got, c.want)
			}
			if len(c.problems) == 0 && !cmp.Equal(got.Unsupported(), c.unsupported) {
				t.Errorf("%s: got %q", c.reason, got.Unsupported())
			}
		})
	}
}

// Gates that a release of Kueue has by another default, of those that Signalbox or jobframework looks at.
func TestDefaultGates(t *testing.T) {
	looked := []string{"AdmissionGatedBy", "ElasticJobsViaWorkloadSlices", "TASMultiLayerTopology", "KueueDRAIntegration",
		"KueueDRARejectWorkloadsWhenDRADisabled", "TopologyAwareScheduling", "PartialAdmission", "ReclaimablePods",
		"AssignQueueLabelsForPods", "FinishOrphanedWorkloads"}
	for release, want := range map[string][]string{
		"0.17": {"AdmissionGatedBy", "ElasticJobsViaWorkloadSlices", "TASMultiLayerTopology", "KueueDRAIntegration",
			"KueueDRARejectWorkloadsWhenDRADisabled"},
		"0.18": {"AdmissionGatedBy", "TASMultiLayerTopology"}, "0.19": nil, "0.20": nil,
	} {
		got := defaultGates(release)
		for _, name := range looked {
			value, differs := got[name]
			if wanted := strings.Contains(fmt.Sprint(want), name); wanted != differs || value {
				t.Errorf("Kueue %s: gate %s is %t (%t), want it off: %t", release, name, value, differs, wanted)
			}
		}
		if release >= "0.19" && len(got) > 0 {
			t.Errorf("Kueue %s: the library's defaults are those of its release; got %v", release, got)
		}
	}
}

// What Kueue's configuration says of gates goes before the defaults of its release.
func TestGatesOfRelease(t *testing.T) {
	a := newAdoption(&configapi.Default().Kueue)
	a.gates(map[string]bool{"AdmissionGatedBy": true, "DynamicResourceAllocation": true}, "0.18")
	if len(a.errs) > 0 || !a.FeatureGates["AdmissionGatedBy"] || !a.FeatureGates["KueueDRAIntegration"] {
		t.Errorf("got %v, %v", a.FeatureGates, a.errs)
	}
	if layers, set := a.FeatureGates["TASMultiLayerTopology"]; layers || !set {
		t.Errorf("the default of 0.18 is off: got %v", a.FeatureGates)
	}
	before := maps.Clone(a.FeatureGates)
	b := newAdoption(a.Kueue)
	b.gates(map[string]bool{"KueueDRAIntegration": false}, "0.18")
	if len(b.errs) != 1 || !maps.Equal(a.FeatureGates, before) {
		t.Errorf("a difference is an error, and nothing else changes: got %v, %v", b.errs, a.FeatureGates)
	}
}

// AllAlpha and AllBeta are Kueue's gates of a release alone, and a gate that is named takes precedence.
func TestExpandGates(t *testing.T) {
	named := map[string]bool{"AllAlpha": true, string(features.ShortWorkloadNames): false, "Unknown": true}
	got := ExpandGates(named, "0.19")
	for name, want := range map[string]bool{
		string(features.TASBalancedPlacement): true, string(features.ShortWorkloadNames): false, "Unknown": true,
	} {
		if on, found := got[name]; !found || on != want {
			t.Errorf("%s is %t, found %t", name, on, found)
		}
	}
	for _, name := range []string{
		"AllAlpha", string(trainerfeatures.TrainJobStatus), string(features.PartialAdmission), "CBORServingAndStorage",
	} {
		if _, found := got[name]; found {
			t.Errorf("%s is set", name)
		}
	}
	const late = string(features.TASCacheTopologyTree) // alpha since 0.19
	if _, found := ExpandGates(map[string]bool{"AllAlpha": true}, "0.18")[late]; found {
		t.Errorf("0.18 has no gate %s", late)
	}
	if beta := ExpandGates(map[string]bool{"AllBeta": false}, "0.19"); beta[string(features.PartialAdmission)] ||
		len(beta) == 0 {
		t.Errorf("AllBeta=false: %v", beta)
	}
	if none := ExpandGates(nil, "0.19"); len(none) != 0 {
		t.Errorf("no gates: %v", none)
	}
}
