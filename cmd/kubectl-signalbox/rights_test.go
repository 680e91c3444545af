package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// A user who may not read something is told so; nothing else is said to be wrong for that.
func TestLackingRights(t *testing.T) {
	selective := `apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: selective}
spec:
  namespaceSelector: {matchLabels: {team: vision}}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: selective, namespace: team}
spec: {clusterQueue: selective}`
	topology := `apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: racks}
spec: {levels: [{nodeLabel: rack}]}`
	for name, c := range map[string]struct {
		reason    string
		forbidden interceptor.Funcs
		manifest  string
		args      []string
		out, err  string
	}{
		"LocalQueues": {"the queue may be there", forbids("LocalQueue"), selective, []string{"explain", "second"},
			"QuotaUsed: couldn't assign flavors", ""},
		"Workloads": {"Signalbox may run", forbids("Workload"), selective, []string{"explain", "second"},
			"you may not read the Workloads of namespace team", ""},
		"namespaces": {"a selector isn't known not to match", forbids("Namespace"), selective,
			[]string{"simulate", "second", "--set", "queue=selective"}, "would be admitted now", ""},
		"nodes": {"what fits isn't known", forbids("Node"), topology, []string{"simulate", "second"}, "",
			"you may not list nodes"},
		"LocalQueues, simulated": {"nor which wait", forbids("LocalQueue elsewhere"), selective,
			[]string{"simulate", "second"}, "", "you may not list localqueues"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, c.forbidden, strings.Split(c.manifest, "\n---\n")...)
			err := tr.try(c.args...)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("%s: got %v, want %q", c.reason, err, c.err)
			}
			if !strings.Contains(tr.out.String(), c.out) {
				t.Errorf("%s: got %q", c.reason, tr.out.String())
			}
		})
	}
}

// What has ended isn't stopped, and what is in no queue is started again when its pods have ended.
func TestRestartOutside(t *testing.T) {
	const jobs = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: ended, namespace: team, uid: ended, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: false, runtimeRef: {name: torch}}
status:
  state: Failed
  conditions: [{type: Failed, status: "True", reason: Failed, message: "", lastTransitionTime: "2026-11-24T10:00:01Z"}]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: outside, namespace: team, uid: outside}
spec: {suspend: false, runtimeRef: {name: torch}}
---
apiVersion: v1
kind: Pod
metadata: {name: outside-node-0-0, namespace: team, labels: {jobset.sigs.k8s.io/jobset-name: outside}}
status: {phase: Running}`
	tr := newTrial(t, interceptor.Funcs{}, strings.Split(jobs, "\n---\n")...)
	for _, verb := range []string{"stop", "restart"} {
		if err := tr.try(verb, "ended"); err == nil || !strings.Contains(err.Error(), "has ended (Failed)") {
			t.Errorf("%s: got %v", verb, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := tr.run(ctx, "restart", "outside"); err == nil {
		t.Fatal("its pod runs")
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = "team", "outside-node-0-0"
	if err := tr.client.Status().Patch(t.Context(), pod,
		client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Succeeded"}}`))); err != nil {
		t.Fatal(err)
	}
	if err := tr.try("restart", "outside"); err != nil || !strings.Contains(tr.out.String(), "runs, outside quota") {
		t.Errorf("it runs again: got %v, %s", err, tr.out.String())
	}
}

// A container that the kubelet has restarted has another log.
func TestStartedIn(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "node", RestartCount: 1,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, {Name: "waits"}}
	if got := startedIn(pod); len(got) != 1 || got[0].Name != "node" || got[0].RestartCount != 1 {
		t.Errorf("got %v", got)
	}
}
