package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const goodPage = `# A page

Kueue admits the TrainJob. Signalbox starts it ([how](#the-start), [other](docs/other.md#a--b)).

## The start

| field | meaning |
| --- | --- |
| ` + "`a`" + ` | the first |
`

// TestRun holds what is found in a tree of files, and that a tree without findings passes.
func TestRun(t *testing.T) {
	long := strings.Repeat("word ", 41) + "end."
	for name, test := range map[string]struct {
		files map[string]string
		finds []string // each is part of a finding; none for a tree that passes
	}{
		"good": {files: map[string]string{"README.md": goodPage, "docs/other.md": "# Other\n\n## A & b\n"}},
		"a missing file and a missing heading": {
			files: map[string]string{"README.md": "[a](b.md), [c](#d), [e](docs/f.md#g)\n", "docs/f.md": "# F\n"},
			finds: []string{"README.md:1: link b.md: there is no such file", "link #d: the page has no such heading",
				"link docs/f.md#g: the page has no such heading"},
		},
		"a heading that comes twice": {
			files: map[string]string{"README.md": "# A\n\n# A\n\n[second](#a-1), [third](#a-2)\n"},
			finds: []string{"link #a-2"},
		},
		"a long sentence in a page, a table and a comment": {
			files: map[string]string{
				"a.md": strings.ReplaceAll(long, "word word word ", "word word word\n"),
				"b.md": "| a |\n| --- |\n| " + long + " |\n",
				"c.go": "package c\n\n// C is\n// " + strings.ReplaceAll(long, "word word word ", "word word word\n// ") +
					"\nvar C int\n",
			},
			finds: []string{"a.md:1: a sentence of 42 words", "b.md:3: a sentence of 42 words",
				"c.go:3: a sentence of 44 words"},
		},
		"unwanted words, but not in code, quotes and directives": {
			files: map[string]string{
				"a.md": "It is made anew, `anew`, \"anew\".\n\n```\nanew\n```\n",
				"c.go": "package c\n\n//go:generate anew\n\n// C tells whether it is.\n//\n//\tanew\nvar C = \"anew\"\n",
			},
			finds: []string{`a.md:1: "anew"; write: again`, `c.go:5: "tells whether"; write: reports whether`},
		},
		"unwanted words in strings of the product, but not in its tests, tools, keys and raw strings": {
			files: map[string]string{
				"store/c.go": "package c\n\nimport \"fmt\"\n\nvar _ = fmt.Sprint(\"the JobSet \"+\n\t\"is not made yet\")\n" +
					"var _ = \"anew\"\nvar _ = `it is to be made anew`\n\ntype t struct {\n\ta int `is made anew here`\n}\n",
				"store/c_test.go": "package c\n\nvar _ = \"it is to be made anew\"\n",
				"test/c.go":       "package c\n\nvar _ = \"it is to be made anew\"\n",
			},
			finds: []string{`store/c.go:5: "not made yet"; write: create`},
		},
		"a long sentence in strings that are added up": {
			files: map[string]string{"store/c.go": "package c\n\nvar _ = \"" + strings.Repeat("word ", 20) + "\" + x + \" " +
				strings.Repeat("%s ", 20) + "end.\"\n"},
			finds: []string{"store/c.go:3: a sentence of 42 words"},
		},
		"targets that the Makefile doesn't have": {
			files: map[string]string{"Makefile": "help:\nsuite.list = LABELS=list\n",
				"a.md": "Run `make help`, `make test-list` or `make test-lists`.\n"},
			finds: []string{"a.md:1: the Makefile has no target test-lists"},
		},
		"a line that is too long, but not in code and tables": {
			files: map[string]string{"a.md": "| " + strings.Repeat("a. A ", 40) + "|\n| --- |\n\n```\n" +
				strings.Repeat("a ", 100) + "\n```\n\n" + strings.Repeat("Word. ", 21) + "\n"},
			finds: []string{"a.md:8: 126 columns of prose"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range test.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := exec.Command("git", "init", "-q", root).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var out strings.Builder
			err := run(&out, root, false)
			findings := strings.Split(strings.TrimSpace(out.String()), "\n")
			findings = findings[:len(findings)-1] // the last line has the figures
			if (err != nil) != (len(test.finds) > 0) || len(findings) != len(test.finds) {
				t.Errorf("%v, and %d findings, want %d:\n%s", err, len(findings), len(test.finds), out.String())
			}
			for _, want := range test.finds {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no finding %q in\n%s", want, out.String())
				}
			}
		})
	}
}
