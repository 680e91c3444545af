package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
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
