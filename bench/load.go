package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/audit"
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
	// StartWrites are writes to TrainJobs by other than their users, without those of status, per TrainJob.
	StartWrites float64                    `json:"startWritesPerJob"`
	Conflicts   int                        `json:"conflicts"`
	DryRuns     int                        `json:"dryRuns"`
	LatencyMs   map[string][]float64       `json:"latencyMs"`
	CPU         map[string]float64         `json:"cpuSecondsPer1000"`
	Peak        map[string]int64           `json:"peakBytes"`
	Finished    int                        `json:"finished"`
	Faults      map[string]int             `json:"faults"`
	Stored      stored                     `json:"storedWhenFinished"`
	latencies   map[string][]time.Duration `json:"-"`
}

// queuedRun is of TrainJobs that wait in a ClusterQueue on hold.
type queuedRun struct {
	Jobs         int                `json:"jobs"`
	WritesPerJob map[string]float64 `json:"writesPerJob"`
	Stored       stored             `json:"stored"`
}

// waitingRun is of starts while others wait.
type waitingRun struct {
	Waiting   int                  `json:"waiting"`
	Starts    int                  `json:"starts"`
	LatencyMs map[string][]float64 `json:"latencyMs"`
	Peak      map[string]int64     `json:"peakBytes"`
}

// load measures one profile on a control plane that nothing else uses.
func load(ctx context.Context, dir, profile string, bursts, depths []int, out string) error {
	g, err := newLoadGround(ctx, dir)
	if err != nil {
		return err
	}
	r := &loadRun{Profile: profile, Machine: machine()}
	say := func(format string, args ...any) {
		fmt.Printf("%s  %s: %s\n", time.Now().Format(time.TimeOnly), profile, fmt.Sprintf(format, args...))
	}
	say("warming up")
	if _, err := g.burst(ctx, dir, "warm", 10); err != nil {
		return err
	}
	if r.Queued, err = g.queued(ctx, dir, 50); err != nil {
		return err
	}
	say("%d queued: %.2f writes each, %.1f objects", r.Queued.Jobs, r.Queued.WritesPerJob["all"], float64(r.Queued.Stored.Objects)/float64(r.Queued.Jobs))
	for _, n := range bursts {
		b, err := g.burst(ctx, dir, fmt.Sprintf("burst-%d", n), n)
		if err != nil {
			return err
		}
		say("burst of %d: %.1f s, %.2f writes each, CPU of the controllers %.1f s per 1,000", n, b.Seconds, b.WritesPerJob["controllers"], b.CPU["controllers"])
		r.Bursts = append(r.Bursts, *b)
	}
	for _, n := range depths {
		w, err := g.waiting(ctx, dir, n)
		if err != nil {
			return err
		}
		say("%d waiting: %s p99 %.0f ms", n, span{admitted, started}, quantile(w.LatencyMs[span{admitted, started}.String()], 0.99))
		r.Waiting = append(r.Waiting, *w)
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(data, '\n'), 0o644)
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
	return g, g.apply(ctx, loadManifest)
}

// loadJob returns a TrainJob of one pod of one GPU, for a queue.
func loadJob(name string) *api.TrainJob {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{constants.QueueLabel: "bench"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{APIGroup: ptr.To(trainer.GroupVersion.Group), Kind: ptr.To(trainer.TrainingRuntimeKind), Name: "torch"},
			Trainer:    &trainer.Trainer{NumNodes: ptr.To[int32](1), ResourcesPerNode: &corev1.ResourceRequirements{Requests: one, Limits: one}},
			Suspend:    ptr.To(true),
		}},
	}
}

