package gang

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var (
	gangsMade = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_gangs_total",
		Help: "PodGroups that were created for TrainJobs. policy: gang or basic.",
	}, []string{"policy"})
	gangsSkipped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_gangs_skipped_total",
		Help: "Starts of TrainJobs that prefer gang scheduling and were started without it. Event " +
			"GangSchedulingSkipped has the reason.",
	})
	gangsReleased = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_gangs_released_total",
		Help: "Gangs that were placed as a whole, some of whose pods have succeeded, and of which the replacement of a " +
			"failed pod was placed separately.",
	})
	gangWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "signalbox_gang_wait_seconds",
		Help:    "Seconds from the creation of a PodGroup until kube-scheduler had placed it.",
		Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400},
	})
	gangsUnschedulable = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "signalbox_gangs_unschedulable",
		Help: "Gangs of TrainJobs that can't be placed or have lost pods: condition GangScheduled=False says why.",
	})
)

func init() {
	metrics.Registry.MustRegister(gangsMade, gangsSkipped, gangsReleased, gangWait, gangsUnschedulable)
	for _, policy := range api.GangPolicies { // rate() misses the first increment of a series that didn't begin at 0
		gangsMade.WithLabelValues(string(policy))
	}
}
