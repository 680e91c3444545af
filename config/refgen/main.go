//go:build ignore

// Command refgen writes docs/reference.md from the source: what users and monitoring see of Signalbox stands there once,
// as constants, metrics and events with their docstrings. `make generate` runs it.
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

// reference is what was found; each map is from a name to the cells of its row.
type reference struct {
	names, conditions, states, reasons, metrics map[string][]string
	events                                      map[string][]string
	settings                                    [][]string
}

func run(path string) error {
	config := &packages.Config{Mode: packages.NeedName | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps}
	all, err := packages.Load(config, "./api/...", "./overrides", "./podsets", "./admission", "./integration", "./trainer/...", "./cmd/signalbox")
	if err != nil {
		return err
	}
	if packages.PrintErrors(all) > 0 {
		return fmt.Errorf("the source has errors")
	}
	r := &reference{
		names: map[string][]string{}, conditions: map[string][]string{}, states: map[string][]string{}, reasons: map[string][]string{},
		metrics: map[string][]string{}, events: map[string][]string{},
	}
	for _, p := range all {
		for _, file := range p.Syntax {
			r.constants(p, file)
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					r.event(p, call)
					r.metric(p, call)
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

// constants finds names under signalbox.dev, conditions, states and the reasons of the condition Blocked.
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
				c, ok := p.TypesInfo.Defs[name].(*types.Const)
				if !ok || c.Val().Kind() != constant.String {
					continue
				}
				value := constant.StringVal(c.Val())
				says := line(doc, name.Name)
				switch {
				case strings.HasPrefix(value, "signalbox.dev/") && says != "":
					r.names[value] = []string{says}
				case strings.HasPrefix(name.Name, "Condition") && c.Exported():
					r.conditions[value] = []string{says}
				case strings.HasSuffix(c.Type().String(), ".TrainJobState"):
					r.states[value] = []string{says}
				case strings.HasPrefix(name.Name, "Reason") && c.Exported():
					r.reasons[value] = []string{says}
				}
			}
		}
	}
}

// event finds calls of an EventRecorder's Eventf.
func (r *reference) event(p *packages.Package, call *ast.CallExpr) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Eventf" || len(call.Args) < 6 {
		return
	}
	kind, reason, note := text(p, call.Args[2]), text(p, call.Args[3]), text(p, call.Args[5])
	if kind == "" || reason == "" {
		return // jobframework's, passed on; and the reasons of Blocked, which have a table of their own
	}
	if note == "%s" {
		note = "what is wrong"
	}
	r.events[reason] = []string{kind, strings.ReplaceAll(strings.ReplaceAll(note, "%s", "…"), "%d", "…")}
}

// metric finds what is made by prometheus.New….
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
	r.metrics[name] = []string{strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(f.Sel.Name, "New"), "Vec")), has, help}
}

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

// text is the value of a constant string.
func text(p *packages.Package, e ast.Expr) string {
	if v := p.TypesInfo.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	return ""
}

// fields finds the fields of the configuration file, by their paths.
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

// line is a docstring on one line, without the name that it begins with.
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

func (r *reference) markdown() []byte {
	var out bytes.Buffer
	out.WriteString("# Reference\n\nMade from the source by `make generate`. The chart's values are in [its README](../charts/signalbox/README.md), the fields of a TrainJob in `kubectl explain trainjob`.\n")
	table := func(title, says string, head []string, rows map[string][]string, code bool) {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n\n| %s |\n|%s\n", title, says, strings.Join(head, " | "), strings.Repeat(" --- |", len(head)))
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			cells := append([]string{"`" + name + "`"}, rows[name]...)
			for i := range cells {
				cells[i] = strings.ReplaceAll(cells[i], "|", "\\|")
			}
			fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | "))
		}
	}
	table("Labels, annotations and managers of ours", "Of Kueue's, TrainJobs take all that Kueue documents for jobs: `kueue.x-k8s.io/queue-name`, `kueue.x-k8s.io/priority-class`, `kueue.x-k8s.io/max-exec-time-seconds` and, on pods, the topology requests.", []string{"name", ""}, r.names, true)
	table("States", "`status.state` of a TrainJob, as `kubectl get trainjob` shows it (bundled Trainer).", []string{"state", "a TrainJob that"}, r.states, true)
	table("Conditions", "Beside Kubeflow Trainer's `Suspended`, `Complete` and `Failed`. `Admitted`, `QuotaReserved` and `Evicted` say of the TrainJob what Kueue says of its Workload (bundled Trainer).", []string{"condition", ""}, r.conditions, true)
	table("Reasons of the condition Blocked", "An event of type Warning with the same reason comes with the condition.", []string{"reason", ""}, r.reasons, true)
	table("Events", "About a TrainJob. Kueue's library adds its own, as for every job: `CreatedWorkload`, `UpdatedWorkload`, `Stopped`, `FinishedWorkload` and the like; the first and the last, and `Started`, are left out with the bundled Trainer, where conditions say the same.", []string{"reason", "type", "says"}, r.events, true)
	table("Metrics", "In Prometheus' format. The libraries add theirs: `controller_runtime_*`, `workqueue_*`, `rest_client_*`, `leader_election_master_status`, `certwatcher_*`, `go_*`, `process_*`, and `kueue_*` of what Kueue's library counts of TrainJobs.", []string{"metric", "type", "labels", ""}, r.metrics, true)
	out.WriteString("\n## Configuration file\n\n`signalbox --config FILE`; `signalbox config check FILE` says what is wrong with one, by the path of the field, or prints it with its defaults. It begins with `apiVersion: config.signalbox.dev/v1alpha1` and `kind: Configuration`.\n\n| field | |\n| --- | --- |\n")
	for _, row := range r.settings {
		fmt.Fprintf(&out, "| %s |\n", strings.ReplaceAll(strings.Join(row, " | "), "||", "\\|\\|"))
	}
	return out.Bytes()
}
