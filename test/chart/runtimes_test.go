package chart

import (
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/lint/support"
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
