package store

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var pins = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "signalbox_runtime_pins_total",
	Help: "TrainJobs that the bundled Trainer has pinned to the runtime that they run on, with their first start.",
})

func init() { metrics.Registry.MustRegister(pins) }
