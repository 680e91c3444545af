package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// row is what the board shows of a TrainJob.
type row struct {
	queue, name, state, flavor, why string
	nodes                           int32
	created                         time.Time
	waited                          time.Duration // until its first start, or so far
	starts, preempted               int
}

// board is the live table.
type board struct {
	out   *os.File
	live  bool // the output is a terminal: redraw in place
	drawn int  // lines
	rows  map[string]*row
	order []string
	start time.Time
}

func newBoard(out *os.File) *board {
	info, err := out.Stat()
	return &board{out: out, live: err == nil && info.Mode()&os.ModeCharDevice != 0, rows: map[string]*row{}, start: time.Now()}
}

// look reads the TrainJobs and their Workloads.
func (b *board) look(ctx context.Context, c client.Client) error {
	var jobs trainerapi.TrainJobList
	if err := c.List(ctx, &jobs); err != nil {
		return err
	}
	var workloads kueue.WorkloadList
	if err := c.List(ctx, &workloads); err != nil {
		return err
	}
	slices.SortFunc(jobs.Items, func(x, y trainerapi.TrainJob) int { return x.CreationTimestamp.Compare(y.CreationTimestamp.Time) })
	for i := range jobs.Items {
		tj := &jobs.Items[i]
		r, known := b.rows[tj.Name]
		if !known {
			r = &row{queue: tj.Namespace + "/" + tj.Labels["kueue.x-k8s.io/queue-name"], name: tj.Name, nodes: ptr.Deref(tj.Spec.Trainer.NumNodes, 1), created: time.Now()}
			b.rows[tj.Name], b.order = r, append(b.order, tj.Name)
		}
		before := r.state
		b.update(r, tj, workloadOf(workloads.Items, tj))
		if !b.live && r.state != before {
			fmt.Fprintf(b.out, "%6.1fs  %s\n", time.Since(b.start).Seconds(), r.line())
		}
	}
	return nil
}

func (b *board) update(r *row, tj *trainerapi.TrainJob, wl *kueue.Workload) {
	running := !ptr.Deref(tj.Spec.Suspend, false)
	wasRunning := r.state == "Running"
	r.why = ""
	switch {
	case apimeta.IsStatusConditionTrue(tj.Status.Conditions, trainerapi.TrainJobComplete):
		r.state = "Finished"
	case apimeta.IsStatusConditionTrue(tj.Status.Conditions, trainerapi.TrainJobFailed):
		r.state = "Failed"
	case running:
		r.state = "Running"
	case wl != nil && apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadEvicted):
		r.state, r.why = "Preempted", message(wl, kueue.WorkloadEvicted)
	case wl != nil && wl.Status.Admission != nil:
		r.state = "Starting"
	default:
		r.state = "Queued"
		if wl != nil {
			r.why = message(wl, kueue.WorkloadQuotaReserved)
		}
	}
	if wl != nil {
		r.preempted = 0
		if s := wl.Status.SchedulingStats; s != nil {
			for _, e := range s.Evictions {
				if e.Reason == kueue.WorkloadEvictedByPreemption {
					r.preempted += int(e.Count)
				}
			}
		}
		r.flavor = ""
		if wl.Status.Admission != nil {
			r.flavor = flavors(wl)
		}
	}
	started := r.state == "Running" || r.state == "Finished"
	if started && !wasRunning && !(r.state == "Finished" && r.starts > 0) {
		r.starts++
	}
	if r.starts == 0 {
		r.waited = time.Since(r.created)
	}
}

func workloadOf(all []kueue.Workload, tj *trainerapi.TrainJob) *kueue.Workload {
	if i := slices.IndexFunc(all, func(wl kueue.Workload) bool { return metav1.IsControlledBy(&wl, tj) }); i >= 0 {
		return &all[i]
	}
	return nil
}

func message(wl *kueue.Workload, condition string) string {
	if c := apimeta.FindStatusCondition(wl.Status.Conditions, condition); c != nil {
		return c.Message
	}
	return ""
}

func flavors(wl *kueue.Workload) string {
	names := map[string]bool{}
	for _, a := range wl.Status.Admission.PodSetAssignments {
		names[string(a.Flavors[gpu])] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), "+")
}

const header = "QUEUE              TRAINJOB                STATE      FLAVOR  NODES  WAITED"

func (r *row) line() string {
	return fmt.Sprintf("%-18s %-23s %-10s %-7s %5d  %5.1fs", r.queue, r.name, r.state, r.flavor, r.nodes, r.waited.Seconds())
}

// draw shows the whole table in place; elsewhere than on a terminal the changes have been printed already.
func (b *board) draw() {
	if !b.live {
		return
	}
	var text strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", b.drawn)
	}
	lines := []string{header}
	for _, name := range b.order {
		lines = append(lines, b.rows[name].line())
	}
	for _, line := range lines {
		fmt.Fprintf(&text, "\x1b[2K%s\n", line)
	}
	b.drawn = len(lines)
	if _, err := io.WriteString(b.out, text.String()); err != nil {
		b.live = false // nobody looks any more
	}
}

// settled tells whether all is finished but what Kueue says can never be admitted.
func (b *board) settled() bool {
	for _, r := range b.rows {
		if r.state != "Finished" && r.state != "Failed" && !strings.Contains(r.name, "fits-nowhere") {
			return false
		}
	}
	return len(b.rows) == len(shapes())
}
