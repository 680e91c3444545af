package ledger

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/signalbox-dev/signalbox/admission/usage"
)

var (
	resourceSeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_resource_seconds_total",
		Help: "What TrainJobs have held of quota, by runs that have ended: GPUs, cores or GiB, multiplied by seconds. " +
			"Label kind is useful (until the last checkpoint, or the end of a TrainJob that has succeeded), lost (after the " +
			"last checkpoint of a run that was stopped or has failed), idle or unknown. Idle is while no pod ran, and unknown " +
			"if no checkpoints are reported. It is counted if usage.enabled is set.",
	}, []string{"cluster_queue", "flavor", "resource", "kind"})
	unrecorded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_usage_unrecorded_total",
		Help: "Runs of TrainJobs that could not be recorded for a minute, so that their quota was released before. They " +
			"are recorded later, unless the manager ends before or their namespace is being deleted. The log has the reason.",
	})
)

func init() { metrics.Registry.MustRegister(resourceSeconds, unrecorded) }

// countShares counts what was added to a record.
func countShares(run *usage.Run, shares []usage.Share) {
	for _, s := range shares {
		for kind, amount := range map[string]int64{
			"useful": s.Useful, "lost": s.Lost, "idle": s.Idle, "unknown": s.Unknown,
		} {
			resourceSeconds.WithLabelValues(run.ClusterQueue, s.Flavor, s.Resource, kind).Add(float64(amount) / 1000)
		}
	}
}
