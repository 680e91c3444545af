package gang

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// startMaxAge and keepMaxAge are the ages at which a probe's result is too old: for the start of a TrainJob, and for
	// the upkeep of existing groups.
	startMaxAge = 2 * time.Second
	keepMaxAge  = 30 * time.Second
	// failureMaxAge is how long a failed probe holds. It spares the API server a probe for each of many TrainJobs.
	failureMaxAge = time.Second
	// jobSetMaxAge is how long JobSet's CRD is taken to have the field for groups.
	jobSetMaxAge = 5 * time.Minute
	// retryEvery is how often a TrainJob asks that is blocked because groups are unavailable.
	retryEvery = 10 * time.Second
	// listTimeout is how long the first list of the objects may take before groups count as unavailable.
	listTimeout = time.Minute
)

// availability is whether TrainJobs can have groups.
type availability struct {
	// served is the API with the cache of its objects. It is nil if the API server doesn't serve the API or the objects
	// can't be listed.
	served *served
	// unavailable is why the cluster can't have groups, an *unavailableError; nil if it can. Existing groups can be
	// read and deleted even so if served is set.
	unavailable error
}

// probeResult is what the last probe found.
type probeResult struct {
	availability
	// err is why the probe failed; then availability is that of the probe before.
	err error
	// probed is the time of the probe; zero before the first.
	probed time.Time
	// expires is the time of the next probe if it doesn't depend on what the caller needs; zero if it does.
	expires time.Time
}

// usable reports whether the result holds at a time for a caller that accepts results younger than maxAge.
func (r probeResult) usable(now time.Time, maxAge time.Duration) bool {
	switch {
	case r.probed.IsZero():
		return false
	case !r.expires.IsZero():
		return now.Before(r.expires)
	}
	return now.Sub(r.probed) < maxAge
}

// prober finds out which version of the API the API server serves, and keeps a cache of its objects.
type prober struct {
	reader    client.Reader
	discovery discovery.DiscoveryInterface
	clock     clock.PassiveClock
	// watch starts a cache of the objects in a version.
	watch func(context.Context, *version) (*served, error)

	// probing is held during a probe, and guards watched and jobSetChecked.
	probing sync.Mutex
	// watched has the running cache, which may not have synced yet; nil for none.
	watched *served
	// jobSetChecked is when JobSet's CRD was last seen to have the field for groups.
	jobSetChecked time.Time

	// mu guards last.
	mu   sync.Mutex
	last probeResult
}

// existing returns the API for the upkeep of existing groups; nil if the API server doesn't serve it. A failed probe is
// an error only if no earlier probe has found the API.
func (p *prober) existing(ctx context.Context) (*served, error) {
	r := p.result(ctx, keepMaxAge)
	if r.served == nil {
		return nil, r.err
	}
	return r.served, nil
}

// result returns the last result if it is usable, and probes otherwise. While another caller probes, the last result
// holds whatever its age.
func (p *prober) result(ctx context.Context, maxAge time.Duration) probeResult {
	if !p.probing.TryLock() {
		if last := p.lastResult(); !last.probed.IsZero() {
			return last
		}
		p.probing.Lock()
	}
	defer p.probing.Unlock()
	last := p.lastResult()
	if last.usable(p.clock.Now(), maxAge) {
		return last
	}
	found := p.probe(ctx, last)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = found
	return found
}

func (p *prober) lastResult() probeResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// expire makes the next caller probe.
func (p *prober) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last.expires = p.clock.Now()
}

// probe asks the API server. The caller must hold probing.
func (p *prober) probe(ctx context.Context, last probeResult) probeResult {
	now := p.clock.Now()
	failed := now.Add(failureMaxAge)
	var inUse *version
	if p.watched != nil {
		inUse = p.watched.version
	}
	v, err := servedVersion(p.discovery, inUse)
	if err == nil {
		err = p.checkJobSet(ctx, now)
	}
	if err != nil && !isUnavailable(err) {
		return probeResult{availability: last.availability, err: err, probed: now, expires: failed}
	}
	found := availability{unavailable: err}
	found.served, err = p.follow(ctx, v)
	switch {
	case isUnavailable(err):
		return probeResult{availability: availability{unavailable: err}, probed: now, expires: failed}
	case err != nil:
		return probeResult{err: err, probed: now, expires: failed}
	}
	return probeResult{availability: found, probed: now}
}

// checkJobSet returns an *unavailableError if JobSet's pod templates can't name a group. A success holds for
// jobSetMaxAge.
func (p *prober) checkJobSet(ctx context.Context, now time.Time) error {
	if now.Sub(p.jobSetChecked) <= jobSetMaxAge {
		return nil
	}
	if err := checkJobSetCRD(ctx, p.reader); err != nil {
		return err
	}
	p.jobSetChecked = now
	return nil
}

// follow returns the API in a version, with a cache that has synced; nil for no version. It stops the cache of another
// version. The caller must hold probing.
func (p *prober) follow(ctx context.Context, v *version) (*served, error) {
	if p.watched != nil && p.watched.version != v {
		p.watched.stop()
		p.watched = nil
	}
	if v == nil {
		return nil, nil
	}
	if p.watched == nil {
		var err error
		if p.watched, err = p.watch(ctx, v); err != nil {
			return nil, err
		}
	}
	if p.watched.synced(ctx) {
		return p.watched, nil
	}
	if p.clock.Since(p.watched.since) > listTimeout {
		return nil, &unavailableError{fmt.Sprintf("Workloads and PodGroups of %s can't be listed; the manager's log says "+
			"why "+
			"(its ClusterRole may be an earlier release's)", v)}
	}
	return nil, fmt.Errorf("Workloads and PodGroups of %s are still being listed", v)
}
