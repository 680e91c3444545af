// Package ledger writes the records of who used what: one for each LocalQueue and day. Each run of a TrainJob is in
// them once, whenever the manager is killed, and whatever the API server answers.
package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

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
	// waiting are the parts of runs that wait until the record is written, by the records that are being written. Each is
	// written for all together, so that runs that end at once don't conflict.
	waiting map[types.NamespacedName][]waiting
	// outages are of the records that can't be written. One that can't holds up no other's, and the other way round.
	outages map[types.NamespacedName]outage
	// owed are runs whose quota was released before they could be written.
	owed []owed
}

type waiting struct {
	entry
	done chan error
}

// outage is since when a record can't be written, and when that was last tried.
type outage struct{ since, last time.Time }

// New returns a Ledger; nil if the configuration asks for none. c must not read from a cache.
func New(c client.Client, config configapi.Usage, clk clock.Clock) *Ledger {
	if !config.Enabled {
		return nil
	}
	return &Ledger{TeamLabel: config.TeamLabel, client: c, clock: clk, keep: config.Retention.Duration,
		waiting: map[types.NamespacedName][]waiting{}, outages: map[types.NamespacedName]outage{}}
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
// returns the runs of the namespace that hold quota, nil if that isn't known. If a record couldn't be written for a
// while, the run is written later: it doesn't hold quota for a record.
func (l *Ledger) Add(ctx context.Context, run *usage.Run, inUse func() sets.Set[string]) error {
	o := owed{run, inUse}
	if failed, err := l.add(ctx, o); err != nil {
		return l.orOwe(ctx, o, failed, err)
	}
	return nil
}

// add returns the record that can't be written, and why.
func (l *Ledger) add(ctx context.Context, o owed) (types.NamespacedName, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	for _, span := range o.run.Spans() {
		if usage.DayOf(l.oldest()) > span.Day {
			continue // it would be deleted at once
		}
		key := types.NamespacedName{Namespace: o.run.Namespace, Name: nameOf(o.run.Queue, span.Day)}
		if err := l.write(ctx, key, entry{o, span}); err != nil {
			return key, err
		}
	}
	return types.NamespacedName{}, nil
}

// Settle writes what is owed. Of a queue for which something can't be written, it leaves the rest for the next time.
func (l *Ledger) Settle(ctx context.Context) error {
	l.mu.Lock()
	due := l.owed
	l.owed = nil
	l.mu.Unlock()
	var failed error
	var left []owed
	failing := sets.New[types.NamespacedName]()
	for _, next := range due {
		queue := types.NamespacedName{Namespace: next.run.Namespace, Name: next.run.Queue}
		if !failing.Has(queue) && ctx.Err() == nil {
			_, err := l.add(ctx, next)
			if err == nil || isEnding(err) {
				continue
			}
			failed = err
		}
		failing.Insert(queue)
		left = append(left, next)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed = slices.Concat(left, l.owed)
	return cmp.Or(failed, ctx.Err())
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
func (l *Ledger) orOwe(ctx context.Context, o owed, failed types.NamespacedName, err error) error {
	ending := isEnding(err)
	if !ending && (ctx.Err() != nil || l.failed(failed) < patience) {
		return fmt.Errorf("recording what was used in queue %s: %w", o.run.Queue, err)
	}
	known, owes := l.owe(o, ending)
	if known {
		return nil
	}
	unrecorded.Inc()
	ctrl.LoggerFrom(ctx).Info("Quota was released before its use is recorded; trying again later", "reason", err.Error(),
		"queue", o.run.Queue, "run", o.run.Key, "namespaceEnds", ending, "owed", owes)
	return nil
}

// owe has a run written later, unless its records go with their namespace. It reports whether it is owed already, and
// how many are. The release of one may be tried for long. What it held before a restart is owed apart from the rest.
func (l *Ledger) owe(o owed, ending bool) (known bool, owes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.owed, func(known owed) bool {
		return known.run.Key == o.run.Key && known.run.Attempt == o.run.Attempt
	})
	switch {
	case at >= 0:
		l.owed[at] = o
	case !ending && len(l.owed) < mostOwed:
		l.owed = append(l.owed, o)
	}
	return at >= 0, len(l.owed)
}

// Later adds a run whose quota is released already, when what is owed is written next.
func (l *Ledger) Later(run *usage.Run, inUse func() sets.Set[string]) { l.owe(owed{run, inUse}, false) }

// failed notes that a record couldn't be written, and returns for how long that has been so.
func (l *Ledger) failed(key types.NamespacedName) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	maps.DeleteFunc(l.outages, func(_ types.NamespacedName, o outage) bool {
		return now.Sub(o.last) > 10*patience // nobody has tried for long
	})
	o, known := l.outages[key]
	if !known {
		o.since = now
	}
	o.last = now
	l.outages[key] = o
	return now.Sub(o.since)
}

// write adds a part of a run to its record, with all that others are adding to it.
func (l *Ledger) write(ctx context.Context, key types.NamespacedName, e entry) error {
	w := waiting{e, make(chan error, 1)}
	l.mu.Lock()
	others, busy := l.waiting[key]
	l.waiting[key] = append(others, w)
	l.mu.Unlock()
	if !busy {
		go l.writeAll(context.WithoutCancel(ctx), key) // for others too: that holds up no reconcile
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // it may be written all the same, and is then found when it is added again
	}
}

// writeAll writes what waits for a record, until nothing does.
func (l *Ledger) writeAll(ctx context.Context, key types.NamespacedName) {
	for {
		l.mu.Lock()
		entries := l.waiting[key]
		if len(entries) == 0 {
			delete(l.waiting, key)
			l.mu.Unlock()
			return
		}
		l.waiting[key] = nil
		l.mu.Unlock()
		writing, cancel := context.WithTimeout(ctx, writeTime)
		err := l.update(writing, key, entries)
		cancel()
		if err == nil {
			l.mu.Lock()
			delete(l.outages, key)
			l.mu.Unlock()
		}
		for _, w := range entries {
			w.done <- err
		}
	}
}

// update adds runs to a record. It reads the record again after a conflict: only a manager that has lost its lead
// conflicts.
func (l *Ledger) update(ctx context.Context, key types.NamespacedName, entries []waiting) error {
	conflicts := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultRetry, conflicts, func() error {
		var added []usageapi.Row
		record := &usageapi.QuotaUsage{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		_, err := controllerutil.CreateOrUpdate(ctx, l.client, record, func() error {
			record.Queue, record.Day = entries[0].run.Queue, string(entries[0].span.Day)
			for _, w := range entries {
				added = append(added, add(record, w.entry)...)
			}
			record.Recent = forget(record.Recent, entries[0].inUse) // once: that lists the Workloads of the namespace
			sorted(record)
			return nil
		})
		if err == nil {
			count(added)
		}
		return err
	})
}

const (
	// settleEvery is how often what is owed is written, and pruneEvery how often old records are deleted.
	settleEvery = time.Minute
	pruneEvery  = 24 * time.Hour
	// page is how many records are read at once.
	page = 500
)

var _ manager.LeaderElectionRunnable = (*Ledger)(nil)

// NeedLeaderElection implements manager.LeaderElectionRunnable: one process writes records.
func (*Ledger) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable: it writes what is owed, and deletes records that are older than they are kept, now
// and once a day.
func (l *Ledger) Start(ctx context.Context) error {
	for pruned := (time.Time{}); ; {
		if err := l.Settle(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Info("What is owed to the records of used quota can't be written yet", "reason", err.Error())
		}
		if l.clock.Since(pruned) >= pruneEvery {
			pruned = l.clock.Now()
			if err := l.Prune(ctx); err != nil && ctx.Err() == nil {
				ctrl.LoggerFrom(ctx).Error(err, "Deleting old records of used quota; trying again in a day")
			}
		}
		select {
		case <-l.clock.After(settleEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// Prune deletes the records of days before the retention.
func (l *Ledger) Prune(ctx context.Context) error {
	oldest := usage.DayOf(l.oldest())
	for next := ""; ; {
		var records metav1.PartialObjectMetadataList // not the rows: those of all are too much memory
		records.SetGroupVersionKind(usageapi.GroupVersion.WithKind("QuotaUsageList"))
		if err := l.client.List(ctx, &records, client.Limit(page), client.Continue(next)); err != nil {
			return fmt.Errorf("listing the records of used quota: %w", err)
		}
		for i := range records.Items {
			record := &records.Items[i]
			if dayOf(record.Name) >= oldest {
				continue
			}
			if err := l.client.Delete(ctx, record, client.Preconditions{UID: &record.UID}); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting the record %s/%s of used quota: %w", record.Namespace, record.Name, err)
			}
		}
		if next = records.Continue; next == "" {
			return nil
		}
	}
}
