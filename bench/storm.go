package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/audit"
)

// stormOptions are what a storm measures, and where.
type stormOptions struct {
	// cluster is the folder of a control plane that was started with profile.
	cluster, profile string
	// jobs run and are preempted, as often as storms.
	jobs, storms int
	out          string
}

// What is in a storm's queue.
const (
	stormQueue = "storm"
	// stormFlavors are how many flavors it has. One TrainJob takes the whole quota of one.
	stormFlavors = 2
	// stormMost is how many pods the nodes have room for.
	stormMost = 1600
	// stormCPU is what each TrainJob asks for, in milli-CPUs.
	stormCPU = 10
)

func (o stormOptions) validate() error {
	if o.jobs < stormFlavors || o.jobs > stormMost || o.jobs%stormFlavors != 0 {
		return fmt.Errorf("--jobs is %d; it must be a multiple of %d, and at most %d", o.jobs, stormFlavors, stormMost)
	}
	if o.storms < 1 {
		return fmt.Errorf("--storms is %d; it must be 1 or more", o.storms)
	}
	return nil
}

// stormRun is what storms of preemptions took.
type stormRun struct {
	Machine string     `json:"machine"`
	Profile string     `json:"profile"`
	Jobs    int        `json:"jobs"`
	Storms  []oneStorm `json:"storms"`
	// Findings are the number of findings of `signalbox audit`, by rule.
	Findings map[string]int `json:"findings"`
}

// oneStorm is one of them.
type oneStorm struct {
	// Evicted are the preemptions that Kueue has counted.
	Evicted int `json:"evicted"`
	// From the submission of those that preempt, until both were admitted, and until all that were evicted run again.
	FreeSeconds  float64 `json:"freeSeconds"`
	AgainSeconds float64 `json:"againSeconds"`
	// WritesPerJob are write requests for an eviction and the start after it, by component, as of a burst.
	WritesPerJob map[string]float64 `json:"writesPerEviction"`
	Conflicts    int                `json:"conflicts"`
	// CPU is in seconds per 1,000 evictions, Peak since the process was started.
	CPU  map[string]float64 `json:"cpuSecondsPer1000"`
	Peak map[string]int64   `json:"peakBytes"`
}

// storm measures preemptions of all that run at once, by two TrainJobs that take the whole quota for a second.
func storm(ctx context.Context, o stormOptions) error {
	if err := o.validate(); err != nil {
		return err
	}
	g, err := newLoadGround(ctx, o.cluster, 1)
	if err != nil {
		return err
	}
	if err := g.addStormQueue(ctx, o.jobs); err != nil {
		return err
	}
	say := teller(o.profile)
	// All are admitted at once, and JobSet creates their Jobs one after the other.
	audited, err := g.runAudit(ctx, o.cluster, o.jobs, idle+time.Duration(o.jobs)*patienceEach, say)
	if err != nil {
		return err
	}
	defer audited.end()
	w := g.wait(ctx, o.cluster)
	defer w.seen.end()
	g.allow(2 * o.jobs)
	began := time.Now()
	if err := g.submit(ctx, "low", o.jobs, func(job *api.TrainJob) { inStorm(job, stormCPU, long) }); err != nil {
		return err
	}
	if err := w.allRun(ctx, o.jobs); err != nil {
		return err
	}
	say("%d run after %.1f s", o.jobs, time.Since(began).Seconds())
	r := &stormRun{Machine: machine(), Profile: o.profile, Jobs: o.jobs}
	for n := range o.storms {
		one, err := w.storm(ctx, o, n)
		if err != nil {
			return err
		}
		say("storm %d: %d evicted, their quota given to others after %.1f s, all run again after %.1f s; %.2f writes each "+
			"(Signalbox %.2f)", n+1, one.Evicted, one.FreeSeconds, one.AgainSeconds,
			one.WritesPerJob["controllers"], one.WritesPerJob["signalbox"])
		r.Storms = append(r.Storms, *one)
	}
	if r.Findings, err = audited.findings(); err != nil {
		return err
	}
	text := r.markdown()
	fmt.Print("\n" + text)
	return write(o.out, r, text)
}

// addStormQueue creates a queue with quota of CPUs for so many TrainJobs, in which priority preempts.
func (g *ground) addStormQueue(ctx context.Context, jobs int) error {
	quotas := func(flavor kueue.ResourceFlavorReference) kueue.FlavorQuotas {
		return kueue.FlavorQuotas{Name: flavor, Resources: []kueue.ResourceQuota{{
			Name: corev1.ResourceCPU, NominalQuota: milli(jobs / stormFlavors * stormCPU),
		}}}
	}
	return g.apply(ctx, "", preempting(stormQueue, corev1.ResourceCPU, quotas("a100"), quotas("h100"))...)
}

func milli(cpus int) resource.Quantity {
	return *resource.NewMilliQuantity(int64(cpus), resource.DecimalSI)
}

// inStorm has a TrainJob ask for CPUs in the storm's queue.
func inStorm(job *api.TrainJob, cpus int, runtime string) {
	job.Labels[constants.QueueLabel] = stormQueue
	job.Spec.RuntimeRef.Name = runtime
	job.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: milli(cpus)},
	}
}

