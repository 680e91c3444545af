package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	yamlv3 "go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// documents splits a file of YAML at its separators. A "---" stays with the document that follows it, as do comments and
// directives before it; a "..." stays with the one that it ends.
func documents(text string) []string {
	var docs []string
	var doc strings.Builder
	content := false
	next := func() {
		docs = append(docs, doc.String())
		doc.Reset()
		content = false
	}
	for line := range strings.Lines(text) {
		bare := strings.TrimRight(line, " \t\r\n")
		begins := bare == "---" || strings.HasPrefix(line, "--- ")
		if begins && content {
			next()
		}
		doc.WriteString(line)
		content = content || begins || bare != "" && !strings.HasPrefix(bare, "#") && !strings.HasPrefix(bare, "%")
		if bare == "..." {
			next()
		}
	}
	if doc.Len() > 0 {
		docs = append(docs, doc.String())
	}
	return docs
}

// conversion is what becomes of one TrainJob.
type conversion struct {
	before    *api.TrainJob
	converted *unstructured.Unstructured
	plan      *overrides.Conversion // nil where there is nothing to convert
	changes   []string
	lost      []string
}

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

// rewrite converts the TrainJobs of a document. Only the lines of the fields that are converted change; where that can't
// be done, in a document that is written in flow style, the whole of it is written anew.
func rewrite(doc string, d overrides.Dialect) (*rewritten, error) {
	var root yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(doc), &root); err != nil {
		return nil, err
	}
	result := &rewritten{text: doc}
	if len(root.Content) == 0 {
		return result, nil // nothing but comments
	}
	var edits []edit
	surgical, changed := true, false
	for _, node := range trainJobs(root.Content[0]) {
		if line := aliased(node); line > 0 {
			return nil, fmt.Errorf("TrainJob %s (line %d): line %d has an anchor, an alias or a merge key of YAML, which would not survive; write out what it stands for, and convert again",
				scalar(value(node, "metadata"), "name"), node.Line, line)
		}
		job, err := plan(node, d)
		if err != nil {
			return nil, err
		}
		result.jobs = append(result.jobs, job)
		if job.plan == nil && len(job.changes) == 0 {
			continue
		}
		changed = true
		spec := value(node, "spec")
		lines, ok := editsOf(doc, spec, job)
		surgical = surgical && ok
		edits = append(edits, lines...)
		apply(spec, job)
		if job.converted, err = decoded(node); err != nil {
			return nil, err
		}
	}
	if !changed {
		return result, nil
	}
	whole, err := encode(&root)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(doc, "---") {
		whole = "---\n" + whole
	}
	if strings.HasSuffix(strings.TrimRight(doc, " \t\r\n"), "\n...") {
		whole += "...\n"
	}
	result.text = whole
	if text := applyEdits(doc, edits); surgical && sameDocument(text, whole) {
		result.text = text
	}
	if strings.Contains(doc, "\r\n") {
		result.text = strings.ReplaceAll(strings.ReplaceAll(result.text, "\r\n", "\n"), "\n", "\r\n")
	}
	return result, nil
}

// aliased is the line of the first anchor, alias or merge key in a node, 0 where there is none.
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

// trainJobs returns the TrainJobs of a document: itself, or the items of a list.
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

func value(node *yamlv3.Node, key string) *yamlv3.Node {
	_, v := entry(node, key)
	return v
}

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

func scalar(node *yamlv3.Node, key string) string {
	if v := value(node, key); v != nil {
		return v.Value
	}
	return ""
}