// submit creates n TrainJobs, by several clients at a time.
func (g *ground) submit(ctx context.Context, prefix string, n int) error {
	errs := make(chan error, submitters)
	for s := range submitters {
		go func() {
			for i := s; i < n; i += submitters {
				if err := g.client.Create(ctx, loadJob(fmt.Sprintf("%s-%05d", prefix, i))); err != nil {
					errs <- fmt.Errorf("submitting: %w", err)
					return
				}
			}
			errs <- nil
		}()
	}
	var first error
	for range submitters {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// clear deletes all TrainJobs, and waits until nothing of them is left.
func (g *ground) clear(ctx context.Context) error {
	if err := g.client.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(namespace)); err != nil {
		return err
	}
	return g.until(ctx, "nothing is left of the TrainJobs", func() (bool, error) {
		for _, list := range []client.ObjectList{&api.TrainJobList{}, &kueue.WorkloadList{}, &corev1.PodList{}} {
			if err := g.client.List(ctx, list, client.InNamespace(namespace), client.Limit(1)); err != nil {
				return false, err
			}
			data, err := json.Marshal(list)
			if err != nil {
				return false, err
			}
			if !strings.Contains(string(data), `"items":[]`) && !strings.Contains(string(data), `"items":null`) {
				return false, nil
			}
		}
		return true, nil
	})
}

// burst submits n TrainJobs at once and measures until all have finished.
func (g *ground) burst(ctx context.Context, dir, prefix string, n int) (*burstRun, error) {
	t := follow(ctx, g.client)
	defer t.end()
	from, err := audit.End(g.audit)
	if err != nil {
		return nil, err
	}
	before, err := usages(dir)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := g.submit(ctx, prefix, n); err != nil {
		return nil, err
	}
	b := &burstRun{Jobs: n}
	if err := g.until(ctx, "all have finished and their quota is free", func() (bool, error) { return t.count(finished) >= n && t.count(freed) >= n, nil }); err != nil {
		return nil, fmt.Errorf("%w: %d of %d finished", err, t.count(finished), n)
	}
	b.Seconds = time.Since(began).Seconds()
	if err := g.settle(ctx, from); err != nil {
		return nil, err
	}
	after, err := usages(dir)
	if err != nil {
		return nil, err
	}
	b.Finished = t.count(finished)
	b.latencies = t.durations(func(map[moment]time.Time) bool { return true })
	b.LatencyMs = milliseconds(b.latencies)
	t.mu.Lock()
	b.Faults = maps.Clone(t.faults)
	t.mu.Unlock()
	b.CPU, b.Peak = map[string]float64{}, map[string]int64{}
	for name, u := range after {
		per1000 := (u.CPU - before[name].CPU) * 1000 / float64(n)
		b.CPU[name], b.Peak[name] = per1000, u.Peak
		if slices.Contains(controllers, name) {
			b.CPU["controllers"] += per1000
		}
	}
	if b.Stored, err = storedIn(dir, namespace); err != nil {
		return nil, err
	}
	if err := b.countRequests(g.audit, from); err != nil {
		return nil, err
	}
	return b, g.clear(ctx)
}

// controllers are those that the peers differ by: Kueue, JobSet, and who starts and builds.
var controllers = []string{"signalbox", "kueue", "jobset", "trainer"}

func (b *burstRun) countRequests(log string, from int64) error {
	b.Requests, b.WritesPerJob, b.ReadsPerJob = map[string]int{}, map[string]float64{}, map[string]float64{}
	each := 1 / float64(b.Jobs)
	_, err := audit.Since(log, from, func(r audit.Request) bool {
		who := r.User.Username
		if !slices.Contains(controllers, who) {
			return false
		}
		resource := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			resource += "/" + r.ObjectRef.Subresource
		}
		if r.Verb == "watch" || resource == "leases" {
			return false
		}
		b.Requests[fmt.Sprintf("%s %s %s %d", who, r.Verb, resource, r.ResponseStatus.Code)]++
		if !r.Writes() {
			b.ReadsPerJob[who] += each
			b.ReadsPerJob["controllers"] += each
			return false
		}
		b.WritesPerJob[who] += each
		b.WritesPerJob["controllers"] += each
		if resource == "trainjobs" && r.ResponseStatus.Code < 300 {
			b.StartWrites += each
		}
		if r.ResponseStatus.Code == 409 {
			b.Conflicts++
		}
		if r.DryRun() {
			b.DryRuns++
		}
		return false
	})
	return err
}

