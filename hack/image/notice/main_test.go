package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNamesOf holds that a licence is read as a whole: what is added to one that is known may forbid what that allows.
func TestNamesOf(t *testing.T) {
	apache, err := os.ReadFile(filepath.Join("..", "..", "..", "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	terms := strings.Repeat("Whoever distributes this must pay us a fee for each copy, and may not say so. ", 300)
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"known":    {string(apache), true},
		"unknown":  {"Nobody may distribute this.", false},
		"added to": {string(apache) + terms, false},
		"nothing":  {"", false},
	} {
		if names, err := namesOf([]byte(c.text)); (err == nil) != c.want {
			t.Errorf("%s: got %v, %v", name, names, err)
		}
	}
}

// TestRead holds that what is below a package's module counts too, and that a file nobody knows is told.
func TestRead(t *testing.T) {
	root := t.TempDir()
	apache, err := os.ReadFile(filepath.Join("..", "..", "..", "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(path, content string) {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := module{"a.com/a v1", []string{root, filepath.Join(root, "forked")}}
	put("forked/code.go", "")
	if _, _, _, err := m.read(); err == nil {
		t.Error("it has no licence")
	}
	put("LICENSE", string(apache))
	put("NOTICE", "of a")
	names, licences, notices, err := m.read()
	if err != nil || len(names) != 1 || len(licences) != 1 || len(notices) != 1 || notices[0].of != "a.com/a v1/NOTICE" {
		t.Errorf("got %v, %v, %v, %v", names, licences, notices, err)
	}
	put("forked/LICENSE", "Nobody may distribute this.")
	if _, _, _, err := m.read(); err == nil || !strings.Contains(err.Error(), "forked/LICENSE") {
		t.Errorf("got %v", err)
	}
}
