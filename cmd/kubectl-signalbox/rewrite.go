package main

import (
	"errors"
	"fmt"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// rewrite converts the TrainJobs of a document. It changes only the lines of the fields that it converts; a document
// in flow style is written in block style first.
func rewrite(doc string, d legacy.Reader) (text string, jobs []*conversion, err error) {
	lines := strings.ReplaceAll(doc, "\r\n", "\n") // the library loses comments before other ends of lines
	text, jobs, err = rewriteLines(lines, d)
	if errors.Is(err, errNotOnLines) {
		if text, err = inBlockStyle(lines); err == nil {
			text, jobs, err = rewriteLines(text, d)
		}
	}
	if text == lines {
		return doc, jobs, err
	}
	if lines != doc {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	return text, jobs, err
}

// rewriteLines converts the TrainJobs of a document in block style. It makes each change in the lines and in the tree,
// and compares what the two say.
func rewriteLines(doc string, d legacy.Reader) (string, []*conversion, error) {
	root, err := parse(doc)
	if err != nil {
		return "", nil, err
	}
	var edits []edit
	var jobs []*conversion
	lines := strings.SplitAfter(doc, "\n")
	for _, node := range trainJobs(root) {
		job, made, err := convertNode(lines, node, d)
		if err != nil {
			return "", nil, fmt.Errorf("TrainJob %s (line %d): %w", scalar(node, "metadata", "name"), node.YNode().Line, err)
		}
		jobs, edits = append(jobs, job), append(edits, made...)
	}
	if len(edits) == 0 {
		return doc, jobs, nil
	}
	text := edited(lines, edits)
	if !same(text, root) {
		return "", nil, errNotOnLines
	}
	return text, jobs, nil
}

// convertNode converts a TrainJob in the tree, and returns the edits that do so in the lines.
func convertNode(lines []string, node *kyaml.RNode, d legacy.Reader) (*conversion, []edit, error) {
	for _, n := range nodesOf(node.YNode()) {
		if n.Kind == kyaml.AliasNode || n.Anchor != "" || n.Tag == kyaml.MergeTag {
			return nil, nil, fmt.Errorf("line %d has an anchor, an alias or a merge key of YAML, which would not survive; "+
				"write out what it refers to, and convert again", n.Line)
		}
	}
	u, err := decoded(node)
	if err != nil {
		return nil, nil, err
	}
	c := &conversion{}
	if err := c.decide(u, d); err != nil {
		return nil, nil, err
	}
	edits, err := c.edits(lines, value(node, "spec"))
	if err != nil {
		return nil, nil, err
	}
	c.converted, err = decoded(node)
	return c, edits, err
}

// trainJobs returns the TrainJobs of a document: the document itself, or the items of a list.
func trainJobs(node *kyaml.RNode) (all []*kyaml.RNode) {
	kind, version := scalar(node, "kind"), scalar(node, "apiVersion")
	if kind == trainerapi.TrainJobKind && strings.HasPrefix(version, trainerapi.GroupVersion.Group+"/") {
		return []*kyaml.RNode{node}
	}
	if strings.HasSuffix(kind, "List") {
		for _, item := range items(node, "items") {
			all = append(all, trainJobs(item)...)
		}
	}
	return all
}

// inBlockStyle returns a document in block style, with the separators that it has.
func inBlockStyle(doc string) (string, error) {
	root, err := parse(doc)
	if err != nil {
		return "", err
	}
	for _, node := range nodesOf(root.Document()) {
		node.Style &^= kyaml.FlowStyle
	}
	block, err := withComments(root, root)
	if strings.HasPrefix(doc, "---") {
		block = "---\n" + block
	}
	if strings.HasSuffix(strings.TrimRight(doc, " \t\r\n"), "\n...") {
		block += "...\n"
	}
	return block, err
}

// edits makes the conversion in the tree of a spec, and returns the edits that make it in the lines.
func (c *conversion) edits(lines []string, spec *kyaml.RNode) (edits []edit, err error) {
	if c.hadWord {
		in, name := spec, "trainer"
		if trainer := value(spec, name); trainer.YNode().Style&kyaml.FlowStyle == 0 && len(trainer.Content()) > 2 {
			in, name = trainer, numProcPerNode
		}
		if edits, err = replace(lines, in, []string{name}, c.withoutWord); err != nil {
			return nil, err
		}
	}
	if c.plan == nil {
		return edits, nil
	}
	made, err := replace(lines, spec, converted, c.patches)
	return append(edits, made...), err
}
