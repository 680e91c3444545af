package main

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
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
