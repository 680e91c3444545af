package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// commentsOf returns the comments of a Go file. A comment's lists are passages of their own; code in it, directives and
// markers aren't prose.
func commentsOf(file string, content []byte) ([]passage, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, content, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var all []passage
	for _, group := range parsed.Comments {
		all = append(all, split(file, set.Position(group.Pos()).Line, prose(group))...)
	}
	return all, nil
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
			all = append(all, passage{file, begin, text.String()})
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
