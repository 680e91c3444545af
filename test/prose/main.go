// Command prose checks what people read: the pages of the documentation, the comments of the source, and the strings
// of the product, such as errors, conditions and events.
//
//	go run -C test/prose . [-external] ROOT
//
// It reports sentences of more than 40 words, words that the project doesn't use, with the word to use instead, links
// to files and headings that don't exist, and lines of prose of more than 120 columns. With -external it requests the
// links to other sites too.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	external := flag.Bool("external", false, "request the links to other sites too")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if err := run(os.Stdout, root, *external); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

// passage is a piece of prose, such as a paragraph, a cell of a table, a comment or a string, and where it begins.
type passage struct {
	file string
	line int
	text string
	// isString is set if it is a string of the product, to which some more rules apply.
	isString bool
}

// run prints the findings of a source tree and a line of figures. It returns an error if there is a finding.
func run(out io.Writer, root string, external bool) error {
	files, err := tracked(root)
	if err != nil {
		return err
	}
	var passages, comments, texts []passage
	var findings []string
	site, targets := newSite(root), targetsOf(root)
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		if file != "CHANGELOG.md" && !strings.HasSuffix(file, "_test.go") {
			findings = append(findings, missingTargets(file, string(content), targets)...)
		}
		if strings.HasSuffix(file, ".go") {
			found, strings, err := goProse(file, content)
			if err != nil {
				return err
			}
			comments, texts = append(comments, found...), append(texts, strings...)
			continue
		}
		page := site.add(file, content)
		passages = append(passages, page.passages...)
		findings = append(findings, page.long...)
	}
	findings = append(findings, site.brokenLinks()...)
	if external {
		findings = append(findings, site.unreachable()...)
	}
	for _, p := range slices.Concat(passages, comments, texts) {
		findings = append(findings, p.findings()...)
	}
	for _, finding := range findings {
		fmt.Fprintln(out, finding)
	}
	fmt.Fprintf(out, "prose: pages: %s; comments: %s; strings: %s; %d links\n", figures(passages), figures(comments),
		figures(texts), site.links())
	if len(findings) > 0 {
		return fmt.Errorf("%d findings; see above", len(findings))
	}
	return nil
}

// skipped are files that have no prose of the project's: licences, generated references, results and golden files.
var skipped = []string{"docs/reference.md", "docs/api.md", "bench/results/", "testdata/", "zz_generated"}

// tracked returns the Markdown and Go files that git tracks or would add, relative to root, sorted.
func tracked(root string) ([]string, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md",
		"*.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	var files []string
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		_, err := os.Stat(filepath.Join(root, file))
		if err != nil || slices.ContainsFunc(skipped, func(s string) bool { return strings.Contains(file, s) }) {
			continue // deleted in the work tree, or without prose
		}
		files = append(files, file)
	}
	return files, nil
}

// figures returns how many sentences there are, and how long they are.
func figures(passages []passage) string {
	var lengths []int
	over := 0
	for _, p := range passages {
		for _, sentence := range sentences(p.text) {
			n := words(sentence)
			lengths = append(lengths, n)
			if n > 25 {
				over++
			}
		}
	}
	if len(lengths) == 0 {
		return "no sentence"
	}
	slices.Sort(lengths)
	return fmt.Sprintf("%d sentences, median %d words, %.0f %% over 25, longest %d", len(lengths),
		lengths[len(lengths)/2], 100*float64(over)/float64(len(lengths)), lengths[len(lengths)-1])
}
