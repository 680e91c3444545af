package main

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// errNotOnLines is returned where a field that is converted isn't on lines of its own.
var errNotOnLines = errors.New("its fields aren't on lines of their own; write it in block style, and convert again")

// edit replaces lines, counted from 0, by a text that is indented.
type edit struct {
	from, to, column int
	text             string
}

// replace replaces fields of a mapping by those that are made of them: in the tree, and by the edits of the lines. What
// is made lacks of the comments stands before it.
func replace(
	lines []string, in *kyaml.RNode, names []string, of func(old *kyaml.RNode) (*kyaml.RNode, error),
) ([]edit, error) {
	fields, rest, removed := kyaml.NewMapRNode(nil), []*kyaml.Node{}, ""
	var edits []edit
	for pair := range slices.Chunk(in.Content(), 2) {
		if !slices.Contains(names, pair[0].Value) {
			rest = append(rest, pair...)
			continue
		}
		e, ok := fieldOf(lines, pair[0])
		if !ok {
			return nil, errNotOnLines
		}
		fields.YNode().Content = append(fields.YNode().Content, pair...)
		edits, removed = append(edits, e), removed+strings.Join(lines[e.from:e.to], "")
	}
	old, err := parse(removed)
	if err != nil || !same(removed, fields) {
		return nil, errNotOnLines
	}
	made, err := of(old)
	if err != nil {
		return nil, err
	}
	in.YNode().Content = slices.Concat(rest, made.Content())
	if edits[0].text, err = withComments(old, made); len(made.Content()) == 0 {
		edits[0].text = strings.TrimSuffix(edits[0].text, "{}\n")
	}
	return edits, err
}

// fieldOf returns an edit that removes the lines of a field, and false where it isn't the first on its line.
func fieldOf(lines []string, key *kyaml.Node) (e edit, ok bool) {
	e = edit{from: key.Line - 1, to: key.Line, column: key.Column - 1}
	if e.from >= len(lines) || strings.TrimSpace(lines[e.from][:min(e.column, len(lines[e.from]))]) != "" {
		return e, false
	}
	for i := e.to; i < len(lines); i++ {
		bare := strings.TrimRight(lines[i], " \t\n")
		trimmed := strings.TrimLeft(bare, " ")
		depth := len(bare) - len(trimmed)
		if trimmed == "" || strings.HasPrefix(trimmed, "#") && depth <= e.column {
			continue // of the field only if more of it follows
		}
		if depth < e.column || depth == e.column && trimmed != "-" && !strings.HasPrefix(trimmed, "- ") {
			break
		}
		e.to = i + 1
	}
	return e, true
}

// filled matches the begin of each line that isn't empty.
var filled = regexp.MustCompile(`(?m)^.`)

// edited returns the document of the lines with the edits, which don't overlap.
func edited(lines []string, edits []edit) string {
	lines = slices.Clone(lines)
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		text := filled.ReplaceAllString(e.text, strings.Repeat(" ", e.column)+"$0")
		lines = slices.Replace(lines, e.from, e.to, text)
	}
	return strings.Join(lines, "")
}
