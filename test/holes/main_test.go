package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestHoles holds that what each hole replaces is in the tree, once.
func TestHoles(t *testing.T) {
	for _, h := range holes {
		content, err := os.ReadFile(filepath.Join("../..", h.file))
		if err != nil {
			t.Error(err)
			continue
		}
		if n := strings.Count(string(content), h.from); n != 1 {
			t.Errorf("%s: %s has what the hole replaces %d times", h.name, h.file, n)
		}
		if h.also != "" && !slices.ContainsFunc(holes, func(other hole) bool { return other.name == h.also }) {
			t.Errorf("%s: there is no hole %q", h.name, h.also)
		}
	}
}

// TestHolesCompile holds that the tree compiles without the fixes, all of them at once.
func TestHolesCompile(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, h := range holes {
		path := filepath.Join(root, h.file)
		if filepath.Ext(path) != ".go" {
			continue
		}
		if _, read := files[path]; !read {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files[path] = string(content)
		}
		files[path] = strings.Replace(files[path], h.from, h.to, 1)
	}
	dir := t.TempDir()
	overlay := map[string]map[string]string{"Replace": {}}
	build := []string{"build", "-overlay", filepath.Join(dir, "overlay.json")}
	for path, content := range files {
		without := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(path, root), "/", "_"))
		if err := os.WriteFile(without, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][path] = without
		build = append(build, filepath.Dir(path))
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(build[2], data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", build...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
