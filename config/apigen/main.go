//go:build ignore

// Command apigen writes docs/api.md from the CRDs: the fields of each kind, with their types and descriptions.
// `make generate` runs it.
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// depth is that of the fields that the page has. Deeper ones are JobSet's and core/v1's.
const depth = 4

const head = `# API reference

The kinds that Signalbox's chart installs: those of the bundled Trainer, and QuotaUsage if usage is recorded.
` + "`make generate`" + ` writes this page from the CRDs. It has the fields of the first four levels;
` + "`kubectl explain trainjob.spec --recursive`" + ` has all. Labels,
annotations, conditions, reasons and events are in [reference.md](reference.md).
`

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "apigen:", err)
		os.Exit(1)
	}
}

func run(crds, path string) error {
	files, err := filepath.Glob(filepath.Join(crds, "trainer.kubeflow.org_*.yaml"))
	if err != nil {
		return err
	}
	slices.Reverse(files) // TrainJob, which most look for, first
	own, err := filepath.Glob(filepath.Join(crds, "*.signalbox.dev_*.yaml"))
	if err != nil {
		return err
	}
	files = append(files, own...)
	out := bytes.NewBufferString(head)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd apiextensions.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(content, &crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, version := range crd.Spec.Versions {
			schema := version.Schema.OpenAPIV3Schema
			fmt.Fprintf(out, "\n## %s\n\n`%s/%s`, %s. %s\n\n| field | type | description |\n| --- | --- | --- |\n",
				crd.Spec.Names.Kind, crd.Spec.Group, version.Name, strings.ToLower(string(crd.Spec.Scope)),
				text(schema.Description))
			for _, name := range []string{"spec", "status"} {
				if part, ok := schema.Properties[name]; ok {
					fields(out, part, name, 1)
				}
			}
			if _, ok := schema.Properties["spec"]; !ok { // a record
				for _, name := range []string{"apiVersion", "kind", "metadata"} {
					delete(schema.Properties, name)
				}
				fields(out, *schema, "", 1)
			}
		}
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// fields writes a row for each field of a schema, down to the depth.
func fields(out *bytes.Buffer, schema apiextensions.JSONSchemaProps, path string, level int) {
	if schema.Items != nil && schema.Items.Schema != nil {
		schema = *schema.Items.Schema
		path += "[]"
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		kind := kindOf(field)
		if slices.Contains(schema.Required, name) {
			kind += ", required"
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", at, kind, text(field.Description))
		if level < depth {
			fields(out, field, at, level+1)
		}
	}
}

// kindOf is the type of a field in a word or two.
func kindOf(field apiextensions.JSONSchemaProps) string {
	switch {
	case field.XIntOrString:
		return "integer or string"
	case field.Type == "array" && field.Items != nil && field.Items.Schema != nil:
		return "list of " + kindOf(*field.Items.Schema)
	case field.AdditionalProperties != nil && field.AdditionalProperties.Schema != nil:
		return "map of " + kindOf(*field.AdditionalProperties.Schema)
	case field.Format != "":
		return field.Format
	case field.Type != "":
		return field.Type
	}
	return "any"
}

// text is a description in one line that a table can hold: its first paragraph, without lists.
func text(description string) string {
	first, _, _ := strings.Cut(description, "\n\n")
	first = strings.Join(strings.Fields(first), " ")
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "{{", "&#123;&#123;").Replace(first)
}
