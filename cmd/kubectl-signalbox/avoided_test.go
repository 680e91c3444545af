package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// avoiding is a TrainJob that keeps off nodes; each is "NODE REASON".
func avoiding(namespace, name string, since time.Duration, nodes ...string) string {
	var all []string
	for _, n := range nodes {
		node, reason, _ := strings.Cut(n, " ")
		all = append(all, fmt.Sprintf("{name: %s, reason: %s, message: Why, pod: p, time: %q}", node, reason,
			time.Now().Add(-since).UTC().Format(time.RFC3339)))
	}
	return fmt.Sprintf(`apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: %s, namespace: %s, uid: %s, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: true, runtimeRef: {name: torch}}
status: {avoided: [%s]}`, name, namespace, name, strings.Join(all, ", "))
}

const taintedNode = `apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {taints: [{key: signalbox.dev/avoided, effect: NoSchedule}]}`

// newNode was created after what is remembered of one of its name.
var newNode = fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: n5, creationTimestamp: %q}",
	time.Now().UTC().Format(time.RFC3339))

func TestNodes(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{}, taintedNode, newNode,
		avoiding("a", "one", time.Minute, "n1 Rejected", "n2 Lost", "n5 Lost"),
		avoiding("b", "two", time.Second, "n1 Lost", "n3 NotStartedAlone"), avoiding("c", "old", 2*time.Hour, "n4 Lost"),
		avoiding("c", "three", time.Second, "n3 NotStartedAlone"))
	if err := tr.try("nodes", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	var got struct{ Nodes []avoidedRow }
	if err := json.Unmarshal(tr.out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, r := range got.Nodes {
		rows = append(rows, fmt.Sprintf("%s %v %d %s %t", r.Node, r.Namespaces, r.TrainJobs, r.Reason, r.Tainted))
	}
	const want = "n1 [a b] 2 Lost true; n3 [b c] 2 NotStartedAlone false; n2 [a] 1 Lost false"
	if all := strings.Join(rows, "; "); all != want {
		t.Errorf("got %s, want %s", all, want)
	}
	if err := tr.try("nodes", "--since", "3h"); err != nil || !strings.Contains(tr.out.String(), "n4") ||
		!strings.Contains(tr.out.String(), "TAINTED") {
		t.Errorf("got %v, %s", err, tr.out.String())
	}
	_ = tr.try("doctor") // other findings are errors
	if out := tr.out.String(); !strings.Contains(out, "Node n1: TrainJobs of 2 namespaces keep off it") ||
		strings.Contains(out, "Node n2") || strings.Contains(out, "Node n3") {
		t.Errorf("one namespace, and images of theirs, are no finding: got %s", out)
	}
	const left = "kubectl taint nodes n1 signalbox.dev/avoided-"
	for remembers, want := range map[string]bool{"n1 Lost": false, "n2 Lost": true} {
		tr = newTrial(t, interceptor.Funcs{}, taintedNode, avoiding("a", "one", 9*time.Hour, remembers))
		if _ = tr.try("doctor"); strings.Contains(tr.out.String(), left) != want {
			t.Errorf("%s is remembered, and n1 is tainted: got %s", remembers, tr.out.String())
		}
	}
	tr = newTrial(t, interceptor.Funcs{})
	if err := tr.try("nodes"); err != nil || !strings.Contains(tr.out.String(), "No TrainJob keeps off a node") {
		t.Errorf("got %v, %s", err, tr.out.String())
	}
	forged := strings.ReplaceAll(avoiding("a", "one", time.Minute, "n1 Rejected"), "message: Why", `message: "a\tb\e[2J"`)
	tr = newTrial(t, interceptor.Funcs{}, forged, strings.ReplaceAll(forged, "namespace: a", "namespace: b"))
	_ = tr.try("doctor")
	shown := tr.out.String()
	if err := tr.try("nodes"); err != nil || strings.ContainsAny(shown+tr.out.String(), "\t\x1b") {
		t.Errorf("a status is no command of a terminal: got %v, %q", err, shown+tr.out.String())
	}
	tr = newTrial(t, forbids("NodeList"), avoiding("a", "one", time.Minute, "n1 Rejected"))
	if err := tr.try("nodes"); err != nil || !strings.Contains(tr.out.String(), "n1") {
		t.Errorf("a user sees the nodes of their TrainJobs: got %v, %s", err, tr.out.String())
	}
}
