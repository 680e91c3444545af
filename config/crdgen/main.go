//go:build ignore

// Command crdgen writes the CRDs of the bundled Trainer's API, as controller-gen does. It exists because that API
// embeds Kubeflow Trainer's types, and controller-gen, which finds the same kinds of the same version in both packages,
// would write each of them twice. `make generate` runs it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	gopackages "golang.org/x/tools/go/packages"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/yaml"
)

const (
	local    = "./api/trainer/v1alpha1"
	embedded = "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	group    = "trainer.kubeflow.org"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "crdgen:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	packages, err := loader.LoadRoots(local)
	if err != nil {
		return err
	}
	registry := &markers.Registry{}
	if err := crdmarkers.Register(registry); err != nil {
		return err
	}
	parser := &crd.Parser{
		Collector:                  &markers.Collector{Registry: registry},
		Checker:                    &loader.TypeChecker{NodeFilters: []loader.NodeFilter{crd.Generator{}.CheckFilter()}},
		GenerateEmbeddedObjectMeta: true,
		PackageOverrides:           map[string]crd.PackageOverride{},
	}
	crd.AddKnownTypes(parser)
	parser.PackageOverrides[embedded] = func(p *crd.Parser, pkg *loader.Package) {
		p.AddPackage(pkg)
		delete(p.GroupVersions, pkg) // the package of Signalbox's API has the same kinds
	}
	for _, p := range packages {
		parser.NeedPackage(p)
	}
	for _, kind := range []string{"TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"} {
		gk := schema.GroupKind{Group: group, Kind: kind}
		parser.NeedCRDFor(gk, nil)
		definition, found := parser.CustomResourceDefinitions[gk]
		if !found {
			return fmt.Errorf("no CRD came out for %s", gk)
		}
		if loader.PrintErrors(packages, gopackages.TypeError) { // other errors are of packages that CRDs don't need
			return fmt.Errorf("the packages have errors")
		}
		crd.FixTopLevelMetadata(definition)
		defaultTier(&definition)
		removeForeign(&definition)
		resizable(&definition)
		if err := write(filepath.Join(dir, group+"_"+definition.Spec.Names.Plural+".yaml"), &definition); err != nil {
			return err
		}
	}
	return nil
}

// defaultTier sets a default that the CRDs of Kubeflow Trainer v2.3.0 have. The default is in the Volcano types that
// Trainer is built with; the later Volcano types, which Kueue requires here, don't have it.
func defaultTier(definition *apiextensionsv1.CustomResourceDefinition) {
	schema := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	for _, name := range []string{"spec", "podGroupPolicy", "volcano", "networkTopology"} {
		next, found := schema.Properties[name]
		if !found {
			return
		}
		schema = &next
	}
	if tier, found := schema.Properties["highestTierAllowed"]; found {
		tier.Default = &apiextensionsv1.JSON{Raw: []byte("1")}
		schema.Properties["highestTierAllowed"] = tier
	}
}

// foreign are fields of the Go type that only CRDs of Kubeflow Trainer before v2.2 have in a TrainJob's spec.
var foreign = []string{"podSpecOverrides", "labels", "annotations"}

// removeForeign removes the foreign fields from the CRD of TrainJobs.
func removeForeign(definition *apiextensionsv1.CustomResourceDefinition) {
	if definition.Spec.Names.Kind != "TrainJob" {
		return
	}
	for _, name := range foreign {
		delete(definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, name)
	}
}

// fixed are the immutable fields of spec.trainer. The others are the TrainJob's size.
var fixed = []string{"image", "command", "args", "env", "numProcPerNode"}

// resizable replaces Kubeflow Trainer's rule that spec.trainer is immutable: a suspended TrainJob may be resized
// (trainer#3995).
func resizable(definition *apiextensionsv1.CustomResourceDefinition) {
	if definition.Spec.Names.Kind != "TrainJob" {
		return
	}
	root := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	spec := root.Properties["spec"]
	trainer := spec.Properties["trainer"]
	trainer.XValidations = nil
	for _, name := range fixed {
		trainer.XValidations = append(trainer.XValidations, apiextensionsv1.ValidationRule{
			Rule: fmt.Sprintf("has(self.%[1]s) == has(oldSelf.%[1]s) && (!has(self.%[1]s) || self.%[1]s == oldSelf.%[1]s)",
				name),
			Message: name + " is immutable; create another TrainJob",
		})
	}
	spec.Properties["trainer"] = trainer
	spec.XValidations = append(spec.XValidations, apiextensionsv1.ValidationRule{
		Rule: "!has(self.trainer) || !has(oldSelf.trainer) || self.trainer == oldSelf.trainer || " +
			"has(self.suspend) && self.suspend && has(oldSelf.suspend) && oldSelf.suspend",
		Message:   "trainer may change only while the TrainJob is suspended, not in the update that starts or stops it",
		FieldPath: ".trainer",
	})
	root.Properties["spec"] = spec
}

func write(path string, definition *apiextensionsv1.CustomResourceDefinition) error {
	data, err := yaml.Marshal(definition)
	if err != nil {
		return err
	}
	var object map[string]any
	if err := yaml.Unmarshal(data, &object); err != nil {
		return err
	}
	delete(object, "status")
	delete(object["metadata"].(map[string]any), "creationTimestamp")
	if data, err = yaml.Marshal(object); err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte("---\n"), data...), 0o644)
}
