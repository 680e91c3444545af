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

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
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
		lines, ok := edit{}.ofSpec(doc, spec, job)
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
	case kind == trainer.TrainJobKind && strings.HasPrefix(group, trainer.GroupVersion.Group+"/"):
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
	words, hadWord, err := processes(u, c)
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

// processes takes a number of processes that is a word, as TrainJobs could have it before Kubeflow Trainer v2.2, out of
// the TrainJob.
func processes(u *unstructured.Unstructured, c *conversion) (change string, found bool, err error) {
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
			if n, found, _ := unstructured.NestedInt64(toObject(c), "spec", "trainer", "numProcPerNode"); found {
				v.Tag, v.Value, v.Style = "!!int", strconv.FormatInt(n, 10), 0
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

// toObject returns the TrainJob that was read, as JSON has it.
func toObject(c *conversion) map[string]any {
	data, err := json.Marshal(c.before)
	if err != nil {
		return nil
	}
	var object map[string]any
	if kjson.UnmarshalCaseSensitivePreserveInts(data, &object) != nil {
		return nil
	}
	return object
}

func remove(node, key *yamlv3.Node) {
	i := slices.Index(node.Content, key)
	node.Content = slices.Delete(node.Content, i, i+2)
}

// patches returns the field runtimePatches. Entries that were there are taken as they stand; the others carry the order
// of keys, the comments and the quotes of what they were made from.
//
// Only comments that are to be taken along are: those between two fields stay where they stand.
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

// nodeOf writes a value as block YAML would.
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

// aligner brings the order of keys, the comments and the style of what was there to what is made of it.
type aligner struct {
	placed map[*string]bool
	along  func(comment string) bool
}

func (a *aligner) lists(spec, list *yamlv3.Node) {
	patch := func(manager string) *yamlv3.Node {
		for _, p := range list.Content {
			if m := scalar(p, "manager"); m == manager {
				return path(p, "trainingRuntimeSpec", "template")
			}
		}
		return nil
	}
	converted := patch(overrides.ConvertedManager)
	for n := 2; converted == nil && n <= overrides.MaxEntries; n++ {
		converted = patch(fmt.Sprintf("%s-%d", overrides.ConvertedManager, n))
	}
	if spec == nil {
		return
	}
	if old := value(spec, overrides.PodTemplateOverrides); old != nil {
		for _, e := range old.Content {
			a.pods(e, converted, value(e, "metadata"), value(e, "spec"))
		}
	}
	if old := value(spec, overrides.PodSpecOverrides); old != nil {
		for _, e := range old.Content {
			a.pods(e, converted, nil, e)
		}
	}
	for _, field := range []string{"labels", "annotations"} {
		a.align(path(converted, "metadata", field), value(spec, field))
	}
	if old := value(spec, overrides.TemplateOverrides); old != nil {
		for _, o := range old.Content {
			made := patch(scalar(o, "manager"))
			if made == nil {
				made = patch(scalar(o, "manager") + overrides.HistorySuffix)
			}
			for _, list := range []string{"job", "pod"} {
				entries := value(o, list)
				if entries == nil {
					continue
				}
				for _, e := range entries.Content {
					if list == "pod" {
						a.pods(e, made, value(e, "metadata"), value(e, "spec"))
					} else if value(e, "targetJobs") == nil {
						a.align(path(made, "metadata"), value(e, "metadata"))
					}
				}
			}
		}
	}
}

// pods aligns what one element said of pods, with the first of its ReplicatedJobs taking its comments.
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

func path(node *yamlv3.Node, keys ...string) *yamlv3.Node {
	for _, key := range keys {
		node = value(node, key)
	}
	return node
}

// comment moves the comments of a node to the one made of it, each once.
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
		var ordered []*yamlv3.Node
		for i := 0; i+1 < len(old.Content); i += 2 {
			if k, v := entry(made, old.Content[i].Value); v != nil {
				a.comment(k, old.Content[i])
				a.align(v, old.Content[i+1])
				remove(made, k)
				ordered = append(ordered, k, v)
			}
		}
		made.Content = append(ordered, made.Content...)
	case yamlv3.SequenceNode:
		made.Style = old.Style
		for i, item := range old.Content {
			if at := counterpart(made, item, i); at != nil {
				a.align(at, item)
			}
		}
	}
}

