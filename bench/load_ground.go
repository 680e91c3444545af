package main

import (
	"context"
	"fmt"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// warm starts a few TrainJobs, so that nothing is done for the first time later.
func (g *ground) warm(ctx context.Context, dir string) error {
	const few = 10
	if _, err := g.burst(ctx, dir, "warm", few, false); err != nil {
		return err
	}
	return g.clear(ctx, few)
}

// loadManifest is the same for every profile: two kinds of GPUs, each with a label and a taint.
const loadManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: bench}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: a100}
spec: {nodeLabels: {pool: a100}, tolerations: [{key: pool, value: a100, effect: NoSchedule}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: h100}
spec: {nodeLabels: {pool: h100}, tolerations: [{key: pool, value: h100, effect: NoSchedule}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: holder}
value: 100
`

func newLoadGround(ctx context.Context, dir string, q queues) (*ground, error) {
	g, err := connect(dir)
	if err != nil {
		return nil, err
	}
	g.queues = q
	for _, pool := range []string{"a100", "h100"} {
		if err := g.addPool(ctx, pool, 0, nodesOfPool); err != nil {
			return nil, err
		}
	}
	return g, g.apply(ctx, loadManifest+"\n---\n"+runtimeManifest+"\n---\n"+runtimeFor(long, "24h"), q.objects()...)
}

// nodesOfPool is how many nodes there are of each kind of GPUs.
const nodesOfPool = quotaOfFlavor / 8

// addPool adds the nodes of a kind from one to before another.
func (g *ground) addPool(ctx context.Context, pool string, from, to int) error {
	for i := from; i < to; i++ {
		taint := corev1.Taint{Key: "pool", Value: pool, Effect: corev1.TaintEffectNoSchedule}
		if err := g.addNode(ctx, nodeOf(pool, i), map[string]string{"pool": pool}, "110", taint); err != nil {
			return err
		}
	}
	return nil
}

func nodeOf(pool string, i int) string { return fmt.Sprintf("%s-%d", pool, i) }

// runtimeFor returns the manifest of a runtime whose pods run for a time. What follows the time is further annotations.
func runtimeFor(name, runFor string) string {
	return strings.NewReplacer("name: torch,", "name: "+name+",", "run-for: 1s", "run-for: "+runFor).
		Replace(runtimeManifest)
}

// loadJob returns a TrainJob of one pod of one GPU, in a LocalQueue.
func loadJob(name, queue string) *api.TrainJob {
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{constants.QueueLabel: queue},
		},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{
				APIGroup: ptr.To(trainerapi.GroupVersion.Group), Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: "torch",
			},
			Trainer: &trainerapi.Trainer{NumNodes: ptr.To[int32](1), ResourcesPerNode: gpus(1)},
			Suspend: ptr.To(true),
		}},
	}
}

// long is the runtime whose pods run until they are deleted.
const long = "long"

// gpus is what a node of a TrainJob asks for.
func gpus(n int64) *corev1.ResourceRequirements {
	some := corev1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI)}
	return &corev1.ResourceRequirements{Requests: some, Limits: some}
}

// short leaves a TrainJob of a second as it is.
func short(*api.TrainJob) {}

// submit creates n TrainJobs.
func (g *ground) submit(ctx context.Context, prefix string, n int, change func(*api.TrainJob)) error {
	return atOnce(n, func(i int) error {
		job := loadJob(fmt.Sprintf("%s-%05d", prefix, i), g.queues.of(i))
		change(job)
		if err := g.client.Create(ctx, job); err != nil {
			return fmt.Errorf("submitting: %w", err)
		}
		return nil
	})
}

// atOnce does n things, as many at a time as there are submitters.
func atOnce(n int, do func(int) error) error {
	var group errgroup.Group
	group.SetLimit(submitters)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// clear deletes all n TrainJobs, and waits until nothing of them is left.
func (g *ground) clear(ctx context.Context, n int) error { return g.clearIn(ctx, namespace, n) }

// clearIn does so in any namespace.
func (g *ground) clearIn(ctx context.Context, namespace string, n int) error {
	g.allow(n)
	var all api.TrainJobList
	if err := g.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return err
	}
	// One by one: a request to delete thousands takes longer than the API server gives it.
	err := atOnce(len(all.Items), func(i int) error { return client.IgnoreNotFound(g.client.Delete(ctx, &all.Items[i])) })
	if err != nil {
		return err
	}
	return g.until(ctx, "nothing is left of the TrainJobs", func() (bool, error) {
		for _, list := range []client.ObjectList{
			&api.TrainJobList{}, &kueue.WorkloadList{}, &jobset.JobSetList{}, &corev1.PodList{},
		} {
			if err := g.client.List(ctx, list, client.InNamespace(namespace), client.Limit(1)); err != nil {
				return false, err
			}
			if apimeta.LenList(list) > 0 {
				return false, nil
			}
		}
		return true, nil
	})
}
