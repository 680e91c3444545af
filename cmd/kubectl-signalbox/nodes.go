package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/kyaml/comments"
	korder "sigs.k8s.io/kustomize/kyaml/order"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"
)

// parse returns the tree of a document, an empty node where it has nothing but comments.
func parse(doc string) (*kyaml.RNode, error) {
	root := &kyaml.Node{}
	err := kyaml.Unmarshal([]byte(doc), root)
	return kyaml.NewRNode(root), err
}

// encode returns a node as text.
func encode(node *kyaml.RNode) (string, error) {
	text, err := kyaml.MarshalWithOptions(node.Document(), &kyaml.EncoderOptions{SeqIndent: kyaml.WideSequenceStyle})
	return string(text), err
}

// decoded returns the object that Kubernetes reads from a node.
func decoded(node *kyaml.RNode) (*unstructured.Unstructured, error) {
	text, err := encode(bare(node))
	if err != nil {
		return nil, err
	}
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	return u, kjson.UnmarshalCaseSensitivePreserveInts(data, &u.Object)
}

// same reports whether a text and a node say the same.
func same(text string, node *kyaml.RNode) bool {
	var values [2]any
	encoded, err := encode(bare(node))
	for i, text := range []string{text, encoded} {
		data, invalid := yaml.YAMLToJSONStrict([]byte(text))
		err = errors.Join(err, invalid, json.Unmarshal(data, &values[i]))
	}
	return err == nil && reflect.DeepEqual(values[0], values[1])
}

// bare returns a node without its comments.
func bare(node *kyaml.RNode) *kyaml.RNode {
	node = node.Copy()
	for _, n := range nodesOf(node.Document()) {
		n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	}
	return node
}

// nodesOf returns a node and all within it.
func nodesOf(node *kyaml.Node) []*kyaml.Node {
	all := []*kyaml.Node{node}
	for _, child := range node.Content {
		all = append(all, nodesOf(child)...)
	}
	return all
}

// value returns the value of a field by its path, nil where there is none.
func value(node *kyaml.RNode, path ...string) *kyaml.RNode {
	for _, name := range path {
		field := node.Field(name)
		if field == nil {
			return nil
		}
		node = field.Value
	}
	return node
}

// items returns the items of a field, none where it isn't a list.
func items(node *kyaml.RNode, name string) []*kyaml.RNode {
	all, _ := value(node, name).Elements()
	return all
}

// scalar returns the value of a field as text, "" where there is none.
func scalar(node *kyaml.RNode, path ...string) string {
	return kyaml.GetValue(value(node, path...))
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
