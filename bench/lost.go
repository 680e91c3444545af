package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// lostOptions are what is measured of work that preemptions cost, and where.
type lostOptions struct {
	// cluster is the folder of a control plane that was started with profile.
	cluster, profile string
	jobs             int
	over             time.Duration
	// seed decides how large each TrainJob is and when the urgent ones come: the same for all profiles.
	seed uint64
	// within is Signalbox's preemption.checkpointWithin.
	within time.Duration
	out    string
}

// What preempts, and what is preempted.
const (
	lostQueue = "lost"
	lostGPUs  = 32
	// savesEvery is how often a process saves its work.
	savesEvery = 20 * time.Second
	// urgentEvery is how often, on average, an urgent TrainJob of urgentGPUs comes, which runs for urgentRuns.
	urgentEvery = 30 * time.Second
	urgentGPUs  = 8
	urgentRuns  = "20s"
	// A TrainJob has work for leastWork to leastWork + moreWork.
	leastWork, moreWork = 3 * time.Minute, 4 * time.Minute
)

// lostRun is what preemptions cost in that time.
type lostRun struct {
	Machine string  `json:"machine"`
	Profile string  `json:"profile"`
	Jobs    int     `json:"jobs"`
	Seconds float64 `json:"seconds"`
	Seed    uint64  `json:"seed"`
	Within  string  `json:"checkpointWithin,omitempty"`
	spent
	Urgent int `json:"urgent"`
	// UrgentWaits are from the submission of an urgent TrainJob until its pod has a node, in seconds, sorted. Those that
	// wait at the end have none.
	UrgentWaits []float64 `json:"urgentWaitSeconds"`
	// Findings are the number of findings of `signalbox audit`, by rule.
	Findings map[string]int `json:"findings"`
	// Ledger is what Signalbox has recorded; nil for others.
	Ledger *ledgerSums `json:"ledger,omitempty"`
}

func (o lostOptions) validate() error {
	if o.jobs < 1 || o.over < time.Minute {
		return fmt.Errorf("--jobs is %d and --for %s; they must be 1 and 1m, or more", o.jobs, o.over)
	}
	return nil
}

// lost measures what becomes of the time of GPUs while urgent TrainJobs preempt others.
func lost(ctx context.Context, o lostOptions) error {
	if err := o.validate(); err != nil {
		return err
	}
	g, err := newLoadGround(ctx, o.cluster, 1)
	if err != nil {
		return err
	}
	if err := g.addLostQueue(ctx); err != nil {
		return err
	}
	saves := func(context.Context, string, time.Duration) error { return nil } // to its own storage alone
	if o.profile == "bundled" {
		r, err := withCheckpoints(ctx, g, o.cluster, o.within)
		if err != nil {
			return err
		}
		saves = r.send
	}
	say := teller(o.profile)
	audited, err := g.runAudit(ctx, o.cluster, o.jobs, idle, say)
	if err != nil {
		return err
	}
	defer audited.end()
	w := g.wait(ctx, o.cluster)
	defer w.seen.end()
	g.allow(o.jobs)
	r := &lostRun{Machine: machine(), Profile: o.profile, Jobs: o.jobs, Seed: o.seed}
	if o.profile == "bundled" {
		r.Within = o.within.String()
	}
	p := &trainings{all: map[string]*training{}, every: savesEvery, saves: saves, leaving: map[types.UID]leaving{}}
	if err := w.preempt(ctx, o, r, p); err != nil {
		return err
	}
	say("%d of %d ended, %d stops: %.0f GPU seconds useful, %.0f lost", r.Ended, r.Jobs, r.Stops, r.Useful, r.Lost)
	if r.Findings, err = audited.findings(); err != nil {
		return err
	}
	text := r.markdown()
	fmt.Print("\n" + text)
	return write(o.out, r, text)
}

// submitTraining creates those that train, whose sizes and work the dice decide.
func (w *waiters) submitTraining(ctx context.Context, jobs int, dice *rand.Rand, p *trainings) error {
	names := make([]string, jobs)
	for i := range names {
		names[i] = fmt.Sprintf("train-%05d", i)
		p.all[names[i]] = &training{
			gpus: 1 << dice.IntN(4), work: leastWork + time.Duration(dice.Int64N(int64(moreWork))),
		}
	}
	for _, name := range names {
		job := loadJob(name, lostQueue)
		job.Annotations = map[string]string{api.CheckpointMetricAnnotation: metricSaved}
		job.Labels[teamLabel] = trainingTeam
		job.Spec.RuntimeRef.Name = long
		job.Spec.Trainer.ResourcesPerNode = gpus(p.all[name].gpus)
		if err := w.client.Create(ctx, job); err != nil {
			return fmt.Errorf("submitting: %w", err)
		}
	}
	return nil
}

