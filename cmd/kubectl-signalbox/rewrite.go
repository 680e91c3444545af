package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// conversion is that of one TrainJob.
type conversion struct {
	before    *api.TrainJob
	converted *unstructured.Unstructured
	plan      *overrides.Conversion // nil where there is nothing to convert
	hadWord   bool                  // whether the number of processes is a string
	changes   []string
	lost      []string
}

const numProcPerNode = "numProcPerNode"

// elementFields are the fields of a spec with elements of overrides.
var elementFields = []string{overrides.PodTemplateOverrides, overrides.PodSpecOverrides, overrides.TemplateOverrides}

// converted are the fields of a spec that a conversion may change.
var converted = append(elementFields, "labels", "annotations", overrides.RuntimePatches)

// rewrite converts the TrainJobs of a document. It changes only the lines of the fields that it converts; a document
// in flow style is written in block style first.
func rewrite(doc string, d overrides.Reader) (text string, jobs []*conversion, err error) {
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
func rewriteLines(doc string, d overrides.Reader) (string, []*conversion, error) {
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
func convertNode(lines []string, node *kyaml.RNode, d overrides.Reader) (*conversion, []edit, error) {
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

// decide fills in the conversion of a TrainJob, which it changes.
func (c *conversion) decide(u *unstructured.Unstructured, d overrides.Reader) error {
	if err := c.takeWord(u); err != nil {
		return err
	}
	delete(u.Object, "status")
	data, err := u.MarshalJSON()
	if err != nil {
		return err
	}
	var plain struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              api.TrainJobSpec `json:"spec"`
	}
	unknown, err := kjson.UnmarshalStrict(data, &plain)
	c.before = &api.TrainJob{TypeMeta: plain.TypeMeta, ObjectMeta: plain.ObjectMeta, Spec: plain.Spec}
	for _, problem := range unknown {
		if slices.ContainsFunc(elementFields, func(f string) bool { return strings.Contains(problem.Error(), `"spec.`+f) }) {
			c.lost = append(c.lost, problem.Error()+", which runtimePatches have none for; set it in the runtime")
		}
	}
	c.lost = append(c.lost, uncarried(&c.before.Spec)...)
	if err != nil || !overrides.Needed(c.before) {
		return err
	}
	if c.plan, err = overrides.Convert(d, c.before); err != nil {
		return err
	}
	c.changes = append(c.changes, c.plan.Changes...)
	c.lost = append(c.lost, c.plan.Lost...)
	return nil
}

// takeWord removes a number of processes that is a string, which TrainJobs could have before Kubeflow Trainer v2.2. A
// number in it is set as a number.
func (c *conversion) takeWord(u *unstructured.Unstructured) error {
	path := []string{"spec", "trainer", numProcPerNode}
	at, _, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	word, isWord := at.(string)
	if err != nil || !isWord {
		return err
	}
	c.hadWord = true
	if n, err := strconv.ParseInt(word, 10, 32); err == nil {
		c.changes = append(c.changes, fmt.Sprintf("spec.trainer.numProcPerNode is %d, a number", n))
		return unstructured.SetNestedField(u.Object, n, path...)
	}
	unstructured.RemoveNestedField(u.Object, path...)
	c.changes = append(c.changes, fmt.Sprintf("spec.trainer.numProcPerNode %q is left out; the default is auto", word))
	if word != "auto" {
		c.lost = append(c.lost, fmt.Sprintf("spec.trainer.numProcPerNode: %q is not known to Kubeflow Trainer v2.2 and "+
			"later; give the number of processes", word))
	}
	return nil
}

// uncarried describes the metadata of overrides other than labels and annotations, which no Trainer takes.
func uncarried(spec *api.TrainJobSpec) (lost []string) {
	look := func(metadata *metav1.ObjectMeta, format string, path ...any) {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cmp.Or(metadata, &metav1.ObjectMeta{}))
		if err != nil {
			return
		}
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			if key != "labels" && key != "annotations" && key != "creationTimestamp" {
				lost = append(lost, fmt.Sprintf(format+".metadata.%s: only labels and annotations can be changed; take it out",
					append(path, key)...))
			}
		}
	}
	for i, e := range spec.PodTemplateOverrides {
		look(e.Metadata, "spec.podTemplateOverrides[%d]", i)
	}
	for _, o := range spec.TemplateOverrides {
		for i, e := range o.Job {
			look(e.Metadata, "spec.templateOverrides[%s].job[%d]", o.Manager, i)
		}
		for i, e := range o.Pod {
			look(e.Metadata, "spec.templateOverrides[%s].pod[%d]", o.Manager, i)
		}
	}
	return lost
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

// withoutWord returns a field with the number of processes as a number, or without it.
func (c *conversion) withoutWord(old *kyaml.RNode) (*kyaml.RNode, error) {
	made := old.Copy()
	in := made
	if trainer := value(made, "trainer"); trainer != nil {
		in = trainer
	}
	if c.before.Spec.Trainer.NumProcPerNode == nil {
		return made, in.PipeE(kyaml.Clear(numProcPerNode))
	}
	number := value(in, numProcPerNode).YNode()
	number.Tag, number.Style = kyaml.NodeTagInt, 0
	number.Value = strconv.Itoa(int(*c.before.Spec.Trainer.NumProcPerNode))
	return made, nil
}
