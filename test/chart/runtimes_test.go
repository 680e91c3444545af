package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

// The stock runtimes are rendered by name, with other images where they are given.
func TestRuntimes(t *testing.T) {
	cases := map[string]struct {
		reason, values string
		want, not      []string
		err            string
	}{
		"default": {reason: "what the SDK looks up", want: []string{
			"name: torch-distributed", "name: deepspeed-distributed", "trainer.kubeflow.org/framework: torch",
			"name: kubeflow-trainer-public", `kubeflow_trainer_version: "v2.3.0"`, "name: system:authenticated",
		}, not: []string{"torchtune"}},
		"some": {reason: "with an image of ours", values: "runtimes: [torch-distributed]\n" +
			"images: {torch-distributed: registry.example.com/torch:1}\npublicConfigMap: false\npublicAccess: false",
			want: []string{"image: registry.example.com/torch:1"},
			not:  []string{"deepspeed", "pytorch/pytorch", "kubeflow-trainer-public", "system:authenticated"}},
		"unknown": {reason: "named, with what there is", values: "runtimes: [tensorflow]",
			err: `runtimes names "tensorflow", which isn't one of deepspeed-distributed`},
	}
	path := filepath.Join(repository, "charts", "signalbox-runtimes")
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			loaded, err := loader.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			text, err := RenderChart(loaded, c.values)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("%s: got %v, want %q", c.reason, err, c.err)
			}
			text = strings.ReplaceAll(text, `"system:authenticated"`, "system:authenticated")
			for _, part := range c.want {
				if !strings.Contains(text, part) {
					t.Errorf("%s: %q is missing in\n%s", c.reason, part, text)
				}
			}
			for _, part := range c.not {
				if strings.Contains(text, part) {
					t.Errorf("%s: %q is in\n%s", c.reason, part, text)
				}
			}
		})
	}
	lint := action.NewLint()
	lint.Strict, lint.Namespace = true, "kubeflow-system"
	for _, message := range lint.Run([]string{path}, nil).Messages {
		if message.Severity >= support.WarningSev {
			t.Error(message)
		}
	}
}

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
