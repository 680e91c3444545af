package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/audit"
)

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
	if err := g.submit(ctx, "queued", n, short); err != nil {
		return nil, err
	}
	if err := g.settle(ctx, from, still); err != nil {
		return nil, err
	}
	q := &queuedRun{Jobs: n, Requests: map[string]int{}, WritesPerJob: map[string]float64{}}
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
		q.Requests[named(who, w)]++
		q.WritesPerJob[who] += 1 / float64(n)
		q.WritesPerJob["all"] += 1 / float64(n)
	}
	after, err := storedIn(dir, namespace)
	if err != nil {
		return nil, err
	}
	q.Stored = stored{Objects: after.Objects - before.Objects, Bytes: after.Bytes - before.Bytes}
	if err := g.clear(ctx, n); err != nil {
		return nil, err
	}
	return q, g.hold(ctx, kueue.None)
}

// What a measurement with others waiting is made of: TrainJobs of two GPUs, of which as many run as there is quota for.
// Holders are those that hold it until all is quiet; they come before those that wait.
const (
	running = 2 * quotaOfFlavor / 2
	starts  = 4 * running
	holder  = "holder"
	waiter  = "waiter"
)

// waiters is the TrainJobs that wait, and what was seen of them.
type waiters struct {
	*ground
	dir       string
	seen      *timeline
	submitted map[string]int
}

// wait returns a ground on which nothing waits yet.
func (g *ground) wait(ctx context.Context, dir string) *waiters {
	return &waiters{ground: g, dir: dir, seen: follow(ctx, g.client), submitted: map[string]int{}}
}

func (w *waiters) add(ctx context.Context, kind string, n int) error {
	w.allow(w.submitted[kind] + n)
	err := w.submit(ctx, fmt.Sprintf("%s-%d", kind, w.submitted[kind]), n, func(job *api.TrainJob) {
		job.Spec.Trainer.ResourcesPerNode = gpus(2)
		if kind == holder {
			job.Labels[constants.WorkloadPriorityClassLabel] = holder
			job.Spec.RuntimeRef.Name = long
		}
	})
	w.submitted[kind] += n
	return err
}

// pause is for how long nothing is written when all that wait have a status.
const pause = 15 * time.Second

// fill has the quota held, and n TrainJobs wait behind, until nobody has anything left to write.
func (w *waiters) fill(ctx context.Context, n int) error {
	from, err := audit.End(w.audit)
	if err != nil {
		return err
	}
	if err := w.add(ctx, holder, running); err != nil {
		return err
	}
	if err := w.until(ctx, "the quota is held", func() (bool, error) {
		return w.seen.countOf(holder, bound) == w.submitted[holder], nil
	}); err != nil {
		return err
	}
	return w.line(ctx, from, n)
}

// line submits as many as are missing for n to wait, and waits until they are queued, say so, and nobody has anything
// left to write since an offset of the audit log.
func (w *waiters) line(ctx context.Context, from int64, n int) error {
	if err := w.add(ctx, waiter, n-(w.submitted[waiter]-w.seen.countOf(waiter, started))); err != nil {
		return err
	}
	if err := w.until(ctx, "all are queued, and say so", func() (bool, error) {
		all := w.submitted[waiter]
		return w.seen.countOf(waiter, queued) == all && w.seen.countOf(waiter, told) == all, nil
	}); err != nil {
		return err
	}
	return w.settle(ctx, from, pause)
}

// free deletes those that hold the quota: by their names, for to find them would take the API server the longer the
// more others wait.
func (w *waiters) free(ctx context.Context) error {
	first := w.submitted[holder] - running
	return atOnce(running, func(i int) error {
		job := &api.TrainJob{}
		job.Namespace, job.Name = namespace, fmt.Sprintf("%s-%d-%05d", holder, first, i)
		return w.client.Delete(ctx, job)
	})
}

// startsProfiled is how much of the starts while others wait a profile covers.
const startsProfiled = 20 * time.Second

// behind measures starts while n others wait.
func (w *waiters) behind(ctx context.Context, n int) (*waitingRun, error) {
	if err := w.fill(ctx, n+starts); err != nil {
		return nil, err
	}
	before, from := w.seen.countOf(waiter, started), time.Now()
	w.profiles.cpu(ctx, fmt.Sprintf("starts-%d", n), startsProfiled, profiled...)
	if err := w.free(ctx); err != nil {
		return nil, err
	}
	if err := w.until(ctx, "enough have started", func() (bool, error) {
		return w.seen.countOf(waiter, started) >= before+starts, nil
	}); err != nil {
		return nil, err
	}
	r := &waitingRun{Waiting: n, Starts: w.seen.countOf(waiter, started) - before, Peak: map[string]int64{}}
	r.Faults = w.seen.takeFaults()
	r.LatencyMs = milliseconds(w.seen.durations(func(m map[moment]time.Time) bool { return m[started].After(from) }))
	now, err := usages(w.dir)
	if err != nil {
		return nil, err
	}
	for name, u := range now {
		r.Peak[name] = u.Peak
	}
	return r, w.profiles.heap(ctx, fmt.Sprintf("waiting-%d", n), profiled...)
}