// allRun waits until as many pods run, and nobody writes any more.
func (w *waiters) allRun(ctx context.Context, n int) error {
	from, err := audit.End(w.audit)
	if err != nil {
		return err
	}
	if err := w.untilEvery(ctx, stormInterval, "all run", func() (bool, error) {
		bound, err := w.bound(ctx)
		return bound == n, err
	}); err != nil {
		return err
	}
	return w.settle(ctx, from, pause)
}

// storm measures the nth storm.
func (w *waiters) storm(ctx context.Context, o stormOptions, n int) (*oneStorm, error) {
	from, err := audit.End(w.audit)
	if err != nil {
		return nil, err
	}
	before, err := usages(w.dir)
	if err != nil {
		return nil, err
	}
	was, err := w.preempted(ctx)
	if err != nil {
		return nil, err
	}
	prefix := fmt.Sprintf("high-%d", n)
	began := time.Now()
	if err := w.submit(ctx, prefix, stormFlavors, func(job *api.TrainJob) {
		inStorm(job, o.jobs/stormFlavors*stormCPU, "torch")
		job.Labels[constants.WorkloadPriorityClassLabel] = holder
	}); err != nil {
		return nil, err
	}
	s := &oneStorm{CPU: map[string]float64{}, Peak: map[string]int64{}}
	if err := w.until(ctx, "those that preempt are admitted", func() (bool, error) {
		return w.seen.countOf(prefix, admitted) == stormFlavors, nil
	}); err != nil {
		return nil, err
	}
	s.FreeSeconds = time.Since(began).Seconds()
	if err := w.until(ctx, "those that preempt have finished", func() (bool, error) {
		return w.seen.countOf(prefix, freed) == stormFlavors, nil
	}); err != nil {
		return nil, err
	}
	if err := w.untilEvery(ctx, stormInterval, "the evicted run again", func() (bool, error) {
		bound, err := w.bound(ctx)
		return bound == o.jobs, err
	}); err != nil {
		return nil, err
	}
	s.AgainSeconds = time.Since(began).Seconds()
	if err := w.settle(ctx, from, pause); err != nil {
		return nil, err
	}
	now, err := w.preempted(ctx)
	if err != nil {
		return nil, err
	}
	s.Evicted = now - was
	if s.Evicted < o.jobs {
		return nil, fmt.Errorf("only %d of %d TrainJobs were preempted", s.Evicted, o.jobs)
	}
	return s, s.count(w, from, before)
}

// count adds what the storm has cost since an offset of the audit log.
func (s *oneStorm) count(w *waiters, from int64, before map[string]usage) error {
	after, err := usages(w.dir)
	if err != nil {
		return err
	}
	for name, u := range after {
		s.CPU[name], s.Peak[name] = (u.CPU-before[name].CPU)*1000/float64(s.Evicted), u.Peak
	}
	requests := &burstRun{Jobs: s.Evicted}
	err = requests.countRequests(w.audit, from, time.Now())
	s.WritesPerJob, s.Conflicts = requests.WritesPerJob, requests.Conflicts
	return err
}

// preempted returns how many preemptions Kueue has counted.
func (w *waiters) preempted(ctx context.Context) (n int, err error) {
	var all kueue.WorkloadList
	if err := w.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return 0, err
	}
	for i := range all.Items {
		if stats := all.Items[i].Status.SchedulingStats; stats != nil {
			for _, e := range stats.Evictions {
				if e.Reason == kueue.WorkloadEvictedByPreemption {
					n += int(e.Count)
				}
			}
		}
	}
	return n, nil
}

// markdown returns the page.
func (r *stormRun) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Storms of preemptions: %s\n\n`make bench WHAT=storm` makes this page (%s). %d TrainJobs run. In "+
		"each storm, %d of a higher priority take the whole quota for a second: all are preempted, and run again. "+
		"Writes are for an eviction and the start after it, CPU seconds for 1,000.\n\n",
		r.Profile, r.Machine, r.Jobs, stormFlavors)
	b.WriteString("| storm | evicted | quota free and given after, s | all run again after, s | " +
		"writes by all controllers |")
	for _, who := range controllers {
		fmt.Fprintf(&b, " by %s | CPU of %s, s | its peak memory, MiB |", who, who)
	}
	b.WriteString(" conflicts |\n|" + strings.Repeat(" --: |", 6+3*len(controllers)) + "\n")
	for n, s := range r.Storms {
		fmt.Fprintf(&b, "| %d | %d | %.1f | %.1f | %.2f |", n+1, s.Evicted, s.FreeSeconds, s.AgainSeconds,
			s.WritesPerJob["controllers"])
		for _, who := range controllers {
			fmt.Fprintf(&b, " %.2f | %.1f | %d |", s.WritesPerJob[who], s.CPU[who], s.Peak[who]>>20)
		}
		fmt.Fprintf(&b, " %d |\n", s.Conflicts)
	}
	findings := 0
	for _, n := range r.Findings {
		findings += n
	}
	fmt.Fprintf(&b, "\nFindings of `signalbox audit`: %d.\n", findings)
	return b.String()
}
