package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTrace holds which requests make the way of a TrainJob: the last answer before the start is its admission, and a
// TrainJob without a pod is left out.
func TestTrace(t *testing.T) {
	noon := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	var log strings.Builder
	ask := func(after int, user, verb, group, resource, name string) {
		kind, subresource, _ := strings.Cut(resource, "/")
		at := noon.Add(time.Duration(after) * time.Millisecond)
		fmt.Fprintf(&log, `{"verb":%q,"user":{"username":%q},"objectRef":{"apiGroup":%q,"resource":%q,"subresource":%q,`+
			`"namespace":"team","name":%q},"responseStatus":{"code":200},"requestReceivedTimestamp":%q,"stageTimestamp":%q}`+"\n",
			verb, user, group, kind, subresource, name, at.Add(-5*time.Millisecond).Format(time.RFC3339Nano),
			at.Format(time.RFC3339Nano))
	}
	for _, name := range []string{"bert", "waits-on"} {
		ask(0, "user", "create", "trainer.kubeflow.org", "trainjobs", name)
		ask(10, "signalbox", "create", "kueue.x-k8s.io", "workloads", "trainjob-"+name+"-0a1b2")
		ask(30, "kueue", "patch", "kueue.x-k8s.io", "workloads/status", "trainjob-"+name+"-0a1b2")
	}
	ask(1000, "kueue", "patch", "kueue.x-k8s.io", "workloads/status", "trainjob-bert-0a1b2")
	ask(1020, "signalbox", "patch", "trainer.kubeflow.org", "trainjobs", "bert")
	ask(1050, "signalbox", "create", "jobset.x-k8s.io", "jobsets", "bert")
	ask(1060, "jobset", "create", "", "services", "bert")
	ask(1070, "jobset", "create", "batch", "jobs", "bert-node-0")
	ask(1090, "kube-scheduler", "create", "", "pods/binding", "bert-node-0-0-x7k2p")
	ask(1100, "kwok", "patch", "", "pods/status", "bert-node-0-0-x7k2p")
	ask(1200, "kueue", "patch", "kueue.x-k8s.io", "workloads/status", "trainjob-bert-0a1b2")
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(log.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := trace(&out, path); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"The way of 1 of 2 TrainJobs", "| admitted | 990 | 990 | 990 | 5 | 5 |", "| started | 20 |", "| pod bound | 20 |",
		"| **admitted → pod's status written** | 100 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if err := trace(&out, os.DevNull); err == nil {
		t.Error("an empty log has a way")
	}
}
