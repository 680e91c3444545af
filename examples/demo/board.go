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
	queue, name, state, flavor string
	// reason is Kueue's message about a TrainJob that waits.
	reason  string
	nodes   int32
	created time.Time
	// waited is the time until the first start, or until now.
	waited            time.Duration
	starts, preempted int
}

// board is the live table.
type board struct {
	out *os.File
	// live is true if the output is a terminal: the table is drawn again in place.
	live bool
	// drawn is the number of lines of the table that is on the terminal.
	drawn int
	rows  map[string]*row
	order []string
	start time.Time
}

func newBoard(out *os.File) *board {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &board{out: out, live: terminal, rows: map[string]*row{}, start: time.Now()}
}

// refresh reads the TrainJobs and their Workloads.
func (b *board) refresh(ctx context.Context, c client.Client) error {
	var jobs trainerapi.TrainJobList
	if err := c.List(ctx, &jobs); err != nil {
		return err
	}
	var workloads kueue.WorkloadList
	if err := c.List(ctx, &workloads); err != nil {
		return err
	}
	slices.SortStableFunc(jobs.Items, func(x, y trainerapi.TrainJob) int {
		return x.CreationTimestamp.Compare(y.CreationTimestamp.Time)
	})
	for i := range jobs.Items {
		tj := &jobs.Items[i]
		r, known := b.rows[tj.Name]
		if !known {
			r = newRow(tj)
			b.rows[tj.Name], b.order = r, append(b.order, tj.Name)
		}
		before := r.state
		r.update(tj, workloadOf(workloads.Items, tj))
		if !b.live && r.state != before {
			fmt.Fprintf(b.out, "%6.1fs  %s\n", time.Since(b.start).Seconds(), r.line())
		}
	}
	return nil
}

func newRow(tj *trainerapi.TrainJob) *row {
	return &row{
		queue: tj.Namespace + "/" + tj.Labels["kueue.x-k8s.io/queue-name"], name: tj.Name,
		nodes: ptr.Deref(tj.Spec.Trainer.NumNodes, 1), created: time.Now(),
	}
}

// update sets the row to what the TrainJob and its Workload, which may be nil, show now.
func (r *row) update(tj *trainerapi.TrainJob, wl *kueue.Workload) {
	before := r.state
	r.state, r.reason = stateOf(tj, wl)
	if wl != nil {
		r.preempted = preemptions(wl)
		r.flavor = ""
		if wl.Status.Admission != nil {
			r.flavor = flavors(wl)
		}
	}
	switch {
	case r.state == "Running" && before != "Running", r.state == "Finished" && before != "Running" && r.starts == 0:
		r.starts++
	}
	if r.starts == 0 {
		r.waited = time.Since(r.created)
	}
}

// stateOf returns the state of a TrainJob, and Kueue's message if it waits.
func stateOf(tj *trainerapi.TrainJob, wl *kueue.Workload) (state, reason string) {
	switch {
	case apimeta.IsStatusConditionTrue(tj.Status.Conditions, trainerapi.TrainJobComplete):
		return "Finished", ""
	case apimeta.IsStatusConditionTrue(tj.Status.Conditions, trainerapi.TrainJobFailed):
		return "Failed", ""
	case !ptr.Deref(tj.Spec.Suspend, false):
		return "Running", ""
	case wl == nil:
		return "Queued", ""
	case apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadEvicted):
		return "Preempted", message(wl, kueue.WorkloadEvicted)
	case wl.Status.Admission != nil:
		return "Starting", ""
	}
	return "Queued", message(wl, kueue.WorkloadQuotaReserved)
}

// preemptions returns how often Kueue has preempted a Workload.
func preemptions(wl *kueue.Workload) int {
	if wl.Status.SchedulingStats == nil {
		return 0
	}
	n := 0
	for _, e := range wl.Status.SchedulingStats.Evictions {
		if e.Reason == kueue.WorkloadEvictedByPreemption {
			n += int(e.Count)
		}
	}
	return n
}

func workloadOf(all []kueue.Workload, tj *trainerapi.TrainJob) *kueue.Workload {
	if i := slices.IndexFunc(all, func(wl kueue.Workload) bool { return metav1.IsControlledBy(&wl, tj) }); i >= 0 {
		return &all[i]
	}
	return nil
}

// message returns the message of a condition; "" if there is none.
func message(wl *kueue.Workload, condition string) string {
	if c := apimeta.FindStatusCondition(wl.Status.Conditions, condition); c != nil {
		return c.Message
	}
	return ""
}

// flavors returns the names of the flavors that a Workload is admitted on.
func flavors(wl *kueue.Workload) string {
	names := map[string]bool{}
	for _, a := range wl.Status.Admission.PodSetAssignments {
		names[string(a.Flavors[gpu])] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), "+")
}

const header = "QUEUE              TRAINJOB                STATE      FLAVOR  NODES  WAITED"

func (r *row) line() string {
	return fmt.Sprintf("%-18s %-23s %-10s %-7s %5d  %5.1fs", r.queue, r.name, r.state, r.flavor, r.nodes,
		r.waited.Seconds())
}

// draw draws the table in place on a terminal. Elsewhere it does nothing, because refresh prints the changes.
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
		b.live = false // the terminal is closed
	}
}

// done reports whether all TrainJobs have finished except the one that never fits.
func (b *board) done() bool {
	for _, r := range b.rows {
		if r.state != "Finished" && r.state != "Failed" && !strings.Contains(r.name, "fits-nowhere") {
			return false
		}
	}
	return len(b.rows) == len(examples())
}
