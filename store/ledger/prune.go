package ledger

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/signalbox-dev/signalbox/admission/usage"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

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
		if !wait(ctx, l.clock, settleEvery) {
			return nil
		}
	}
}

// wait reports whether a time has passed before the context ends.
func wait(ctx context.Context, clk clock.Clock, d time.Duration) bool {
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// Prune deletes the records of days before the retention.
func (l *Ledger) Prune(ctx context.Context) error {
	oldest := usage.DayOf(l.oldest())
	for next := ""; ; {
		var records usageapi.QuotaUsageList
		if err := l.client.List(ctx, &records, client.Limit(page), client.Continue(next)); err != nil {
			return fmt.Errorf("listing the records of used quota: %w", err)
		}
		for i := range records.Items {
			record := &records.Items[i]
			if usage.Day(record.Day) >= oldest {
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
