package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

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
	teams := get(t, v, "/teams?since=90d&by=team,none").View.(page.Teams)
	if teams.Problem != "" || len(teams.Columns) != 7 || len(teams.Rows) != 1 ||
		len(teams.Rows[0].Bar.Segments) != 1 || teams.Rows[0].Cells[1] != "nvidia.com/gpu" {
		t.Errorf("what runs now is counted: %+v", teams)
	}
	if err := tr.try("usage", "-A", "--since", "90d", "--by", "team", "-o", "csv"); err != nil {
		t.Fatal(err)
	}
	file := get(t, v, "/teams.csv?since=90d&by=team").File
	titles, _, _ := strings.Cut(string(file.Data), "\n")
	if printed, _, _ := strings.Cut(tr.out.String(), "\n"); titles != printed ||
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
	answer := v.Answer(t.Context(),
		serve.Request{Path: []string{"whatif"}, Acts: true, Values: url.Values{"name": {"team/second"}}})
	if problem := answer.View.(page.WhatIf).Problem; !strings.Contains(problem, "you may not list") {
		t.Error(problem)
	}
	if failed := get(t, view(newTrial(t, broken()), true), "/"); failed.Status != 500 {
		t.Errorf("%+v", failed)
	}
}

// preempted waits again, because first was made room for.
const preempted = `apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: wl-out, namespace: team, uid: wl-out}
spec: {queueName: queue, active: true, priority: 0}
status:
  conditions:
  - {type: Preempted, status: "True", reason: InClusterQueue, lastTransitionTime: "%s",
     message: "Preempted to accommodate a workload (UID: wl-first, JobUID: first) due to prioritization"}`

// TestPreemptionsShown holds that a timeline says who was preempted for whom, and that what runs now is never left out.
func TestPreemptionsShown(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, fmt.Sprintf(preempted, time.Now().UTC().Format(time.RFC3339)))
	v := view(tr, true)
	line := get(t, v, "/timeline").View.(page.Line)
	var breaks []string
	for _, lane := range line.Timelines[0].Lanes {
		for _, s := range lane.Spans {
			if s.Break != "" {
				breaks = append(breaks, s.Break)
			}
		}
	}
	if len(breaks) != 1 || breaks[0] != "team/wl-out was preempted for team/first (InClusterQueue)" {
		t.Errorf("%q", breaks)
	}
	now := time.Now()
	l := newLanes(v.known, page.Axis{From: now.Add(-time.Hour), To: now.Add(100 * time.Hour), Now: now})
	l.addPast(now)
	for i := range 2 * mostLanes {
		wl := kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("later-%d", i)}}
		from := now.Add(time.Duration(i+1) * time.Minute)
		l.add(&wl, []string{"a100"}, page.Span{Class: "will", From: from, To: from.Add(time.Hour)})
	}
	timeline := l.timelines()[0]
	if len(timeline.Lanes) != mostLanes || timeline.More != mostLanes+2 || timeline.Lanes[0].Name != "team/first" {
		t.Errorf("%d lanes, %d more, the first is %s", len(timeline.Lanes), timeline.More, timeline.Lanes[0].Name)
	}
}

// TestLogsShown holds that the end of the log of a rank is shown.
func TestLogsShown(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, twoPods)
	v := view(tr, true)
	for path, want := range map[string]string{"": "node-0", "?rank=node-1-0": "node-1-0", "?rank=none": ""} {
		logs := get(t, v, "/trainjobs/team/first/logs"+path).View.(page.Logs)
		if len(logs.Ranks) != 2 || want != "" && (logs.Rank != want || len(logs.Containers) != 1 ||
			logs.Containers[0].Text != "fake logs") || want == "" && len(logs.Containers) != 0 {
			t.Errorf("%q: %+v", path, logs)
		}
	}
	if logs := get(t, v, "/trainjobs/team/second/logs").View.(page.Logs); len(logs.Ranks) != 0 {
		t.Errorf("%+v", logs)
	}
}

