package chart

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pmezard/go-difflib/difflib"
	rbacv1 "k8s.io/api/rbac/v1"
)

var update = flag.Bool("update", false, "write the golden files anew; look at what changes")

// TestGolden holds what the chart renders to: by default, and for each other set what differs from that.
func TestGolden(t *testing.T) {
	rendered := map[string]string{}
	for name, values := range sets {
		got, err := Render(repository, values+"\ncrds: {install: false}")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rendered[name] = got
	}
	var variants strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		variants.WriteString(differences(t, name, rendered["default"], rendered[name]))
	}
	for name, got := range map[string]string{"default.yaml": rendered["default"], "variants.diff": variants.String()} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from what the chart renders; go test -C test/chart . -update writes it anew: then look at "+
				"git diff", path)
		}
	}
}

// hunk is the head of a hunk: its line numbers change with each change of what is before it.
var hunk = regexp.MustCompile(`(?m)^@@ .* @@$`)

// differences returns what a set renders to otherwise than the default; "" for the default.
func differences(t *testing.T, set, of, got string) string {
	diff, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(of), B: difflib.SplitLines(got), FromFile: "default", ToFile: set, Context: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	return hunk.ReplaceAllString(diff, "@@")
}

// TestNodes holds that nobody who doesn't use it gives rights to nodes, and that a right to write them is given for the
// taint alone.
func TestNodes(t *testing.T) {
	for values, want := range map[string]string{
		"":                                "",
		"config: {nodes: {avoidFor: 0s}}": "", "config: {nodes: {avoidFor: 0}}": "", "config: {nodes: {avoidFor: null}}": "",
		"config: {nodes: {avoidFor: 0h0m}}": "", "config: {nodes: null}": "",
		"config: {nodes: {atMost: 4}}":                                             "",
		"config: {nodes: {avoidFor: 1h}}":                                          "list watch",
		"config: {nodes: {avoidFor: 1h, taint: true}}":                             "list patch watch",
		"{trainer: {enabled: false, podGroups: []}, config: {nodes: {atMost: 4}}}": "",
	} {
		got, err := Render(repository, values)
		if err != nil {
			t.Fatal(err)
		}
		var roles []rbacv1.ClusterRole
		for _, document := range strings.Split(got, "\n---\n") {
			if !strings.Contains(document, "kind: CustomResourceDefinition") {
				roles = ofKind(t, roles, "ClusterRole", document)
			}
		}
		var verbs []string
		for _, role := range roles {
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, "nodes") {
					verbs = append(verbs, rule.Verbs...)
				}
			}
		}
		if slices.Sort(verbs); strings.Join(verbs, " ") != want {
			t.Errorf("%s: rights to nodes %v, want %q", values, verbs, want)
		}
	}
}
