//go:build ignore

// Command refgen writes docs/reference.md from the source: the constants, metrics, events and settings that users and
// monitoring see, with their docstrings. `make generate` runs it.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/constant"
	"go/types"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/signalbox-dev/signalbox/"

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "refgen:", err)
		os.Exit(1)
	}
}

// rows are the rows of a table: the cells after the name, by name.
type rows map[string][]string

// reference is the content of docs/reference.md.
type reference struct {
	names, conditions, states, reasons, metrics, events rows
	// settings are the rows of the configuration file, in the order of its fields.
	settings [][]string
}

func run(path string) error {
	config := &packages.Config{Mode: packages.NeedName | packages.NeedSyntax | packages.NeedTypes |
		packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps}
	all, err := packages.Load(config, "./api/...", "./overrides/...", "./podsets", "./admission", "./admission/usage",
		"./store", "./store/events", "./store/ledger", "./integration/...", "./trainer/...", "./cmd/signalbox")
	if err != nil {
		return err
	}
	if packages.PrintErrors(all) > 0 {
		return fmt.Errorf("the source has errors")
	}
	r := &reference{
		names: rows{}, conditions: rows{}, states: rows{}, reasons: rows{}, metrics: rows{}, events: rows{},
	}
	for _, p := range all {
		for _, file := range p.Syntax {
			r.constants(p, file)
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					r.metric(p, call)
					r.event(p, call)
				}
				return true
			})
		}
		if p.PkgPath == module+"api/config/v1alpha1" {
			r.fields(p, "Configuration", "")
		}
	}
	return os.WriteFile(path, r.markdown(), 0o644)
}

// constants adds the string constants of a file.
func (r *reference) constants(p *packages.Package, file *ast.File) {
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range decl.Specs {
			spec, ok := s.(*ast.ValueSpec)
			if !ok {
				continue
			}
			doc := spec.Doc
			if doc == nil && len(decl.Specs) == 1 {
				doc = decl.Doc
			}
			for _, name := range spec.Names {
				if c, ok := p.TypesInfo.Defs[name].(*types.Const); ok && c.Val().Kind() == constant.String {
					r.constant(c, line(doc, name.Name))
				}
			}
		}
	}
}

// constant adds a name under signalbox.dev, a condition, a state or a reason of the condition Blocked. It ignores other
// constants.
func (r *reference) constant(c *types.Const, doc string) {
	value := constant.StringVal(c.Val())
	switch {
	case strings.HasPrefix(value, "signalbox.dev/") && doc != "":
		r.names[value] = []string{doc}
	case strings.HasPrefix(c.Name(), "Condition") && c.Exported():
		r.conditions[value] = []string{doc}
	case strings.HasSuffix(c.Type().String(), ".TrainJobState"):
		r.states[value] = []string{doc}
	case strings.HasPrefix(c.Name(), "Reason") && c.Exported():
		r.reasons[value] = []string{doc}
	}
}

// event adds a row of the table of package events.
func (r *reference) event(p *packages.Package, row *ast.CallExpr) {
	f, ok := row.Fun.(*ast.Ident)
	if !ok || p.PkgPath != module+"store/events" || len(row.Args) != 3 {
		return
	}
	kind := map[string]string{"normal": "Normal", "warning": "Warning"}[f.Name]
	reason, note := text(p, row.Args[0]), text(p, row.Args[2])
	if kind == "" || reason == "" {
		return // a reason of Blocked, which has a table of its own
	}
	if note == "%s" && kind == "Normal" {
		note = "the reason"
	} else if note == "%s" {
		note = "the error"
	}
	r.events[reason] = []string{kind, strings.ReplaceAll(strings.ReplaceAll(note, "%s", "…"), "%d", "…")}
}

// metric adds the metric of a call of prometheus.New….
func (r *reference) metric(p *packages.Package, call *ast.CallExpr) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return
	}
	if x, ok := f.X.(*ast.Ident); !ok || x.Name != "prometheus" {
		return
	}
	if f.Sel.Name == "NewDesc" {
		r.metrics[text(p, call.Args[0])] = []string{"gauge", labels(p, call.Args[2]), text(p, call.Args[1])}
		return
	}
	options, ok := call.Args[0].(*ast.CompositeLit)
	if !ok || !strings.HasPrefix(f.Sel.Name, "New") {
		return
	}
	var name, help string
	for _, e := range options.Elts {
		field := e.(*ast.KeyValueExpr)
		switch field.Key.(*ast.Ident).Name {
		case "Name":
			name = text(p, field.Value)
		case "Help":
			help = text(p, field.Value)
		}
	}
	has := ""
	if len(call.Args) > 1 {
		has = labels(p, call.Args[1])
	}
	kind := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(f.Sel.Name, "New"), "Vec"))
	r.metrics[name] = []string{kind, has, help}
}

