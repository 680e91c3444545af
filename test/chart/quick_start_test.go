package chart

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

// TestKueueConfiguration does with the configuration of Kueue's chart what docs/quick-start.md says: then Kueue leaves
// TrainJobs to Signalbox, and nothing else of it has changed.
func TestKueueConfiguration(t *testing.T) {
	page, err := os.ReadFile("../../docs/quick-start.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, found := strings.Cut(string(page), "\n  sed -e ")
	script, _, ended := strings.Cut(script, " > kueue.yaml")
	if !found || !ended {
		t.Fatal("docs/quick-start.md has no sed -e … > kueue.yaml")
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue")
	list.Dir = "../.."
	module, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	kueue, err := loader.Load(strings.TrimSpace(string(module)) + "/charts/kueue")
	if err != nil {
		t.Fatal(err)
	}
	manager, _ := kueue.Values["managerConfig"].(map[string]any)
	before, _ := manager["controllerManagerConfigYaml"].(string)
	sed := exec.CommandContext(t.Context(), "bash", "-c", "sed -e "+script)
	sed.Stdin = strings.NewReader(before)
	after, err := sed.Output()
	if err != nil {
		t.Fatal(err)
	}
	type configuration struct {
		Integrations struct{ Frameworks, ExternalFrameworks []string }
	}
	var was, is configuration
	if err := yaml.Unmarshal([]byte(before), &was); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(after, &is); err != nil {
		t.Fatalf("%v in\n%s", err, after)
	}
	const own, external = "trainer.kubeflow.org/trainjob", "TrainJob.v1alpha1.trainer.kubeflow.org"
	want := slices.DeleteFunc(slices.Clone(was.Integrations.Frameworks), func(f string) bool { return f == own })
	if len(want) == len(was.Integrations.Frameworks) {
		t.Errorf("Kueue's chart doesn't enable %s any more: change the page", own)
	}
	if !slices.Equal(is.Integrations.Frameworks, want) ||
		!slices.Equal(is.Integrations.ExternalFrameworks, []string{external}) {
		t.Errorf("got %+v, want frameworks %v and external framework %s", is.Integrations, want, external)
	}
}
