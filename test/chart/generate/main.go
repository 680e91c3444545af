// Command generate writes what is made from config/ and from the chart: the chart's copies of CRDs, roles and webhooks,
// its README, and the kustomize bases. `make generate` runs it.
package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/signalbox-dev/signalbox/test/chart"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(repository string) error {
	files := filepath.Join(repository, "charts", "signalbox", "files")
	for role, folder := range map[string]string{"integration": "", "trainer": "trainer"} {
		rules, err := os.ReadFile(filepath.Join(repository, "config", "rbac", folder, "role.yaml"))
		if err != nil {
			return err
		}
		_, after, found := strings.Cut(string(rules), "\nrules:\n")
		if !found {
			return fmt.Errorf("config/rbac/%s: a role without rules", folder)
		}
		webhooks, err := os.ReadFile(filepath.Join(repository, "config", "webhook", folder, "manifests.yaml"))
		if err != nil {
			return err
		}
		for path, content := range map[string]string{"rbac": "rules:\n" + after, "webhook": string(webhooks)} {
			if err := write(filepath.Join(files, path, role+".yaml"), content); err != nil {
				return err
			}
		}
	}
	if err := crds(filepath.Join(repository, "config", "crd"), filepath.Join(files, "crd")); err != nil {
		return err
	}
	for name, says := range introductions {
		if err := describe(filepath.Join(repository, "charts", name), name, says); err != nil {
			return fmt.Errorf("chart %s: %w", name, err)
		}
	}
	if err := runtimes(filepath.Join(repository, "charts", "signalbox-runtimes", "files")); err != nil {
		return err
	}
	return bases(repository)
}

// runtimes copies the stock runtimes of the Kubeflow Trainer that Signalbox is built with.
func runtimes(to string) error {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubeflow/trainer/v2")
	list.Stderr = os.Stderr
	dir, err := list.Output()
	if err != nil {
		return fmt.Errorf("finding Kubeflow Trainer: %w", err)
	}
	root := filepath.Join(strings.TrimSpace(string(dir)), "manifests", "base", "runtimes")
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == "data-cache" { // it needs a controller of its own
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".yaml" || entry.Name() == "kustomization.yaml" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return write(filepath.Join(to, entry.Name()), string(content))
	})
}

// crds copies the CRDs; Helm is to keep them when a release is uninstalled, and the TrainJobs with them. What their
// fields are for is left out: Helm keeps a release in one Secret, which holds no more than a mebibyte.
func crds(from, to string) error {
	paths, err := filepath.Glob(filepath.Join(from, "trainer.kubeflow.org_*.yaml"))
	if err != nil {
		return err
	}
	names := make([]string, 0, len(paths))
	for _, path := range paths {
		names = append(names, filepath.Base(path))
	}
	base := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" +
		strings.Join(names, ", ") + "]\n"
	if err := write(filepath.Join(from, "kustomization.yaml"), base); err != nil {
		return err
	}
	own, err := filepath.Glob(filepath.Join(from, "*.signalbox.dev_*.yaml")) // for those who ask for them
	if err != nil {
		return err
	}
	for _, path := range append(paths, own...) {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		const at = "\nmetadata:\n"
		if !bytes.Contains(content, []byte(at)) {
			return fmt.Errorf("%s has no metadata", path)
		}
		const annotations = at + "  annotations:\n" // of those that controller-gen writes
		kept := strings.Replace(strings.Replace(string(content), annotations, at, 1), at,
			annotations+"    helm.sh/resource-policy: keep\n", 1)
		var crd yaml.Node
		if err := yaml.Unmarshal([]byte(kept), &crd); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := undescribe(crd.Content[0]); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		var short bytes.Buffer
		encoder := yaml.NewEncoder(&short)
		encoder.SetIndent(2)
		if err := encoder.Encode(crd.Content[0]); err != nil {
			return err
		}
		kept = short.String()
		if err := write(filepath.Join(to, filepath.Base(path)), kept); err != nil {
			return err
		}
	}
	return nil
}

// described is the depth of fields that keep their descriptions: kubectl explain has all that is Trainer's own. What is
// deeper is JobSet's and core/v1's, and would not fit into the Secret in which Helm keeps a release (1 MiB).
const described = 5

// undescribe takes the descriptions of deep fields out of the schemas of a CRD, but no property of that name.
func undescribe(crd *yaml.Node) error {
	versions := child(child(crd, "spec"), "versions")
	if versions == nil || len(versions.Content) == 0 {
		return fmt.Errorf("it has no versions")
	}
	for _, version := range versions.Content {
		schema := child(child(version, "schema"), "openAPIV3Schema")
		if schema == nil {
			return fmt.Errorf("it has a version without a schema")
		}
		undescribeSchema(schema, 0)
	}
	return nil
}

func undescribeSchema(schema *yaml.Node, depth int) {
	if schema == nil || schema.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(schema.Content); i += 2 {
		key, value := schema.Content[i].Value, schema.Content[i+1]
		switch key {
		case "description":
			if depth <= described {
				continue
			}
			schema.Content = append(schema.Content[:i], schema.Content[i+2:]...)
			i -= 2
		case "properties", "patternProperties":
			for j := 1; j < len(value.Content); j += 2 {
				undescribeSchema(value.Content[j], depth+1)
			}
		case "items", "additionalProperties", "not":
			undescribeSchema(value, depth)
		case "anyOf", "allOf", "oneOf":
			for _, inner := range value.Content {
				undescribeSchema(inner, depth)
			}
		}
	}
}

