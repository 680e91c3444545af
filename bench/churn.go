package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/test/audit"
)

// churnOptions are what churn measures, and where.
type churnOptions struct {
	cluster string
	queues  queues
	// waiting TrainJobs are edited, while others are evicted.
	waiting int
	// There are as many rounds as rounds, and more until the time is over.
	rounds int
	over   time.Duration
	out    string
}

// What a round of churn is made of.
const (
	stormsOfRound = 4
	editsOfRound  = 2000
)

// stormInterval is how often all Workloads or pods are read while a storm lasts.
const stormInterval = time.Second / 2

// churnRun is what came of rounds of preemptions and edits.
type churnRun struct {
	Machine string       `json:"machine"`
	Waiting int          `json:"waiting"`
	Queues  queues       `json:"localQueues"`
	Before  footprint    `json:"before"`
	Rounds  []churnRound `json:"rounds"`
	// Findings are the number of findings of `signalbox audit`, by rule.
	Findings map[string]int `json:"findings"`
}

// churnRound is one round. Writes are Signalbox's, events among them.
type churnRound struct {
	Evicted int `json:"evicted"`
	// FreeSeconds is how long it took until the quota of the evicted was free, AgainSeconds until all ran again, of the
	// slowest storm.
	FreeSeconds       float64 `json:"freeSeconds"`
	AgainSeconds      float64 `json:"againSeconds"`
	WritesPerEviction float64 `json:"writesPerEviction"`
	Edits             int     `json:"edits"`
	EditSeconds       float64 `json:"editSeconds"`
	WritesPerEdit     float64 `json:"writesPerEdit"`
	// Followers are the TrainJobs that follow an edit of their runtime, because they have never been started.
	// RuntimeSeconds is how long it took from the edit until the Workloads of all of them had it.
	Followers         int       `json:"followers"`
	RuntimeSeconds    float64   `json:"runtimeSeconds"`
	WritesPerFollower float64   `json:"writesPerFollower"`
	After             footprint `json:"after"`
}

// churn measures rounds of preemptions and edits, and what is left of them in the manager.
func churn(ctx context.Context, o churnOptions) error {
	if err := o.queues.validate(); err != nil {
		return err
	}
	g, err := newLoadGround(ctx, o.cluster, o.queues)
	if err != nil {
		return err
	}
	say := teller("churn")
	audited, err := g.runAudit(ctx, o.cluster, o.waiting, idle, say)
	if err != nil {
		return err
	}
	defer audited.end()
	w := g.wait(ctx, o.cluster)
	defer w.seen.end()
	if err := w.crowd(ctx, o.waiting); err != nil {
		return err
	}
	r := &churnRun{Machine: machine(), Waiting: o.waiting, Queues: o.queues}
	if r.Before, err = footprintOf(ctx, o.cluster); err != nil {
		return err
	}
	say("%d wait: %s", o.waiting, r.Before)
	for began, n := time.Now(), 0; n < o.rounds || time.Since(began) < o.over; n++ {
		round, err := w.churn(ctx, n)
		if err != nil {
			return err
		}
		r.Rounds = append(r.Rounds, *round)
		say("round %d: evicted %d, free after %.1f s, running again after %.1f s; %.2f writes each; an edited runtime "+
			"is followed after %.1f s; %s",
			n+1, round.Evicted, round.FreeSeconds, round.AgainSeconds, round.WritesPerEviction, round.RuntimeSeconds,
			round.After)
	}
	if r.Findings, err = audited.findings(); err != nil {
		return err
	}
	text := r.markdown()
	fmt.Print("\n" + text)
	return write(o.out, r, text)
}

// crowd has the quota held, and n TrainJobs wait. All are alike, so that it doesn't matter which of them run.
func (w *waiters) crowd(ctx context.Context, n int) error {
	from, err := audit.End(w.audit)
	if err != nil {
		return err
	}
	if err := w.add(ctx, holder, running+n); err != nil {
		return err
	}
	if err := w.until(ctx, "the quota is held, and the others are queued", func() (bool, error) {
		return w.seen.countOf(holder, bound) == running && w.seen.countOf(holder, queued) == running+n, nil
	}); err != nil {
		return err
	}
	return w.settle(ctx, from, still)
}

// churn carries out the nth round.
func (w *waiters) churn(ctx context.Context, n int) (*churnRound, error) {
	r := &churnRound{Evicted: stormsOfRound * running, Edits: editsOfRound}
	for _, part := range []struct {
		writes *float64
		of     *int
		do     func() error
	}{
		{&r.WritesPerEviction, &r.Evicted, func() error { return w.storms(ctx, r) }},
		{&r.WritesPerEdit, &r.Edits, func() error { return w.edit(ctx, n, r) }},
		{&r.WritesPerFollower, &r.Followers, func() error { return w.editRuntime(ctx, n, r) }},
	} {
		from, err := audit.End(w.audit)
		if err != nil {
			return nil, err
		}
		if err := part.do(); err != nil {
			return nil, err
		}
		if err := w.settle(ctx, from, still); err != nil {
			return nil, err
		}
		writes, err := audit.Since(w.audit, from, func(r audit.Request) bool {
			return r.Writes() && r.User.Username == "signalbox" && r.ObjectRef.Namespace == namespace
		})
		if err != nil {
			return nil, err
		}
		*part.writes = float64(len(writes)) / float64(*part.of)
	}
	var err error
	r.After, err = footprintOf(ctx, w.dir)
	return r, err
}

