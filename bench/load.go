package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// quotaOfFlavor is the GPUs of each of the two flavors: 8 nodes of 8.
const quotaOfFlavor = 64

// submitters create TrainJobs at the same time, so that their creation is not what is measured.
const submitters = 8

// loadRun is what one run of a profile gives.
type loadRun struct {
	Profile string       `json:"profile"`
	Machine string       `json:"machine"`
	Bursts  []burstRun   `json:"bursts"`
	Waiting []waitingRun `json:"waiting"`
	Queued  *queuedRun   `json:"queued"`
	Running *runningRun  `json:"running"`
	Restart *restartRun  `json:"restart,omitempty"`
	// Findings are the number of findings of `signalbox audit` during the run, by rule.
	Findings map[string]int `json:"findings"`
}

// runningRun is of TrainJobs that run until they are evicted.
type runningRun struct {
	Jobs int `json:"jobs"`
	// Stored is of all of them, while they run.
	Stored    stored               `json:"stored"`
	LatencyMs map[string][]float64 `json:"latencyMs"`
}

// restartRun is of a manager that comes back while others wait, to TrainJobs that were admitted meanwhile.
type restartRun struct {
	Waiting  int `json:"waiting"`
	Admitted int `json:"admitted"`
	// Since its process was started: until its webhooks serve, until the last of those that were admitted is started, and
	// until it has looked at every TrainJob and has nothing left to do.
	ReadySeconds   float64 `json:"readySeconds"`
	StartedSeconds float64 `json:"startedSeconds"`
	InStepSeconds  float64 `json:"inStepSeconds"`
	Peak           int64   `json:"peakBytes"`
	// Faults that were seen since the manager was stopped.
	Faults map[string]int `json:"faults"`
}

// burstRun is a burst of TrainJobs of one pod of one GPU that runs for a second.
type burstRun struct {
	Jobs    int     `json:"jobs"`
	Seconds float64 `json:"seconds"`
	// Requests are counted from the audit log by who, verb, resource and code.
	Requests map[string]int `json:"requests"`
	// WritesPerJob are requests that may change something, by component.
	WritesPerJob map[string]float64 `json:"writesPerJob"`
	ReadsPerJob  map[string]float64 `json:"readsPerJob"`
	// LateWrites are writes after all have finished, per TrainJob, where they were looked at: Late.
	Late       bool    `json:"late"`
	LateWrites float64 `json:"lateWritesPerJob"`
	// StartWrites are writes to TrainJobs by other than their users, without those of status, per TrainJob.
	StartWrites float64              `json:"startWritesPerJob"`
	Conflicts   int                  `json:"conflicts"`
	DryRuns     int                  `json:"dryRuns"`
	LatencyMs   map[string][]float64 `json:"latencyMs"`
	CPU         map[string]float64   `json:"cpuSecondsPer1000"`
	Peak        map[string]int64     `json:"peakBytes"`
	Finished    int                  `json:"finished"`
	Faults      map[string]int       `json:"faults"`
	Stored      stored               `json:"storedWhenFinished"`
}

// queuedRun is of TrainJobs that wait in a ClusterQueue on hold.
type queuedRun struct {
	Jobs int `json:"jobs"`
	// Requests are the writes, counted by who, verb, resource and code.
	Requests     map[string]int     `json:"requests"`
	WritesPerJob map[string]float64 `json:"writesPerJob"`
	Stored       stored             `json:"stored"`
}

// waitingRun is of starts while others wait.
type waitingRun struct {
	Waiting   int                  `json:"waiting"`
	Starts    int                  `json:"starts"`
	LatencyMs map[string][]float64 `json:"latencyMs"`
	Peak      map[string]int64     `json:"peakBytes"`
	Faults    map[string]int       `json:"faults"`
}

// load measures one profile on a control plane that nothing else uses: what a few TrainJobs tell, where few is true, the
// bursts, and starts while so many others wait.
func load(ctx context.Context, dir, profile string, few bool, bursts, depths []int, out string) error {
	g, err := newLoadGround(ctx, dir)
	if err != nil {
		return err
	}
	r := &loadRun{Profile: profile, Machine: machine()}
	say := func(format string, args ...any) {
		fmt.Printf("%s  %s: %s\n", time.Now().Format(time.TimeOnly), profile, fmt.Sprintf(format, args...))
	}
	audited, err := g.runAudit(ctx, dir, say)
	if err != nil {
		return err
	}
	defer audited.end()
	if err := r.measure(ctx, g, dir, few, bursts, depths, out, say); err != nil {
		return err
	}
	if r.Findings, err = audited.findings(); err != nil {
		return err
	}
	return r.save(out)
}

