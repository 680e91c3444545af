package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// trainOptions are what is measured of trainings, and where.
type trainOptions struct {
	// cluster is the folder of a control plane that was started with profile.
	cluster, profile string
	jobs             int
	// over is how long it is measured, at most.
	over time.Duration
	// seed decides how large each TrainJob is, and what happens to it: the same in each column of a page.
	seed uint64
	// within is Signalbox's preemption.checkpointWithin.
	within time.Duration
	// out is the file for what was measured.
	out string
}

func (o trainOptions) validate() error {
	if o.jobs < 1 || o.over < time.Minute {
		return fmt.Errorf("--jobs is %d and --for %s; they must be 1 and 1m, or more", o.jobs, o.over)
	}
	return nil
}

// What trainings are queued in, and what disturbs them.
const (
	trainQueue = "lost"
	// urgent is the runtime, and the prefix of the names, of those that preempt.
	urgent = "urgent"
	// trainee is the prefix of the names of those that train.
	trainee = "train"
	// savesEvery is how often a process saves its work.
	savesEvery = 20 * time.Second
)

// What preempts, and what is preempted, where that is measured.
const (
	lostGPUs = 32
	// urgentEvery is how often, on average, an urgent TrainJob of urgentGPUs comes, which runs for urgentRuns.
	urgentEvery = 30 * time.Second
	urgentGPUs  = 8
	urgentRuns  = "20s"
	// A TrainJob has work for leastWork to leastWork + moreWork.
	leastWork, moreWork = 3 * time.Minute, 4 * time.Minute
)

// trial is a measurement of trainings that goes on.
type trial struct {
	*waiters
	trainOptions
	trainings *trainings
	page      *trainRun
	audited   *auditor
	dice      *rand.Rand
	following errgroup.Group
	stop      context.CancelFunc
	urgents   int
}

// lost measures what becomes of the time of GPUs while urgent TrainJobs preempt others.
func lost(ctx context.Context, o trainOptions) error {
	g, err := o.ground(ctx, nodesOfPool, lostGPUs, urgentRuns)
	if err != nil {
		return err
	}
	p := newTrainings()
	if o.profile == "bundled" {
		r, err := withReports(ctx, g, o.cluster, sections{
			"usage":      {"enabled": true, "teamLabel": teamLabel},
			"preemption": {"checkpointWithin": o.within.String()},
		})
		if err != nil {
			return err
		}
		p.saves = r.send
	}
	t, err := o.begin(ctx, g, p, &trainRun{
		Title: "Work lost to preemptions", Columns: []string{"bundled", "builtin"}, Column: o.profile,
		Says: fmt.Sprintf("%d TrainJobs with work of %s to %s and 1 to 8 GPUs share %d GPUs for %s (seed %d). Each saves "+
			"its work every %s. An urgent one of %d GPUs comes every %s on average, runs for %s and preempts them. "+
			"Signalbox's checkpointWithin is %s.",
			o.jobs, leastWork, leastWork+moreWork, lostGPUs, o.over, o.seed, savesEvery, urgentGPUs, urgentEvery, urgentRuns,
			o.within),
	})
	if err != nil {
		return err
	}
	defer t.end()
	if err := t.train(ctx, shortWork, singleNode); err != nil {
		return err
	}
	if err := t.disturb(ctx, urgentEvery, func(job *api.TrainJob) {
		job.Spec.Trainer.ResourcesPerNode = gpus(urgentGPUs)
	}); err != nil {
		return err
	}
	t.addSpent()
	if o.profile == "bundled" {
		if err := t.settleLedger(ctx); err != nil {
			return err
		}
	}
	return t.write(ctx)
}

// ground returns a ground with nodes of kind a100, quota for GPUs of that kind, and urgent TrainJobs that run for a
// time.
func (o trainOptions) ground(ctx context.Context, nodes, gpus int, urgentRuns string) (*ground, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	g, err := newLoadGround(ctx, o.cluster, 1)
	if err != nil {
		return nil, err
	}
	if err := g.addPool(ctx, "a100", nodesOfPool, nodes); err != nil {
		return nil, err
	}
	return g, g.apply(ctx, runtimeFor(urgent, urgentRuns), preempting(trainQueue, gpu, quota("a100", gpus))...)
}

// newTrainings returns none, which save to their own storage alone.
func newTrainings() *trainings {
	return &trainings{
		all: map[string]*training{}, every: savesEvery, leaving: map[types.UID]leaving{},
		saves: func(context.Context, string, time.Duration) error { return nil },
	}
}

