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

// prepare makes the nodes and applies the manifests.
func prepare(ctx context.Context, c client.Client) error {
	for _, kind := range []string{"a100", "h100"} {
		for i := range 8 {
			capacity := corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("1Ti"),
				corev1.ResourcePods: resource.MustParse("110"), gpu: resource.MustParse("8"),
			}
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", kind, i), Labels: map[string]string{"gpu": kind}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "gpu", Value: kind, Effect: corev1.TaintEffectNoSchedule}}},
				Status:     corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
			}
			if err := c.Create(ctx, node); err != nil {
				return fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
	}
	return fs.WalkDir(manifests, "manifests", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := manifests.ReadFile(path)
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
	})
}

// shape is a TrainJob of the demo.
type shape struct {
	team, name, runtime string
	nodes               int32
	gpus                int64  // a node
	priority            string // "" is low
	runFor              string // of its trainer's pods
	after               time.Duration
	change              func(*trainerapi.TrainJob)
}

// The jobs come in the order in which they are submitted, each some time after the one before.
func shapes() []shape {
	var all []shape
	for i := range 4 { // together they fill the cluster
		all = append(all, shape{team: "team-a", name: fmt.Sprintf("torch-%d", i+1), runtime: "torch-distributed", nodes: 4, gpus: 8, runFor: "14s"})
	}
	all = append(all, shape{team: "team-a", name: "fits-nowhere", runtime: "torch-distributed", nodes: 20, gpus: 8, runFor: "5s"})
	for i := range 4 {
		all = append(all, shape{team: "team-b", name: fmt.Sprintf("small-%d", i+1), runtime: "torch-distributed", nodes: 1, gpus: 4, runFor: "5s"})
	}
	all = append(all,
		shape{team: "team-b", name: "mpi-1", runtime: "mpi", nodes: 4, gpus: 8, runFor: ""},
		shape{team: "team-b", name: "mpi-2", runtime: "mpi", nodes: 2, gpus: 8, runFor: ""},
		shape{team: "team-b", name: "with-dataset", runtime: "torch-with-dataset", nodes: 2, gpus: 8, runFor: "5s"},
		shape{team: "team-b", name: "only-h100", runtime: "torch-distributed", nodes: 2, gpus: 8, runFor: "5s", change: onlyH100},
		shape{team: "team-a", name: "urgent", runtime: "torch-distributed", nodes: 6, gpus: 8, priority: "high", runFor: "8s", after: 6 * time.Second},
	)
	for i := range 6 {
		all = append(all, shape{team: "team-a", name: fmt.Sprintf("late-%d", i+1), runtime: "torch-distributed", nodes: int32(1 + i%3), gpus: 8, runFor: "4s"})
	}
	return all
}

// onlyH100 is a user's own entry: this TrainJob goes to H100 nodes or nowhere.
func onlyH100(tj *trainerapi.TrainJob) {
	tj.Spec.RuntimePatches = append(tj.Spec.RuntimePatches, entry("example.com/team-b", nil, &trainerapi.PodSpecPatch{NodeSelector: map[string]string{"gpu": "h100"}}))
}

// entry is a user's entry for the trainer's pods.
func entry(manager string, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) trainerapi.RuntimePatch {
	return trainerapi.RuntimePatch{Manager: manager, TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
		Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{{Name: "node", Template: &trainerapi.JobTemplatePatch{
			Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Metadata: meta, Spec: spec}}}}}},
	}}}
}

// submit creates the TrainJobs as the user, suspended, as batch users do.
func submit(ctx context.Context, c client.Client) error {
	for _, s := range shapes() {
		select {
		case <-time.After(s.after + 150*time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.Create(ctx, s.trainJob()); err != nil {
			return fmt.Errorf("TrainJob %s: %w", s.name, err)
		}
	}
	return nil
}

func (s shape) trainJob() *trainerapi.TrainJob {
	priority := s.priority
	if priority == "" {
		priority = "low"
	}
	gpus := corev1.ResourceList{gpu: *resource.NewQuantity(s.gpus, resource.DecimalSI)}
	tj := &trainerapi.TrainJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.team, Name: s.team + "-" + s.name,
			Labels: map[string]string{"kueue.x-k8s.io/queue-name": "training", "kueue.x-k8s.io/priority-class": priority},
		},
		Spec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{Name: s.runtime},
			Trainer:    &trainerapi.Trainer{NumNodes: &s.nodes, ResourcesPerNode: &corev1.ResourceRequirements{Requests: gpus, Limits: gpus}},
			Suspend:    ptr.To(true),
		},
	}
	if s.runFor != "" {
		tj.Spec.RuntimePatches = []trainerapi.RuntimePatch{entry("demo.signalbox.dev/simulation",
			&metav1.ObjectMeta{Annotations: map[string]string{"sim.signalbox.dev/run-for": s.runFor}}, nil)}
	}
	if s.change != nil {
		s.change(tj)
	}
	return tj
}
