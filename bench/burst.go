package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// still is for how long nothing is written when nothing is left to be told: longer than a component waits with a
// status.
const still = 95 * time.Second

// profiledFor is how much of a burst a profile covers, from its start on.
const profiledFor = 30 * time.Second

// burst submits n TrainJobs at once and measures until all have finished and their quota is free; where late is true,
// what is written in the time after it too.
func (g *ground) burst(ctx context.Context, dir, prefix string, n int, late bool) (*burstRun, error) {
	g.allow(n)
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
	if n >= lateSize { // not while it is warmed up
		g.profiles.cpu(ctx, prefix, profiledFor, profiled...)
	}
	if err := g.submit(ctx, prefix, n, short); err != nil {
		return nil, err
	}
	b := &burstRun{Jobs: n, Late: late}
	if err := g.until(ctx, "all have finished and their quota is free",
		func() (bool, error) { return t.count(finished) >= n && t.count(freed) >= n, nil }); err != nil {
		return nil, fmt.Errorf("%w: %d of %d finished", err, t.count(finished), n)
	}
	b.Seconds = time.Since(began).Seconds()
	end := time.Now()
	after, err := usages(dir)
	if err != nil {
		return nil, err
	}
	if late {
		if err := g.until(ctx, "nothing is written any more",
			func() (bool, error) { return time.Since(end) > lateWindow, nil }); err != nil {
			return nil, err
		}
	}
	if err := b.countRequests(g.audit, from, end); err != nil {
		return nil, err
	}
	b.Finished = t.count(finished)
	b.LatencyMs = milliseconds(t.durations(func(map[moment]time.Time) bool { return true }))
	b.Faults = t.takeFaults()
	b.CPU, b.Peak = map[string]float64{}, map[string]int64{}
	for name, u := range after {
		per1000 := (u.CPU - before[name].CPU) * 1000 / float64(n)
		b.CPU[name], b.Peak[name] = per1000, u.Peak
		if slices.Contains(controllers, name) {
			b.CPU["controllers"] += per1000
		}
	}
	b.Stored, err = storedIn(dir, namespace)
	return b, err
}

// lateWindow is longer than any controller waits, after the end of a TrainJob, with anything. What is written in it is
// counted of a burst of lateSize.
const (
	lateWindow = 75 * time.Second
	lateSize   = 100
)

// controllers are those that the peers differ by: Kueue, JobSet, and who starts and builds.
var controllers = []string{"signalbox", "kueue", "jobset", "trainer"}

// countRequests counts what was asked until the end, and what was written after it.
func (b *burstRun) countRequests(log string, from int64, end time.Time) error {
	b.Requests, b.WritesPerJob, b.ReadsPerJob = map[string]int{}, map[string]float64{}, map[string]float64{}
	each := 1 / float64(b.Jobs)
	_, err := audit.Since(log, from, func(r audit.Request) bool {
		who := r.User.Username
		if !slices.Contains(controllers, who) {
			return false
		}
		if r.Verb == "watch" || r.ObjectRef.Resource == "leases" {
			return false
		}
		if r.Received.After(end) {
			if r.Writes() {
				b.LateWrites += each
			}
			return false
		}
		b.Requests[named(who, r)]++
		if !r.Writes() {
			b.ReadsPerJob[who] += each
			b.ReadsPerJob["controllers"] += each
			return false
		}
		if r.ObjectRef.Resource == "events" {
			b.WritesPerJob["events"] += each
		}
		b.WritesPerJob[who] += each
		b.WritesPerJob["controllers"] += each
		if r.ObjectRef.Resource == "trainjobs" && r.ObjectRef.Subresource == "" && r.ResponseStatus.Code < 300 {
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

// named tells one kind of request from others.
func named(who string, r audit.Request) string {
	resource := r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		resource += "/" + r.ObjectRef.Subresource
	}
	return fmt.Sprintf("%s %s %s %d", who, r.Verb, resource, r.ResponseStatus.Code)
}

// settle waits until nobody has written into the namespace for so long. That Signalbox takes the finalizer off finished
// Workloads doesn't count: it does so minutes later, and nobody waits for it.
func (g *ground) settle(ctx context.Context, from int64, quiet time.Duration) error {
	last := time.Now()
	return g.until(ctx, "nobody writes any more", func() (bool, error) {
		end, err := audit.End(g.audit)
		if err != nil {
			return false, err
		}
		now, err := audit.Since(g.audit, from,
			func(r audit.Request) bool { return r.Writes() && r.ObjectRef.Namespace == namespace && !release(r) })
		if len(now) > 0 {
			last = time.Now()
		}
		from = end
		return time.Since(last) > quiet, err
	})
}

// release reports whether a request is Signalbox's removal of a Workload's finalizer.
func release(r audit.Request) bool {
	return r.User.Username == "signalbox" && r.Verb == "patch" && r.ObjectRef.Resource == "workloads" &&
		r.ObjectRef.Subresource == ""
}