func encode(node *yamlv3.Node) (string, error) {
	var out bytes.Buffer
	e := yamlv3.NewEncoder(&out)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(node), e.Close()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// decoded reads a node as Kubernetes reads YAML.
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

// plan decides what becomes of a TrainJob.
func plan(node *yamlv3.Node, d overrides.Dialect) (*conversion, error) {
	u, err := decoded(node)
	if err != nil {
		return nil, err
	}
	c := &conversion{converted: u.DeepCopy()}
	name := u.GetName()
	where := fmt.Sprintf("TrainJob %s (line %d)", name, node.Line)
	words, hadWord, err := takeWord(u, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	data, err := u.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	var plain struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              api.TrainJobSpec `json:"spec"`
		Status            any              `json:"status"`
	}
	unknown, err := kjson.UnmarshalStrict(data, &plain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	c.before = &api.TrainJob{TypeMeta: plain.TypeMeta, ObjectMeta: plain.ObjectMeta, Spec: plain.Spec}
	for _, problem := range unknown {
		for _, field := range []string{overrides.PodTemplateOverrides, overrides.TemplateOverrides, overrides.PodSpecOverrides} {
			if strings.Contains(problem.Error(), `"spec.`+field) {
				c.lost = append(c.lost, problem.Error()+", which runtimePatches have none for; set it in the runtime")
			}
		}
	}
	c.lost = append(c.lost, uncarried(u)...)
	if hadWord {
		c.changes = append(c.changes, words)
	}
	if !overrides.Needed(c.before) {
		return c, nil
	}
	if c.plan, err = d.Convert(c.before); err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	c.changes = append(c.changes, c.plan.Changes...)
	c.lost = append(c.lost, c.plan.Lost...)
	return c, nil
}

// uncarried says what an override's metadata has beside labels and annotations: no Trainer takes it.
func uncarried(u *unstructured.Unstructured) []string {
	var lost []string
	look := func(path string, element any) {
		e, _ := element.(map[string]any)
		meta, _ := e["metadata"].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(meta)) {
			if key != "labels" && key != "annotations" && key != "creationTimestamp" {
				lost = append(lost, fmt.Sprintf("%s.metadata.%s: only labels and annotations can be changed; take it out", path, key))
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

// takeWord takes a number of processes that is a word, as TrainJobs could have it before Kubeflow Trainer v2.2, out of
// the TrainJob.
func takeWord(u *unstructured.Unstructured, c *conversion) (change string, found bool, err error) {
	path := []string{"spec", "trainer", "numProcPerNode"}
	at, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	word, isWord := at.(string)
	if err != nil || !found || !isWord {
		return "", false, err
	}
	unstructured.RemoveNestedField(u.Object, path...)
	if n, err := strconv.ParseInt(word, 10, 32); err == nil {
		return fmt.Sprintf("spec.trainer.numProcPerNode is %d, a number", n), true, unstructured.SetNestedField(u.Object, n, path...)
	}
	if word != "auto" {
		c.lost = append(c.lost, fmt.Sprintf("spec.trainer.numProcPerNode: %q is not known to Kubeflow Trainer v2.2 and later; give the number of processes", word))
	}
	return fmt.Sprintf("spec.trainer.numProcPerNode %q is left out; the default is auto", word), true, nil
}

// converted are the fields of a spec that a conversion may touch.
var converted = []string{overrides.PodTemplateOverrides, overrides.PodSpecOverrides, overrides.TemplateOverrides, "labels", "annotations", overrides.RuntimePatches}

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

// processes is the number of processes for a node, "" where the TrainJob says none.
func (c *conversion) processes() string {
	if c.before.Spec.Trainer == nil || c.before.Spec.Trainer.NumProcPerNode == nil {
		return ""
	}
	return strconv.Itoa(int(*c.before.Spec.Trainer.NumProcPerNode))
}

func remove(node, key *yamlv3.Node) {
	i := slices.Index(node.Content, key)
	node.Content = slices.Delete(node.Content, i, i+2)
}

// sameDocument tells whether two texts say the same.
func sameDocument(a, b string) bool {
	x, err1 := yaml.YAMLToJSONStrict([]byte(a))
	y, err2 := yaml.YAMLToJSONStrict([]byte(b))
	if err1 != nil || err2 != nil {
		return false
	}
	var p, q any
	return json.Unmarshal(x, &p) == nil && json.Unmarshal(y, &q) == nil && reflect.DeepEqual(p, q)
}
