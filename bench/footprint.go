package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	dto "github.com/prometheus/client_model/go"
)

// footprint is what a manager has and leaves that must not grow with what it has done.
type footprint struct {
	// LiveHeap is in bytes, after a garbage collection.
	LiveHeap   int64 `json:"liveHeapBytes"`
	Goroutines int   `json:"goroutines"`
	// Queue is how many TrainJobs are in the controller's queue.
	Queue int `json:"queue"`
	// Series are the time series that its metrics have.
	Series int `json:"series"`
	// Log is the bytes that it has logged since it was started.
	Log int64 `json:"logBytes"`
}

// footprintHeading is the heading of row, of so many columns.
const (
	footprintHeading = " live heap, MiB | goroutines | queue | series | log, KiB |"
	footprintColumns = 5
)

func (f footprint) row() string {
	return fmt.Sprintf(" %.1f | %d | %d | %d | %d |",
		float64(f.LiveHeap)/(1<<20), f.Goroutines, f.Queue, f.Series, f.Log>>10)
}

func (f footprint) String() string {
	return fmt.Sprintf("live heap %.1f MiB, %d goroutines, %d in the queue, %d series, log of %d KiB",
		float64(f.LiveHeap)/(1<<20), f.Goroutines, f.Queue, f.Series, f.Log>>10)
}

// heapAlloc is where the text of a heap profile has the bytes of the heap.
var heapAlloc = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)

// footprintOf reads the footprint of the manager of a control plane.
func footprintOf(ctx context.Context, cluster string) (footprint, error) {
	var f footprint
	manager, err := metricsOf(cluster)
	if err != nil {
		return f, err
	}
	families, err := manager.families(ctx)
	if err != nil {
		return f, err
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			f.Series += seriesOf(metric)
		}
	}
	for _, metric := range families["go_goroutines"].GetMetric() {
		f.Goroutines = int(metric.GetGauge().GetValue())
	}
	for _, metric := range families["workqueue_depth"].GetMetric() {
		f.Queue += int(metric.GetGauge().GetValue())
	}
	log, err := os.Stat(filepath.Join(cluster, "log", "signalbox.log"))
	if err != nil {
		return f, err
	}
	f.Log = log.Size()
	server, via, err := (&profiler{cluster: cluster}).server("signalbox")
	if err != nil {
		return f, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return f, err
	}
	response, err := via.Do(request)
	if err != nil {
		return f, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return f, err
	}
	m := heapAlloc.FindSubmatch(text)
	if m == nil {
		return f, fmt.Errorf("the heap profile of signalbox has no line HeapAlloc: %s", response.Status)
	}
	f.LiveHeap, err = strconv.ParseInt(string(m[1]), 10, 64)
	return f, err
}

// seriesOf returns the number of time series of a metric.
func seriesOf(metric *dto.Metric) int {
	if h := metric.GetHistogram(); h != nil {
		return len(h.GetBucket()) + 3 // the bucket +Inf, the sum and the count
	}
	return 1
}
