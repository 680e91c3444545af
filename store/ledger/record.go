package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/signalbox-dev/signalbox/admission/usage"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// Bounds on the size of a record. What doesn't fit into its own row is added up under Other: with its ClusterQueue and
// flavor for as long as there is room, and then by its resource alone.
const (
	maxRows   = 500
	ownRows   = 400
	otherRows = 480
	// keptRuns is how many runs are kept that have released their quota, and maxRuns how many are at the most.
	keptRuns = 200
	maxRuns  = 2000
)

// Other is the user of rows that are of several.
const Other = "other"

// nameOf returns the name of the record of a queue's day.
func nameOf(queue string, day usage.Day) string {
	return usage.Fitting(queue, validation.DNS1123SubdomainMaxLength-len(day)-1) + "-" + string(day)
}

// dayOf returns the day of a record, by its name.
func dayOf(name string) usage.Day { return usage.Day(name[max(len(name)-len(time.DateOnly), 0):]) }

// owed is a run that is to be written as soon as that is possible.
type owed struct {
	run *usage.Run
	// inUse returns the runs of the namespace that hold quota, which may be added again; nil if that isn't known.
	inUse func() sets.Set[string]
}

// entry is a part of a run that is to be in a record.
type entry struct {
	owed
	span usage.Span
}

// add adds to a record what it doesn't have of a part of a run, and returns that.
func add(record *usageapi.QuotaUsage, e entry) []usageapi.Row {
	at := slices.IndexFunc(record.Recent, func(r usageapi.Recorded) bool { return r.Run == e.run.Key })
	from, until := e.span.From, e.span.Until.Truncate(time.Microsecond)
	if at >= 0 {
		if from = record.Recent[at].Until.Time; !from.Before(until) {
			return nil
		}
		record.Recent = slices.Delete(record.Recent, at, at+1)
	} else if e.span.Day == usage.DayOf(e.run.From) {
		record.Runs++
	}
	record.Recent = append(record.Recent, usageapi.Recorded{Run: e.run.Key, Until: metav1.NewMicroTime(until)})
	rows := e.run.Split(from, until)
	for _, r := range rows {
		held := r.Held
		r.Held, r.Team, r.User = usageapi.Held{}, usage.Fitting(r.Team, usage.MaxText), usage.Fitting(r.User, usage.MaxText)
		row := rowFor(record, r)
		row.Held = usage.Plus(row.Held, held)
	}
	return rows
}

// rowFor returns the row that has the given one's names, or one of Other if there is no room.
func rowFor(record *usageapi.QuotaUsage, names usageapi.Row) *usageapi.Row {
	for _, r := range []struct {
		names usageapi.Row
		most  int
	}{
		{names, ownRows},
		{usageapi.Row{User: Other, ClusterQueue: names.ClusterQueue, Flavor: names.Flavor, Resource: names.Resource},
			otherRows},
		{usageapi.Row{User: Other, Resource: names.Resource}, maxRows},
	} {
		at := slices.IndexFunc(record.Rows, func(row usageapi.Row) bool {
			row.Held = usageapi.Held{}
			return row == r.names
		})
		if at < 0 && len(record.Rows) < r.most {
			record.Rows = append(record.Rows, r.names)
			at = len(record.Rows) - 1
		}
		if at >= 0 {
			return &record.Rows[at]
		}
	}
	return &record.Rows[len(record.Rows)-1] // a cluster with so many resources isn't to be expected
}

// forget returns the runs of a record that are to be kept: all that hold quota, because they may be added again, and
// the last others. If it isn't known which do, all are kept.
func forget(recent []usageapi.Recorded, inUse func() sets.Set[string]) []usageapi.Recorded {
	if len(recent) <= keptRuns {
		return recent
	}
	held := inUse()
	if held == nil {
		return recent[max(len(recent)-maxRuns, 0):]
	}
	others := 0
	for i := range recent {
		if !held.Has(recent[i].Run) {
			others++
		}
	}
	excess := max(others-keptRuns, 0)
	recent = slices.DeleteFunc(recent, func(r usageapi.Recorded) bool {
		if held.Has(r.Run) || excess == 0 {
			return false
		}
		excess--
		return true
	})
	return recent[max(len(recent)-maxRuns, 0):]
}

// sorted sorts the rows of a record, so that it doesn't depend on the order of runs how they are shown.
func sorted(record *usageapi.QuotaUsage) {
	slices.SortFunc(record.Rows, func(a, b usageapi.Row) int {
		return cmp.Or(cmp.Compare(a.Team, b.Team), cmp.Compare(a.User, b.User),
			cmp.Compare(a.ClusterQueue, b.ClusterQueue), cmp.Compare(a.Flavor, b.Flavor), cmp.Compare(a.Resource, b.Resource))
	})
}

var (
	resourceSeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_resource_seconds_total",
		Help: "What TrainJobs have held of quota, by runs that have ended: GPUs, cores or GiB, multiplied by seconds. " +
			"Label kind is useful (until the last checkpoint, or the end of a TrainJob that has succeeded), lost (after the " +
			"last checkpoint of a run that was stopped, restarted or has failed), idle or unknown. Idle is while no pod ran, " +
			"and unknown if no checkpoints are reported. It is counted if usage.enabled is set.",
	}, []string{"cluster_queue", "flavor", "resource", "kind"})
	unrecorded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_usage_unrecorded_total",
		Help: "Runs of TrainJobs that could not be recorded for a minute, so that their quota was released before. They " +
			"are recorded later, unless the manager ends before or their namespace is being deleted. The log has the reason.",
	})
)

func init() { metrics.Registry.MustRegister(resourceSeconds, unrecorded) }

// count counts what was added to records.
func count(rows []usageapi.Row) {
	for _, r := range rows {
		for kind, amount := range map[string]int64{
			"useful": r.Useful, "lost": r.Lost, "idle": r.Idle, "unknown": r.Unknown,
		} {
			resourceSeconds.WithLabelValues(r.ClusterQueue, r.Flavor, r.Resource, kind).Add(float64(amount) / 1000)
		}
	}
}
