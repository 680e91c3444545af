package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// sent returns a TrainJob that MultiKueue runs elsewhere, and its Workload, in one line of status.
func sent(name, status string) string {
	return fmt.Sprintf(`
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: %[1]s, namespace: team, uid: %[1]s, labels: {kueue.x-k8s.io/queue-name: queue}}
spec:
  suspend: true
  managedBy: kueue.x-k8s.io/multikueue
  runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata:
  {name: trainjob-%[1]s, namespace: team, uid: wl-%[1]s, ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1,
   kind: TrainJob, name: %[1]s, uid: %[1]s, controller: true}]}
spec: {queueName: queue, podSets: [{name: node, count: 1, template: {spec: {containers: [{name: node, image: i}]}}}]}
status: %[2]s`, name, status)
}

// away runs in cluster worker-1, and near waits for one of two.
var (
	away = sent("away", `{clusterName: worker-1, conditions: [{type: QuotaReserved, status: "True", reason: QuotaReserved},
 {type: Admitted, status: "True", reason: Admitted}]}`)
	near = sent("near", "{nominatedClusterNames: [worker-1, worker-2]}")
)

// there is what worker-1 has of both, and another TrainJob of the name of one that waits.
const there = `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  {name: away, namespace: team, uid: there,
   labels: {kueue.x-k8s.io/queue-name: queue, kueue.x-k8s.io/multikueue-origin: here}}
spec: {suspend: false, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}
status: {state: Running, flavor: h100, nodes: "1"}
---
apiVersion: v1
kind: Pod
metadata:
  {name: away-node-0-0, namespace: team, uid: pod, labels: {jobset.sigs.k8s.io/jobset-name: away,
   jobset.sigs.k8s.io/replicatedjob-name: node, jobset.sigs.k8s.io/job-index: "0",
   batch.kubernetes.io/job-completion-index: "0"}}
spec: {containers: [{name: node, image: i}]}
status:
  phase: Running
  containerStatuses: [{name: node, state: {running: {startedAt: "2026-11-24T10:00:00Z"}}}]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: near, namespace: team, uid: anothers, labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: false, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}
status: {state: Running}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: trainjob-near, namespace: team, uid: there-near}
spec:
  queueName: queue
  podSets: [{name: node, count: 9, template: {spec: {containers: [{name: node, image: i,
    resources: {requests: {nvidia.com/gpu: 4}}}]}}}]
status: {conditions: [{type: QuotaReserved, status: "False", reason: Pending, message: "couldn't assign flavors to pod
    set node: insufficient quota for nvidia.com/gpu in flavor a100, request > maximum capacity (36 > 8)"}]}
`

// joined has the commands of one cluster reach another by context "far", as worker-1.
func joined(t *testing.T, funcs interceptor.Funcs) (here, far *trial) {
	t.Helper()
	here, far = newTrial(t, interceptor.Funcs{}, away, near), newTrial(t, funcs, there)
	here.others = elsewhere{contexts: map[string]string{"worker-1": "far"}, open: func(context string) (*session, error) {
		if context != "far" {
			return nil, errors.New("the kubeconfig has no context " + context)
		}
		return far.session(genericiooptions.IOStreams{Out: &here.out, ErrOut: &here.errs}), nil
	}}
	return here, far
}

