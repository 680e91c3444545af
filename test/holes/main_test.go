package main

import (
	"os"
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
