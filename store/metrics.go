package store

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var pins = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "signalbox_runtime_pins_total",
	Help: "TrainJobs to which the bundled Trainer has pinned a runtime, at their first start.",
})

func init() { metrics.Registry.MustRegister(pins) }
