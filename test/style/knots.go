package main

import (
	"fmt"
	"go/token"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// A file uses another of its package if it names a definition of it. A knot is a set of files that use each other in a
// circle: none of them can be read, tested or moved without the others.

// graph has, for each file of a package, those that it uses.
type graph map[string]map[string]bool

// load returns the packages below folders of root, with their types.
func load(root string, folders []string) ([]*packages.Package, error) {
	patterns := make([]string, len(folders))
	for i, folder := range folders {
		patterns[i] = "./" + folder + "/..."
	}
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax, Dir: root}, patterns...)
	if err != nil {
		return nil, err
	}
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("package %s: %w", p.PkgPath, p.Errors[0])
		}
	}
	return loaded, nil
}

// knotsOf returns the knots of packages, by package.
func knotsOf(loaded []*packages.Package) map[string][][]string {
	knots := map[string][][]string{}
	for _, p := range loaded {
		if found := graphOf(p).knots(); len(found) > 0 {
			knots[p.PkgPath] = found
		}
	}
	return knots
}

// graphOf returns which files of a package use which. Generated files are left out.
func graphOf(p *packages.Package) graph {
	name := func(pos token.Pos) string { return filepath.Base(p.Fset.Position(pos).Filename) }
	g := graph{}
	for used, object := range p.TypesInfo.Uses {
		if object.Pkg() != p.Types || !object.Pos().IsValid() {
			continue
		}
		from, to := name(used.Pos()), name(object.Pos())
		if from == to || strings.HasPrefix(from, "zz_generated") || strings.HasPrefix(to, "zz_generated") {
			continue
		}
		if g[from] == nil {
			g[from] = map[string]bool{}
		}
		g[from][to] = true
	}
	return g
}

// knots returns the circles of a graph (its strongly connected components of more than one file), by Tarjan's
// algorithm.
func (g graph) knots() [][]string {
	var (
		knots      [][]string
		stack      []string
		index, low = map[string]int{}, map[string]int{}
		visit      func(string)
	)
	visit = func(file string) {
		index[file] = len(index) + 1
		low[file] = index[file]
		stack = append(stack, file)
		for _, next := range slices.Sorted(maps.Keys(g[file])) {
			if index[next] == 0 {
				visit(next)
				low[file] = min(low[file], low[next])
			} else if slices.Contains(stack, next) {
				low[file] = min(low[file], index[next])
			}
		}
		if low[file] == index[file] {
			at := slices.Index(stack, file)
			if knot := slices.Sorted(slices.Values(stack[at:])); len(knot) > 1 {
				knots = append(knots, knot)
			}
			stack = stack[:at]
		}
	}
	for _, file := range slices.Sorted(maps.Keys(g)) {
		if index[file] == 0 {
			visit(file)
		}
	}
	return knots
}

// printKnots prints the knots, and reports whether there is one.
func printKnots(out io.Writer, knots map[string][][]string) (exceeded bool) {
	all := 0
	for _, of := range knots {
		for _, knot := range of {
			all += len(knot)
		}
	}
	exceeded = all > 0
	mark := "ok"
	if exceeded {
		mark = "EXCEEDED"
	}
	fmt.Fprintf(out, "%-8s files in knots (0 may): %d\n", mark, all)
	for _, path := range slices.Sorted(maps.Keys(knots)) {
		for _, knot := range knots[path] {
			fmt.Fprintf(out, "             %s: %d: %s\n", path, len(knot), strings.Join(knot, " "))
		}
	}
	return exceeded
}