// counterpart finds the item of a list that was made from another: by its name or path, else by its place.
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

// edit replaces lines, counted from 0, by a text.
type edit struct {
	from, to int
	text     string
}

// ofSpec returns the edits that convert a spec, or false where its lines can't be told apart.
func (edit) ofSpec(doc string, spec *yamlv3.Node, c *conversion) ([]edit, bool) {
	if spec == nil || spec.Style&yamlv3.FlowStyle != 0 {
		return nil, false
	}
	lines := strings.SplitAfter(doc, "\n")
	var edits []edit
	if job := value(spec, "trainer"); job != nil && job.Style&yamlv3.FlowStyle == 0 {
		if k, v := entry(job, "numProcPerNode"); v != nil && v.Tag == "!!str" {
			e := edit{from: k.Line - 1, to: k.Line}
			if n, found, _ := unstructured.NestedInt64(toObject(c), "spec", "trainer", "numProcPerNode"); found {
				e.text = strings.Repeat(" ", k.Column-1) + strings.TrimSpace("numProcPerNode: "+strconv.FormatInt(n, 10)+" "+v.LineComment) + "\n"
			} else if v.LineComment != "" {
				e.text = strings.Repeat(" ", k.Column-1) + v.LineComment + "\n"
			}
			edits = append(edits, e)
		}
	}
	if c.plan == nil {
		return edits, true
	}
	var blocks []edit
	var taken strings.Builder
	column := 0
	for i := 0; i+1 < len(spec.Content); i += 2 {
		k := spec.Content[i]
		if !slices.Contains(converted, k.Value) {
			continue
		}
		if strings.TrimSpace(lines[k.Line-1][:min(k.Column-1, len(lines[k.Line-1]))]) != "" {
			return nil, false // something stands before it on its line
		}
		column = k.Column - 1
		block := edit{from: k.Line - 1, to: blockEnd(lines, k.Line-1, column)}
		for _, line := range lines[block.from:block.to] {
			taken.WriteString(strings.TrimSpace(line) + "\n")
		}
		blocks = append(blocks, block)
	}
	if len(blocks) == 0 {
		return nil, false
	}
	key, list := c.patches(spec, func(comment string) bool { // of those that go with the lines
		return strings.Contains(taken.String(), strings.TrimSpace(strings.SplitN(comment, "\n", 2)[0]))
	})
	text, err := encode(&yamlv3.Node{Kind: yamlv3.MappingNode, Content: []*yamlv3.Node{key, list}})
	if err != nil {
		return nil, false
	}
	blocks[0].text = indent(text, column)
	return append(edits, blocks...), true
}

// blockEnd is the line after the last of the block that a key of the given indentation begins.
func blockEnd(lines []string, start, column int) int {
	end := start + 1
	for i := start + 1; i < len(lines); i++ {
		bare := strings.TrimRight(lines[i], " \t\r\n")
		trimmed := strings.TrimLeft(bare, " ")
		depth := len(bare) - len(trimmed)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#") && depth <= column:
			continue // of the block only if more of it follows
		case depth > column || depth == column && (trimmed == "-" || strings.HasPrefix(trimmed, "- ")):
			end = i + 1
			continue
		}
		break
	}
	return end
}

func indent(text string, columns int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			out.WriteString(strings.Repeat(" ", columns))
		}
		out.WriteString(line)
	}
	return out.String()
}

func applyEdits(doc string, edits []edit) string {
	lines := strings.SplitAfter(doc, "\n")
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		lines = slices.Replace(lines, e.from, min(e.to, len(lines)), e.text)
	}
	return strings.Join(lines, "")
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
