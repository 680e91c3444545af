package main

import (
	"fmt"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/overrides"
)

// patches returns the field runtimePatches. It keeps the entries that were there as they are; the others get the order
// of keys, the comments and the quotes of what they were made from. It takes only the comments that along reports true
// for: those between two fields stay where they are.
func (c *conversion) patches(spec *yamlv3.Node, along func(comment string) bool) (key, list *yamlv3.Node) {
	key = &yamlv3.Node{Kind: yamlv3.ScalarNode, Tag: "!!str", Value: overrides.RuntimePatches}
	list = &yamlv3.Node{Kind: yamlv3.SequenceNode, Tag: "!!seq"}
	made := c.plan.Patches[:len(c.plan.Patches)-len(c.before.Spec.RuntimePatches)]
	for i := range made {
		list.Content = append(list.Content, nodeOf(&made[i]))
	}
	a := aligner{placed: map[*string]bool{}, along: along}
	a.lists(spec, list)
	if k, old := entry(spec, overrides.RuntimePatches); old != nil {
		list.Content = append(list.Content, old.Content...)
		key.LineComment = k.LineComment
	}
	for _, name := range converted[:5] { // what is left of the comments stays with the field
		if k, v := entry(spec, name); v != nil {
			for _, comment := range comments(k, v) {
				if !a.placed[comment] && along(*comment) {
					list.HeadComment = strings.TrimPrefix(list.HeadComment+"\n"+*comment, "\n")
				}
			}
		}
	}
	return key, list
}

// nodeOf returns the nodes of a value in block style.
func nodeOf(v any) *yamlv3.Node {
	data, err := yaml.Marshal(v)
	if err != nil {
		return &yamlv3.Node{Kind: yamlv3.MappingNode}
	}
	var doc yamlv3.Node
	if err := yamlv3.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return &yamlv3.Node{Kind: yamlv3.MappingNode}
	}
	return doc.Content[0]
}

// comments returns the comments of a field, but for the head comment of its key, which stays where it is.
func comments(key, v *yamlv3.Node) []*string {
	var all []*string
	take := func(texts ...*string) {
		for _, text := range texts {
			if *text != "" {
				all = append(all, text)
			}
		}
	}
	take(&key.LineComment, &key.FootComment)
	var walk func(*yamlv3.Node)
	walk = func(n *yamlv3.Node) {
		take(&n.HeadComment, &n.LineComment, &n.FootComment)
		for _, child := range n.Content {
			walk(child)
		}
	}
	walk(v)
	return all
}

// aligner gives new nodes the order of keys, the comments and the style of those that they were made from.
type aligner struct {
	placed map[*string]bool
	along  func(comment string) bool
}

// lists aligns the entries of runtimePatches in list with the fields of the spec that they were made from.
func (a *aligner) lists(spec, list *yamlv3.Node) {
	converted := templateIn(list, overrides.ConvertedManager)
	for n := 2; converted == nil && n <= overrides.MaxEntries; n++ {
		converted = templateIn(list, fmt.Sprintf("%s-%d", overrides.ConvertedManager, n))
	}
	for _, e := range items(value(spec, overrides.PodTemplateOverrides)) {
		a.pods(e, converted, value(e, "metadata"), value(e, "spec"))
	}
	for _, e := range items(value(spec, overrides.PodSpecOverrides)) {
		a.pods(e, converted, nil, e)
	}
	for _, field := range []string{"labels", "annotations"} {
		a.align(path(converted, "metadata", field), value(spec, field))
	}
	for _, o := range items(value(spec, overrides.TemplateOverrides)) {
		a.history(o, list)
	}
}

// history aligns the entry made of a manager's templateOverrides.
func (a *aligner) history(o, list *yamlv3.Node) {
	made := templateIn(list, scalar(o, "manager"))
	if made == nil {
		made = templateIn(list, scalar(o, "manager")+overrides.HistorySuffix)
	}
	for _, e := range items(value(o, "job")) {
		if value(e, "targetJobs") == nil {
			a.align(path(made, "metadata"), value(e, "metadata"))
		}
	}
	for _, e := range items(value(o, "pod")) {
		a.pods(e, made, value(e, "metadata"), value(e, "spec"))
	}
}