// storms evicts all that run, and admits them again, several times.
func (w *waiters) storms(ctx context.Context, r *churnRound) error {
	for range stormsOfRound {
		began := time.Now()
		if err := w.hold(ctx, kueue.HoldAndDrain); err != nil {
			return err
		}
		if err := w.untilEvery(ctx, stormInterval, "the quota of the evicted is free", func() (bool, error) {
			n, err := w.holding(ctx)
			return n == 0, err
		}); err != nil {
			return err
		}
		r.FreeSeconds = max(r.FreeSeconds, time.Since(began).Seconds())
		began = time.Now()
		if err := w.hold(ctx, kueue.None); err != nil {
			return err
		}
		if err := w.untilEvery(ctx, stormInterval, "the evicted run again", func() (bool, error) {
			n, err := w.bound(ctx)
			return n == running, err
		}); err != nil {
			return err
		}
		r.AgainSeconds = max(r.AgainSeconds, time.Since(began).Seconds())
	}
	return nil
}

// holding returns how many Workloads hold quota.
func (w *waiters) holding(ctx context.Context) (n int, err error) {
	var all kueue.WorkloadList
	if err := w.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return 0, err
	}
	for i := range all.Items {
		wl := &all.Items[i]
		if workload.HasQuotaReservation(wl) && !workloadfinish.IsFinished(wl) { // what has finished keeps the condition
			n++
		}
	}
	return n, nil
}

// bound returns how many pods have a node and have not ended.
func (w *waiters) bound(ctx context.Context) (n int, err error) {
	var all corev1.PodList
	if err := w.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return 0, err
	}
	for i := range all.Items {
		pod := &all.Items[i]
		if pod.Spec.NodeName != "" && pod.DeletionTimestamp.IsZero() &&
			pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			n++
		}
	}
	return n, nil
}

// edit has users annotate the TrainJobs that wait, as fast as they can.
func (w *waiters) edit(ctx context.Context, n int, r *churnRound) error {
	began := time.Now()
	waiting, err := w.those(ctx, "waits", func(job *api.TrainJob) bool { return ptr.Deref(job.Spec.Suspend, false) })
	if err != nil {
		return err
	}
	err = atOnce(editsOfRound, func(i int) error {
		job := &api.TrainJob{}
		job.Namespace, job.Name = namespace, waiting[i%len(waiting)]
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/note":"%d-%d"}}}`, n, i)
		return w.client.Patch(ctx, job, client.RawPatch(types.MergePatchType, []byte(patch)))
	})
	r.EditSeconds = time.Since(began).Seconds()
	return err
}

// those returns the names of some TrainJobs. That there are none is an error.
func (w *waiters) those(ctx context.Context, what string, take func(*api.TrainJob) bool) ([]string, error) {
	var all api.TrainJobList
	if err := w.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var names []string
	for i := range all.Items {
		if take(&all.Items[i]) {
			names = append(names, all.Items[i].Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("none of %d TrainJobs %s; name more by --waiting", len(all.Items), what)
	}
	return names, nil
}

// editRuntime edits the runtime of all, in what Workloads have of it. TrainJobs that were started keep the runtime of
// their first start.
func (w *waiters) editRuntime(ctx context.Context, n int, r *churnRound) error {
	followers, err := w.those(ctx, "was never started", func(job *api.TrainJob) bool {
		return ptr.Deref(job.Spec.Suspend, false) && job.Annotations[store.PinAnnotation] == ""
	})
	if err != nil {
		return err
	}
	r.Followers = len(followers)
	rt := &api.TrainingRuntime{}
	if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: long}, rt); err != nil {
		return err
	}
	before := rt.DeepCopy()
	image := fmt.Sprintf("example.com/train:%d", n+2)
	rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = image
	began := time.Now()
	if err := w.client.Patch(ctx, rt, client.MergeFrom(before)); err != nil {
		return err
	}
	err = w.until(ctx, "the Workloads of those that were never started have the edited runtime", func() (bool, error) {
		var all kueue.WorkloadList
		if err := w.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		follow := map[string]bool{}
		for i := range all.Items {
			owner := metav1.GetControllerOf(&all.Items[i])
			if owner != nil && all.Items[i].Spec.PodSets[0].Template.Spec.Containers[0].Image == image {
				follow[owner.Name] = true
			}
		}
		return !slices.ContainsFunc(followers, func(name string) bool { return !follow[name] }), nil
	})
	r.RuntimeSeconds = time.Since(began).Seconds()
	return err
}

// markdown returns the page.
func (r *churnRun) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Churn\n\n`make bench WHAT=churn` makes this page (%s). %d TrainJobs wait in %d LocalQueues while "+
		"%d run. In each round, those that run are evicted %d times by the stop of all queues and run again, users edit "+
		"TrainJobs that wait, %d times, and the runtime of all is edited. Writes are Signalbox's.\n\n",
		r.Machine, r.Waiting, r.Queues, running, stormsOfRound, editsOfRound)
	b.WriteString("| after round | evicted | quota free after, s | running again after, s | writes per eviction | " +
		"writes per edit | followers | edited runtime followed after, s | writes per follower |" + footprintHeading + "\n" +
		"| --: |" + strings.Repeat(" --: |", 8+footprintColumns) + "\n")
	fmt.Fprintf(&b, "| 0 | | | | | | | | |%s\n", r.Before.row())
	for n, round := range r.Rounds {
		fmt.Fprintf(&b, "| %d | %d | %.1f | %.1f | %.2f | %.2f | %d | %.1f | %.2f |%s\n", n+1, round.Evicted,
			round.FreeSeconds, round.AgainSeconds, round.WritesPerEviction, round.WritesPerEdit, round.Followers,
			round.RuntimeSeconds, round.WritesPerFollower, round.After.row())
	}
	findings := 0
	for _, n := range r.Findings {
		findings += n
	}
	fmt.Fprintf(&b, "\nFindings of `signalbox audit`: %d.\n", findings)
	return b.String()
}