// labels returns the labels of a metric, from a list of constant strings.
func labels(p *packages.Package, e ast.Expr) string {
	list, ok := e.(*ast.CompositeLit)
	if !ok {
		return ""
	}
	var names []string
	for _, e := range list.Elts {
		names = append(names, "`"+text(p, e)+"`")
	}
	return strings.Join(names, ", ")
}

// text returns the value of a constant string; "" if the expression isn't one.
func text(p *packages.Package, e ast.Expr) string {
	if v := p.TypesInfo.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	return ""
}

// fields adds the fields of a type of the configuration file, by their paths.
func (r *reference) fields(p *packages.Package, name, prefix string) {
	for _, file := range p.Syntax {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range decl.Specs {
				spec, ok := s.(*ast.TypeSpec)
				if !ok || spec.Name.Name != name {
					continue
				}
				for _, field := range spec.Type.(*ast.StructType).Fields.List {
					if len(field.Names) == 0 {
						continue // TypeMeta
					}
					key, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
					kind := types.ExprString(field.Type)
					r.settings = append(r.settings, []string{"`" + prefix + key + "`", line(field.Doc, "")})
					if inner, ok := field.Type.(*ast.Ident); ok && kind != "NamespacedName" && ast.IsExported(inner.Name) {
						r.fields(p, kind, prefix+key+".")
					}
				}
			}
		}
	}
}

// line returns a docstring on one line, without the name that it begins with.
func line(doc *ast.CommentGroup, name string) string {
	if doc == nil {
		return ""
	}
	says := strings.Join(strings.Fields(doc.Text()), " ")
	for _, after := range []string{": ", " "} {
		if rest, found := strings.CutPrefix(says, name+after); found && name != "" {
			return rest
		}
	}
	return says
}

// table is a table of docs/reference.md.
type table struct {
	title, intro string
	head         []string
	rows         rows
}

func (r *reference) tables() []table {
	return []table{{
		"Labels, annotations and managers",
		"Besides these, TrainJobs have the labels and annotations that Kueue documents for jobs: " +
			"`kueue.x-k8s.io/queue-name`, `kueue.x-k8s.io/priority-class`, `kueue.x-k8s.io/max-exec-time-seconds` and, on " +
			"pods, the topology requests.",
		[]string{"name", "use"}, r.names,
	}, {
		"States",
		"`status.state` of a TrainJob, as `kubectl get trainjob` shows it (bundled Trainer).",
		[]string{"state", "meaning"}, r.states,
	}, {
		"Conditions",
		"Besides Kubeflow Trainer's `Suspended`, `Complete` and `Failed`. `Admitted`, `QuotaReserved` and `Evicted` are " +
			"copied from the Workload (bundled Trainer).",
		[]string{"condition", "meaning"}, r.conditions,
	}, {
		"Reasons of the condition Blocked",
		"A Warning event with the same reason accompanies the condition.",
		[]string{"reason", "meaning, and what to do"}, r.reasons,
	}, {
		"Events",
		"Events about TrainJobs. Kueue's library adds those of every job, such as `CreatedWorkload`, `UpdatedWorkload` and " +
			"`FinishedWorkload`. With the bundled Trainer, conditions replace `CreatedWorkload`, `Started` and " +
			"`FinishedWorkload`.",
		[]string{"reason", "type", "message"}, r.events,
	}, {
		"Metrics",
		"In Prometheus' format. The libraries add `controller_runtime_*`, `workqueue_*`, `rest_client_*`, " +
			"`leader_election_master_status`, `certwatcher_*`, `go_*`, `process_*`, and Kueue's library `kueue_*` about " +
			"TrainJobs.",
		[]string{"metric", "type", "labels", "meaning"}, r.metrics,
	}}
}

func (t table) write(out *bytes.Buffer) {
	rule := strings.Repeat(" --- |", len(t.head))
	fmt.Fprintf(out, "\n## %s\n\n%s\n\n| %s |\n|%s\n", t.title, t.intro, strings.Join(t.head, " | "), rule)
	for _, name := range slices.Sorted(maps.Keys(t.rows)) {
		cells := append([]string{"`" + name + "`"}, t.rows[name]...)
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], "|", "\\|")
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
}

func (r *reference) markdown() []byte {
	var out bytes.Buffer
	out.WriteString("# Reference\n\nGenerated from the source by `make generate`. The chart's values are in " +
		"[its README](../charts/signalbox/README.md), the fields of a TrainJob in `kubectl explain trainjob`.\n")
	for _, t := range r.tables() {
		t.write(&out)
	}
	out.WriteString("\n## Configuration file\n\n`signalbox --config FILE`; `signalbox config check FILE` prints the " +
		"file with its defaults, or each error with the path of its field. It begins with " +
		"`apiVersion: config.signalbox.dev/v1alpha1` and `kind: Configuration`.\n\n| field | meaning |\n| --- | --- |\n")
	for _, row := range r.settings {
		fmt.Fprintf(&out, "| %s |\n", strings.ReplaceAll(strings.Join(row, " | "), "||", "\\|\\|"))
	}
	return out.Bytes()
}
