package main

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// machines are two nodes in one rack, of which first has a pod.
const machines = `apiVersion: v1
kind: Node
metadata: {name: n1, labels: {gpu: a100, topology.kubernetes.io/zone: z1}}
status: {allocatable: {nvidia.com/gpu: 4}, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {gpu: a100}}
spec: {unschedulable: true}
status: {allocatable: {nvidia.com/gpu: 4}}
---
apiVersion: v1
kind: Pod
metadata:
  name: first-node-0-0
  namespace: team
  labels: {jobset.sigs.k8s.io/jobset-name: first, jobset.sigs.k8s.io/replicatedjob-name: node}
spec: {nodeName: n1, containers: [{name: node, resources: {requests: {nvidia.com/gpu: 3}}}]}
status: {phase: Running, containerStatuses: [{name: node, restartCount: 2, state: {running: {}}}]}`

// view is a viewer with the rights of a user.
func view(tr *trial, allowed bool) *viewer {
	v := &viewer{look: look{cluster: "test", acts: true}}
	v.base = *tr.session(genericiooptions.IOStreams{})
	v.planner.within = tr.t.Context()
	v.source = source{live: tr.client, synced: func(context.Context) bool { return true },
		may: func(context.Context, authorizationv1.ResourceAttributes) (bool, error) { return allowed, nil }}
	return v
}

// get answers a request for a path.
func get(t *testing.T, v *viewer, path string) serve.Answer {
	t.Helper()
	u, err := url.Parse(path)
	if err != nil {
		t.Fatal(err)
	}
	r := serve.Request{Values: u.Query()}
	if p := strings.Trim(u.Path, "/"); p != "" {
		r.Path = strings.Split(p, "/")
	}
	return v.Answer(t.Context(), r)
}

// text returns what an answer shows.
func text(t *testing.T, a serve.Answer) string {
	t.Helper()
	var b strings.Builder
	if err := a.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// printed returns what a command prints as JSON.
func printed[T any](t *testing.T, tr *trial, args ...string) (of T) {
	t.Helper()
	if err := tr.try(append(args, "-o", "json")...); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(tr.out.Bytes(), &of); err != nil {
		t.Fatal(err)
	}
	return of
}

// TestNow holds that the page shows what top and list print.
func TestNow(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, machines)
	v := view(tr, true)
	get(t, v, "/")
	for v.planner.last == nil { // it is computed beside
		_, next := v.changes.Since()
		if v.planner.plan(v.known, &v.changes); v.planner.last == nil {
			<-next
		}
	}
	now, is := get(t, v, "/").View.(page.Now)
	if !is || len(now.Cohorts) != 1 {
		t.Fatalf("%+v", now)
	}
	queue := now.Cohorts[0].Queues[0]
	top := printed[overview](t, tr, "top")
	for i, q := range queue.Quotas {
		if r := top.Quota[i]; q.Flavor != r.Flavor || q.Nominal != r.Nominal || q.Used != r.Used ||
			q.Waiting != r.Waiting {
			t.Errorf("%+v is shown, %+v printed", q, r)
		}
		if s := q.Bar.Segments; len(s) != 1 || s[0].Width != 100 || s[0].Href != "/trainjobs/team/first" {
			t.Errorf("%+v", s)
		}
	}
	if w := queue.Waiting; len(w) != 1 || w[0].Name != "second" || w[0].Cause == "" || w[0].Start == nil {
		t.Errorf("%+v", w)
	}
	flavor := now.Flavors[0]
	if flavor.Others == nil || !strings.Contains(flavor.Others[0], "offline") { // n2 is cordoned
		t.Errorf("%+v", flavor)
	}
}

// TestJobs holds that the page lists what list prints, and finds.
func TestJobs(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, stalledJob)
	v := view(tr, true)
	listed := map[string]row{}
	for _, r := range printed[[]row](t, tr, "list", "-A") {
		listed[r.Name] = r
	}
	jobs := get(t, v, "/trainjobs").View.(page.Jobs)
	if jobs.Total != len(listed) || jobs.Next != "" {
		t.Errorf("%+v", jobs)
	}
	for _, j := range jobs.Rows {
		if r := listed[j.Name]; j.State != r.State || j.Queue != r.Queue || j.Flavor != r.Flavor || j.Cause != r.Cause ||
			j.Nodes != r.Nodes {
			t.Errorf("%+v is shown, %+v printed", j, r)
		}
	}
	for query, want := range map[string]string{
		"search=sec": "second", "state=Queued": "second", "in=other": "", "from=2": "stalled",
	} {
		names := []string{}
		for _, j := range get(t, v, "/trainjobs?"+query).View.(page.Jobs).Rows {
			names = append(names, j.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s finds %q", query, got)
		}
	}
}

