package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
)

// TestCommentBound holds which names of comments and of the architecture's page don't exist.
func TestCommentBound(t *testing.T) {
	root := t.TempDir()
	write := func(path, content string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("store/pin.go", `package store

import "example.com/events"

// Pin is written by store.Unpin, not by store.Pin; see pin.go, unpin.go and docs/other.md.
// Its Box.Lid and mayOpen exist, Box.Hinge and mayClose don't. runtimePatches is a word of a string, and
// trainer.example.org a domain. events.Recorder is of the library.
func Pin() { mayOpen := "runtimePatches"; _ = mayOpen; _ = events.Recorder }

// Box has a lid. Of Kueue it needs mayBorrow.
type Box struct{ Lid int }

// Open has all of Box: Open.Hinge may be there.
type Open struct{ Box }
`)
	write("store/events/events.go", "package events\n")
	write(architecture, "The box is `store.(*Box).Lid`, and not `store.Crate`.\n")
	if out, err := exec.Command("git", "init", "-q", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := commentBound(root, []string{"store/pin.go", "store/events/events.go"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"store/pin.go:5: store.Unpin", "store/pin.go:5: unpin.go", "store/pin.go:5: docs/other.md",
		"store/pin.go:6: Box.Hinge", "store/pin.go:6: mayClose", architecture + ":1: store.Crate",
	}
	if !reflect.DeepEqual(got.found, want) || got.got != len(want) {
		t.Errorf("got %q, want %q", got.found, want)
	}
}