// templateIn returns the JobSet template in a manager's entry of runtimePatches, nil where there is none.
func templateIn(list *yamlv3.Node, manager string) *yamlv3.Node {
	for _, p := range list.Content {
		if scalar(p, "manager") == manager {
			return path(p, "trainingRuntimeSpec", "template")
		}
	}
	return nil
}

// items returns the items of a list, none for nil.
func items(list *yamlv3.Node) []*yamlv3.Node {
	if list == nil {
		return nil
	}
	return list.Content
}

// pods aligns the patches of pods that were made of one element. The first of its ReplicatedJobs gets its comments.
func (a *aligner) pods(element, template, meta, spec *yamlv3.Node) {
	jobs := path(template, "spec", "replicatedJobs")
	targets := value(element, "targetJobs")
	if jobs == nil || targets == nil {
		return
	}
	for _, target := range targets.Content {
		for _, rj := range jobs.Content {
			if scalar(rj, "name") != scalar(target, "name") {
				continue
			}
			a.comment(rj, element)
			pod := path(rj, "template", "spec", "template")
			a.align(value(pod, "metadata"), meta)
			a.align(value(pod, "spec"), spec)
		}
	}
}

// path returns the value under nested keys, nil where there is none.
func path(node *yamlv3.Node, keys ...string) *yamlv3.Node {
	for _, key := range keys {
		node = value(node, key)
	}
	return node
}

// comment moves the comments of a node to the one that was made of it, each once.
func (a *aligner) comment(made, old *yamlv3.Node) {
	move := func(to, from *string) {
		if *from != "" && !a.placed[from] && a.along(*from) {
			a.placed[from] = true
			*to = strings.TrimPrefix(*to+"\n"+*from, "\n")
		}
	}
	move(&made.HeadComment, &old.HeadComment)
	move(&made.LineComment, &old.LineComment)
	move(&made.FootComment, &old.FootComment)
}

// align gives a node the order, the style and the comments of the old one that it was made from. Both may be nil.
func (a *aligner) align(made, old *yamlv3.Node) {
	if made == nil || old == nil || made.Kind != old.Kind {
		return
	}
	a.comment(made, old)
	switch made.Kind {
	case yamlv3.ScalarNode:
		if made.Value == old.Value && made.Tag == old.Tag {
			made.Style = old.Style
		}
	case yamlv3.MappingNode:
		made.Style = old.Style
		a.alignMapping(made, old)
	case yamlv3.SequenceNode:
		made.Style = old.Style
		for i, item := range old.Content {
			a.align(counterpart(made, item, i), item)
		}
	case yamlv3.DocumentNode, yamlv3.AliasNode: // manifests have none here
	}
}

// alignMapping moves the keys that the old mapping has to the front, in its order.
func (a *aligner) alignMapping(made, old *yamlv3.Node) {
	var ordered []*yamlv3.Node
	for i := 0; i+1 < len(old.Content); i += 2 {
		k, v := entry(made, old.Content[i].Value)
		if v == nil {
			continue
		}
		a.comment(k, old.Content[i])
		a.align(v, old.Content[i+1])
		remove(made, k)
		ordered = append(ordered, k, v)
	}
	made.Content = append(ordered, made.Content...)
}

// counterpart returns the item of a list that was made from another, by its name or path or else by its index i; nil
// where there is none.
func counterpart(list, item *yamlv3.Node, i int) *yamlv3.Node {
	for _, key := range []string{"mountPath", "name"} {
		if id := scalar(item, key); id != "" {
			for _, candidate := range list.Content {
				if scalar(candidate, key) == id {
					return candidate
				}
			}
			return nil
		}
	}
	if i < len(list.Content) {
		return list.Content[i]
	}
	return nil
}
