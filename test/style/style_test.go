package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestBounds holds that each measure finds what exceeds it, and nothing else.
func TestBounds(t *testing.T) {
	many := func(n int, format string) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, format, i)
		}
		return all.String()
	}
	cases := map[string]struct {
		reason, path, source, want string
	}{
		"fine": {"nothing is over", "store/a.go",
			"package a\n\nfunc F() {}\n\ntype s struct{ a int }\n", ""},
		"fields": {"eleven", "store/a.go", "package a\ntype s struct{\n" + many(11, "\ta%d int\n") + "}\n",
			fields},
		"fields of the API": {"API types may", "api/a.go", "package a\ntype s struct{\n" + many(11, "\ta%d int\n") + "}\n",
			""},
		"lines":          {"351", "store/a.go", "package a\n" + many(350, "// %d\n"), lines},
		"lines, tests":   {"tests too", "store/a_test.go", "package a\n" + many(350, "// %d\n"), lines},
		"columns":        {"121", "store/a.go", "package a\n// " + strings.Repeat("a", 118) + "\n", columns},
		"columns, tests": {"tests too", "store/a_test.go", "package a\n// " + strings.Repeat("a", 118) + "\n", columns},
		"columns, bench": {"what measures too", "bench/a.go", "package a\n// " + strings.Repeat("a", 118) + "\n", columns},
		"fields, bench": {"the product's", "bench/a.go", "package a\ntype s struct{\n" + many(11, "\ta%d int\n") + "}\n",
			""},
		"a raw string": {"it can't be wrapped", "store/a.go",
			"package a\nconst s = `" + strings.Repeat("a", 130) + "`\n", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := measured(t, c.path, c.source)
			for _, one := range order {
				if got := m.by[one].exceeded(); got != (one == c.want) {
					t.Errorf("%s: %s is exceeded: %t (%v)", c.reason, one, got, m.by[one].found)
				}
			}
		})
	}
}

// TestConditions holds which conditions count.
func TestConditions(t *testing.T) {
	const body = `package a
func f() bool {
	if bundled && x { return true }
	switch { case d.Keyed(): return d.Field() == "a" || y }
	if config.Trainer.Enabled { return other.Field() == "a" }
	return r.bundled
}
`
	if got := len(measured(t, "integration/a.go", body).by[conditions].found); got != 4 {
		t.Errorf("got %d", got)
	}
	if got := measured(t, "integration/bundled.go", body).by[conditions].found; len(got) != 0 {
		t.Errorf("an implementation may ask: got %v", got)
	}
}

// TestComplexity holds the measure of complexity, and that one of a hundred may exceed it.
func TestComplexity(t *testing.T) {
	branches := strings.Repeat("\tif a && b { return }\n", 6)
	var source bytes.Buffer
	source.WriteString("package a\nfunc f() {\n" + branches + "}\n")
	for i := range 99 {
		fmt.Fprintf(&source, "func f%d() {}\n", i)
	}
	if m := measured(t, "store/a.go", source.String()).by[complexity]; len(m.found) != 1 || m.exceeded() {
		t.Errorf("one of a hundred: got %v", m.found)
	}
	if m := measured(t, "store/a.go", "package a\nfunc f() {\n"+branches+"}\n").by[complexity]; !m.exceeded() {
		t.Error("one of one")
	}
}

func measured(t *testing.T, path, source string) *measures {
	t.Helper()
	root := t.TempDir()
	full := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	m := newMeasures()
	if err := m.add(root, path); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWhereIsWhat holds that docs/architecture.md names functions that exist.
func TestWhereIsWhat(t *testing.T) {
	const root = "../.."
	content, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(content), "\n## Where is what\n")
	if !found {
		t.Fatal("docs/architecture.md has no heading \"Where is what\"")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	rows := 0
	named := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| rule") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		cells := strings.Split(line, "|")
		functions := named.FindAllStringSubmatch(cells[len(cells)-2], -1)
		if len(functions) == 0 {
			t.Errorf("%s names no function", strings.TrimSpace(line))
		}
		for _, f := range functions {
			if !exists(t, root, f[1]) {
				t.Errorf("docs/architecture.md names %s, which doesn't exist", f[1])
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d rows, and should have 20", rows)
	}
}

// exists reports whether a function is declared: "package.Func", "package.Type.Method" or "package.(*Type).Method".
func exists(t *testing.T, root, name string) bool {
	t.Helper()
	dir, rest, _ := strings.Cut(name, ".")
	receiver, method, ofType := strings.Cut(strings.NewReplacer("(*", "", ")", "").Replace(rest), ".")
	paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil || len(paths) == 0 {
		return false
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if !ofType && f.Recv == nil && f.Name.Name == receiver ||
				ofType && f.Name.Name == method && receiverOf(f) == receiver {
				return true
			}
		}
	}
	return false
}

func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
