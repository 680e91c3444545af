package gang

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var (
	gangsMade = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_gangs_total",
		Help: "PodGroups that were made for TrainJobs, by their policy: gang or basic.",
	}, []string{"policy"})
	gangsSkipped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_gangs_skipped_total",
		Help: "Starts of TrainJobs that prefer gang scheduling and were started without it; " +
			"event GangSchedulingSkipped says why.",
	})
	gangsReleased = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_gangs_released_total",
		Help: "Gangs that were placed as a whole, some of whose pods have succeeded, and of which a failed pod " +
			"was placed again by itself.",
	})
	gangWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "signalbox_gang_wait_seconds",
		Help:    "Seconds from the making of a PodGroup until kube-scheduler had placed it.",
		Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400},
	})
	gangsUnschedulable = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "signalbox_gangs_unschedulable",
		Help: "Gangs of TrainJobs that kube-scheduler can't place now.",
	})
)

func init() {
	metrics.Registry.MustRegister(gangsMade, gangsSkipped, gangsReleased, gangWait, gangsUnschedulable)
	for _, policy := range api.GangPolicies { // rate() misses the first increment of a series that didn't begin at 0
		gangsMade.WithLabelValues(string(policy))
	}
}