// preempt runs everything, until the time is over.
func (w *waiters) preempt(ctx context.Context, o lostOptions, r *lostRun, p *trainings) error {
	dice := rand.New(rand.NewPCG(o.seed, 0))
	began := time.Now()
	if err := w.submitTraining(ctx, o.jobs, dice, p); err != nil {
		return err
	}
	limited, stop := context.WithTimeout(ctx, o.over)
	defer stop()
	following, end := context.WithCancel(ctx)
	defer end()
	var all errgroup.Group
	all.Go(func() error {
		watched(following, w.client, &corev1.PodList{}, func(kind watch.EventType, o client.Object, now time.Time) {
			if pod, is := o.(*corev1.Pod); is {
				p.see(kind, pod, now)
			}
		})
		return nil
	})
	all.Go(func() error { return p.run(following, w.client) })
	all.Go(func() error {
		for {
			select {
			case <-limited.Done():
				return nil
			case <-time.After(time.Duration(dice.ExpFloat64() * float64(urgentEvery))):
			}
			job := loadJob(fmt.Sprintf("urgent-%05d", r.Urgent), lostQueue)
			job.Labels[constants.WorkloadPriorityClassLabel] = holder
			job.Spec.RuntimeRef.Name = urgent
			job.Spec.Trainer.ResourcesPerNode = gpus(urgentGPUs)
			if err := w.client.Create(limited, job); err != nil && limited.Err() == nil {
				return fmt.Errorf("submitting: %w", err)
			}
			r.Urgent++
		}
	})
	<-limited.Done()
	r.Seconds, r.spent = time.Since(began).Seconds(), p.total()
	var err error
	if o.profile == "bundled" {
		r.Ledger, err = w.settleLedger(ctx, p)
	}
	end()
	err = errors.Join(err, all.Wait())
	for _, name := range w.seen.those("urgent-", bound, "") {
		r.UrgentWaits = append(r.UrgentWaits, w.seen.at(name, bound).Sub(w.seen.at(name, submitted)).Seconds())
	}
	slices.Sort(r.UrgentWaits)
	return errors.Join(err, ctx.Err())
}

// urgent is the runtime of those that preempt.
const urgent = "urgent"

// addLostQueue creates a queue in which priority preempts, and the runtime of those that do.
func (g *ground) addLostQueue(ctx context.Context) error {
	return g.apply(ctx, strings.NewReplacer("name: torch,", "name: "+urgent+",", "run-for: 1s", "run-for: "+urgentRuns).
		Replace(runtimeManifest),
		&kueue.ClusterQueue{
			ObjectMeta: metav1.ObjectMeta{Name: lostQueue},
			Spec: kueue.ClusterQueueSpec{
				NamespaceSelector: &metav1.LabelSelector{},
				Preemption:        &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority},
				ResourceGroups: []kueue.ResourceGroup{{
					CoveredResources: []corev1.ResourceName{gpu},
					Flavors: []kueue.FlavorQuotas{{Name: "a100", Resources: []kueue.ResourceQuota{{
						Name: gpu, NominalQuota: *resource.NewQuantity(lostGPUs, resource.DecimalSI),
					}}}},
				}},
			},
		},
		&kueue.LocalQueue{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lostQueue},
			Spec:       kueue.LocalQueueSpec{ClusterQueue: lostQueue},
		})
}

// markdown returns the page.
func (r *lostRun) markdown() string {
	findings := 0
	for _, n := range r.Findings {
		findings += n
	}
	return fmt.Sprintf("# Work lost to preemptions: %s\n\n`make bench WHAT=lost` makes this page (%s). %d TrainJobs with "+
		"work of %s to %s and 1 to 8 GPUs share %d GPUs for %.0f s (seed %d). Each saves its work every %s. An urgent one "+
		"of %d GPUs comes every %s on average, runs for %s and preempts them. checkpointWithin: %s.\n\n"+
		"| | |\n| --- | --: |\n| GPU seconds useful | %.0f |\n| GPU seconds lost | %.0f |\n| stops | %d |\n"+
		"| ended | %d |\n| urgent TrainJobs | %d |\n| an urgent one waits, median, s | %.1f |\n| 99th of 100, s | %.1f |\n"+
		"| findings of `signalbox audit` | %d |\n",
		r.Profile, r.Machine, r.Jobs, leastWork, leastWork+moreWork, lostGPUs, r.Seconds, r.Seed, savesEvery, urgentGPUs,
		urgentEvery, urgentRuns, orOff(r.Within), r.Useful, r.Lost, r.Stops, r.Ended, r.Urgent,
		quantile(r.UrgentWaits, 0.5), quantile(r.UrgentWaits, 0.99), findings) + r.Ledger.markdown()
}

func orOff(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
