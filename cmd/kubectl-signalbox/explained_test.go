package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// explain shows who is ahead, and finds controllers that are down.
func TestExplainMore(t *testing.T) {
	const ahead = `apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: ahead, namespace: team, uid: ahead, creationTimestamp: "2026-11-24T09:00:00Z"}
spec: {queueName: queue, active: true, priority: 5, podSets: [{name: node, count: 1, template: {spec: {containers: [{name: node, image: i}]}}}]}`
	const lease = `apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: c1f6bfd2.kueue.x-k8s.io, namespace: kueue-system}
spec: {renewTime: "2026-11-24T10:00:00.000000Z"}`
	const event = `apiVersion: v1
kind: Event
metadata: {name: e, namespace: team}
involvedObject: {kind: TrainJob, name: second, namespace: team}
reason: Waiting
message: no room
count: 3
lastTimestamp: "2026-11-24T10:02:00Z"`
	const jobSet = `apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: second, namespace: team, creationTimestamp: "2026-11-24T10:03:00Z"}`
	refuses := func(message string) interceptor.Funcs {
		return interceptor.Funcs{Patch: func(
			context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption,
		) error {
			return errors.New(message)
		}}
	}
	cases := map[string]struct {
		funcs interceptor.Funcs
		more  []string
		out   string
	}{
		"who is ahead":        {more: []string{ahead}, out: "team/ahead   priority 5"},
		"Kueue's leader":      {more: []string{lease}, out: "KueueSilent: Kueue's controller was last seen"},
		"events":              {more: []string{event}, out: "Waiting: no room (3 times)"},
		"the JobSet":          {more: []string{jobSet}, out: "JobSet     created"},
		"Kueue's webhook":     {funcs: refuses(`failed calling webhook "mtrainjob.kb.io": refused`), out: "mtrainjob.kb.io"},
		"any other refusal":   {funcs: refuses("forbidden"), out: "QuotaUsed"},
		"a webhook of others": {funcs: refuses(`failed calling webhook "x.signalbox.dev": refused`), out: "Signalbox is down"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, c.funcs, c.more...)
			if err := tr.try("explain", "second"); err != nil || !strings.Contains(tr.out.String(), c.out) {
				t.Errorf("got %v\n%s\nwant %q", err, tr.out.String(), c.out)
			}
		})
	}
}

// A TrainJob of Kubeflow Trainer has no state and no flavor: its Workload shows them.
func TestWithoutState(t *testing.T) {
	const kubeflow = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: kubeflow, namespace: team, uid: kubeflow, creationTimestamp: "2026-11-24T10:00:00Z", labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: true, runtimeRef: {name: torch}}
status: {conditions: [{type: Suspended, status: "True", reason: Suspended, message: "", lastTransitionTime: "2026-11-24T10:00:00Z"}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: wl-kubeflow, namespace: team, uid: wl-kubeflow, ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: kubeflow, uid: kubeflow, controller: true}]}
spec: {queueName: queue, active: true, podSets: [{name: node, count: 3, template: {spec: {containers: [{name: node, image: i}]}}}]}
status:
  admission: {clusterQueue: cq, podSetAssignments: [{name: node, count: 3, flavors: {nvidia.com/gpu: a100}, resourceUsage: {nvidia.com/gpu: 3}}]}
  conditions:
  - {type: QuotaReserved, status: "True", reason: QuotaReserved, message: "", lastTransitionTime: "2026-11-24T10:00:01Z"}
  - {type: Evicted, status: "True", reason: Preempted, message: "", lastTransitionTime: "2026-11-24T10:00:02Z"}
  - {type: Preempted, status: "True", reason: InClusterQueue, message: "Preempted to accommodate a workload (UID: wl-second, JobUID: second) due to prioritization", lastTransitionTime: "2026-11-24T10:00:02Z"}`
	tr := newTrial(t, interceptor.Funcs{}, kubeflow)
	if err := tr.try("list"); err != nil || !strings.Contains(tr.out.String(), "kubeflow   QuotaReserved") {
		t.Errorf("got %v\n%s", err, tr.out.String())
	}
	if err := tr.try("wait", "kubeflow", "--for", "quotareserved"); err != nil {
		t.Error(err)
	}
	const preempted = "team/kubeflow   team/second   InClusterQueue"
	if err := tr.try("top"); err != nil || !strings.Contains(tr.out.String(), preempted) {
		t.Errorf("got %v\n%s", err, tr.out.String())
	}
}

// TestDependenciesAreBounded holds that a user who names many TrainJobs costs those who explain one few requests.
func TestDependenciesAreBounded(t *testing.T) {
	var manifests []string
	for i := range 66 {
		on := []string{fmt.Sprintf("c%d=ok", i+1)}
		for k := range 31 {
			on = append(on, fmt.Sprintf("x%d-%d=ok", i, k))
		}
		manifests = append(manifests, fmt.Sprintf(`apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  {name: c%[1]d, namespace: team, uid: c%[1]d, labels: {kueue.x-k8s.io/queue-name: queue},
   annotations: {signalbox.dev/after: %[2]q, kueue.x-k8s.io/admission-gated-by: signalbox.dev/after}}
spec: {suspend: true, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}`,
			i, strings.Join(on, ",")))
	}
	read := 0
	tr := newTrial(t, interceptor.Funcs{Get: func(
		ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
	) error {
		if _, is := o.(*api.TrainJob); is {
			read++
		}
		return c.Get(ctx, key, o, options...)
	}}, manifests...)
	if err := tr.try("explain", "c0"); err != nil || read > mostDependencies+1 {
		t.Errorf("%d TrainJobs are read, %v", read, err)
	}
}