// begin starts what watches trainings, and what they do.
func (o trainOptions) begin(ctx context.Context, g *ground, p *trainings, page *trainRun) (*trial, error) {
	page.Machine = machine()
	audited, err := g.runAudit(ctx, o.cluster, o.jobs, idle, teller(page.Column))
	if err != nil {
		return nil, err
	}
	g.allow(o.jobs)
	t := &trial{
		waiters: g.wait(ctx, o.cluster), trainOptions: o, trainings: p, page: page, audited: audited,
		dice: rand.New(rand.NewPCG(o.seed, 0)),
	}
	ctx, t.stop = context.WithCancel(ctx)
	t.following.Go(func() error {
		watched(ctx, g.client, &corev1.PodList{}, func(kind watch.EventType, o client.Object, now time.Time) {
			if pod, is := o.(*corev1.Pod); is {
				p.see(kind, pod, now)
			}
		})
		return nil
	})
	t.following.Go(func() error { return p.run(ctx, g.client) })
	return t, nil
}

// end ends them. It may be called again.
func (t *trial) end() error {
	t.stop()
	t.seen.end()
	t.audited.end()
	return t.following.Wait()
}

// shortWork is a training of one pod, as the dice decide.
func shortWork(dice *rand.Rand) *training {
	return &training{gpus: 1 << dice.IntN(4), work: leastWork + time.Duration(dice.Int64N(int64(moreWork)))}
}

// have returns a condition: as many of those that train have come to a moment.
func (t *trial) have(n int, m moment) func() (bool, error) {
	return func() (bool, error) { return t.seen.countOf(trainee, m) >= n, nil }
}

// singleNode leaves a TrainJob as it is.
func singleNode(*api.TrainJob) {}

// train submits those that train, as the dice decide.
func (t *trial) train(ctx context.Context, one func(*rand.Rand) *training, change func(*api.TrainJob)) error {
	names := make([]string, t.jobs)
	t.trainings.mu.Lock()
	for i := range names {
		names[i] = fmt.Sprintf("%s-%05d", trainee, i)
		t.trainings.all[names[i]] = one(t.dice)
	}
	t.trainings.mu.Unlock()
	for _, name := range names {
		job := loadJob(name, trainQueue)
		job.Annotations = map[string]string{api.CheckpointMetricAnnotation: metricSaved}
		job.Labels[teamLabel] = trainingTeam
		job.Spec.RuntimeRef.Name = long
		job.Spec.Trainer.ResourcesPerNode = gpus(t.trainings.all[name].gpus)
		change(job)
		if err := t.client.Create(ctx, job); err != nil {
			return fmt.Errorf("submitting: %w", err)
		}
	}
	return nil
}

// disturb submits urgent TrainJobs until the time is over.
func (t *trial) disturb(ctx context.Context, every time.Duration, change func(*api.TrainJob)) error {
	limited, stop := context.WithTimeout(ctx, t.over)
	defer stop()
	for {
		select {
		case <-limited.Done():
			return ctx.Err()
		case <-time.After(time.Duration(t.dice.ExpFloat64() * float64(every))):
		}
		job := loadJob(fmt.Sprintf("%s-%05d", urgent, t.urgents), trainQueue)
		job.Labels[constants.WorkloadPriorityClassLabel] = holder
		job.Spec.RuntimeRef.Name = urgent
		change(job)
		if err := t.client.Create(limited, job); err != nil && limited.Err() == nil {
			return fmt.Errorf("submitting: %w", err)
		}
		t.urgents++
	}
}

// addSpent adds to the page what became of the time of GPUs until now, and how long urgent TrainJobs have waited.
func (t *trial) addSpent() {
	s, p := t.trainings.total(), t.page
	p.add("GPU seconds useful", s.Useful)
	p.add("GPU seconds lost", s.Lost)
	p.add("stops", float64(s.Stops))
	p.add("ended", float64(s.Ended))
	p.add("urgent TrainJobs", float64(t.urgents))
	var waits []float64
	for _, name := range t.seen.those(urgent+"-", bound, "") {
		waits = append(waits, t.seen.at(name, bound).Sub(t.seen.at(name, submitted)).Seconds())
	}
	slices.Sort(waits)
	p.addQuantiles("an urgent one waits for its first pod's node", waits)
}

// write leaves what was measured.
func (t *trial) write(ctx context.Context) error {
	err := t.end()
	found, failed := t.audited.findings()
	all := 0
	for rule, n := range found {
		t.page.add("finding: "+rule, float64(n))
		all += n
	}
	t.page.add("findings of `signalbox audit`", float64(all))
	return errors.Join(err, failed, ctx.Err(), t.page.write(t.out))
}

// patchQueue changes the queue of those that train.
func (t *trial) patchQueue(ctx context.Context, change func(*kueue.ClusterQueueSpec)) error {
	cq := &kueue.ClusterQueue{}
	if err := t.client.Get(ctx, types.NamespacedName{Name: trainQueue}, cq); err != nil {
		return err
	}
	before := cq.DeepCopy()
	change(&cq.Spec)
	return t.client.Patch(ctx, cq, client.MergeFrom(before))
}
