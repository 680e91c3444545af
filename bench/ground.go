package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/audit"
)

const (
	gpu       = corev1.ResourceName("nvidia.com/gpu")
	namespace = "bench"
	// patience bounds how long anything may take that is waited for, beside what each TrainJob may.
	patience     = 5 * time.Minute
	patienceEach = time.Second
)

// ground is what is measured on: 16 nodes of 8 GPUs, quota for all of them, a runtime of one step.
type ground struct {
	client client.WithWatch
	audit  string
	jobs   int // of which something is waited for
	queues queues

	profiles *profiler
}

// allow has waits take the time that n TrainJobs may take.
func (g *ground) allow(n int) { g.jobs = max(g.jobs, n) }

// manifest is all but the nodes and the runtime.
const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: bench}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: bench}
spec: {nodeLabels: {pool: bench}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: bench}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: bench, resources: [{name: nvidia.com/gpu, nominalQuota: 128}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: bench, name: bench}
spec: {clusterQueue: bench}
`

// runtimeManifest is the runtime of every TrainJob here. A pod runs for a second.
const runtimeManifest = `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {namespace: bench, name: torch, labels: {trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {metadata: {annotations: {sim.signalbox.dev/run-for: 1s}}, spec: {containers: [{name: node, image: "example.com/train:1"}]}}}
`

// connect returns a ground on which nothing is yet.
func connect(dir string) (*ground, error) {
	if dir == "" {
		return nil, errors.New("which control plane? run me by make bench, or name its folder by --cluster")
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("%w; is the control plane up? make bench starts one", err)
	}
	config.QPS, config.Burst = 500, 1000
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme, usageapi.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	g := &ground{audit: audit.Log(dir), profiles: &profiler{cluster: dir}}
	g.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	return g, err
}

func newGround(ctx context.Context, dir string) (*ground, error) {
	g, err := connect(dir)
	if err != nil {
		return nil, err
	}
	for i := range 16 {
		if err := g.addNode(ctx, fmt.Sprintf("bench-%d", i), map[string]string{"pool": "bench"}, "110"); err != nil {
			return nil, err
		}
	}
	return g, g.apply(ctx, manifest+"\n---\n"+runtimeManifest)
}

// addNode creates a simulated node of 96 CPUs and 8 GPUs that takes so many pods.
func (g *ground) addNode(
	ctx context.Context, name string, labels map[string]string, pods string, taints ...corev1.Taint,
) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:  resource.MustParse("96"),
		corev1.ResourcePods: resource.MustParse(pods),
		gpu:                 resource.MustParse("8"),
	}
	labels[corev1.LabelHostname] = name // as kubelets do
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels,
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}}, // which KWOK looks for beside real nodes
		Spec:   corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}
	if err := g.client.Create(ctx, node); err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	return nil
}

// apply creates what a manifest has, if anything, and more, and waits until the ClusterQueues among it are active.
func (g *ground) apply(ctx context.Context, manifest string, more ...client.Object) error {
	for _, text := range strings.Split(manifest, "\n---\n") {
		if text == "" {
			continue
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			return err
		}
		o, err := g.client.Scheme().New(kind.GroupVersionKind())
		if err != nil {
			return err
		}
		if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
			return fmt.Errorf("%s: %w", kind.Kind, err)
		}
		if err := g.client.Create(ctx, o.(client.Object)); err != nil {
			return fmt.Errorf("%s: %w", kind.Kind, err)
		}
	}
	for _, o := range more {
		if err := g.client.Create(ctx, o); err != nil {
			return fmt.Errorf("%T %s: %w", o, o.GetName(), err)
		}
	}
	return g.until(ctx, "the ClusterQueues are active", func() (bool, error) { return g.active(ctx) })
}

// trainJob returns a suspended TrainJob of two nodes of one GPU.
func trainJob(name string, mode api.GangMode) *api.TrainJob {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels:      map[string]string{constants.QueueLabel: "bench"},
			Annotations: map[string]string{api.GangModeAnnotation: string(mode)},
		},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{
				APIGroup: ptr.To(trainerapi.GroupVersion.Group), Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: "torch",
			},
			Trainer: &trainerapi.Trainer{
				NumNodes:         ptr.To[int32](2),
				ResourcesPerNode: &corev1.ResourceRequirements{Requests: one, Limits: one},
			},
			Suspend: ptr.To(true),
		}},
	}
}

// until waits for a condition.
func (g *ground) until(ctx context.Context, what string, holds func() (bool, error)) error {
	return g.untilEvery(ctx, 100*time.Millisecond, what, holds)
}

// untilEvery waits for a condition that costs time to look at.
func (g *ground) untilEvery(ctx context.Context, interval time.Duration, what string,
	holds func() (bool, error)) error {
	if err := wait.PollUntilContextTimeout(
		ctx, interval, patience+time.Duration(g.jobs)*patienceEach, true,
		func(context.Context) (bool, error) { return holds() },
	); err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// teller returns a function that tells what a benchmark does, with the time.
func teller(who string) func(format string, args ...any) {
	return func(format string, args ...any) {
		fmt.Printf("%s  %s: %s\n", time.Now().Format(time.TimeOnly), who, fmt.Sprintf(format, args...))
	}
}