// TestClusters holds what is shown of TrainJobs that MultiKueue runs in other clusters.
func TestClusters(t *testing.T) {
	forbidden := func(kinds ...string) interceptor.Funcs {
		return interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if key.Name == "away" {
				return apierrors.NewForbidden(schema.GroupResource{Group: "trainer.kubeflow.org", Resource: "trainjobs"}, "away",
					errors.New("no"))
			}
			return c.Get(ctx, key, o, options...)
		}, List: forbids(kinds...).List}
	}
	for name, c := range map[string]struct {
		funcs interceptor.Funcs
		args  []string
		out   []string
		err   string
	}{
		"explain one that runs": {args: []string{"explain", "away"}, out: []string{"it runs in cluster worker-1",
			"In cluster worker-1:\n  It is Running. ", "What has happened:"}},
		"explain one that waits": {args: []string{"explain", "near"}, out: []string{
			"In cluster worker-1:\n  It is Queued. ExceedsQuota: it asks for 36 of nvidia.com/gpu",
			"In cluster worker-2:\n  It isn't known: cluster worker-2: the kubeconfig has no context worker-2; name its " +
				"context by --cluster worker-2=CONTEXT"}},
		"explain as JSON": {args: []string{"explain", "near", "-o", "json"}, out: []string{`"cluster": "worker-1"`,
			`"unknown": "cluster worker-2: `}},
		"explain, forbidden there": {funcs: forbidden(), args: []string{"explain", "away"}, out: []string{
			"you lack the right to get trainjobs.trainer.kubeflow.org in namespace team there"}},
		"logs": {args: []string{"logs", "away"}, out: []string{"its pods are in cluster worker-1", "[node-0] fake logs"}},
		"logs, forbidden there": {funcs: forbids("Pod"), args: []string{"logs", "away"},
			err: "listing the pods of TrainJob away: "},
		"logs of one that waits": {args: []string{"logs", "near"}, out: []string{"TrainJob near has no pods"}},
		"list":                   {args: []string{"list"}, out: []string{"away     Admitted"}},
		"list --clusters": {args: []string{"list", "--clusters"}, out: []string{"CLUSTER",
			"worker-1   away     Running", "h100",
			"<none>     near"}},
		"list --clusters, forbidden there": {funcs: forbids("TrainJob"), args: []string{"list", "--clusters"},
			out: []string{"What runs in cluster worker-1 is shown as it is known here: listing TrainJobs there: ",
				"worker-1   away     Admitted"}},
		"list --clusters, no queues there": {funcs: forbids("Workload"), args: []string{"list", "--clusters"},
			out: []string{"list workloads.kueue.x-k8s.io"}},
		"list --contexts":         {args: []string{"list", "--contexts", "far"}, out: []string{"CLUSTER", "far       away"}},
		"list --contexts --watch": {args: []string{"list", "--contexts", "far", "--watch"}, err: "--watch shows one cluster"},
		"list, no context": {args: []string{"list", "--contexts", "far,near"},
			err: "the kubeconfig has no context near"},
		"list, twice": {args: []string{"list", "--contexts", "far,far"}, err: `--contexts has "far" twice`},
		"list, forbidden": {funcs: forbids("TrainJob"), args: []string{"list", "--contexts", "far"},
			err: "far: listing TrainJobs: "},
		"top --clusters": {args: []string{"top", "--clusters"}, out: []string{"CLUSTER    CLUSTERQUEUE", "<none>     cq",
			"worker-1   cq"}, err: "cluster worker-2: the kubeconfig has no context worker-2"},
		"top --contexts": {args: []string{"top", "--contexts", "far", "-o", "json"}, out: []string{`"cluster": "far"`}},
		"top, forbidden": {funcs: forbids("ClusterQueue"), args: []string{"top", "--contexts", "far"},
			err: "far: you may not list ClusterQueues"},
		"usage --contexts": {args: []string{"usage", "--contexts", "far"}, out: []string{
			"CLUSTER   QUEUE", "far       queue"}},
	} {
		t.Run(name, func(t *testing.T) {
			here, _ := joined(t, c.funcs)
			err := here.try(c.args...)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want %q", err, c.err)
			}
			said := here.out.String() + here.errs.String()
			for _, want := range c.out {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in\n%s", want, said)
				}
			}
		})
	}
}

// TestUnread holds that who may not read where a TrainJob runs is told which right is missing.
func TestUnread(t *testing.T) {
	tr := newTrial(t, forbids("Workload"), away)
	if err := tr.try("logs", "away"); err != nil || !strings.Contains(tr.errs.String(), "workloads.kueue.x-k8s.io") {
		t.Errorf("got %v, %q", err, tr.errs.String())
	}
	tr = newTrial(t, forbids("MultiKueueCluster"))
	if err := tr.try("top", "--clusters", "-o", "json"); err != nil || !strings.Contains(tr.out.String(),
		`"list multikueueclusters.kueue.x-k8s.io"`) {
		t.Errorf("got %v, %q", err, tr.out.String())
	}
}

