package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// foreignOptions are what is measured of objects that aren't Signalbox's, and where.
type foreignOptions struct {
	// cluster is the folder of a control plane that was started with profile bundled.
	cluster string
	// jobs run of each kind, waiting JobSets wait.
	jobs, waiting int
	out           string
}

// foreignRun is what JobSets and Jobs that Kueue's own integrations queue cost Signalbox.
type foreignRun struct {
	Machine string       `json:"machine"`
	Kinds   []foreignOne `json:"kinds"`
	Waiting int          `json:"waiting"`
	// Heaps are the live heap in bytes without the waiting JobSets and with them.
	Heaps [2]int64 `json:"liveHeapBytes"`
}

// foreignOne is what those of one kind cost from their creation until all have finished.
type foreignOne struct {
	Kind    string  `json:"kind"`
	Jobs    int     `json:"jobs"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpuSeconds"`
}

// foreign measures them.
func foreign(ctx context.Context, o foreignOptions) error {
	g, err := newLoadGround(ctx, o.cluster, 1)
	if err != nil {
		return err
	}
	g.allow(max(o.jobs, o.waiting))
	say := teller("foreign")
	r := &foreignRun{Machine: machine(), Waiting: o.waiting}
	for _, kind := range []struct {
		name string
		job  func(string) client.Object
	}{{"JobSet", foreignJobSet}, {"Job", foreignJob}} {
		one := foreignOne{Kind: kind.name, Jobs: o.jobs}
		if err := g.runForeign(ctx, o, &one, kind.job); err != nil {
			return err
		}
		say("%d %ss: %.1f CPU s of Signalbox in %.0f s", one.Jobs, one.Kind, one.CPU, one.Seconds)
		r.Kinds = append(r.Kinds, one)
	}
	if r.Heaps, err = g.heldForeign(ctx, o); err != nil {
		return err
	}
	text := r.markdown()
	fmt.Print("\n" + text)
	return write(o.out, r, text)
}

// runForeign runs what is measured of a kind.
func (g *ground) runForeign(ctx context.Context, o foreignOptions, one *foreignOne, job func(string) client.Object,
) error {
	before, err := usages(o.cluster)
	if err != nil {
		return err
	}
	began := time.Now()
	prefix := strings.ToLower(one.Kind)
	err = atOnce(o.jobs, func(i int) error { return g.client.Create(ctx, job(fmt.Sprintf("%s-%05d", prefix, i))) })
	if err != nil {
		return err
	}
	err = g.untilEvery(ctx, 2*time.Second, "all have finished", func() (bool, error) {
		finished := 0
		var all kueue.WorkloadList
		err := g.client.List(ctx, &all, client.InNamespace(namespace))
		for i := range all.Items {
			wl := &all.Items[i]
			ended := apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadFinished)
			if ended && strings.HasPrefix(wl.Name, prefix+"-") {
				finished++
			}
		}
		return finished == o.jobs, err
	})
	if err != nil {
		return err
	}
	after, err := usages(o.cluster)
	one.Seconds, one.CPU = time.Since(began).Seconds(), after["signalbox"].CPU-before["signalbox"].CPU
	return err
}

// heldForeign returns the live heap of Signalbox without JobSets that wait, and with them.
func (g *ground) heldForeign(ctx context.Context, o foreignOptions) (heaps [2]int64, err error) {
	if err := g.hold(ctx, kueue.Hold); err != nil {
		return heaps, err
	}
	for i, n := range []int{0, o.waiting} {
		from, err := audit.End(g.audit)
		if err != nil {
			return heaps, err
		}
		err = atOnce(n, func(i int) error {
			js := foreignJobSet(fmt.Sprintf("held-%05d", i)).(*jobset.JobSet)
			js.Spec.ManagedBy = ptr.To("example.com/nobody") // JobSet would create 20,000 suspended Jobs and Services
			return g.client.Create(ctx, js)
		})
		if err != nil {
			return heaps, err
		}
		err = g.untilEvery(ctx, 5*time.Second, "Kueue has queued all", func() (bool, error) {
			waiting := 0
			var all kueue.WorkloadList
			err := g.client.List(ctx, &all, client.InNamespace(namespace))
			for i := range all.Items {
				if strings.HasPrefix(all.Items[i].Name, "jobset-held-") {
					waiting++
				}
			}
			return waiting == n, err
		})
		if err != nil {
			return heaps, err
		}
		if err := g.settle(ctx, from, 15*time.Second); err != nil { // Kueue writes why each waits
			return heaps, err
		}
		f, err := footprintOf(ctx, o.cluster)
		if err != nil {
			return heaps, err
		}
		heaps[i] = f.LiveHeap
	}
	return heaps, nil
}

// foreignMeta has what Kueue's own integrations look for.
func foreignMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{constants.QueueLabel: namespace}}
}

// foreignSpec is a Job of one pod of one GPU that runs for a second.
func foreignSpec() batchv1.JobSpec {
	return batchv1.JobSpec{Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](1), Suspend: ptr.To(true),
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"sim.signalbox.dev/run-for": "1s"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "node", Image: "example.com/train:1", Resources: *gpus(1)}}},
		}}
}

func foreignJob(name string) client.Object {
	return &batchv1.Job{ObjectMeta: foreignMeta(name), Spec: foreignSpec()}
}

func foreignJobSet(name string) client.Object {
	spec := foreignSpec()
	spec.Suspend = nil
	return &jobset.JobSet{ObjectMeta: foreignMeta(name), Spec: jobset.JobSetSpec{
		Suspend: ptr.To(true),
		ReplicatedJobs: []jobset.ReplicatedJob{
			{Name: "node", Replicas: 1, Template: batchv1.JobTemplateSpec{Spec: spec}},
		},
	}}
}

func (r *foreignRun) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# What isn't Signalbox's\n\n%s. JobSets and Jobs of one pod that Kueue's own integrations queue.\n\n"+
		"| | | Signalbox | time |\n| --- | --: | --: | --: |\n", r.Machine)
	for _, one := range r.Kinds {
		fmt.Fprintf(&b, "| %ss that run | %d | %.1f CPU s | %.0f s |\n", one.Kind, one.Jobs, one.CPU, one.Seconds)
	}
	fmt.Fprintf(&b, "| JobSets that wait, with a Workload each | %d | live heap of %.1f MiB, %.1f without them | |\n",
		r.Waiting, float64(r.Heaps[1])/(1<<20), float64(r.Heaps[0])/(1<<20))
	return b.String()
}
