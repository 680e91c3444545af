package main

import (
	"strings"
	"testing"

	"github.com/signalbox-dev/signalbox/overrides"
)

// FuzzRewrite holds that no document makes the conversion panic, that splitting a file loses none of it, that what has
// no TrainJob to convert comes out as it stands, and that what was converted says nothing in an earlier shape.
func FuzzRewrite(f *testing.F) {
	for _, path := range []string{"../../test/e2e/testdata/guide.yaml", "testdata/fragments.yaml",
		"testdata/runtime.yaml"} {
		for _, doc := range documents(readFile(f, path)) {
			f.Add(doc)
		}
	}
	for _, doc := range []string{
		head + "  podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: sa}}]\n",
		head + "  trainer: {numProcPerNode: auto}\n  labels: {a: b}\n  podSpecOverrides:\n  - targetJobs: [{name: node}]\n",
		"{\"kind\": \"TrainJob\", \"apiVersion\": \"trainer.kubeflow.org/v1alpha1\", \"spec\": {\"templateOverrides\": " +
			"[{\"manager\": \"a.com/a\", \"pod\": [null]}]}}",
		"kind: List\nitems:\n- kind: TrainJob\n  apiVersion: trainer.kubeflow.org/v1alpha1\n  spec:\n    ? " +
			"podTemplateOverrides\n    : - targetJobs: [{name: a}]\n",
		"a: |\n  ---\n...\n--- !x\nb: &c d\n",
	} {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		if got := strings.Join(documents(doc), ""); got != doc {
			t.Fatalf("split and joined, %q is %q", doc, got)
		}
		for _, strategic := range []bool{true, false} {
			result, err := rewrite(doc, overrides.Manifests(strategic))
			if err != nil {
				return
			}
			converted := false
			for _, job := range result.jobs {
				converted = converted || job.plan != nil || len(job.changes) > 0
			}
			if !converted && result.text != doc {
				t.Fatalf("nothing was to be converted, and %q is %q", doc, result.text)
			}
			again, err := rewrite(result.text, overrides.Manifests(strategic))
			if err != nil {
				t.Fatalf("what was converted can't be read: %v\n%s", err, result.text)
			}
			for _, job := range again.jobs {
				if overrides.Needed(job.before) {
					t.Fatalf("something is left:\n%s", result.text)
				}
			}
		}
	})
}
