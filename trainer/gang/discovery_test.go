package gang

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"
)

func TestServedVersion(t *testing.T) {
	const withField = `{schedulingGroup: {type: object}}`
	list := func(version string, plurals ...string) *metav1.APIResourceList {
		l := &metav1.APIResourceList{GroupVersion: "scheduling.k8s.io/" + version}
		for _, plural := range plurals {
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: plural})
		}
		return l
	}
	classes := list("v1", "priorityclasses")
	cases := map[string]struct {
		reason string
		served []*metav1.APIResourceList
		pod    string // properties of the pod spec in JobSet's CRD
		want   string // the version, or why groups are unavailable
	}{
		"served": {"1.36 with its gates", []*metav1.APIResourceList{classes,
			list("v1alpha2", "workloads", "podgroups")}, withField, "v1alpha2"},
		"not served": {"1.36 with its defaults", []*metav1.APIResourceList{classes}, withField,
			"the API server doesn't serve Workloads and PodGroups of scheduling.k8s.io/v1beta1 or " +
				"scheduling.k8s.io/v1alpha3 or scheduling.k8s.io/v1alpha2; run kube-apiserver with"},
		"1.35": {"its Workloads have no PodGroups", []*metav1.APIResourceList{classes,
			list("v1alpha1", "workloads")}, withField, "doesn't serve"},
		"a later one": {"an upgrade of Signalbox helps", []*metav1.APIResourceList{classes,
			list("v1beta2", "workloads", "podgroups"), list("v2", "workloads", "podgroups")}, withField,
			"the API server serves PodGroups as scheduling.k8s.io/v1beta2 and scheduling.k8s.io/v2, and this version of " +
				"Signalbox makes them as scheduling.k8s.io/v1beta1 or scheduling.k8s.io/v1alpha3 or scheduling.k8s.io/v1alpha2; " +
				"upgrade Signalbox"},
		"1.37": {"the best of two is used",
			[]*metav1.APIResourceList{list("v1alpha3", "workloads", "podgroups"), list("v1beta1", "workloads", "podgroups")},
			withField, "v1beta1"},
		"1.37 with alpha": {"any known version will do",
			[]*metav1.APIResourceList{list("v1alpha3", "workloads", "podgroups")}, withField, "v1alpha3"},
		"a known one": {"is used beside an unknown one",
			[]*metav1.APIResourceList{list("v2", "workloads", "podgroups"), list("v1alpha2", "workloads", "podgroups")},
			withField, "v1alpha2"},
		"an old JobSet": {"its CRD would drop the field silently",
			[]*metav1.APIResourceList{list("v1alpha2", "workloads", "podgroups")}, `{containers: {type: array}}`,
			"the installed JobSet's pod templates have no field schedulingGroup"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			crd := jobSetCRDWith(t, c.pod)
			scheme := runtime.NewScheme()
			if err := apiextensionsv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			d := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: c.served}}
			v, err := servedVersion(d, nil)
			if err == nil {
				err = checkJobSetCRD(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd).Build())
			}
			if err == nil {
				if v.Version != c.want {
					t.Errorf("%s: got %v", c.reason, v)
				}
				return
			}
			if !isUnavailable(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
}

// jobSetCRDWith returns JobSet's CRD with properties of the pod spec, as YAML.
func jobSetCRDWith(t *testing.T, properties string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	text := `
metadata: {name: jobsets.jobset.x-k8s.io}
spec:
  versions:
  - name: v1alpha2
    schema:
      openAPIV3Schema: {properties: {spec: {properties: {replicatedJobs: {items: {properties: {template: {properties: {
        spec: {properties: {template: {properties: {spec: {properties: ` + properties + strings.Repeat("}", 14)
	if err := yaml.Unmarshal([]byte(text), &crd); err != nil {
		t.Fatal(err)
	}
	return &crd
}
