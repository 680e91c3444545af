package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLimited(t *testing.T) {
	for text, want := range map[string]uint64{"max\n": 100, "40\n": 40, "200\n": 100, "": 100} {
		file := filepath.Join(t.TempDir(), "memory.max")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := limited(100, file); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
	if got := limited(100, filepath.Join(t.TempDir(), "none")); got != 100 {
		t.Errorf("no limit: got %d", got)
	}
}