// TestConsequences holds what is said before something is done.
func TestConsequences(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, chain, stalledJob[1:])
	v := view(tr, true)
	for path, want := range map[string]string{
		"second/stop": "It is no longer considered", "second/resume": "waits on a100 for nvidia.com/gpu until team/first",
		"first/restart": "others may get the quota first", "first/stop": "these get quota at once: team/second",
		"third/resume": "It runs after chained, nobody", "chained/stop": "It is no longer considered",
		"stalled/stop": "Its pods get SIGTERM", "stalled/resume": "It runs at once, outside quota",
	} {
		if shown := text(t, get(t, v, "/trainjobs/team/"+path)); !strings.Contains(shown, want) {
			t.Errorf("%s doesn't say %q:\n%s", path, want, shown)
		}
	}
}

// TestDispatchedShown holds that a page says how a TrainJob is in the cluster that MultiKueue runs it in, or why that
// isn't known.
func TestDispatchedShown(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, strings.TrimPrefix(away, "\n"))
	worker := newTrial(t, interceptor.Funcs{}, strings.TrimPrefix(there, "\n"))
	v := view(tr, true)
	v.base.contexts = map[string]string{}
	v.base.open = func(string) (*session, error) {
		return worker.session(genericiooptions.IOStreams{Out: io.Discard, ErrOut: io.Discard}), nil
	}
	shown := get(t, v, "/trainjobs/team/away").View.(page.TrainJob)
	if len(shown.Clusters) != 1 || shown.Clusters[0].Cluster != "worker-1" || shown.Clusters[0].State != "Running" ||
		len(shown.Clusters[0].Pods) != 1 || shown.Clusters[0].Pods[0].Logs != "/trainjobs/team/away/logs?rank=node-0" {
		t.Errorf("%+v", shown.Clusters)
	}
	v.base.open = func(string) (*session, error) { return nil, errors.New("no such context") }
	shown = get(t, v, "/trainjobs/team/away").View.(page.TrainJob)
	if len(shown.Clusters) != 1 || !strings.Contains(shown.Clusters[0].Text, "--cluster worker-1=CONTEXT") {
		t.Errorf("%+v", shown.Clusters)
	}
}

// TestStatuses holds what is a user's affair, and no fault of the page.
func TestStatuses(t *testing.T) {
	tr := newTrial(t, forbids("QuotaUsage"), endedJob)
	v := view(tr, true)
	v.narrow = true
	for path, status := range map[string]int{
		"/teams.csv": 403, "/trainjobs/team/over/stop": 409, "/trainjobs/team/over/resume": 409, "/teams": 0,
	} {
		if a := get(t, v, path); a.Status != status {
			t.Errorf("%s: %d, %s", path, a.Status, text(t, a))
		}
	}
}

const endedJob = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: over, namespace: team, uid: over}
spec: {runtimeRef: {name: torch}}
status: {state: Complete, conditions: [{type: Complete, status: "True", reason: JobsCompleted}]}`

// TestManyLines holds that of many lines only the first are shown, and how many more there are: a browser draws so many
// at once.
func TestManyLines(t *testing.T) {
	const kind = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: "
	waits := func(name, queue string) string {
		return kind + "Workload\nmetadata: {namespace: team, name: " + name + "}\nspec: {queueName: " + queue +
			", podSets: [{name: node, count: 1, template: {spec: {containers: [{name: node, image: i, " +
			"resources: {requests: {nvidia.com/gpu: 8}}}]}}}]}\n"
	}
	line := func(queues int, idle bool) page.Queue {
		more := []string{waits("a", "queue"), waits("b", "queue"), waits("c", "queue")}
		for i := range queues {
			name := "more-" + strconv.Itoa(i)
			more = append(more, kind+"ClusterQueue\nmetadata: {name: "+name+"}\n")
			if !idle {
				more = append(more, waits(name, name),
					kind+"LocalQueue\nmetadata: {namespace: team, name: "+name+"}\nspec: {clusterQueue: "+name+"}\n")
			}
		}
		now := get(t, view(newTrial(t, interceptor.Funcs{}, more...), true), "/").View.(page.Now)
		for _, c := range now.Cohorts {
			for _, q := range c.Queues {
				if q.Name == "cq" {
					return q
				}
			}
		}
		t.Fatal("cq isn't shown")
		return page.Queue{}
	}
	few, many := line(150, true), line(150, false)
	all := len(few.Waiting) + few.More
	if len(few.Waiting) < 2 || len(many.Waiting) != leastWaiting || many.More != all-leastWaiting {
		t.Errorf("beside 150 lines in which nobody waits, %d are shown and %d more; beside 150 others %d and %d more",
			len(few.Waiting), few.More, len(many.Waiting), many.More)
	}
}