func child(node *yaml.Node, key string) *yaml.Node {
	if node == nil {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// bases writes the kustomize bases: the chart's objects, rendered.
func bases(repository string) error {
	c, err := chart.Load(repository)
	if err != nil {
		return err
	}
	for _, base := range []struct{ name, says, values string }{
		{"default", "both roles", "crds: {install: false}"},
		{"integration", "the integration alone, beside an installed Kubeflow Trainer", "trainer: {enabled: false}"},
	} {
		resources := "[signalbox.yaml]"
		if base.name == "default" {
			resources = "[../crd, signalbox.yaml]"
		}
		text, err := chart.Plain(c, base.values)
		if err != nil {
			return err
		}
		folder := filepath.Join(repository, "config", base.name)
		if err := write(filepath.Join(folder, "signalbox.yaml"),
			"# Made from charts/signalbox by make generate: "+base.says+".\n"+text); err != nil {
			return err
		}
		if err := write(filepath.Join(folder, "kustomization.yaml"),
			"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: "+resources+"\n"); err != nil {
			return err
		}
	}
	for _, p := range parts {
		text, err := chart.Plain(c, p.values)
		if err != nil {
			return err
		}
		var kept []string
		for document := range strings.SplitSeq(text, "\n---\n") {
			if strings.Contains(document, p.named) {
				kept = append(kept, strings.TrimSpace(document))
			}
		}
		if err := write(filepath.Join(repository, "config", filepath.FromSlash(p.file)),
			"# Made from charts/signalbox by make generate: "+p.says+".\n"+strings.Join(kept, "\n---\n")+"\n"); err != nil {
			return err
		}
		folder, file := filepath.Split(p.file)
		if !strings.HasPrefix(folder, "components/") {
			continue
		}
		if err := write(filepath.Join(repository, "config", folder, "kustomization.yaml"), "apiVersion: "+
			"kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources: ["+file+"]\n"); err != nil {
			return err
		}
	}
	return nil
}

// parts are those of the rendered chart that are needed beside its default, and what their names contain.
var parts = []struct{ file, says, values, named string }{
	{"multikueue/worker.yaml", "rights of ServiceAccount kueue-system/multikueue in a worker",
		"multiKueue: {workerSubjects: [{kind: ServiceAccount, namespace: kueue-system, name: multikueue}]}",
		"-multikueue-worker"},
	{"grow/policy.yaml", "the policy by which nobody is preempted for a TrainJob that grows",
		"config: {grow: {enabled: true}}", "name: signalbox-grow\n"},
	{"components/page/page.yaml", "the page, for those who have a proxy before it (docs/dashboard.md)",
		"dashboard: {enabled: true}", "name: signalbox-dashboard\n"},
	{"components/monitoring/monitoring.yaml", "what the Prometheus operator needs (docs/operations.md)",
		"metrics: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}}",
		"apiVersion: monitoring.coreos.com/v1\n"},
}

// introductions are what READMEs say before the values, by the charts' names.
var introductions = map[string]string{
	"signalbox": "# The Helm chart\n\n```\n" +
		"helm install signalbox charts/signalbox --namespace signalbox-system --create-namespace\n```\n\n" +
		"It refuses a cluster on which Signalbox can't work, with the change to make.",
	"signalbox-runtimes": "# The chart of runtimes\n\nKubeflow Trainer's stock runtimes, and what the Kubeflow SDK " +
		"looks up, for the Trainer of Signalbox.\n\n```\n" +
		"helm install runtimes charts/signalbox-runtimes --namespace kubeflow-system --create-namespace\n```\n",
}

// describe writes a chart's README and the schema of its values, from their comments and defaults.
func describe(chart, name, introduction string) error {
	content, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return err
	}
	values := document.Content[0]
	var rows strings.Builder
	if err := list(&rows, values, ""); err != nil {
		return err
	}
	if err := write(filepath.Join(chart, "README.md"), introduction+"\n`make generate` writes this page from "+
		"values.yaml.\n\n| value | default | |\n| --- | --- | --- |\n"+rows.String()); err != nil {
		return err
	}
	return schema(chart, name, values)
}

// list writes a row for each value that a comment describes, and looks into those that none does.
func list(out *strings.Builder, node *yaml.Node, prefix string) error {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := prefix + key.Value
		says, described := strings.CutPrefix(key.HeadComment, "# -- ")
		if !described {
			if value.Kind != yaml.MappingNode {
				return fmt.Errorf("values.yaml: %s has no comment that begins with \"# -- \"", path)
			}
			if err := list(out, value, path+"."); err != nil {
				return err
			}
			continue
		}
		plain := *value
		plain.HeadComment, plain.LineComment, plain.FootComment = "", "", ""
		plain.Style |= yaml.FlowStyle
		text, err := yaml.Marshal(&plain)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "| `%s` | `%s` | %s |\n", path,
			strings.Join(strings.Fields(string(text)), " "), strings.ReplaceAll(says, "|", "\\|"))
	}
	return nil
}

func write(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
