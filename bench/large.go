package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/audit"
)

// largeManifest is nodes' flavor with a topology, quota by CPU, and the runtimes of large TrainJobs.
const largeManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: bench}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: racks}
spec: {levels: [{nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: bench}
spec: {nodeLabels: {pool: bench}, topologyName: racks}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: bench}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: bench, resources: [{name: cpu, nominalQuota: 1k}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: bench, name: bench}
spec: {clusterQueue: bench}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {namespace: bench, name: large, labels: {trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            template:
              metadata: {annotations: {sim.signalbox.dev/run-for: 60s, kueue.x-k8s.io/podset-preferred-topology: rack}}
              spec: {containers: [{name: node, image: "example.com/train:1"}]}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {namespace: bench, name: mpi, labels: {trainer.kubeflow.org/framework: mpi}}
spec:
  mlPolicy:
    numNodes: 1
    mpi: {numProcPerNode: 8, mpiImplementation: OpenMPI, sshAuthMountPath: /root/.ssh, runLauncherAsNode: true}
  template:
    spec:
      successPolicy: {operator: All, targetReplicatedJobs: [launcher]}
      replicatedJobs:
      - name: node
        template:
          spec:
            template:
              metadata: {annotations: {sim.signalbox.dev/run-for: 24h, kueue.x-k8s.io/podset-preferred-topology: rack}}
              spec: {containers: [{name: node, image: "example.com/train:1"}]}
      - name: launcher
        dependsOn: [{name: node, status: Ready}]
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            template:
              metadata: {annotations: {sim.signalbox.dev/run-for: 10s, kueue.x-k8s.io/podset-preferred-topology: rack}}
              spec: {containers: [{name: node, image: "example.com/train:1"}]}
`

// manyReplicatedJobs is how many ReplicatedJobs the runtime "many" has: as many as a Workload may have PodSets.
const (
	manyReplicatedJobs = 18
	podsOfEach         = 50
)

// largeShape is a kind of large TrainJobs.
type largeShape struct {
	name    string
	runtime string
	jobs    int
	// nodes is numNodes of each, pods what that makes.
	nodes, pods int32
	gang        api.GangMode
}

func largeShapes() []largeShape {
	const others = (manyReplicatedJobs - 1) * podsOfEach
	return []largeShape{
		{"1 of 5,000 pods", "large", 1, 5000, 5000, api.GangOff},
		{"1 of 5,000 pods, as a gang", "large", 1, 5000, 5000, api.GangRequired},
		{"10 of 1,000 pods, as gangs", "large", 10, 1000, 1000, api.GangRequired},
		{"1 of 1,000 pods with MPI, as a gang", "mpi", 1, 1000, 1000, api.GangRequired},
		{"1 of 1,000 pods in 18 PodSets", "many", 1, 1000 - others, 1000, api.GangOff},
		{"1 of 1,000 pods in 18 PodSets, as a gang", "many", 1, 1000 - others, 1000, api.GangRequired},
	}
}

// largeRun is what the TrainJobs of a shape took.
type largeRun struct {
	Shape string `json:"shape"`
	// WritesPerJob are Signalbox's write requests from the submission until the TrainJob is deleted, whatever their
	// result, and so events too.
	WritesPerJob float64 `json:"writesPerJob"`
	// The times are the longest of the TrainJobs, by the API server's answers: from the submission to the start write,
	// from that to the JobSet, and to the last pod's node.
	StartSeconds  float64 `json:"startSeconds"`
	JobSetSeconds float64 `json:"jobSetSeconds"`
	BoundSeconds  float64 `json:"boundSeconds"`
	// CPU is Signalbox's for all of them, Peak its memory since it was started.
	CPU  float64 `json:"cpuSeconds"`
	Peak int64   `json:"peakBytes"`
	// Objects are the bytes of the largest object of each kind, as JSON, while all pods are bound.
	Objects map[string]int `json:"objectBytes"`
}

// large measures large TrainJobs of each shape whose name has only in it, one shape after the other.
func large(ctx context.Context, dir, only, out string) error {
	g, err := newLargeGround(ctx, dir)
	if err != nil {
		return err
	}
	var runs []largeRun
	for i, shape := range largeShapes() {
		if !strings.Contains(shape.name, only) {
			continue
		}
		r, err := g.large(ctx, dir, fmt.Sprintf("large-%d", i), shape)
		if err != nil {
			return fmt.Errorf("%s: %w", shape.name, err)
		}
		fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), r)
		runs = append(runs, *r)
	}
	text := largeMarkdown(runs)
	fmt.Print("\n" + text)
	return write(out, runs, text)
}

// newLargeGround returns a ground of 16 nodes in four racks, each with room for 700 pods.
func newLargeGround(ctx context.Context, dir string) (*ground, error) {
	g, err := connect(dir)
	if err != nil {
		return nil, err
	}
	for i := range 16 {
		name := fmt.Sprintf("bench-%d", i)
		labels := map[string]string{
			"pool": "bench", "rack": fmt.Sprintf("rack-%d", i/4), corev1.LabelHostname: name,
		}
		if err := g.addNode(ctx, name, labels, "700"); err != nil {
			return nil, err
		}
	}
	if err := g.apply(ctx, largeManifest); err != nil {
		return nil, err
	}
	many := &api.TrainingRuntime{}
	if err := g.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "large"}, many); err != nil {
		return nil, err
	}
	many.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "many", Labels: many.Labels}
	node := many.Spec.Template.Spec.ReplicatedJobs[0]
	for i := range manyReplicatedJobs - 1 {
		other := *node.DeepCopy()
		other.Name, other.Template.Labels = fmt.Sprintf("other-%d", i), nil
		other.Template.Spec.Parallelism = ptr.To[int32](podsOfEach)
		other.Template.Spec.Completions = ptr.To[int32](podsOfEach)
		other.Template.Spec.Template.Spec.Containers[0].Resources.Requests = tenth()
		many.Spec.Template.Spec.ReplicatedJobs = append(many.Spec.Template.Spec.ReplicatedJobs, other)
	}
	return g, g.client.Create(ctx, many)
}

// tenth is what each pod asks for.
func tenth() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
}

// large runs the TrainJobs of a shape to their ends, deletes them, and returns what they took.
func (g *ground) large(ctx context.Context, dir, prefix string, shape largeShape) (*largeRun, error) {
	g.allow(shape.jobs * int(shape.pods))
	from, err := audit.End(g.audit)
	if err != nil {
		return nil, err
	}
	before, err := usages(dir)
	if err != nil {
		return nil, err
	}
	for i := range shape.jobs {
		job := trainJob(fmt.Sprintf("%s-%d", prefix, i), shape.gang)
		job.Spec.RuntimeRef.Name = shape.runtime
		job.Spec.Trainer.NumNodes = ptr.To(shape.nodes)
		job.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: tenth()}
		if err := g.client.Create(ctx, job); err != nil {
			return nil, fmt.Errorf("submitting: %w", err)
		}
	}
	r := &largeRun{Shape: shape.name, Objects: map[string]int{}}
	if err := g.untilEvery(ctx, time.Second, "the TrainJobs have finished", func() (bool, error) {
		if err := g.sizes(ctx, r.Objects); err != nil {
			return false, err
		}
		return g.complete(ctx, shape.jobs)
	}); err != nil {
		return nil, err
	}
	if err := g.clear(ctx, shape.jobs); err != nil {
		return nil, err
	}
	if err := g.settle(ctx, from, quiet); err != nil {
		return nil, err
	}
	after, err := usages(dir)
	if err != nil {
		return nil, err
	}
	r.CPU, r.Peak = after["signalbox"].CPU-before["signalbox"].CPU, after["signalbox"].Peak
	requests, err := audit.Since(g.audit, from, func(r audit.Request) bool {
		return r.Writes() && r.ObjectRef.Namespace == namespace
	})
	if err != nil {
		return nil, err
	}
	return r, r.read(requests, shape)
}

// complete reports whether as many TrainJobs as are to have completed. That one failed is an error.
func (g *ground) complete(ctx context.Context, jobs int) (bool, error) {
	var all api.TrainJobList
	if err := g.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return false, err
	}
	n := 0
	for i := range all.Items {
		conditions := all.Items[i].Status.Conditions
		if failed := apimeta.FindStatusCondition(conditions, trainerapi.TrainJobFailed); failed != nil {
			return false, fmt.Errorf("TrainJob %s has failed: %s", all.Items[i].Name, failed.Message)
		}
		if apimeta.IsStatusConditionTrue(conditions, trainerapi.TrainJobComplete) {
			n++
		}
	}
	return n == jobs, nil
}

// sizes keeps the size of the largest object of each kind.
func (g *ground) sizes(ctx context.Context, largest map[string]int) error {
	for kind, list := range map[string]client.ObjectList{
		"TrainJob": &api.TrainJobList{}, "Workload": &kueue.WorkloadList{}, "JobSet": &jobset.JobSetList{},
		"ConfigMap": &corev1.ConfigMapList{},
	} {
		if err := g.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		objects, err := apimeta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, o := range objects {
			data, err := json.Marshal(o)
			if err != nil {
				return err
			}
			largest[kind] = max(largest[kind], len(data))
		}
	}
	return nil
}
