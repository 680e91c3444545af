package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// conversion is that of one TrainJob.
type conversion struct {
	before    *api.TrainJob
	converted *unstructured.Unstructured
	plan      *legacy.Conversion // nil where there is nothing to convert
	hadWord   bool               // whether the number of processes is a string
	changes   []string
	lost      []string
}

const numProcPerNode = "numProcPerNode"

// elementFields are the fields of a spec with elements of overrides.
var elementFields = []string{legacy.PodTemplateOverrides, legacy.PodSpecOverrides, legacy.TemplateOverrides}

// converted are the fields of a spec that a conversion may change.
var converted = slices.Concat(elementFields, []string{"labels", "annotations", overrides.RuntimePatches})

// decide fills in the conversion of a TrainJob, which it changes.
func (c *conversion) decide(u *unstructured.Unstructured, d legacy.Reader) error {
	if err := c.takeWord(u); err != nil {
		return err
	}
	delete(u.Object, "status")
	data, err := u.MarshalJSON()
	if err != nil {
		return err
	}
	type plain api.TrainJob // without its UnmarshalJSON, which isn't strict
	c.before = &api.TrainJob{}
	unknown, err := kjson.UnmarshalStrict(data, (*plain)(c.before))
	for _, problem := range unknown {
		if slices.ContainsFunc(elementFields, func(f string) bool { return strings.Contains(problem.Error(), `"spec.`+f) }) {
			c.lost = append(c.lost, problem.Error()+", which runtimePatches have none for; set it in the runtime")
		}
	}
	c.lost = append(c.lost, uncarried(&c.before.Spec)...)
	if err != nil || !legacy.Needed(c.before) {
		return err
	}
	if c.plan, err = legacy.Convert(d, c.before); err != nil {
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

// patches returns the field runtimePatches that is made of the old fields. The entries that were there stay as they
// are; the others get the order of keys, the comments and the quotes of what they were made from.
func (c *conversion) patches(old *kyaml.RNode) (*kyaml.RNode, error) {
	patches := append([]trainerapi.RuntimePatch{}, c.plan.Patches...) // [] where there are none, and not null
	data, err := yaml.Marshal(patches[:len(patches)-len(c.before.Spec.RuntimePatches)])
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
		if name == manager || name == manager+legacy.HistorySuffix ||
			manager == "" && strings.HasPrefix(name, legacy.ConvertedManager) {
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
