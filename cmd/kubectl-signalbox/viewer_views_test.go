package main

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// TestNodesShown holds that a node shows what is on it, and what is wrong with it.
func TestNodesShown(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, machines)
	nodes := get(t, view(tr, true), "/nodes").View.(page.Nodes)
	if len(nodes.Groups) != 1 || nodes.Groups[0].Name != "Flavor a100" || nodes.Groups[0].Free != "5" {
		t.Fatalf("%+v", nodes)
	}
	n1, n2 := nodes.Groups[0].Nodes[0], nodes.Groups[0].Nodes[1]
	if n1.State != "" || n1.Bar.Segments[0].Title != "team/first: 3" || n1.Bar.Segments[0].Width != 75 ||
		n1.Total != "1 of 4 free" || n2.State != "not ready, cordoned" {
		t.Errorf("%+v, %+v", n1, n2)
	}
}

// TestTimeline holds that what runs and what will is drawn, with how sure that is.
func TestTimelineShown(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{})
	v := view(tr, true)
	if line := get(t, v, "/timeline").View.(page.Line); line.Known || line.Back != 6 {
		t.Errorf("%+v", line)
	}
	for v.planner.plan(v.known, &v.changes) == nil {
		_, next := v.changes.Since()
		if v.planner.plan(v.known, &v.changes) == nil {
			<-next
		}
	}
	line := get(t, v, "/timeline?hours=168&shift=0.1").View.(page.Line)
	classes := map[string]string{}
	for _, lane := range line.Timelines[0].Lanes {
		for _, s := range lane.Spans {
			classes[lane.Name] += s.Class + " "
		}
	}
	if !line.Known || classes["team/first"] != "runs will " || !strings.Contains(classes["team/second"], "will") {
		t.Errorf("%v, %+v", classes, line)
	}
	if shifted := get(t, v, "/timeline?shift=NaN").View.(page.Line); !shifted.Now.Equal(
		time.Now().Truncate(time.Minute),
	) ||
		shifted.From.After(shifted.Now) {
		t.Errorf("%+v", shifted.Axis)
	}
}

// TestTeamsShown holds that the ledger is as usage prints it.
func TestTeamsShown(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{})
	v := view(tr, true)
	if teams := get(t, v, "/teams?since=90d&by=team,none").View.(page.Teams); teams.Problem == "" &&
		len(teams.Columns) != 7 {
		t.Errorf("%+v", teams)
	}
	if err := tr.try("usage", "-A", "--since", "90d", "--by", "team", "-o", "csv"); err != nil {
		t.Fatal(err)
	}
	file := get(t, v, "/teams.csv?since=90d&by=team").File
	titles, _, _ := strings.Cut(string(file.Data), "\n")
	if printed, _, _ := strings.Cut(
		tr.out.String(),
		"\n",
	); titles != printed ||
		file.Type != "text/csv; charset=utf-8" {
		t.Errorf("%s is exported, %s printed", titles, printed)
	}
}

// TestRights holds that what a user may not read is named where it is missing.
func TestRights(t *testing.T) {
	tr := newTrial(t, forbids("Node", "ClusterQueue", "Workload elsewhere", "LocalQueue elsewhere"))
	v := view(tr, true)
	v.narrow = true
	for path, want := range map[string]string{
		"/": "list nodes", "/trainjobs": "list workloads", "/timeline": "you may not list", "/nodes": "list nodes",
		"/trainjobs/team/second": "list clusterqueues",
	} {
		get(t, v, path)
		for v.known != nil && v.planner.plan(v.known, &v.changes) == nil {
			_, next := v.changes.Since()
			if v.planner.plan(v.known, &v.changes) == nil {
				<-next
			}
		}
		if shown := text(t, get(t, v, path)); !strings.Contains(shown, want) {
			t.Errorf("%s doesn't say %q:\n%s", path, want, shown)
		}
	}
	answer := v.Answer(
		t.Context(),
		serve.Request{Path: []string{"whatif"}, Acts: true, Values: url.Values{"name": {"team/second"}}},
	)
	if problem := answer.View.(page.WhatIf).Problem; !strings.Contains(problem, "you may not list") {
		t.Error(problem)
	}
	if failed := get(t, view(newTrial(t, broken()), true), "/"); failed.Status != 500 {
		t.Errorf("%+v", failed)
	}
}
