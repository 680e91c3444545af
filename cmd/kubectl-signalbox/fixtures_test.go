package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakeclients "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// base is a queue of eight GPUs, of which job "first" holds all, and "second" waits.
const base = `
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: a100}
spec: {nodeLabels: {gpu: a100}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  queueingStrategy: BestEffortFIFO
  preemption: {withinClusterQueue: Never, reclaimWithinCohort: Never}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}]
status:
  flavorsReservation: [{name: a100, resources: [{name: nvidia.com/gpu, total: "8"}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: queue, namespace: team}
spec: {clusterQueue: cq}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {spec: {containers: [{name: node, image: i}]}}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: first, namespace: team, uid: first, creationTimestamp: "2026-11-24T10:00:00Z", labels: {kueue.x-k8s.io/queue-name: queue}}
spec: {suspend: false, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}
status: {state: Running, flavor: a100, startTime: "2026-11-24T10:00:05Z"}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: second, namespace: team, uid: second, creationTimestamp: "2026-11-24T10:01:00Z", labels: {kueue.x-k8s.io/queue-name: queue, team: vision}}
spec: {suspend: true, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}, trainer: {numNodes: 2, resourcesPerNode: {requests: {nvidia.com/gpu: 4}}}}
status: {state: Queued, conditions: [{type: Suspended, status: "True", reason: Suspended, message: "", lastTransitionTime: "2026-11-24T10:01:00Z"}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: wl-first, namespace: team, uid: wl-first, creationTimestamp: "2026-11-24T10:00:00Z", ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: first, uid: first, controller: true}]}
spec:
  queueName: queue
  active: true
  priority: 0
  podSets: [{name: node, count: 2, template: {spec: {containers: [{name: node, image: i, resources: {requests: {nvidia.com/gpu: 4}}}]}}}]
status:
  admission: {clusterQueue: cq, podSetAssignments: [{name: node, count: 2, flavors: {nvidia.com/gpu: a100}, resourceUsage: {nvidia.com/gpu: 8}}]}
  conditions:
  - {type: QuotaReserved, status: "True", reason: QuotaReserved, message: "", lastTransitionTime: "2026-11-24T10:00:01Z"}
  - {type: Admitted, status: "True", reason: Admitted, message: "", lastTransitionTime: "2026-11-24T10:00:01Z"}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: wl-second, namespace: team, uid: wl-second, creationTimestamp: "2026-11-24T10:01:00Z", ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: second, uid: second, controller: true}]}
spec:
  queueName: queue
  active: true
  priority: 0
  podSets: [{name: node, count: 2, template: {spec: {containers: [{name: node, image: i, resources: {requests: {nvidia.com/gpu: 4}}}]}}}]
status:
  conditions: [{type: QuotaReserved, status: "False", reason: Pending, message: "couldn't assign flavors to pod set node: insufficient unused quota for nvidia.com/gpu in flavor a100, 8 more needed", lastTransitionTime: "2026-11-24T10:01:01Z"}]
`

// stalledJob runs, has saved, and reports nothing.
const stalledJob = `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: stalled, namespace: team, uid: stalled, creationTimestamp: "2026-11-24T10:00:00Z"}
spec: {suspend: false, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}
status:
  state: Running
  checkpoint: {time: "2026-11-24T10:10:00Z", value: step 120}
  queue: {conditions: [{type: Stalled, status: "True", reason: NoReport, message: it has reported nothing, lastTransitionTime: "2026-11-24T10:20:00Z"}]}
`

// chain is one that runs after another, which runs after a third.
const chain = `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  {name: third, namespace: team, uid: third, labels: {kueue.x-k8s.io/queue-name: queue},
   annotations: {signalbox.dev/after: "chained=ok,nobody=any", kueue.x-k8s.io/admission-gated-by: signalbox.dev/after}}
spec: {suspend: true, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  {name: chained, namespace: team, uid: chained, labels: {kueue.x-k8s.io/queue-name: queue},
   annotations: {signalbox.dev/after: first=any, kueue.x-k8s.io/admission-gated-by: signalbox.dev/after}}
spec: {suspend: true, runtimeRef: {name: torch, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}}
`

// objectsOf reads manifests.
func objectsOf(t *testing.T, text string) []client.Object {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	var all []client.Object
	for _, doc := range strings.Split(text, "\n---\n") {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatal(err)
		}
		o, err := scheme.New(head.GroupVersionKind())
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(doc), o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		all = append(all, o.(client.Object))
	}
	return all
}