// measure runs the benchmarks.
func (r *loadRun) measure(ctx context.Context, g *ground, dir string, few bool, bursts, depths []int, out string, say func(string, ...any)) error {
	if err := g.warm(ctx, dir); err != nil {
		return err
	}
	say("warm")
	for i, n := range bursts {
		b, err := g.burst(ctx, dir, fmt.Sprintf("burst-%d", n), n, few && n == lateSize)
		if err != nil {
			return err
		}
		say("burst of %d: %.1f s, %.2f writes each (after the end %.2f, where looked at), CPU of the controllers %.1f s per 1,000 (Signalbox %.1f, API server %.1f)", n, b.Seconds, b.WritesPerJob["controllers"], b.LateWrites, b.CPU["controllers"], b.CPU["signalbox"], b.CPU["kube-apiserver"])
		r.Bursts = append(r.Bursts, *b)
		if err := r.save(out); err != nil {
			return err
		}
		if i == len(bursts)-1 && len(depths) == 0 && !few {
			break // the control plane goes with them
		}
		if err := g.clear(ctx, n); err != nil {
			return err
		}
	}
	if few {
		if err := r.small(ctx, g, dir, say); err != nil {
			return err
		}
		if err := r.save(out); err != nil {
			return err
		}
	}
	return r.deep(ctx, g, dir, depths, out, say)
}

func (r *loadRun) save(out string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(data, '\n'), 0o644)
}

// warm starts a few TrainJobs, so that nothing is done for the first time later.
func (g *ground) warm(ctx context.Context, dir string) error {
	const few = 10
	if _, err := g.burst(ctx, dir, "warm", few, false); err != nil {
		return err
	}
	return g.clear(ctx, few)
}

// small measures what a few TrainJobs tell.
func (r *loadRun) small(ctx context.Context, g *ground, dir string, say func(string, ...any)) (err error) {
	const some = 50
	if r.Queued, err = g.queued(ctx, dir, some); err != nil {
		return err
	}
	say("%d queued: %.2f writes each, %.1f objects", some, r.Queued.WritesPerJob["all"], float64(r.Queued.Stored.Objects)/some)
	if r.Running, err = g.evictions(ctx, dir, running); err != nil {
		return err
	}
	say("%d evicted: their quota is free after %.0f ms, p50", running, quantile(r.Running.LatencyMs[span{evicted, released}.String()], 0.5))
	return nil
}

// deep measures with ever more TrainJobs waiting, and a restart behind the most of them.
func (r *loadRun) deep(ctx context.Context, g *ground, dir string, depths []int, out string, say func(string, ...any)) error {
	slices.Sort(depths)
	w := g.wait(ctx, dir)
	defer w.seen.end()
	for _, n := range depths {
		one, err := w.behind(ctx, n)
		if err != nil {
			return err
		}
		say("%d waiting: %s p99 %.0f ms", n, span{admitted, started}, quantile(one.LatencyMs[span{admitted, started}.String()], 0.99))
		r.Waiting = append(r.Waiting, *one)
		if err := r.save(out); err != nil {
			return err
		}
	}
	if len(depths) == 0 || r.Profile == "builtin" {
		return nil
	}
	var err error
	if r.Restart, err = w.restart(ctx, depths[len(depths)-1]); err != nil {
		return err
	}
	say("restarted with %d waiting: in step after %.1f s", r.Restart.Waiting, r.Restart.InStepSeconds)
	return nil
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
kind: ClusterQueue
metadata: {name: bench}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - {name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 64}]}
    - {name: h100, resources: [{name: nvidia.com/gpu, nominalQuota: 64}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: bench, name: bench}
spec: {clusterQueue: bench}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: holder}
value: 100
`

func newLoadGround(ctx context.Context, dir string) (*ground, error) {
	g, err := connect(dir)
	if err != nil {
		return nil, err
	}
	for _, pool := range []string{"a100", "h100"} {
		for i := range 8 {
			capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourcePods: resource.MustParse("110"), gpu: resource.MustParse("8")}
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", pool, i), Labels: map[string]string{"pool": pool}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "pool", Value: pool, Effect: corev1.TaintEffectNoSchedule}}},
				Status:     corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
			}
			if err := g.client.Create(ctx, node); err != nil {
				return nil, fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
	}
	return g, g.apply(ctx, loadManifest+"\n---\n"+runtimeManifest+"\n---\n"+strings.NewReplacer("name: torch,", "name: "+long+",", "run-for: 1s", "run-for: 24h").Replace(runtimeManifest))
}

// loadJob returns a TrainJob of one pod of one GPU, for a queue.
func loadJob(name string) *api.TrainJob {
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{constants.QueueLabel: "bench"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group), Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: "torch"},
			Trainer:    &trainerapi.Trainer{NumNodes: ptr.To[int32](1), ResourcesPerNode: gpus(1)},
			Suspend:    ptr.To(true),
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
		job := loadJob(fmt.Sprintf("%s-%05d", prefix, i))
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
func (g *ground) clear(ctx context.Context, n int) error {
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
		for _, list := range []client.ObjectList{&api.TrainJobList{}, &kueue.WorkloadList{}, &corev1.PodList{}} {
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

func milliseconds(all map[string][]time.Duration) map[string][]float64 {
	ms := map[string][]float64{}
	for name, durations := range all {
		slices.Sort(durations)
		for _, d := range durations {
			ms[name] = append(ms[name], float64(d.Microseconds())/1000)
		}
	}
	return ms
}

// quantile of sorted values; 0 where there are none.
func quantile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(share*float64(len(sorted)-1)+0.5)]
}