// TestTrainJobShown holds that the page says what explain prints, and of the pods where they run.
func TestTrainJobShown(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, machines, chain)
	v := view(tr, true)
	if err := tr.try("explain", "second"); err != nil {
		t.Fatal(err)
	}
	second := get(t, v, "/trainjobs/team/second").View.(page.TrainJob)
	for _, want := range []string{second.State, second.Code, second.Text, second.Flavors[0].Short} {
		if want == "" || !strings.Contains(tr.out.String(), want) {
			t.Errorf("%q is shown, and not printed:\n%s", want, tr.out.String())
		}
	}
	if len(second.Actions) != 2 || second.Actions[0].Verb != "stop" {
		t.Errorf("%+v", second.Actions)
	}
	first := get(t, v, "/trainjobs/team/first").View.(page.TrainJob)
	if len(first.Pods) != 1 || first.Pods[0].Rack != "z1" || first.Pods[0].Restarts != 2 || first.Pods[0].Logs == "" {
		t.Errorf("%+v", first.Pods)
	}
	third := get(t, v, "/trainjobs/team/third").View.(page.TrainJob)
	if len(third.After) != 3 || third.After[0].Name != "chained" || third.After[1].Depth != 1 ||
		third.After[2].Href != "" {
		t.Errorf("%+v", third.After)
	}
	if others := view(tr, false); len(get(t, others, "/trainjobs/team/second").View.(page.TrainJob).Actions) != 0 {
		t.Error("one who may not change it is offered to")
	}
	for path, status := range map[string]int{"/trainjobs/team/none": 404, "/trainjobs/team/second/none": 404, "/none": 404,
		"/nodes/more": 404, "/trainjobs/team": 404} {
		if a := get(t, v, path); a.Status != status {
			t.Errorf("%s: %d", path, a.Status)
		}
	}
}

// TestActs holds that a TrainJob is stopped by a POST alone, and says before what that does.
func TestActs(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{})
	v := view(tr, true)
	ask := get(t, v, "/trainjobs/team/first/stop")
	if shown := text(t, ask); !strings.Contains(shown, "these get quota at once: team/second") {
		t.Errorf("%s", shown)
	}
	stopped := func() bool {
		var job api.TrainJob
		if err := tr.client.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "first"}, &job); err != nil {
			t.Fatal(err)
		}
		return job.Annotations[api.StopAnnotation] != ""
	}
	if stopped() {
		t.Fatal("it was stopped by a GET")
	}
	r := serve.Request{Path: []string{"trainjobs", "team", "first", "stop"}, Acts: true}
	v.acts = false
	if a := v.Answer(t.Context(), r); a.Status == 0 || stopped() {
		t.Errorf("the page is read-only: %+v", a)
	}
	v.acts = true
	if a := v.Answer(t.Context(), r); !strings.Contains(a.Said, "is stopping") || !stopped() {
		t.Errorf("%+v", a)
	}
	for _, path := range []string{"trainjobs/team/first", "nodes", "trainjobs/team/first/logs"} {
		if a := v.Answer(t.Context(), serve.Request{Path: strings.Split(path, "/"), Acts: true}); a.Status != 404 {
			t.Errorf("POST %s: %+v", path, a)
		}
	}
}

// TestWhatIf holds that the page says what simulate prints, and that what was written stays.
func TestWhatIf(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, spot, urgent)
	v := view(tr, true)
	ask := func(values ...string) page.WhatIf {
		r := serve.Request{Path: []string{"whatif"}, Acts: true, Values: url.Values{}}
		for i := 0; i < len(values); i += 2 {
			r.Values.Set(values[i], values[i+1])
		}
		return v.Answer(t.Context(), r).View.(page.WhatIf)
	}
	waits := ask("name", "team/second")
	is := printed[simulated](t, tr, "simulate", "second", "--until")
	if len(waits.Answers) != 1 || waits.Answers[0].Verdict != string(is.Verdict) || waits.Answers[0].Start == nil ||
		len(waits.Answers[0].Changes) != len(is.Changes) {
		t.Errorf("%+v is shown, %+v printed", waits, is)
	}
	moved := ask("name", "team/second", "queue", "spot", "nodes", "1", "minimum", "1", "priority", "urgent")
	if len(moved.Answers) != 1 || moved.Answers[0].Verdict != "Admitted" {
		t.Errorf("%+v", moved)
	}
	for _, want := range []string{
		"kueue.x-k8s.io/queue-name: spot", "numNodes: 1", "job-min-parallelism: \"1\"", "suspend: true",
	} {
		if !strings.Contains(moved.Changed, want) {
			t.Errorf("the manifest lacks %s:\n%s", want, moved.Changed)
		}
	}
	pasted := ask("manifest", "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n"+
		"metadata: {name: new, labels: {kueue.x-k8s.io/queue-name: spot}}\nspec: {runtimeRef: {name: torch}}")
	if len(pasted.Answers) != 1 || pasted.Answers[0].Verdict != "Admitted" {
		t.Errorf("%+v", pasted)
	}
	for problem, values := range map[string][]string{
		"such as vision/resnet": {"name", "second"}, "name a TrainJob of the cluster": {}, "not found": {"name", "team/none"},
		"whole number": {"name", "team/second", "nodes", "x"}, "has no TrainJob": {"manifest", "kind: Pod"},
	} {
		if got := ask(
			values...); !strings.Contains(got.Problem, problem) ||
			len(values) > 1 && got.Name+got.Manifest != values[1] {
			t.Errorf("%v: %q", values, got.Problem)
		}
	}
}
