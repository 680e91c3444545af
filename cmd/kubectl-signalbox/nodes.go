package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	yamlv3 "go.yaml.in/yaml/v3"
)

// aliased returns the line of the first anchor, alias or merge key in a node, 0 where there is none.
func aliased(node *yamlv3.Node) int {
	if node.Kind == yamlv3.AliasNode || node.Anchor != "" || node.Tag == "!!merge" {
		return node.Line
	}
	for _, child := range node.Content {
		if line := aliased(child); line > 0 {
			return line
		}
	}
	return 0
}

// trainJobs returns the TrainJobs of a document: the document itself, or the items of a list.
func trainJobs(node *yamlv3.Node) []*yamlv3.Node {
	kind, group := scalar(node, "kind"), scalar(node, "apiVersion")
	switch {
	case kind == trainerapi.TrainJobKind && strings.HasPrefix(group, trainerapi.GroupVersion.Group+"/"):
		return []*yamlv3.Node{node}
	case strings.HasSuffix(kind, "List"):
		var all []*yamlv3.Node
		if items := value(node, "items"); items != nil {
			for _, item := range items.Content {
				all = append(all, trainJobs(item)...)
			}
		}
		return all
	}
	return nil
}

// value returns the value of a key, nil where there is none.
func value(node *yamlv3.Node, key string) *yamlv3.Node {
	_, v := entry(node, key)
	return v
}

// entry returns a key of a mapping and its value, nil where there is none.
func entry(node *yamlv3.Node, key string) (k, v *yamlv3.Node) {
	if node == nil || node.Kind != yamlv3.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i], node.Content[i+1]
		}
	}
	return nil, nil
}

// scalar returns the value of a key as text, "" where there is none.
func scalar(node *yamlv3.Node, key string) string {
	if v := value(node, key); v != nil {
		return v.Value
	}
	return ""
}

// encode returns a node as text.
func encode(node *yamlv3.Node) (string, error) {
	var out bytes.Buffer
	e := yamlv3.NewEncoder(&out)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(node), e.Close()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// remove removes a key and its value.
func remove(node, key *yamlv3.Node) {
	i := slices.Index(node.Content, key)
	node.Content = slices.Delete(node.Content, i, i+2)
}
