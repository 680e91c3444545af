package installed

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// specOf returns the fields of spec in one version of a CRD; none where it has no such version.
func specOf(crd *apiextensionsv1.CustomResourceDefinition, name string) map[string]apiextensionsv1.JSONSchemaProps {
	for _, v := range crd.Spec.Versions {
		if v.Name == name && v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
			return v.Schema.OpenAPIV3Schema.Properties["spec"].Properties
		}
	}
	return nil
}

// hasField reports whether there is a field at a path, which goes through the items of lists.
func hasField(fields map[string]apiextensionsv1.JSONSchemaProps, path []string) bool {
	next, found := fields[path[0]]
	if !found || len(path) == 1 {
		return found
	}
	if next.Items != nil && next.Items.Schema != nil {
		next = *next.Items.Schema
	}
	return hasField(next.Properties, path[1:])
}

func serves(crd *apiextensionsv1.CustomResourceDefinition, name string) bool {
	return slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == name && v.Served
	})
}
