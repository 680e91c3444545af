package integration

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	toolscache "k8s.io/client-go/tools/cache"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var trainJobs = prometheus.NewDesc("signalbox_trainjobs",
	"TrainJobs by their state, as kubectl get trainjob shows it; with the bundled Trainer only, whose status has it.",
	[]string{"state"}, nil)

// states counts TrainJobs by their state, as the events of a cache tell it: to go over all of them at each scrape would
// copy them. It is a prometheus.Collector, which only the leader serves, so that the replicas' counts can be added.
type states struct {
	mu sync.Mutex
	by map[api.TrainJobState]int
}

var _ toolscache.ResourceEventHandler = (*states)(nil)

func newStates() *states { return &states{by: map[api.TrainJobState]int{}} }

// OnAdd implements toolscache.ResourceEventHandler.
func (s *states) OnAdd(object any, _ bool) { s.replace(nil, object) }

// OnUpdate implements toolscache.ResourceEventHandler.
func (s *states) OnUpdate(before, after any) { s.replace(before, after) }

// OnDelete implements toolscache.ResourceEventHandler.
func (s *states) OnDelete(object any) {
	if missed, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = missed.Obj // as it was counted
	}
	s.replace(object, nil)
}

// replace counts an object, if it is a TrainJob, in the place of its earlier version.
func (s *states) replace(before, after any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if job, ok := before.(*api.TrainJob); ok {
		s.by[api.StateOf(&job.Status.TrainJobStatus)]--
	}
	if job, ok := after.(*api.TrainJob); ok {
		s.by[api.StateOf(&job.Status.TrainJobStatus)]++
	}
}

// Describe implements prometheus.Collector.
func (s *states) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- trainJobs }

// Collect implements prometheus.Collector.
func (s *states) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, state := range api.States {
		out <- prometheus.MustNewConstMetric(trainJobs, prometheus.GaugeValue, float64(s.by[state]), string(state))
	}
}