// TestEscapes holds that nothing that others have written acts on a terminal, or looks like a line of the plugin's.
func TestEscapes(t *testing.T) {
	here, far := joined(t, interceptor.Funcs{})
	var job api.TrainJob
	if err := far.client.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "away"}, &job); err != nil {
		t.Fatal(err)
	}
	job.Spec.Suspend, job.Status.State = new(true), api.StateBlocked
	job.Status.Conditions = []metav1.Condition{{Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: "Any",
		Message: "\x1b]0;owned\a\n\nIn cluster worker-9:\n  It is Running."}}
	if err := far.client.Update(t.Context(), &job); err != nil {
		t.Fatal(err)
	}
	if err := here.try("explain", "away"); err != nil || strings.ContainsAny(here.out.String(), "\x1b\a") ||
		strings.Contains(here.out.String(), "\nIn cluster worker-9") {
		t.Errorf("got %v, %q", err, here.out.String())
	}
}

// TestFollowElsewhere holds that logs are followed into the cluster that MultiKueue runs a TrainJob in.
func TestFollowElsewhere(t *testing.T) {
	here, far := joined(t, interceptor.Funcs{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	here.out.shown = func(string) { cancel() }
	err := here.run(ctx, "logs", "away", "-f")
	if err == nil || !strings.Contains(here.out.String(), "[node-0] fake logs") {
		t.Errorf("got %v, %q", err, here.out.String())
	}
	var pods corev1.PodList
	if err := far.client.List(t.Context(), &pods); err != nil || len(pods.Items) != 1 {
		t.Errorf("got %v, %v", pods.Items, err)
	}
}

// TestClusterFlag holds what --cluster is: kubectl's, or a context.
func TestClusterFlag(t *testing.T) {
	flags := genericclioptions.NewConfigFlags(true)
	f := clusterFlag{&flags.ClusterName, map[string]string{}}
	for value, valid := range map[string]bool{
		"worker-1=far": true, "of-kubeconfig": true, "=far": false, "worker-1=": false,
	} {
		if err := f.Set(value); (err == nil) != valid {
			t.Errorf("%q: got %v", value, err)
		}
	}
	if f.contexts["worker-1"] != "far" || *flags.ClusterName != "of-kubeconfig" || f.Type() != "string" ||
		f.String() != "" {
		t.Errorf("got %v, %v", f.contexts, *flags.ClusterName)
	}
}

// TestOpens holds that another cluster is reached by a context of the same kubeconfig.
func TestOpens(t *testing.T) {
	path := written(t, `{apiVersion: v1, kind: Config, current-context: here, clusters: [{name: a, cluster: {server: "http://a"}}],
contexts: [{name: here, context: {cluster: a}}, {name: far, context: {cluster: a}}]}`)
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &path
	who, groups := "ann", []string{"team"}
	flags.Impersonate, flags.ImpersonateGroup = &who, &groups
	var opened *genericclioptions.ConfigFlags
	open := opens(flags, func(f *genericclioptions.ConfigFlags) (*session, error) { opened = f; return &session{}, nil })
	if _, err := open("far"); err != nil || *opened.Context != "far" || *opened.KubeConfig != path {
		t.Errorf("got %v, %v", opened, err)
	}
	if as, err := opened.ToRESTConfig(); err != nil || as.Impersonate.UserName != "ann" ||
		len(as.Impersonate.Groups) != 1 {
		t.Errorf("whom the user acts as, they act as there: got %v, %v", as, err)
	}
	if _, err := open("none"); err == nil || !strings.Contains(err.Error(), `no context "none"`) {
		t.Errorf("got %v", err)
	}
	path += "x"
	if _, err := opens(genericclioptions.NewConfigFlags(true), nil)("far"); err == nil {
		t.Error("there is no kubeconfig")
	}
}