// restartProfiled is how much of a restart a profile covers.
const restartProfiled = 20 * time.Second

// restart stops Signalbox while n TrainJobs wait, has some admitted meanwhile, and returns how long it takes from its
// start until all are looked at, nothing is left to be done, and those that were admitted are started.
func (w *waiters) restart(ctx context.Context, n int) (*restartRun, error) {
	from, err := audit.End(w.audit)
	if err != nil {
		return nil, err
	}
	// On hold, what runs comes to its end, and the quota is free. Nobody has to hold it: with many queues, where others
	// wait in each, they might not get it.
	if err := w.hold(ctx, kueue.Hold); err != nil {
		return nil, err
	}
	if err := w.line(ctx, from, n+running); err != nil {
		return nil, err
	}
	manager, err := metricsOf(w.dir)
	if err != nil {
		return nil, err
	}
	if err := act(w.dir, "stop", "signalbox"); err != nil {
		return nil, err
	}
	if err := w.hold(ctx, kueue.None); err != nil {
		return nil, err
	}
	if err := w.until(ctx, "the quota is given out", func() (bool, error) {
		return len(w.seen.those(waiter, admitted, started)) >= running, nil
	}); err != nil {
		return nil, err
	}
	// Kueue looks at all that wait once more, after their hold, which is no part of a restart.
	if err := w.settle(ctx, from, pause); err != nil {
		return nil, err
	}
	meanwhile := w.seen.those(waiter, admitted, started)
	r := &restartRun{Waiting: n, Admitted: len(meanwhile)}
	began := time.Now()
	if err := act(w.dir, "start", "signalbox"); err != nil {
		return nil, err
	}
	r.ReadySeconds = time.Since(began).Seconds()
	w.profiles.cpu(ctx, fmt.Sprintf("restart-%d", n), restartProfiled, profiled...)
	err = w.until(ctx, "those that were admitted are started", func() (bool, error) {
		return w.seen.all(meanwhile, started), nil
	})
	r.StartedSeconds = time.Since(began).Seconds()
	if err != nil {
		return nil, err
	}
	// Metrics are read seldom, because each time the manager goes over all pods that it caches.
	err = w.untilEvery(ctx, time.Second/2, "Signalbox is up to date", func() (bool, error) {
		reconciled, left, err := manager.queue(ctx)
		return err == nil && reconciled >= n && left == 0, err
	})
	r.InStepSeconds = time.Since(began).Seconds()
	if err != nil {
		return nil, err
	}
	r.Faults = w.seen.takeFaults()
	now, err := usages(w.dir)
	r.Peak = now["signalbox"].Peak
	return r, err
}

// evictions has the quota held by n TrainJobs, looks what is stored of them, takes the quota away, and measures until
// it is free.
func (g *ground) evictions(ctx context.Context, dir string, n int) (*runningRun, error) {
	t := follow(ctx, g.client)
	defer t.end()
	before, err := storedIn(dir, namespace)
	if err != nil {
		return nil, err
	}
	if err := g.submit(ctx, "evicted", n, func(job *api.TrainJob) { job.Spec.RuntimeRef.Name = long }); err != nil {
		return nil, err
	}
	if err := g.until(ctx, "all run", func() (bool, error) { return t.count(bound) == n, nil }); err != nil {
		return nil, err
	}
	now, err := storedIn(dir, namespace)
	if err != nil {
		return nil, err
	}
	r := &runningRun{Jobs: n, Stored: stored{Objects: now.Objects - before.Objects, Bytes: now.Bytes - before.Bytes}}
	if err := g.hold(ctx, kueue.HoldAndDrain); err != nil {
		return nil, err
	}
	if err := g.until(ctx, "their quota is free", func() (bool, error) {
		return t.count(released) == n, nil
	}); err != nil {
		return nil, err
	}
	if err := g.clear(ctx, n); err != nil {
		return nil, err
	}
	r.LatencyMs = milliseconds(t.durations(func(map[moment]time.Time) bool { return true }))
	return r, g.hold(ctx, kueue.None)
}
