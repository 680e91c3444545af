package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

//go:embed manifests
var manifests embed.FS

const gpu = corev1.ResourceName("nvidia.com/gpu")

// prepare creates the nodes and the objects of the manifests.
func prepare(ctx context.Context, c client.Client) error {
	for _, kind := range []string{"a100", "h100"} {
		for i := range 8 {
			node := gpuNode(kind, i)
			if err := c.Create(ctx, node); err != nil {
				return fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
	}
	return fs.WalkDir(manifests, "manifests", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return createFrom(ctx, c, manifests, path)
	})
}

// gpuNode returns the ith node of a kind, with 8 GPUs.
func gpuNode(kind string, i int) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("110"), gpu: resource.MustParse("8"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", kind, i), Labels: map[string]string{"gpu": kind}},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "gpu", Value: kind, Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}
}

// createFrom creates the objects of a manifest.
func createFrom(ctx context.Context, c client.Client, files embed.FS, path string) error {
	content, err := files.ReadFile(path)
	if err != nil {
		return err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := c.Create(ctx, o); err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, o.GetKind(), o.GetName(), err)
		}
	}
}

// example is a TrainJob of the demo.
type example struct {
	team, name, runtime string
	nodes               int32
	// gpus is the number of GPUs of each node.
	gpus int64
	// priority is the name of a WorkloadPriorityClass; "" for low.
	priority string
	// runFor is how long the simulated nodes run the trainer's pods; "" for the runtime's time.
	runFor string
	// delay is how long to wait before it is submitted.
	delay  time.Duration
	change func(*trainerapi.TrainJob)
}

// examples returns the TrainJobs of the demo in the order in which they are submitted.
func examples() []example {
	var all []example
	torch := func(team, name string, nodes int32, runFor string) example {
		return example{team: team, name: name, runtime: "torch-distributed", nodes: nodes, gpus: 8, runFor: runFor}
	}
	for i := range 4 { // together they fill the cluster
		all = append(all, torch("team-a", fmt.Sprintf("torch-%d", i+1), 4, "14s"))
	}
	all = append(all, torch("team-a", "fits-nowhere", 20, "5s"))
	for i := range 4 {
		small := torch("team-b", fmt.Sprintf("small-%d", i+1), 1, "5s")
		small.gpus = 4
		all = append(all, small)
	}
	onlyH100 := torch("team-b", "only-h100", 2, "5s")
	onlyH100.change = selectH100
	urgent := torch("team-a", "urgent", 6, "8s")
	urgent.priority, urgent.delay = "high", 6*time.Second
	all = append(all,
		example{team: "team-b", name: "mpi-1", runtime: "mpi", nodes: 4, gpus: 8},
		example{team: "team-b", name: "mpi-2", runtime: "mpi", nodes: 2, gpus: 8},
		example{team: "team-b", name: "with-dataset", runtime: "torch-with-dataset", nodes: 2, gpus: 8, runFor: "5s"},
		onlyH100, urgent,
	)
	for i := range 6 {
		all = append(all, torch("team-a", fmt.Sprintf("late-%d", i+1), int32(1+i%3), "4s"))
	}
	return all
}

// selectH100 adds a user's own patch: the TrainJob runs only on H100 nodes.
func selectH100(tj *trainerapi.TrainJob) {
	h100 := &trainerapi.PodSpecPatch{NodeSelector: map[string]string{"gpu": "h100"}}
	tj.Spec.RuntimePatches = append(tj.Spec.RuntimePatches,
		patch("example.com/team-b", &trainerapi.PodTemplatePatch{Spec: h100}))
}

// patch returns a user's patch of the trainer's pods.
func patch(manager string, pod *trainerapi.PodTemplatePatch) trainerapi.RuntimePatch {
	node := trainerapi.ReplicatedJobPatch{
		Name: "node", Template: &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: pod}},
	}
	spec := &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{node}}
	return trainerapi.RuntimePatch{Manager: manager, TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
		Template: &trainerapi.JobSetTemplatePatch{Spec: spec},
	}}
}

// submit creates the TrainJobs as the user, suspended, as batch users do.
func submit(ctx context.Context, c client.Client) error {
	for _, s := range examples() {
		select {
		case <-time.After(s.delay + 150*time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.Create(ctx, s.trainJob()); err != nil {
			return fmt.Errorf("TrainJob %s: %w", s.name, err)
		}
	}
	return nil
}

// trainJob returns the TrainJob, suspended.
func (s example) trainJob() *trainerapi.TrainJob {
	priority := s.priority
	if priority == "" {
		priority = "low"
	}
	gpus := corev1.ResourceList{gpu: *resource.NewQuantity(s.gpus, resource.DecimalSI)}
	perNode := &corev1.ResourceRequirements{Requests: gpus, Limits: gpus}
	tj := &trainerapi.TrainJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.team, Name: s.team + "-" + s.name,
			Labels: map[string]string{"kueue.x-k8s.io/queue-name": "training", "kueue.x-k8s.io/priority-class": priority},
		},
		Spec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{Name: s.runtime},
			Trainer:    &trainerapi.Trainer{NumNodes: &s.nodes, ResourcesPerNode: perNode},
			Suspend:    ptr.To(true),
		},
	}
	if s.runFor != "" {
		meta := &metav1.ObjectMeta{Annotations: map[string]string{"sim.signalbox.dev/run-for": s.runFor}}
		tj.Spec.RuntimePatches = []trainerapi.RuntimePatch{
			patch("demo.signalbox.dev/simulation", &trainerapi.PodTemplatePatch{Metadata: meta}),
		}
	}
	if s.change != nil {
		s.change(tj)
	}
	return tj
}