// settle waits until nobody writes into the namespace any more.
func (g *ground) settle(ctx context.Context, from int64) error {
	seen, last := 0, time.Now()
	return g.until(ctx, "nobody writes any more", func() (bool, error) {
		now, err := audit.Since(g.audit, from, func(r audit.Request) bool { return r.Writes() && r.ObjectRef.Namespace == namespace })
		if len(now) > seen {
			seen, last = len(now), time.Now()
		}
		return time.Since(last) > quiet, err
	})
}

// queued submits TrainJobs to a ClusterQueue on hold, and counts what they cost before anything of them runs.
func (g *ground) queued(ctx context.Context, dir string, n int) (*queuedRun, error) {
	if err := g.hold(ctx, kueue.Hold); err != nil {
		return nil, err
	}
	before, err := storedIn(dir, namespace)
	if err != nil {
		return nil, err
	}
	from, err := audit.End(g.audit)
	if err != nil {
		return nil, err
	}
	if err := g.submit(ctx, "queued", n); err != nil {
		return nil, err
	}
	if err := g.settle(ctx, from); err != nil {
		return nil, err
	}
	q := &queuedRun{Jobs: n, WritesPerJob: map[string]float64{}}
	writes, err := audit.Since(g.audit, from, func(r audit.Request) bool {
		return r.Writes() && r.ObjectRef.Namespace == namespace
	})
	if err != nil {
		return nil, err
	}
	for _, w := range writes {
		who := w.User.Username
		if strings.HasPrefix(who, "system:") {
			who = "Kubernetes"
		}
		q.WritesPerJob[who] += 1 / float64(n)
		q.WritesPerJob["all"] += 1 / float64(n)
	}
	after, err := storedIn(dir, namespace)
	if err != nil {
		return nil, err
	}
	q.Stored = stored{Objects: after.Objects - before.Objects, Bytes: after.Bytes - before.Bytes}
	if err := g.clear(ctx); err != nil {
		return nil, err
	}
	return q, g.hold(ctx, kueue.None)
}

func (g *ground) hold(ctx context.Context, policy kueue.StopPolicy) error {
	var cq kueue.ClusterQueue
	if err := g.client.Get(ctx, client.ObjectKey{Name: "bench"}, &cq); err != nil {
		return err
	}
	before := cq.DeepCopy()
	cq.Spec.StopPolicy = &policy
	return g.client.Patch(ctx, &cq, client.MergeFrom(before))
}

// waiting fills the queue so that n TrainJobs wait, and measures the starts of those that run while they do.
func (g *ground) waiting(ctx context.Context, dir string, n int) (*waitingRun, error) {
	const starts = 256
	t := follow(ctx, g.client)
	defer t.end()
	if err := g.hold(ctx, kueue.Hold); err != nil {
		return nil, err
	}
	if err := g.submit(ctx, fmt.Sprintf("waits-%d", n), n+starts); err != nil {
		return nil, err
	}
	if err := g.until(ctx, "all are queued", func() (bool, error) { return t.count(queued) >= n+starts, nil }); err != nil {
		return nil, err
	}
	if err := g.hold(ctx, kueue.None); err != nil {
		return nil, err
	}
	if err := g.until(ctx, "enough have started", func() (bool, error) { return t.count(started) >= starts, nil }); err != nil {
		return nil, err
	}
	w := &waitingRun{Waiting: n, Starts: t.count(started), Peak: map[string]int64{}}
	w.LatencyMs = milliseconds(t.durations(func(m map[moment]time.Time) bool { _, has := m[started]; return has }))
	now, err := usages(dir)
	if err != nil {
		return nil, err
	}
	for name, u := range now {
		w.Peak[name] = u.Peak
	}
	if err := g.hold(ctx, kueue.HoldAndDrain); err != nil {
		return nil, err
	}
	if err := g.clear(ctx); err != nil {
		return nil, err
	}
	return w, g.hold(ctx, kueue.None)
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
