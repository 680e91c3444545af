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
