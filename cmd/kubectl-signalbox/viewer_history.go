package main

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
)

// history is what TrainJobs have reported since the page watches: the API has the last report alone.
type history struct {
	mu sync.Mutex
	of map[types.UID]*reports
}

// reports are of one TrainJob.
type reports struct {
	curves map[string][]page.Point
	marks  []page.Mark
	last   time.Time
}

// Of how many TrainJobs how much is kept.
const (
	mostReporting = 1000
	mostMetrics   = 12
	mostPoints    = 500
)

// add notes what has changed.
func (h *history) add(old, now any, at time.Time) {
	before, _ := old.(*api.TrainJob)
	job, is := now.(*api.TrainJob)
	if is && job.Status.TrainerStatus != nil {
		h.note(before, job, at)
	}
	if before != nil && now == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.of, before.UID)
	}
}

func (h *history) note(before, job *api.TrainJob, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.reportsOf(job.UID)
	status := job.Status.TrainerStatus
	if before != nil && before.Status.TrainerStatus != nil &&
		before.Status.TrainerStatus.LastUpdatedTime.Equal(&status.LastUpdatedTime) && len(r.curves) > 0 {
		return
	}
	r.last = at
	for _, m := range status.Metrics {
		r.point(m.Name, m.Value, status.LastUpdatedTime.Time)
	}
	if status.ProgressPercentage != nil {
		r.point("progress", strconv.Itoa(int(*status.ProgressPercentage)), status.LastUpdatedTime.Time)
	}
	if before == nil {
		return
	}
	if c, b := job.Status.Checkpoint, before.Status.Checkpoint; c != nil && (b == nil || b.Value != c.Value) {
		r.mark(page.Mark{Time: c.Time.Time, Class: "checkpoint", Text: "checkpoint " + c.Value})
	}
	if s, b := job.Status.StartTime, before.Status.StartTime; s != nil && b != nil && !s.Equal(b) {
		r.mark(page.Mark{Time: s.Time, Class: "restart", Text: "started again"})
	}
}

// reportsOf returns those of a TrainJob. If there are too many, those of the one that has reported nothing for the
// longest time are dropped.
func (h *history) reportsOf(uid types.UID) *reports {
	if h.of == nil {
		h.of = map[types.UID]*reports{}
	}
	if r := h.of[uid]; r != nil {
		return r
	}
	if len(h.of) >= mostReporting {
		var oldest types.UID
		for other, r := range h.of {
			if h.of[oldest] == nil || r.last.Before(h.of[oldest].last) {
				oldest = other
			}
		}
		delete(h.of, oldest)
	}
	r := &reports{curves: map[string][]page.Point{}}
	h.of[uid] = r
	return r
}

// point adds a value. Of the many points of a long run, every second one is left out, again and again.
func (r *reports) point(name, text string, at time.Time) {
	value, err := strconv.ParseFloat(text, 64)
	if _, known := r.curves[name]; err != nil || value != value || value-value != 0 ||
		!known && len(r.curves) >= mostMetrics {
		return // no number, or infinite: no curve has it
	}
	points := r.curves[name]
	points = append(points, page.Point{Time: at, Value: value})
	if len(points) > mostPoints {
		thin := points[:0]
		for i := range points {
			if i%2 == 0 || i == len(points)-1 {
				thin = append(thin, points[i])
			}
		}
		points = thin
	}
	r.curves[name] = points
}

func (r *reports) mark(m page.Mark) {
	r.marks = append(r.marks, m)
	if len(r.marks) > mostPoints {
		r.marks = slices.Delete(r.marks, 0, 1)
	}
}

// curves returns those of a TrainJob with at least two points, by their names.
func (h *history) curves(uid types.UID) []page.Curve {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.of[uid]
	if r == nil {
		return nil
	}
	var all []page.Curve
	for name, points := range r.curves {
		if len(points) > 1 {
			all = append(all, page.Curve{Name: name, Points: slices.Clone(points), Marks: slices.Clone(r.marks)})
		}
	}
	slices.SortFunc(all, func(a, b page.Curve) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}
