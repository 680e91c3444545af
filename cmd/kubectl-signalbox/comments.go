package main

import (
	"errors"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/comments"
	korder "sigs.k8s.io/kustomize/kyaml/order"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/overrides"
)

// patches returns the field runtimePatches that is made of the old fields. The entries that were there stay as they
// are; the others get the order of keys, the comments and the quotes of what they were made from.
func (c *conversion) patches(old *kyaml.RNode) (*kyaml.RNode, error) {
	data, err := yaml.Marshal(c.plan.Patches[:len(c.plan.Patches)-len(c.before.Spec.RuntimePatches)])
	if err != nil {
		return nil, err
	}
	list, err := parse(string(data))
	if err != nil {
		return nil, err
	}
	key := kyaml.NewStringRNode(overrides.RuntimePatches)
	err = dressList(list, old.Copy())
	list.YNode().Style = 0
	if there := old.Field(overrides.RuntimePatches); there != nil {
		key = there.Key
		list.YNode().Content = append(list.Content(), there.Value.Content()...)
	}
	made := kyaml.NewMapRNode(nil)
	made.YNode().Content = []*kyaml.Node{key.YNode(), list.YNode()}
	return made, err
}

// withComments returns a node as text, after the comments of the old one that it lacks.
func withComments(old, made *kyaml.RNode) (string, error) {
	text, err := encode(made)
	if err != nil || !same(text, made) { // the library writes some comments so that what follows says something else
		if text, err = encode(bare(made)); err != nil {
			return "", err
		}
	}
	there, err := parse(text)
	return strings.Join(append(missing(old, there), text), "\n"), err
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

// missing returns the comments that an old node has, and the one made of it hasn't.
func missing(old, made *kyaml.RNode) []string {
	there := commentsOf(made)
	return slices.DeleteFunc(commentsOf(old), func(line string) bool {
		i := slices.Index(there, line)
		if i >= 0 {
			there = slices.Delete(there, i, i+1)
		}
		return i >= 0
	})
}

// commentsOf returns the lines of the comments in a node.
func commentsOf(node *kyaml.RNode) (lines []string) {
	for _, n := range nodesOf(node.YNode()) {
		lines = append(lines, strings.Split(n.HeadComment+"\n"+n.LineComment+"\n"+n.FootComment, "\n")...)
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// dressList dresses the entries of a list as the fields that they were made of.
func dressList(list, fields *kyaml.RNode) error {
	var errs []error
	for _, name := range elementFields {
		for _, e := range items(fields, name) {
			template := templateIn(list, scalar(e, "manager"))
			for _, element := range slices.Concat([]*kyaml.RNode{e}, items(e, "job"), items(e, "pod")) {
				errs = append(errs, dressElement(template, element))
			}
		}
	}
	for _, name := range []string{"labels", "annotations"} {
		errs = append(errs, dress(value(templateIn(list, ""), "metadata", name), value(fields, name)))
	}
	return errors.Join(errs...)
}

// templateIn returns the JobSet template in the entry made of a manager's, or of the shapes without managers for "".
func templateIn(list *kyaml.RNode, manager string) *kyaml.RNode {
	for _, entry := range list.Content() {
		e := kyaml.NewRNode(entry)
		name := scalar(e, "manager")
		if name == manager || name == manager+overrides.HistorySuffix ||
			manager == "" && strings.HasPrefix(name, overrides.ConvertedManager) {
			return value(e, "trainingRuntimeSpec", "template")
		}
	}
	return nil
}

// dressElement dresses what was made of an element: the JobSet's metadata, or the pods of each of its ReplicatedJobs.
func dressElement(template, element *kyaml.RNode) error {
	metadata, spec := value(element, "metadata"), value(element, "spec")
	if value(element, "targetJobs") == nil {
		return dress(value(template, "metadata"), metadata)
	}
	comment := element.YNode().HeadComment
	if spec == nil { // of podSpecOverrides
		spec = element
		spec.YNode().HeadComment = ""
	}
	var errs []error
	for _, target := range items(element, "targetJobs") {
		if job := value(template, "spec", "replicatedJobs").Element("name", scalar(target, "name")); job != nil {
			job.YNode().HeadComment = strings.Trim(job.YNode().HeadComment+"\n"+comment, "\n")
			pod := value(job, "template", "spec", "template")
			errs = append(errs, dress(value(pod, "metadata"), metadata), dress(value(pod, "spec"), spec))
		}
	}
	return errors.Join(errs...)
}

// dress gives a node the comments, the order of keys and the style of the one that it was made of.
func dress(made, old *kyaml.RNode) error {
	if made == nil || old == nil {
		return nil
	}
	old = old.Copy()
	align(made, old) // kyaml pairs the items of lists by their places
	err := errors.Join(comments.CopyComments(old, made), korder.SyncOrder(old, made))
	align(made, old) // CopyComments changes the style of folded text
	return err
}

// align gives a node the style of the one that it was made of, and the items of old lists the places of those made of
// them.
func align(made, old *kyaml.RNode) {
	m, o := made.YNode(), old.YNode()
	if m.Kind != o.Kind || m.Kind == kyaml.ScalarNode && (m.Value != o.Value || m.Tag != o.Tag) {
		return
	}
	m.Style = o.Style
	if m.Kind == kyaml.MappingNode {
		for pair := range slices.Chunk(m.Content, 2) {
			if from := value(old, pair[0].Value); from != nil {
				align(kyaml.NewRNode(pair[1]), from)
			}
		}
		return
	}
	ordered := make([]*kyaml.Node, len(m.Content))
	for i := range ordered {
		item := kyaml.NewRNode(m.Content[i])
		from := counterpart(item, old)
		align(item, from)
		ordered[i] = from.YNode()
	}
	o.Content = ordered
}

// counterpart returns the old item that one was made of: it has the same name, or says the same. It returns an empty
// one where there is none.
func counterpart(made, list *kyaml.RNode) *kyaml.RNode {
	name := scalar(made, "name")
	for _, item := range list.Content() {
		old := kyaml.NewRNode(item)
		text, err := encode(old)
		if name != "" && scalar(old, "name") == name || err == nil && same(text, made) {
			return old
		}
	}
	return kyaml.NewRNode(&kyaml.Node{Kind: made.YNode().Kind})
}
