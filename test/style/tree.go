package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// The bounds on the size of the tree, by what git tracks.
const (
	// maxProduct is what there was when it was last lowered. A change that needs more lines raises it, in its own diff,
	// where a review sees it.
	maxProduct  = 46_800
	maxTracked  = 1_097
	maxFolders  = 16
	maxMakefile = 15_000 // bytes, which are two screens
	maxTargets  = 30     // of the Makefile, documented
)

// The bound on interfaces. No interface is wider, but for those that a library dictates.
const (
	maxMethods = 7
	maxWide    = 0
)

// emptyTree is the name that git gives to a tree without files.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// bound is a size, and what it may be at the most.
type bound struct {
	title     string
	got, most int
	found     []string // what is counted, if it is worth a line each
}

func (b bound) exceeded() bool { return b.got > b.most }

// printBounds prints the bounds, and reports whether one is exceeded.
func printBounds(out io.Writer, bounds []bound) (exceeded bool) {
	for _, b := range bounds {
		mark := "ok"
		if b.exceeded() {
			mark, exceeded = "EXCEEDED", true
		}
		fmt.Fprintf(out, "%-8s %s (%d may): %d\n", mark, b.title, b.most, b.got)
		for _, f := range b.found {
			fmt.Fprintln(out, "            ", f)
		}
	}
	return exceeded
}

// treeBounds measures what git tracks below root.
func treeBounds(root string) ([]bound, error) {
	listed, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	numbers, err := exec.Command("git", "-C", root, "diff", "--cached", "--numstat", emptyTree, "--", ".",
		":!*.png").Output()
	if err != nil {
		return nil, fmt.Errorf("git diff in %s: %w", root, err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil, err
	}
	files := strings.Fields(string(listed))
	product, err := productLines(root, files)
	if err != nil {
		return nil, err
	}
	built := builtFiles(string(numbers))
	return []bound{
		{title: "lines of the product", got: product, most: maxProduct},
		{title: "tracked files", got: len(files), most: maxTracked},
		{title: "folders at the top", got: len(foldersOf(files)), most: maxFolders},
		{title: "tracked files that are neither text nor a picture", got: len(built), found: built},
		{title: "bytes of the Makefile", got: len(makefile), most: maxMakefile},
		{title: "documented targets of the Makefile", got: len(documented.FindAll(makefile, -1)), most: maxTargets},
	}, nil
}

var documented = regexp.MustCompile(`(?m)^[a-z0-9%-]+:.*## `)

// notProduct are Go files that users don't run: tests, tools and what is generated.
var notProduct = regexp.MustCompile(`_test\.go$|^(bench|test|hack|config|examples)/|zz_generated`)

// productLines counts the lines of the product's Go files. Those that are deleted in the work tree count nothing.
func productLines(root string, files []string) (lines int, err error) {
	for _, file := range files {
		if !strings.HasSuffix(file, ".go") || notProduct.MatchString(file) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		lines += bytes.Count(content, []byte("\n"))
	}
	return lines, nil
}

// foldersOf returns the folders at the top; those with a dot are hidden.
func foldersOf(files []string) []string {
	folders := map[string]bool{}
	for _, file := range files {
		if folder, _, ok := strings.Cut(file, "/"); ok && !strings.HasPrefix(folder, ".") {
			folders[folder] = true
		}
	}
	return slices.Sorted(maps.Keys(folders))
}

// builtFiles returns the files for which git diff --numstat can't count lines.
func builtFiles(numstat string) (built []string) {
	for line := range strings.Lines(numstat) {
		if file, ok := strings.CutPrefix(line, "-\t-\t"); ok {
			built = append(built, strings.TrimSpace(file))
		}
	}
	return built
}

// interfaceBound measures the interfaces of packages.
func interfaceBound(loaded []*packages.Package) bound {
	b := bound{title: fmt.Sprintf("interfaces with more than %d methods of their own", maxMethods), most: maxWide}
	for _, p := range loaded {
		for _, name := range p.Types.Scope().Names() {
			declared, ok := p.Types.Scope().Lookup(name).(*types.TypeName)
			if !ok || declared.IsAlias() {
				continue
			}
			if n := ownMethods(declared.Type()); n > maxMethods {
				b.found = append(b.found, fmt.Sprintf("%s.%s: %d", strings.TrimPrefix(p.PkgPath, modulePath+"/"), name, n))
			}
		}
	}
	b.got = len(b.found)
	return b
}

// ownMethods counts the methods of an interface but those that it has from an interface of a library.
func ownMethods(t types.Type) (n int) {
	i, ok := t.Underlying().(*types.Interface)
	if !ok {
		return 0
	}
	for m := range i.Methods() {
		if m.Pkg() != nil && strings.HasPrefix(m.Pkg().Path(), modulePath) {
			n++
		}
	}
	return n
}
