// Command style measures the source against the bounds of docs/development.md that golangci-lint doesn't measure, and
// prints what exceeds them.
//
//	go run ./test/style [-strict] [-cover FOLDER] [-where] [ROOT]
//
// With -strict it exits with an error if a bound is exceeded. With -cover it prints too how many statements of each
// package its own unit tests cover, by the data that make test-unit has left in the folder. With -where it writes the
// files of the table "Where is what" of docs/architecture.md first.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	strict := flag.Bool("strict", false, "exit with an error if a bound is exceeded")
	cover := flag.String("cover", "", "folder with the coverage data of the unit tests, which are judged too")
	where := flag.Bool("where", false, "write the files of the table \"Where is what\" of docs/architecture.md")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if *where {
		if err := writeWhere(root); err != nil {
			fmt.Fprintln(os.Stderr, "style:", err)
		}
	}
	exceeded, err := run(os.Stdout, root, *cover)
	if err == nil && exceeded && *strict {
		err = fmt.Errorf("bounds are exceeded; see above")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "style:", err)
		os.Exit(1)
	}
}

// products are the folders of the product's packages, with those below them.
var products = []string{
	"overrides", "podsets", "admission", "store", "review", "integration", "trainer", "api", "cmd",
}

// others are the folders of what builds, tests and measures the product: there, only lines and columns are measured.
var others = []string{"bench", "config", "examples", "hack", "test"}

// run prints the measures of a source tree, with those of the coverage data in a folder unless it is "", and reports
// whether one exceeds its bound.
func run(out io.Writer, root, cover string) (exceeded bool, err error) {
	files, err := sources(root, products)
	if err != nil {
		return false, err
	}
	tools, err := sources(root, others)
	if err != nil {
		return false, err
	}
	m := newMeasures()
	for _, file := range slices.Concat(files, tools) {
		if err := m.add(root, file); err != nil {
			return false, err
		}
	}
	exceeded = m.print(out)
	tree, err := treeBounds(root)
	if err != nil {
		return false, err
	}
	loaded, err := load(root, products)
	if err != nil {
		return false, err
	}
	comments, err := commentBound(root, files, tools)
	if err != nil {
		return false, err
	}
	exceeded = printBounds(out, append(tree, interfaceBound(loaded), comments)) || exceeded
	exceeded = printKnots(out, knotsOf(loaded)) || exceeded
	if cover == "" {
		return exceeded, nil
	}
	over, err := printCoverage(out, cover, files)
	return exceeded || over, err
}

// sources returns the Go files under folders of root, sorted; generated ones and test data are left out.
func sources(root string, folders []string) ([]string, error) {
	var files []string
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry os.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "testdata":
				return filepath.SkipDir
			case !entry.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasPrefix(entry.Name(), "zz_generated"):
				relative, err := filepath.Rel(root, path)
				files = append(files, relative)
				return err
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(files)
	return files, nil
}

// measure is one bound, and what exceeds it.
type measure struct {
	title   string
	of      int     // how many were measured
	allowed float64 // how many may exceed it; a share of `of` below 1
	found   []string
}

func (m *measure) exceeded() bool {
	allowed := m.allowed
	if allowed < 1 {
		allowed *= float64(m.of)
	}
	return float64(len(m.found)) > allowed
}

// print prints the measures with what exceeds them, and reports whether one does.
func (m *measures) print(out io.Writer) bool {
	exceeded := false
	for _, name := range order {
		one := m.by[name]
		mark := "ok"
		if one.exceeded() {
			mark, exceeded = "EXCEEDED", true
		}
		fmt.Fprintf(out, "%-8s %s: %d of %d\n", mark, one.title, len(one.found), one.of)
		if len(one.found) > 0 && (one.exceeded() || name == complexity || name == conditions) {
			for _, f := range one.found {
				fmt.Fprintln(out, "           ", f)
			}
		}
	}
	return exceeded
}

// measures are all bounds by their names.
type measures struct{ by map[string]*measure }

// The names of the measures, in the order in which they are printed.
const (
	fields     = "fields"
	complexity = "complexity"
	lines      = "lines"
	columns    = "columns"
	conditions = "conditions"
	versions   = "versions"
)

var order = []string{fields, complexity, lines, columns, conditions, versions}

// The bounds.
const (
	maxFields     = 10
	maxComplexity = 12
	maxLines      = 350
	maxColumns    = 120
	maxConditions = 10
)

func newMeasures() *measures {
	m := &measures{by: map[string]*measure{
		fields:     {title: fmt.Sprintf("structs with more than %d fields, but for API types and configuration", maxFields)},
		complexity: {title: fmt.Sprintf("functions with a complexity over %d (1 %% may)", maxComplexity), allowed: 0.01},
		lines:      {title: fmt.Sprintf("files of more than %d lines", maxLines)},
		columns:    {title: fmt.Sprintf("lines of more than %d columns", maxColumns)},
		conditions: {
			title:   fmt.Sprintf("conditions on the Trainer outside its implementations (%d may)", maxConditions),
			allowed: maxConditions,
		},
		versions: {title: "uses of one version of Kubeflow Trainer outside package dialect"},
	}}
	for _, name := range slices.Sorted(maps.Keys(m.by)) {
		if !slices.Contains(order, name) {
			panic("measure " + name + " is not printed")
		}
	}
	return m
}
