package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
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
