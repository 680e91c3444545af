package main

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/tools/go/packages"
)

// TestPrintBounds holds which bounds are exceeded, and what is printed.
func TestPrintBounds(t *testing.T) {
	var out bytes.Buffer
	if printBounds(&out, []bound{{title: "lines", got: 5, most: 5}}) {
		t.Error("as many as may be are not too many")
	}
	if !printBounds(&out, []bound{{title: "files", got: 1, found: []string{"a.bin"}}}) {
		t.Error("one is too many where none may be")
	}
	want := "ok       lines (5 may): 5\nEXCEEDED files (0 may): 1\n             a.bin\n"
	if out.String() != want {
		t.Errorf("got\n%s want\n%s", &out, want)
	}
}

func TestNotProduct(t *testing.T) {
	for file, want := range map[string]bool{
		"store/start.go": false, "cmd/signalbox/main.go": false, "store/start_test.go": true, "bench/main.go": true,
		"api/trainer/v1alpha1/zz_generated.deepcopy.go": true, "hack/image/image.go": true,
	} {
		if got := notProduct.MatchString(file); got != want {
			t.Errorf("%s: got %t, want %t", file, got, want)
		}
	}
}

func TestFoldersOf(t *testing.T) {
	files := []string{".ci/run", "Makefile", "store/a.go", "store/b/c.go", "api/a.go"}
	if got, want := foldersOf(files), []string{"api", "store"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v: files at the top and hidden folders are no folders", got, want)
	}
}

func TestBuiltFiles(t *testing.T) {
	const numstat = "3\t0\tREADME.md\n-\t-\tbin/signalbox\n"
	if got, want := builtFiles(numstat), []string{"bin/signalbox"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v: git counts no lines of what isn't text", got, want)
	}
}

// TestInterfaceBound holds which methods of an interface count.
func TestInterfaceBound(t *testing.T) {
	const source = `package a
import "reflect"
type narrow interface { A(); B(); C(); D(); E(); F(); G() }
type wide interface { narrow; H() }
type library interface { reflect.Type; A() }
type other struct{}
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "a.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	config := types.Config{Importer: importer.ForCompiler(set, "source", nil)}
	checked, err := config.Check(modulePath+"/a", set, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := interfaceBound([]*packages.Package{{PkgPath: modulePath + "/a", Types: checked}})
	if want := []string{"a.wide: 8"}; !reflect.DeepEqual(got.found, want) || got.got != 1 {
		t.Errorf("got %v: embedded ones of the module count, those of a library don't", got.found)
	}
}

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

// TestKnots holds what counts as a knot.
func TestKnots(t *testing.T) {
	uses := func(files ...string) map[string]bool {
		used := map[string]bool{}
		for _, f := range files {
			used[f] = true
		}
		return used
	}
	cases := map[string]struct {
		reason string
		graph  graph
		want   [][]string
	}{
		"a chain": {"nobody is used back", graph{"a": uses("b", "c"), "b": uses("c")}, nil},
		"a pair":  {"two files use each other", graph{"a": uses("b"), "b": uses("a")}, [][]string{{"a", "b"}}},
		"a long way": {
			"the circle has three files", graph{"a": uses("b"), "b": uses("c"), "c": uses("a")}, [][]string{{"a", "b", "c"}},
		},
		"two circles": {
			"they share a file", graph{"a": uses("b"), "b": uses("a", "c"), "c": uses("b")}, [][]string{{"a", "b", "c"}},
		},
		"apart": {
			"one uses the other",
			graph{"a": uses("b", "c"), "b": uses("a"), "c": uses("d"), "d": uses("c")},
			[][]string{{"c", "d"}, {"a", "b"}},
		},
	}
	for name, c := range cases {
		if got := c.graph.knots(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %s: got %v, want %v", name, c.reason, got, c.want)
		}
	}
}

// TestPrintKnots holds that no file may be in a knot.
func TestPrintKnots(t *testing.T) {
	cases := map[string]struct {
		knots map[string][][]string
		want  bool
	}{
		"none": {nil, false},
		"two":  {map[string][][]string{"a": {{"one.go", "other.go"}}}, true},
	}
	for name, c := range cases {
		var out bytes.Buffer
		if got := printKnots(&out, c.knots); got != c.want {
			t.Errorf("%s: exceeded %t, want %t: %s", name, got, c.want, &out)
		}
	}
}
