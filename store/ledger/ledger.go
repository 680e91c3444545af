// Package ledger writes the records of who used what: one for each LocalQueue and day. Each run of a TrainJob is in
// them once, whenever the manager is killed, and whatever the API server answers.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/usage"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// Ledger is the only writer of records.
type Ledger struct {
	// TeamLabel is the label of TrainJobs that names their team; "" for none.
	TeamLabel string

	client client.Client // without a cache
	clock  clock.Clock
	keep   time.Duration

	mu sync.Mutex
	// waiting are the parts of runs that wait until the record is written, by the record.
	waiting map[types.NamespacedName]*line
	outage  outage
	// owed are runs whose quota was released before they could be written.
	owed []owed
}

// owed is a run that is to be written as soon as that is possible.
type owed struct {
	run   *usage.Run
	inUse func() sets.Set[string]
}

// outage is since when nothing can be written, and when that was last tried; zero if it can.
type outage struct{ since, last time.Time }

// line is what waits for one record. It is written for all together, so that runs that end at once don't conflict.
type line struct {
	entries []waiting
	busy    bool
}

type waiting struct {
	entry
	inUse func() sets.Set[string]
	done  chan error
}

// New returns a Ledger; nil if the configuration asks for none. c must not read from a cache.
func New(c client.Client, config configapi.Usage, clk clock.Clock) *Ledger {
	if !config.Enabled {
		return nil
	}
	return &Ledger{TeamLabel: config.TeamLabel, client: c, clock: clk, keep: config.Retention.Duration,
		waiting: map[types.NamespacedName]*line{}}
}

// Check refuses a cluster that has no records, if the configuration asks for them.
func Check(ctx context.Context, reader client.Reader, config configapi.Usage) error {
	if !config.Enabled {
		return nil
	}
	err := reader.List(ctx, &usageapi.QuotaUsageList{}, client.Limit(1))
	if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return errors.New("CRD quotausages.usage.signalbox.dev is missing, which usage.enabled needs; apply config/crd of " +
			"this release, or set usage.enabled to false")
	}
	if err != nil {
		return fmt.Errorf("listing the records of used quota: %w", err)
	}
	return nil
}

// writeTime is how long the records of a run may take to be written, so that the release of its quota has time left.
const writeTime = 10 * time.Second

const (
	// patience is for how long a run that can't be written holds its quota. Afterwards it is owed.
	patience = time.Minute
	// mostOwed bounds the runs that are owed.
	mostOwed = 10_000
)

// Add adds a run to the records of its days. It may be added again, with a later end: then the rest is added. inUse
// returns the runs of the namespace that hold quota, nil if that isn't known. If nothing could be written for a while,
// the run is written later: it doesn't hold quota for a record.
func (l *Ledger) Add(ctx context.Context, run *usage.Run, inUse func() sets.Set[string]) error {
	if err := l.add(ctx, owed{run, inUse}); err != nil {
		return l.orOwe(ctx, owed{run, inUse}, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage = outage{}
	return nil
}

func (l *Ledger) add(ctx context.Context, o owed) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	for _, span := range o.run.Spans() {
		if usage.DayOf(l.oldest()) > span.Day {
			continue // it would be deleted at once
		}
		if err := l.write(ctx, entry{o.run, span}, o.inUse); err != nil {
			return err
		}
	}
	return nil
}

// Settle writes what is owed, until something can't be written. That comes last the next time.
func (l *Ledger) Settle(ctx context.Context) error {
	for {
		l.mu.Lock()
		if len(l.owed) == 0 {
			l.mu.Unlock()
			return nil
		}
		next := l.owed[0]
		l.mu.Unlock()
		err := l.add(ctx, next)
		l.mu.Lock()
		l.owed = l.owed[1:]
		if err != nil && !isEnding(err) {
			l.owed = append(l.owed, next)
			l.mu.Unlock()
			return err
		}
		l.mu.Unlock()
	}
}

// isEnding reports whether a namespace is being deleted, with its records, or is gone.
func isEnding(err error) bool {
	status := apierrors.APIStatus(nil)
	gone := apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil &&
		status.Status().Details.Kind == "namespaces"
	return gone || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// oldest returns the time before which no record is kept.
func (l *Ledger) oldest() time.Time { return l.clock.Now().Add(-l.keep) }

// orOwe returns the error of a run that wasn't written, or nil if it is owed, or goes with its namespace.
func (l *Ledger) orOwe(ctx context.Context, o owed, err error) error {
	ending := isEnding(err)
	if !ending && (ctx.Err() != nil || l.failed() < patience) {
		return fmt.Errorf("recording what was used in queue %s: %w", o.run.Queue, err)
	}
	unrecorded.Inc()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ending && len(l.owed) < mostOwed {
		l.owed = append(l.owed, o)
	}
	ctrl.LoggerFrom(ctx).Error(err, "Quota was released before its use is recorded; trying again later",
		"queue", o.run.Queue, "run", o.run.Key, "namespaceEnds", ending, "owed", len(l.owed))
	return nil
}

// failed notes that something couldn't be written, and returns for how long that has been so.
func (l *Ledger) failed() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if l.outage.since.IsZero() || now.Sub(l.outage.last) > 10*patience { // nobody has tried for long
		l.outage.since = now
	}
	l.outage.last = now
	return now.Sub(l.outage.since)
}

// write adds a part of a run to its record, with all that others are adding to it.
func (l *Ledger) write(ctx context.Context, e entry, inUse func() sets.Set[string]) error {
	key := types.NamespacedName{Namespace: e.run.Namespace, Name: nameOf(e.run.Queue, e.span.Day)}
	w := waiting{e, inUse, make(chan error, 1)}
	l.mu.Lock()
	of := l.waiting[key]
	if of == nil {
		of = &line{}
		l.waiting[key] = of
	}
	of.entries = append(of.entries, w)
	first := !of.busy
	of.busy = true
	l.mu.Unlock()
	if first {
		go l.writeAll(context.WithoutCancel(ctx), key, of) // for others too: that holds up no reconcile
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // it may be written all the same, and is then found when it is added again
	}
}

// writeAll writes what waits for a record, until nothing does.
func (l *Ledger) writeAll(ctx context.Context, key types.NamespacedName, of *line) {
	for {
		l.mu.Lock()
		entries := of.entries
		of.entries = nil
		if len(entries) == 0 {
			delete(l.waiting, key)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		writing, cancel := context.WithTimeout(ctx, writeTime)
		err := l.update(writing, key, entries)
		cancel()
		for _, w := range entries {
			w.done <- err
		}
	}
}

// attempts is how often a record is read again after a conflict: only a manager that has lost its lead conflicts.
const attempts = 5

func (l *Ledger) update(ctx context.Context, key types.NamespacedName, entries []waiting) (err error) {
	for range attempts {
		record := &usageapi.QuotaUsage{}
		if err = l.client.Get(ctx, key, record); client.IgnoreNotFound(err) != nil {
			return err
		}
		created := err != nil
		record.Namespace, record.Name = key.Namespace, key.Name
		record.Queue, record.Day = entries[0].run.Queue, string(entries[0].span.Day)
		var added []func()
		for _, w := range entries {
			if shares := add(record, w.entry, w.inUse); shares != nil {
				added = append(added, func() { countShares(w.run, shares) })
			}
		}
		if len(added) == 0 {
			return nil
		}
		sorted(record)
		if created {
			err = l.client.Create(ctx, record)
		} else {
			err = l.client.Update(ctx, record)
		}
		if err == nil {
			for _, count := range added {
				count()
			}
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return err
}
