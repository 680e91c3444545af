package main

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// FuzzRewrite holds that no document makes the conversion panic, that splitting a file loses none of it, and that what
// has no TrainJob to convert comes out as it stands. What was converted says what was decided, has all
// comments and says nothing in an earlier shape.
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
		"kind: TrainJob\rapiVersion: trainer.kubeflow.org/v1alpha1\rspec:\r  labels: {a: b} # c\r",
		"a: |\n  ---\n...\n--- !x\nb: &c d\n",
	} {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		if got := strings.Join(documents(doc), ""); got != doc {
			t.Fatalf("split and joined, %q is %q", doc, got)
		}
		for _, strategic := range []bool{true, false} {
			text, jobs, err := rewrite(doc, legacy.Manifests(strategic))
			if err != nil {
				return
			}
			converted := false
			for _, job := range jobs {
				converted = converted || job.plan != nil || len(job.changes) > 0
			}
			if !converted && text != doc {
				t.Fatalf("nothing was to be converted, and %q is %q", doc, text)
			}
			if lost := lostComments(t, doc, text); len(lost) > 0 {
				t.Fatalf("comments are lost: %q of\n%s\nin\n%s", lost, doc, text)
			}
			_, again, err := rewrite(text, legacy.Manifests(strategic))
			if err != nil {
				t.Fatalf("what was converted can't be read: %v\n%s", err, text)
			}
			for i, job := range again {
				if legacy.Needed(job.before) {
					t.Fatalf("something is left:\n%s", text)
				}
				if plan := jobs[i].plan; plan != nil &&
					!equality.Semantic.DeepEqual(job.before.Spec.RuntimePatches, plan.Patches) {
					t.Fatalf("not what was decided, of\n%s\nin\n%s", doc, text)
				}
			}
		}
	})
}

// lostComments returns the comments of a document that another doesn't have.
func lostComments(t *testing.T, doc, other string) []string {
	t.Helper()
	before, err1 := parse(strings.ReplaceAll(doc, "\r\n", "\n"))
	after, err2 := parse(strings.ReplaceAll(other, "\r\n", "\n"))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return missing(before, after)
}
