package main

import (
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// edit replaces lines, counted from 0, by a text.
type edit struct {
	from, to int
	text     string
}

// editsOf returns the edits that convert a spec, and false where its fields are not on lines of their own.
func editsOf(doc string, spec *yamlv3.Node, c *conversion) ([]edit, bool) {
	if spec == nil || spec.Style&yamlv3.FlowStyle != 0 {
		return nil, false
	}
	edits := processesEdits(spec, c)
	if c.plan == nil {
		return edits, true
	}
	blocks, column, ok := blocksOf(strings.SplitAfter(doc, "\n"), spec)
	if !ok {
		return nil, false
	}
	var removed strings.Builder
	for i := range blocks {
		removed.WriteString(blocks[i].text)
		blocks[i].text = ""
	}
	key, list := c.patches(spec, func(comment string) bool { // whether it is on the lines that are removed
		return strings.Contains(removed.String(), strings.TrimSpace(strings.SplitN(comment, "\n", 2)[0]))
	})
	text, err := encode(&yamlv3.Node{Kind: yamlv3.MappingNode, Content: []*yamlv3.Node{key, list}})
	if err != nil {
		return nil, false
	}
	blocks[0].text = indent(text, column)
	return append(edits, blocks...), true
}

// processesEdits returns the edit of a number of processes that is a string, none where there is no such.
func processesEdits(spec *yamlv3.Node, c *conversion) []edit {
	trainer := value(spec, "trainer")
	if trainer == nil || trainer.Style&yamlv3.FlowStyle != 0 {
		return nil
	}
	k, v := entry(trainer, "numProcPerNode")
	if v == nil || v.Tag != "!!str" {
		return nil
	}
	e := edit{from: k.Line - 1, to: k.Line}
	if n := c.processes(); n != "" {
		e.text = strings.Repeat(" ", k.Column-1) + strings.TrimSpace("numProcPerNode: "+n+" "+v.LineComment) + "\n"
	} else if v.LineComment != "" {
		e.text = strings.Repeat(" ", k.Column-1) + v.LineComment + "\n"
	}
	return []edit{e}
}

// blocksOf returns the blocks of the fields that a conversion replaces, each with its trimmed lines as its text, and
// the column of the last. It returns false where there are none, or a field isn't the first on its line.
func blocksOf(lines []string, spec *yamlv3.Node) (blocks []edit, column int, ok bool) {
	for i := 0; i+1 < len(spec.Content); i += 2 {
		k := spec.Content[i]
		if !slices.Contains(converted, k.Value) {
			continue
		}
		if strings.TrimSpace(lines[k.Line-1][:min(k.Column-1, len(lines[k.Line-1]))]) != "" {
			return nil, 0, false
		}
		column = k.Column - 1
		block := edit{from: k.Line - 1, to: blockEnd(lines, k.Line-1, column)}
		for _, line := range lines[block.from:block.to] {
			block.text += strings.TrimSpace(line) + "\n"
		}
		blocks = append(blocks, block)
	}
	return blocks, column, len(blocks) > 0
}

// blockEnd returns the line after the last of the block that a key of the given indentation begins.
func blockEnd(lines []string, start, column int) int {
	end := start + 1
	for i := start + 1; i < len(lines); i++ {
		bare := strings.TrimRight(lines[i], " \t\r\n")
		trimmed := strings.TrimLeft(bare, " ")
		depth := len(bare) - len(trimmed)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#") && depth <= column:
			continue // of the block only if more of it follows
		case depth > column || depth == column && (trimmed == "-" || strings.HasPrefix(trimmed, "- ")):
			end = i + 1
			continue
		}
		break
	}
	return end
}

// indent returns the text with that many spaces before each line that isn't blank.
func indent(text string, columns int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			out.WriteString(strings.Repeat(" ", columns))
		}
		out.WriteString(line)
	}
	return out.String()
}

// applyEdits returns the document with the edits, which don't overlap.
func applyEdits(doc string, edits []edit) string {
	lines := strings.SplitAfter(doc, "\n")
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		lines = slices.Replace(lines, e.from, min(e.to, len(lines)), e.text)
	}
	return strings.Join(lines, "")
}
