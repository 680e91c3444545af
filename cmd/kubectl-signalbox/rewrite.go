package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// conversion is that of one TrainJob.
type conversion struct {
	before    *api.TrainJob
	converted *unstructured.Unstructured
	plan      *overrides.Conversion // nil where there is nothing to convert
	changes   []string
	lost      []string
}

// name returns the TrainJob's name, after its namespace where it has one.
func (c *conversion) name() string {
	if c.before.Namespace == "" {
		return c.before.Name
	}
	return c.before.Namespace + "/" + c.before.Name
}

// rewritten is a document as it was converted.
type rewritten struct {
	text string
	jobs []*conversion
}

// rewrite converts the TrainJobs of a document. It changes only the lines of the fields that it converts; where it
// can't, in a document in flow style, it writes the whole document.
func rewrite(doc string, d overrides.Reader) (*rewritten, error) {
	var root yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(doc), &root); err != nil {
		return nil, err
	}
	r := &rewritten{text: doc}
	if len(root.Content) == 0 {
		return r, nil // nothing but comments
	}
	changes := changes{byLine: true}
	for _, node := range trainJobs(root.Content[0]) {
		job, err := changes.add(doc, node, d)
		if err != nil {
			return nil, err
		}
		r.jobs = append(r.jobs, job)
	}
	if !changes.any {
		return r, nil
	}
	whole, err := wholeOf(doc, &root)
	if err != nil {
		return nil, err
	}
	r.text = whole
	if text := applyEdits(doc, changes.edits); changes.byLine && sameDocument(text, whole) {
		r.text = text
	}
	if strings.Contains(doc, "\r\n") {
		r.text = strings.ReplaceAll(strings.ReplaceAll(r.text, "\r\n", "\n"), "\n", "\r\n")
	}
	return r, nil
}

// changes are those of a document.
type changes struct {
	any bool
	// edits make them; byLine is false where the whole document has to be written.
	edits  []edit
	byLine bool
}

// add decides the changes of a TrainJob and makes them in the document's tree.
func (c *changes) add(doc string, node *yamlv3.Node, d overrides.Reader) (*conversion, error) {
	if line := aliased(node); line > 0 {
		return nil, fmt.Errorf("TrainJob %s (line %d): line %d has an anchor, an alias or a merge key of YAML, which "+
			"would not "+
			"survive; write out what it refers to, and convert again", scalar(value(node, "metadata"), "name"), node.Line, line)
	}
	job, err := plan(node, d)
	if err != nil || job.plan == nil && len(job.changes) == 0 {
		return job, err
	}
	c.any = true
	spec := value(node, "spec")
	edits, ok := editsOf(doc, spec, job)
	c.byLine = c.byLine && ok
	c.edits = append(c.edits, edits...)
	apply(spec, job)
	job.converted, err = decoded(node)
	return job, err
}

// wholeOf returns the document's tree as text, with the separators that the document has.
func wholeOf(doc string, root *yamlv3.Node) (string, error) {
	whole, err := encode(root)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(doc, "---") {
		whole = "---\n" + whole
	}
	if strings.HasSuffix(strings.TrimRight(doc, " \t\r\n"), "\n...") {
		whole += "...\n"
	}
	return whole, nil
}

// decoded returns the object that Kubernetes reads from a node.
func decoded(node *yamlv3.Node) (*unstructured.Unstructured, error) {
	text, err := encode(node)
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

// plan decides the conversion of a TrainJob.
func plan(node *yamlv3.Node, d overrides.Reader) (*conversion, error) {
	u, err := decoded(node)
	if err != nil {
		return nil, err
	}
	c := &conversion{converted: u.DeepCopy()}
	if err := c.decide(u, d); err != nil {
		return nil, fmt.Errorf("TrainJob %s (line %d): %w", u.GetName(), node.Line, err)
	}
	return c, nil
}

// decide fills in the conversion of a TrainJob, which it may change.
func (c *conversion) decide(u *unstructured.Unstructured, d overrides.Reader) error {
	word, hadWord, err := takeWord(u, c)
	if err != nil {
		return err
	}
	unknown, err := c.read(u)
	if err != nil {
		return err
	}
	c.lost = append(c.lost, withoutEquivalent(unknown)...)
	c.lost = append(c.lost, uncarried(u)...)
	if hadWord {
		c.changes = append(c.changes, word)
	}
	if !overrides.Needed(c.before) {
		return nil
	}
	if c.plan, err = overrides.Convert(d, c.before); err != nil {
		return err
	}
	c.changes = append(c.changes, c.plan.Changes...)
	c.lost = append(c.lost, c.plan.Lost...)
	return nil
}

// read sets before, and returns an error for each field that a TrainJob doesn't have.
func (c *conversion) read(u *unstructured.Unstructured) (unknown []error, err error) {
	data, err := u.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var plain struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              api.TrainJobSpec `json:"spec"`
		Status            any              `json:"status"`
	}
	unknown, err = kjson.UnmarshalStrict(data, &plain)
	c.before = &api.TrainJob{TypeMeta: plain.TypeMeta, ObjectMeta: plain.ObjectMeta, Spec: plain.Spec}
	return unknown, err
}

