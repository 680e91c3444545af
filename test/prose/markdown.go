package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	table "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// columns is the width that prose is wrapped at.
const columns = 120

// page is a Markdown file.
type page struct {
	file     string
	passages []passage
	anchors  map[string]bool
	links    []link
	long     []string
}

// link is a link of a page.
type link struct {
	line int
	to   string
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM))

// newPage reads a page.
func newPage(file string, content []byte) *page {
	p := &page{file: file, anchors: map[string]bool{}}
	line := func(offset int) int { return 1 + bytes.Count(content[:offset], []byte("\n")) }
	root := markdown.Parser().Parse(text.NewReader(content))
	// Walk returns only the errors of the function.
	_ = ast.Walk(root, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := node.(type) {
		case *ast.Heading:
			p.anchor(plain(n, content))
		case *ast.Paragraph, *ast.TextBlock, *table.TableCell:
			at := line(start(n))
			p.passages = append(p.passages, passage{file: file, line: at, text: plain(n, content)})
		case *ast.Link:
			p.links = append(p.links, link{line(start(n)), string(n.Destination)})
		case *ast.Image:
			p.links = append(p.links, link{line(start(n)), string(n.Destination)})
		}
		return ast.WalkContinue, nil
	})
	p.measure(content)
	return p
}

// start is where a node begins in the file.
func start(node ast.Node) int {
	if node.Type() == ast.TypeBlock && node.Lines().Len() > 0 {
		return node.Lines().At(0).Start
	}
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		if t, ok := child.(*ast.Text); ok {
			return t.Segment.Start
		}
		if at := start(child); at > 0 {
			return at
		}
	}
	if node.Parent() != nil && node.Parent().Type() == ast.TypeBlock && node.Parent().Lines().Len() > 0 {
		return node.Parent().Lines().At(0).Start
	}
	return 0
}

// plain is the text of a node as it is read; code keeps its signs.
func plain(node ast.Node, content []byte) string {
	var b strings.Builder
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.CodeSpan:
			b.WriteByte('`')
		case *ast.Text:
			if entering {
				b.Write(n.Segment.Value(content))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

var signs = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// anchor adds a heading's anchor, as GitHub makes it.
func (p *page) anchor(heading string) {
	id := strings.ReplaceAll(strings.ToLower(signs.ReplaceAllString(heading, "")), " ", "-")
	for n := 1; p.anchors[id]; n++ {
		id = fmt.Sprintf("%s-%d", strings.TrimRight(id, "-0123456789"), n)
	}
	p.anchors[id] = true
}

// measure finds the lines of prose that are too long. Code, tables and lines without a space in the second half, such
// as a long link, can't be wrapped.
func (p *page) measure(content []byte) {
	fenced := false
	for i, l := range strings.Split(string(content), "\n") {
		if strings.HasPrefix(strings.TrimSpace(l), "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(strings.TrimSpace(l), "|") || utf8.RuneCountInString(l) <= columns {
			continue
		}
		if strings.Contains(strings.TrimSpace(l[:columns]), " ") && !strings.HasPrefix(l, "<!--") {
			p.long = append(p.long, fmt.Sprintf("%s:%d: %d columns of prose; wrap it at %d", p.file, i+1,
				utf8.RuneCountInString(l), columns))
		}
	}
}
