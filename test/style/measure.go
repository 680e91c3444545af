package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// implementations are the files that may ask which Trainer there is: those that implement it.
var implementations = []string{
	"overrides/dialect/", "overrides/legacy/", "overrides/pipeline/",
	"integration/bundled.go", "integration/kubeflow.go",
}

// trainerVersion matches the variables of package dialect that are one version of Kubeflow Trainer.
var trainerVersion = regexp.MustCompile(`^Kubeflow[0-9]`)

// add measures a file, if it isn't of the product by its lines and columns alone; its path is relative to root.
func (m *measures) add(root, path string) error {
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	v := &visitor{measures: m, set: set, path: filepath.ToSlash(path), file: file}
	v.columns(string(content))
	m.count(lines, strings.Count(string(content), "\n") > maxLines, path)
	folder, _, _ := strings.Cut(v.path, "/")
	if !slices.Contains(products, folder) || strings.HasSuffix(path, "_test.go") {
		return nil
	}
	for _, decl := range file.Decls {
		v.decl(decl)
	}
	return nil
}

// count counts one more of a measure, and notes it if it exceeds the bound.
func (m *measures) count(name string, exceeds bool, where string) {
	m.by[name].of++
	if exceeds {
		m.by[name].found = append(m.by[name].found, where)
	}
}

// visitor measures one file.
type visitor struct {
	*measures
	set  *token.FileSet
	path string
	file *ast.File
}

func (v *visitor) at(pos token.Pos, what string) string {
	return fmt.Sprintf("%s:%d: %s", v.path, v.set.Position(pos).Line, what)
}

// columns measures the lines but for those of raw strings and of markers, which can't be wrapped.
func (v *visitor) columns(content string) {
	raw := map[int]bool{}
	ast.Inspect(v.file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(literal.Value, "`") {
			for line := v.set.Position(literal.Pos()).Line; line <= v.set.Position(literal.End()).Line; line++ {
				raw[line] = true
			}
		}
		return true
	})
	for i, line := range strings.Split(content, "\n") {
		marker := strings.Contains(line, "// +kubebuilder:") || strings.Contains(line, "//go:")
		exceeds := utf8.RuneCountInString(line) > maxColumns && !raw[i+1] && !marker && !v.rendered(line)
		v.count(columns, exceeds, fmt.Sprintf("%s:%d: %d", v.path, i+1, utf8.RuneCountInString(line)))
	}
}

// rendered reports whether a line is a docstring whose line breaks show in what is generated of it.
func (v *visitor) rendered(line string) bool {
	comment := strings.TrimSpace(line)
	return strings.HasPrefix(comment, "//") && strings.HasPrefix(v.path, "api/")
}

func (v *visitor) decl(decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		v.function(d)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			v.spec(spec)
		}
	}
}

func (v *visitor) function(f *ast.FuncDecl) {
	c := complexityOf(f)
	v.count(complexity, c > maxComplexity, v.at(f.Pos(), fmt.Sprintf("%s has a complexity of %d", f.Name.Name, c)))
	v.trainers(f)
}

// complexityOf returns the cyclomatic complexity of a function: one, and one for each branch.
func complexityOf(f *ast.FuncDecl) int {
	c := 1
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			c++
		case *ast.CaseClause:
			if n.List != nil {
				c++
			}
		case *ast.CommClause:
			if n.Comm != nil {
				c++
			}
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				c++
			}
		}
		return true
	})
	return c
}

// spec measures a declaration of a type, if it is a struct.
func (v *visitor) spec(spec ast.Spec) {
	declared, ok := spec.(*ast.TypeSpec)
	if !ok || strings.HasPrefix(v.path, "api/") {
		return
	}
	if t, ok := declared.Type.(*ast.StructType); ok {
		n := t.Fields.NumFields()
		v.count(fields, n > maxFields, v.at(declared.Pos(), fmt.Sprintf("%s has %d fields", declared.Name.Name, n)))
	}
}

// trainers counts the conditions of a function that ask which Trainer there is.
func (v *visitor) trainers(f *ast.FuncDecl) {
	if slices.ContainsFunc(implementations, func(prefix string) bool { return strings.HasPrefix(v.path, prefix) }) {
		return
	}
	ask := func(where ast.Expr) {
		if where != nil && asksTrainer(where) {
			v.count(conditions, true, v.at(where.Pos(), f.Name.Name))
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if trainerVersion.MatchString(n.Sel.Name) {
				v.count(versions, true, v.at(n.Pos(), f.Name.Name))
			}
		case *ast.IfStmt:
			ask(n.Cond)
		case *ast.SwitchStmt:
			ask(n.Tag)
		case *ast.CaseClause:
			for _, e := range n.List {
				ask(e)
			}
		case *ast.ReturnStmt:
			for _, e := range n.Results {
				if b, ok := e.(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
					ask(b)
				}
			}
		}
		return true
	})
}

// asksTrainer reports whether an expression asks which Trainer there is.
func asksTrainer(e ast.Expr) bool {
	asks := false
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			asks = asks || isBundled(n.X) || isBundled(n.Y)
		case *ast.SelectorExpr:
			switch n.Sel.Name {
			case "Keyed", "Snapshots", "CountsJobs", "bundled", "deletesJobSet", "hasState":
				asks = true
			case "Enabled":
				asks = asks || mentionsTrainer(n)
			case "Field":
				asks = asks || mentionsDialect(n)
			}
		case *ast.Ident:
			asks = asks || n.Name == "bundled"
		}
		return true
	})
	return asks
}

// isBundled reports whether an operand is dialect.Bundled.
func isBundled(operand ast.Expr) bool {
	s, ok := operand.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Bundled"
}

// mentionsTrainer reports whether a selector is config.Trainer.Enabled.
func mentionsTrainer(s *ast.SelectorExpr) bool {
	x, ok := s.X.(*ast.SelectorExpr)
	return ok && x.Sel.Name == "Trainer"
}

// mentionsDialect reports whether a selector is of a dialect or a Trainer.
func mentionsDialect(s *ast.SelectorExpr) bool {
	switch x := s.X.(type) {
	case *ast.Ident:
		return x.Name == "d" || x.Name == "dialect" || x.Name == "trainer"
	case *ast.SelectorExpr:
		return x.Sel.Name == "trainer" || x.Sel.Name == "Dialect"
	}
	return false
}