// withoutEquivalent describes the unknown fields within the lists that are converted.
func withoutEquivalent(unknown []error) []string {
	var lost []string
	for _, problem := range unknown {
		for _, field := range []string{
			overrides.PodTemplateOverrides, overrides.TemplateOverrides, overrides.PodSpecOverrides,
		} {
			if strings.Contains(problem.Error(), `"spec.`+field) {
				lost = append(lost, problem.Error()+", which runtimePatches have none for; set it in the runtime")
			}
		}
	}
	return lost
}

// uncarried describes the metadata of overrides other than labels and annotations, which no Trainer takes.
func uncarried(u *unstructured.Unstructured) []string {
	var lost []string
	look := func(path string, element any) {
		e, _ := element.(map[string]any)
		meta, _ := e["metadata"].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(meta)) {
			if key != "labels" && key != "annotations" && key != "creationTimestamp" {
				lost = append(lost, fmt.Sprintf("%s.metadata.%s: only labels and annotations can be changed; take it out", path,
					key))
			}
		}
	}
	spec, _ := u.Object["spec"].(map[string]any)
	list, _ := spec[overrides.PodTemplateOverrides].([]any)
	for i, element := range list {
		look(fmt.Sprintf("spec.%s[%d]", overrides.PodTemplateOverrides, i), element)
	}
	histories, _ := spec[overrides.TemplateOverrides].([]any)
	for _, history := range histories {
		h, _ := history.(map[string]any)
		for _, name := range []string{"job", "pod"} {
			entries, _ := h[name].([]any)
			for i, element := range entries {
				look(fmt.Sprintf("spec.%s[%v].%s[%d]", overrides.TemplateOverrides, h["manager"], name, i), element)
			}
		}
	}
	return lost
}

// takeWord removes a number of processes that is a string, which TrainJobs could have before Kubeflow Trainer v2.2. A
// number in it is set as a number. It returns a description of the change, and whether there was such a string.
func takeWord(u *unstructured.Unstructured, c *conversion) (change string, found bool, err error) {
	path := []string{"spec", "trainer", "numProcPerNode"}
	at, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	word, isWord := at.(string)
	if err != nil || !found || !isWord {
		return "", false, err
	}
	unstructured.RemoveNestedField(u.Object, path...)
	if n, err := strconv.ParseInt(word, 10, 32); err == nil {
		return fmt.Sprintf("spec.trainer.numProcPerNode is %d, a number", n), true, unstructured.SetNestedField(u.Object, n,
			path...)
	}
	if word != "auto" {
		c.lost = append(c.lost, fmt.Sprintf("spec.trainer.numProcPerNode: %q is not known to Kubeflow Trainer v2.2 and "+
			"later; give the number of processes", word))
	}
	return fmt.Sprintf("spec.trainer.numProcPerNode %q is left out; the default is auto", word), true, nil
}

// converted are the fields of a spec that a conversion may change.
var converted = []string{overrides.PodTemplateOverrides, overrides.PodSpecOverrides, overrides.TemplateOverrides,
	"labels", "annotations", overrides.RuntimePatches}

// apply makes the changes in the document's tree.
func apply(spec *yamlv3.Node, c *conversion) {
	if job := value(spec, "trainer"); job != nil {
		if k, v := entry(job, "numProcPerNode"); v != nil && v.Tag == "!!str" {
			if n := c.processes(); n != "" {
				v.Tag, v.Value, v.Style = "!!int", n, 0
			} else {
				remove(job, k)
			}
		}
	}
	if c.plan == nil {
		return
	}
	key, list := c.patches(spec, func(string) bool { return true })
	at := -1
	for i := 0; i+1 < len(spec.Content); i += 2 {
		if slices.Contains(converted, spec.Content[i].Value) {
			if at < 0 {
				at = i
				key.HeadComment = spec.Content[i].HeadComment
			}
			spec.Content = slices.Delete(spec.Content, i, i+2)
			i -= 2
		}
	}
	spec.Content = slices.Insert(spec.Content, at, key, list)
}

// processes returns the number of processes for a node, "" where the TrainJob has none.
func (c *conversion) processes() string {
	if c.before.Spec.Trainer == nil || c.before.Spec.Trainer.NumProcPerNode == nil {
		return ""
	}
	return strconv.Itoa(int(*c.before.Spec.Trainer.NumProcPerNode))
}

// sameDocument reports whether two texts of YAML have the same content.
func sameDocument(a, b string) bool {
	x, err1 := yaml.YAMLToJSONStrict([]byte(a))
	y, err2 := yaml.YAMLToJSONStrict([]byte(b))
	if err1 != nil || err2 != nil {
		return false
	}
	var p, q any
	return json.Unmarshal(x, &p) == nil && json.Unmarshal(y, &q) == nil && reflect.DeepEqual(p, q)
}
