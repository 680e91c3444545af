package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNames holds that each name of each released version is still there, or listed as removed: docs/api-policy.md.
func TestNames(t *testing.T) {
	t.Chdir("../..")
	now, err := promised()
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"Metrics: signalbox_", "Events: ", "Reasons", "Conditions: ", "Configuration file: ",
		"Labels, annotations and managers: signalbox.dev/", "The Helm chart: image.", "The chart of runtimes: "} {
		if !slices.ContainsFunc(now, func(name string) bool { return strings.HasPrefix(name, prefix) }) {
			t.Errorf("no name begins with %q: the pages have another form", prefix)
		}
	}
	page, err := os.ReadFile(upgradePage)
	if err != nil {
		t.Fatal(err)
	}
	versions, err := filepath.Glob(filepath.Join(namesOf, "v*.txt"))
	if err != nil || len(versions) == 0 {
		t.Fatalf("%s has no version: %v", namesOf, err)
	}
	for _, version := range versions {
		content, err := os.ReadFile(version)
		if err != nil {
			t.Fatal(err)
		}
		released := strings.Split(strings.TrimSpace(string(content)), "\n")
		for _, name := range broken(released, now, string(page)) {
			t.Errorf("%s of %s is gone; keep it, or list it in %s under Removed, with what to use instead", name,
				strings.TrimSuffix(filepath.Base(version), ".txt"), upgradePage)
		}
	}
}

func TestBroken(t *testing.T) {
	released := []string{"Metrics: a", "Metrics: a{x}", "Events: B", "Events: C"}
	page := "# Upgrade\n`C` is mentioned\n## v0.3\n### Removed\n| name | instead |\n| `Metrics: a{x}` | `Events: B` |\n" +
		"### Changed\n| `Events: B` |\n"
	if got := broken(released, []string{"Metrics: a"}, page); !slices.Equal(got, []string{"Events: B", "Events: C"}) {
		t.Errorf("got %q", got)
	}
	if got := broken(released, released, ""); len(got) > 0 {
		t.Errorf("got %q, and nothing is gone", got)
	}
	// A name that moves to another kind is gone where it was.
	if got := broken([]string{"Events: B"}, []string{"Metrics: B"}, ""); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

// TestRecordNames holds that what is recorded is what is there now.
func TestRecordNames(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, path := range promising {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, namesOf), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := recordNames("v9"); err != nil {
		t.Fatal(err)
	}
	now, err := promised()
	content, readErr := os.ReadFile(filepath.Join(namesOf, "v9.txt"))
	if err != nil || readErr != nil || string(content) != strings.Join(now, "\n")+"\n" {
		t.Errorf("%d names, %v, %v", len(now), err, readErr)
	}
}