// trial is a cluster for commands.
type trial struct {
	t       *testing.T
	client  client.WithWatch
	clients *fakeclients.Clientset
	out     screen
	errs    bytes.Buffer
	others  elsewhere
}

// session returns one with the cluster.
func (tr *trial) session(streams genericiooptions.IOStreams) *session {
	return &session{client: tr.client, clients: tr.clients, namespace: "team", kueueNamespace: defaultKueueNamespace,
		streams: streams, elsewhere: tr.others}
}

// screen is the standard output of a command.
type screen struct {
	bytes.Buffer
	// shown is called with each piece of output if it isn't nil.
	shown func(piece string)
}

// Write implements io.Writer.
func (s *screen) Write(piece []byte) (int, error) {
	if s.shown != nil {
		s.shown(string(piece))
	}
	return s.Buffer.Write(piece)
}

func newTrial(t *testing.T, funcs interceptor.Funcs, manifests ...string) *trial {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	objects := objectsOf(t, strings.TrimPrefix(base, "\n"))
	for _, text := range manifests {
		objects = append(objects, objectsOf(t, text)...)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs)
	builder.WithIndex(&api.TrainJob{}, "metadata.name", func(o client.Object) []string { return []string{o.GetName()} })
	clients := fakeclients.NewClientset()
	discovery, _ := clients.Discovery().(*fakediscovery.FakeDiscovery)
	discovery.FakedServerVersion = &apiversion.Info{
		Major:      "1",
		Minor:      "36",
		GitVersion: version.MustParse("1.36.0").String(),
	}
	return &trial{t: t, client: builder.Build(), clients: clients}
}

// try runs a command.
func (tr *trial) try(args ...string) error {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), 30*time.Second)
	defer cancel()
	return tr.run(ctx, args...)
}

func (tr *trial) run(ctx context.Context, args ...string) error {
	tr.out.Reset()
	tr.errs.Reset()
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &tr.out, ErrOut: &tr.errs}
	c := &cli{streams: streams, connect: func() (*session, error) { return tr.session(streams), nil }}
	for _, cmd := range c.commands() {
		if cmd.Name() == args[0] {
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			cmd.SetOut(&tr.out)
			cmd.SetErr(&tr.errs)
			cmd.SetArgs(args[1:])
			return cmd.ExecuteContext(ctx)
		}
	}
	return errors.New("no such command")
}

// forbids answers lists of some kinds with Forbidden.
func forbids(kinds ...string) interceptor.Funcs {
	return interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
	) error {
		gvk, err := c.GroupVersionKindFor(list)
		if err != nil {
			return err
		}
		options := (&client.ListOptions{}).ApplyOptions(opts)
		for _, kind := range kinds {
			if name, own := strings.CutSuffix(
				kind,
				" elsewhere",
			); gvk.Kind == name+"List" &&
				(!own || options.Namespace == "") {
				return apierrors.NewForbidden(schema.GroupResource{Resource: kind}, "", errors.New("no"))
			}
		}
		return c.List(ctx, list, opts...)
	}}
}

// broken fails each list.
func broken() interceptor.Funcs {
	return interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("connection refused")
		},
	}
}

const spot = `apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: spot}
spec:
  namespaceSelector: {}
  queueingStrategy: BestEffortFIFO
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: 64}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: spot, namespace: team}
spec: {clusterQueue: spot}`

const urgent = `apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 1000`

const twoPods = `apiVersion: v1
kind: Pod
metadata: {name: first-node-0-0, namespace: team, uid: p0, labels: {jobset.sigs.k8s.io/jobset-name: first, jobset.sigs.k8s.io/replicatedjob-name: node, jobset.sigs.k8s.io/job-index: "0", batch.kubernetes.io/job-completion-index: "0"}}
status: {containerStatuses: [{name: node, state: {running: {}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: first-node-1-0, namespace: team, uid: p1, labels: {jobset.sigs.k8s.io/jobset-name: first, jobset.sigs.k8s.io/replicatedjob-name: node, jobset.sigs.k8s.io/job-index: "1", batch.kubernetes.io/job-completion-index: "0"}}
status: {containerStatuses: [{name: node, state: {terminated: {exitCode: 0}}}]}`
