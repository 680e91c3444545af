package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// goProse returns the comments of a Go file, and the strings if it is of the product. A comment's lists are passages of
// their own; code in it, directives and markers aren't prose.
func goProse(file string, content []byte) (comments, texts []passage, err error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, content, parser.ParseComments)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, group := range parsed.Comments {
		comments = append(comments, split(file, set.Position(group.Pos()).Line, prose(group))...)
	}
	if !notRead.MatchString(file) {
		texts = stringsOf(file, set, parsed)
	}
	return comments, texts, nil
}

// prose returns the lines of a comment without its signs; lines of code and markers are empty.
func prose(group *ast.CommentGroup) (lines []string) {
	for _, comment := range group.List {
		text, ok := strings.CutPrefix(comment.Text, "//")
		if !ok || strings.HasPrefix(text, "\t") || strings.HasPrefix(text, " +") || !strings.HasPrefix(text, " ") {
			text = ""
		}
		lines = append(lines, text)
	}
	return lines
}

// split returns the paragraphs and list items of lines, the first of which is a line of the file.
func split(file string, line int, lines []string) (all []passage) {
	var text strings.Builder
	begin := line
	flush := func(next int) {
		if strings.TrimSpace(text.String()) != "" {
			all = append(all, passage{file: file, line: begin, text: text.String()})
		}
		text.Reset()
		begin = next
	}
	for i, l := range lines {
		if trimmed := strings.TrimSpace(l); trimmed == "" || strings.HasPrefix(trimmed, "- ") {
			flush(line + i)
		}
		text.WriteString(l + "\n")
	}
	flush(0)
	return all
}

var (
	// target is a rule of the Makefile, suite one of its parts of the end-to-end suite: make test-NAME.
	target = regexp.MustCompile(`(?m)^([a-z][a-z0-9.-]*):(?:[^=]|$)`)
	suite  = regexp.MustCompile(`(?m)^suite\.([a-z0-9.-]+) =`)
	// named is a target that a text names, in code.
	named = regexp.MustCompile("`make ([a-z][a-z0-9.-]*)")
)

// targetsOf returns the targets of the Makefile of root; none if it has none.
func targetsOf(root string) map[string]bool {
	content, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil
	}
	all := map[string]bool{}
	for _, found := range target.FindAllSubmatch(content, -1) {
		all[string(found[1])] = true
	}
	for _, found := range suite.FindAllSubmatch(content, -1) {
		all["test-"+string(found[1])] = true
	}
	return all
}

// missingTargets returns the targets that a file names and the Makefile doesn't have.
func missingTargets(file, content string, targets map[string]bool) (all []string) {
	for i, line := range strings.Split(content, "\n") {
		for _, found := range named.FindAllStringSubmatch(line, -1) {
			if len(targets) > 0 && !targets[found[1]] {
				all = append(all, fmt.Sprintf("%s:%d: the Makefile has no target %s", file, i+1, found[1]))
			}
		}
	}
	return all
}
