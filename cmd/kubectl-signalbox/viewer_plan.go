package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/watched"
)

// planner computes when those that wait are expected to start, beside what is shown.
type planner struct {
	// within ends with the viewer.
	within  context.Context
	mu      sync.Mutex
	last    *plans
	running bool
	rests   time.Time // until then
}

// plans are what becomes of the cluster if runs end early, as expected, and late.
type plans struct {
	at             time.Time
	count          uint64
	low, mid, high *simulate.Plan
	starts         map[types.NamespacedName]time.Time // of those that wait, by mid
	why            string                             // it isn't known; "" if it is
}

// Bounds of a plan.
const (
	planFor  = 7 * 24 * time.Hour
	planTime = 10 * time.Second
	// planRest is how long the planner rests for each second that it has worked, at least; it rests a minute if nothing
	// has changed.
	planRest = 2
)

// plan returns the last plan, nil for none yet, and has a new one made if it is old; done counts it.
func (p *planner) plan(k *known, done *watched.Changes) *plans {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.last
	now := time.Now()
	if !p.running && now.After(p.rests) && (last == nil || last.count != k.count && time.Since(last.at) > planTime ||
		time.Since(last.at) > time.Minute) {
		p.running = true
		go p.make(k, done)
	}
	return last
}

func (p *planner) make(k *known, done *watched.Changes) {
	began := time.Now()
	made := &plans{at: began, count: k.count}
	func() {
		defer func() { // Kueue's code isn't made for what isn't in a cluster yet: the page goes on without a plan
			if fault := recover(); fault != nil {
				made.why = fmt.Sprintf("the simulation has failed: %v", fault)
			}
		}()
		made = planOf(p.within, k, began)
	}()
	p.mu.Lock()
	p.last, p.running = made, false
	p.rests = time.Now().Add(planRest * time.Since(began))
	p.mu.Unlock()
	done.Add()
}

// planOf follows the cluster three times.
func planOf(ctx context.Context, k *known, now time.Time) *plans {
	p := &plans{at: now, count: k.count}
	if !k.complete() {
		p.why = "it needs all queues and Workloads, and all nodes and pods where a flavor has a topology, and you may not " +
			"list these"
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, 3*planTime)
	defer cancel()
	lengths := simulate.NewEstimates(k.Workloads, k.jobs, now)
	for _, one := range []struct {
		lengths simulate.Lengths
		to      **simulate.Plan
	}{{lengths.Mid(), &p.mid}, {lengths.Low(), &p.low}, {lengths.High(), &p.high}} {
		within, done := context.WithTimeout(ctx, planTime)
		plan, err := simulate.Ahead(within, &k.Cluster, one.lengths, now, now.Add(planFor))
		done()
		if err != nil {
			p.why = err.Error()
			return p
		}
		*one.to = plan
	}
	p.starts = startsOf(p.mid, k.Workloads)
	return p
}

// startsOf returns the first start of each Workload that has no quota.
func startsOf(p *simulate.Plan, workloads []kueue.Workload) map[types.NamespacedName]time.Time {
	waits := map[types.NamespacedName]bool{}
	for i := range workloads {
		if workloads[i].Status.Admission == nil {
			waits[client.ObjectKeyFromObject(&workloads[i])] = true
		}
	}
	starts := map[types.NamespacedName]time.Time{}
	for _, turn := range p.Turns {
		if _, known := starts[turn.Workload]; !known && waits[turn.Workload] {
			starts[turn.Workload] = turn.From
		}
	}
	return starts
}

// startOf returns when a Workload is expected to start; nil if that isn't known.
func (p *plans) startOf(wl *kueue.Workload) *time.Time {
	if p == nil || wl == nil {
		return nil
	}
	if at, known := p.starts[client.ObjectKeyFromObject(wl)]; known {
		return &at
	}
	return nil
}
