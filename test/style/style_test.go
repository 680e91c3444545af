package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
		"a version": {"only dialect names one", "store/a.go",
			"package a\nvar _ = func() any { return dialect.Bundled }\nfunc f() any { return dialect.Kubeflow23 }\n", versions},
		"a version, dialect": {"it may", "overrides/dialect/a.go",
			"package a\nfunc f() any { return dialect.Kubeflow23 }\n", ""},
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

// TestWhereIsWhat holds that docs/architecture.md names functions that exist, and their files.
func TestWhereIsWhat(t *testing.T) {
	const root = "../.."
	files, err := sources(root, products)
	if err != nil {
		t.Fatal(err)
	}
	x, err := declarations(root, files)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, architecture))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.where(string(page)); err != nil {
		t.Error(err)
	}
}

// TestWhere holds what is wrong with a table, and that its files are written.
func TestWhere(t *testing.T) {
	x := index{"store": {"Pin": {"pin.go"}, "Pods.running": {"pods.go"}}, "store/events": {"Event.Of": {"events.go"}}}
	row := func(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
	fill := strings.Repeat(row("a rule", "`store.Pin`", "`pin.go`"), minRules)
	pin := row("b", "`store.Pin`", "`pin.go`")
	many := row("b", "`store.(*Pods).running`, `store/events.Event.Of`", "`pods.go`, `events.go`")
	for name, test := range map[string]struct {
		table   string
		want    string // of the table
		problem string
	}{
		"all is right":              {fill + many, fill + many, ""},
		"a file is missing":         {fill + row("b", "`store.Pin`"), fill + pin, "the row is"},
		"a file is another":         {fill + row("b", "`store.Pin`", "`a.go`"), fill + pin, "the row is"},
		"a function doesn't exist":  {fill + row("b", "`store.Un`"), fill + row("b", "`store.Un`"), "store.Un, which"},
		"a row without a function":  {fill + row("b", "the CRD"), fill + row("b", "the CRD"), "no function in"},
		"the table is not complete": {pin, pin, "has 1 rules"},
	} {
		head := "# A\n" + heading + "\n| rule | function | file |\n| --- | --- | --- |\n"
		written, err := x.where(head + test.table + "\n## B\n")
		if want := head + test.want + "\n## B\n"; written != want {
			t.Errorf("%s: got %s, want %s", name, written, want)
		}
		if (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: got %v, want a problem with %q", name, err, test.problem)
		}
	}
}

func TestSharesOf(t *testing.T) {
	// As go tool covdata prints it, with a package without statements.
	const output = "\tgithub.com/signalbox-dev/signalbox/store/events\t\tcoverage: 100.0% of statements\n" +
		"\tgithub.com/signalbox-dev/signalbox/examples/training\t\t" +
		"\tgithub.com/signalbox-dev/signalbox/integration\t\tcoverage: 92.7% of statements\n"
	got, err := sharesOf(output)
	if want := map[string]float64{"store/events": 100, "integration": 92.7}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
