package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// quotaOfFlavor is the GPUs of each of the two flavors: 8 nodes of 8.
const quotaOfFlavor = 64

// submitters create TrainJobs at the same time, so that their creation is not what is measured.
const submitters = 8

// loadRun is what one run of a profile gives.
type loadRun struct {
	Profile string       `json:"profile"`
	Machine string       `json:"machine"`
	Bursts  []burstRun   `json:"bursts"`
	Waiting []waitingRun `json:"waiting"`
	Queued  *queuedRun   `json:"queued"`
	Running *runningRun  `json:"running"`
	Restart *restartRun  `json:"restart,omitempty"`
	// Findings are the number of findings of `signalbox audit` during the run, by rule.
	Findings map[string]int `json:"findings"`
}

// runningRun is of TrainJobs that run until they are evicted.
type runningRun struct {
	Jobs int `json:"jobs"`
	// Stored is of all of them, while they run.
	Stored    stored               `json:"stored"`
	LatencyMs map[string][]float64 `json:"latencyMs"`
}

// restartRun is of a manager that comes back while others wait, to TrainJobs that were admitted meanwhile.
type restartRun struct {
	Waiting  int `json:"waiting"`
	Admitted int `json:"admitted"`
	// Since its process was started: until its webhooks serve, until the last of those that were admitted is started, and
	// until it has looked at every TrainJob and has nothing left to do.
	ReadySeconds   float64 `json:"readySeconds"`
	StartedSeconds float64 `json:"startedSeconds"`
	InStepSeconds  float64 `json:"inStepSeconds"`
	Peak           int64   `json:"peakBytes"`
	// Faults that were seen since the manager was stopped.
	Faults map[string]int `json:"faults"`
}

// burstRun is a burst of TrainJobs of one pod of one GPU that runs for a second.
type burstRun struct {
	Jobs    int     `json:"jobs"`
	Seconds float64 `json:"seconds"`
	// Requests are counted from the audit log by who, verb, resource and code.
	Requests map[string]int `json:"requests"`
	// WritesPerJob are requests that may change something, by component.
	WritesPerJob map[string]float64 `json:"writesPerJob"`
	ReadsPerJob  map[string]float64 `json:"readsPerJob"`
	// LateWrites are writes after all have finished, per TrainJob, where they were looked at: Late.
	Late       bool    `json:"late"`
	LateWrites float64 `json:"lateWritesPerJob"`
	// StartWrites are writes to TrainJobs by other than their users, without those of status, per TrainJob.
	StartWrites float64              `json:"startWritesPerJob"`
	Conflicts   int                  `json:"conflicts"`
	DryRuns     int                  `json:"dryRuns"`
	LatencyMs   map[string][]float64 `json:"latencyMs"`
	CPU         map[string]float64   `json:"cpuSecondsPer1000"`
	Peak        map[string]int64     `json:"peakBytes"`
	Finished    int                  `json:"finished"`
	Faults      map[string]int       `json:"faults"`
	Stored      stored               `json:"storedWhenFinished"`
}

// queuedRun is of TrainJobs that wait in a ClusterQueue on hold.
type queuedRun struct {
	Jobs int `json:"jobs"`
	// Requests are the writes, counted by who, verb, resource and code.
	Requests     map[string]int     `json:"requests"`
	WritesPerJob map[string]float64 `json:"writesPerJob"`
	Stored       stored             `json:"stored"`
}

// waitingRun is of starts while others wait.
type waitingRun struct {
	Waiting   int                  `json:"waiting"`
	Starts    int                  `json:"starts"`
	LatencyMs map[string][]float64 `json:"latencyMs"`
	Peak      map[string]int64     `json:"peakBytes"`
	Faults    map[string]int       `json:"faults"`
}

// loadOptions are what load measures, and where.
type loadOptions struct {
	// cluster is the folder of a control plane that was started with profile and that nothing else uses.
	cluster, profile string
	// few measures what a few TrainJobs tell, too.
	few bool
	// bursts are the TrainJobs of each burst, depths how many wait while others are started.
	bursts, depths []int
	// queues is the number of LocalQueues.
	queues queues
	// out is the file for what was measured, profiles the folder for profiles; none if it is "".
	out, profiles string
}

// load measures one profile.
func load(ctx context.Context, o loadOptions) error {
	if err := o.queues.validate(); err != nil {
		return err
	}
	g, err := newLoadGround(ctx, o.cluster, o.queues)
	if err != nil {
		return err
	}
	g.profiles.dir = o.profiles
	r := &loadRun{Profile: o.profile, Machine: machine()}
	say := teller(o.profile)
	audited, err := g.runAudit(ctx, o.cluster, slices.Max(append(slices.Concat(o.bursts, o.depths), 0)), idle, say)
	if err != nil {
		return err
	}
	defer audited.end()
	if err := errors.Join(r.measure(ctx, g, o, say), g.profiles.end()); err != nil {
		return err
	}
	if r.Findings, err = audited.findings(); err != nil {
		return err
	}
	return r.save(o.out)
}

// measure runs the benchmarks.
func (r *loadRun) measure(ctx context.Context, g *ground, o loadOptions, say func(string, ...any)) error {
	if err := g.warm(ctx, o.cluster); err != nil {
		return err
	}
	say("warm")
	for i, n := range o.bursts {
		b, err := g.burst(ctx, o.cluster, fmt.Sprintf("burst-%d", n), n, o.few && n == lateSize)
		if err != nil {
			return err
		}
		say("burst of %d: %.1f s, %.2f writes each (after the end %.2f, where looked at), "+
			"CPU of the controllers %.1f s per 1,000 (Signalbox %.1f, API server %.1f)",
			n, b.Seconds, b.WritesPerJob["controllers"], b.LateWrites,
			b.CPU["controllers"], b.CPU["signalbox"], b.CPU["kube-apiserver"])
		r.Bursts = append(r.Bursts, *b)
		if err := r.save(o.out); err != nil {
			return err
		}
		if i == len(o.bursts)-1 && len(o.depths) == 0 && !o.few {
			break // the control plane goes with them
		}
		if err := g.clear(ctx, n); err != nil {
			return err
		}
	}
	if o.few {
		if err := r.small(ctx, g, o.cluster, say); err != nil {
			return err
		}
		if err := r.save(o.out); err != nil {
			return err
		}
	}
	return r.deep(ctx, g, o, say)
}

func (r *loadRun) save(out string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(data, '\n'), 0o644)
}

// small measures what a few TrainJobs tell.
func (r *loadRun) small(ctx context.Context, g *ground, dir string, say func(string, ...any)) (err error) {
	const some = 50
	if r.Queued, err = g.queued(ctx, dir, some); err != nil {
		return err
	}
	say("%d queued: %.2f writes each, %.1f objects",
		some, r.Queued.WritesPerJob["all"], float64(r.Queued.Stored.Objects)/some)
	if r.Running, err = g.evictions(ctx, dir, running); err != nil {
		return err
	}
	say("%d evicted: their quota is free after %.0f ms, p50",
		running, quantile(r.Running.LatencyMs[span{evicted, released}.String()], 0.5))
	return nil
}

// deep measures with ever more TrainJobs waiting, and a restart behind the most of them.
func (r *loadRun) deep(ctx context.Context, g *ground, o loadOptions, say func(string, ...any)) error {
	slices.Sort(o.depths)
	w := g.wait(ctx, o.cluster)
	defer w.seen.end()
	for _, n := range o.depths {
		one, err := w.behind(ctx, n)
		if err != nil {
			return err
		}
		say("%d waiting: %s p99 %.0f ms",
			n, span{admitted, started}, quantile(one.LatencyMs[span{admitted, started}.String()], 0.99))
		r.Waiting = append(r.Waiting, *one)
		if err := r.save(o.out); err != nil {
			return err
		}
	}
	if len(o.depths) == 0 || r.Profile == "builtin" {
		return nil
	}
	var err error
	if r.Restart, err = w.restart(ctx, o.depths[len(o.depths)-1]); err != nil {
		return err
	}
	say("restarted with %d waiting: up to date after %.1f s", r.Restart.Waiting, r.Restart.InStepSeconds)
	return nil
}

func milliseconds(all map[string][]time.Duration) map[string][]float64 {
	ms := map[string][]float64{}
	for name, durations := range all {
		slices.Sort(durations)
		for _, d := range durations {
			ms[name] = append(ms[name], float64(d.Microseconds())/1000)
		}
	}
	return ms
}

// quantile of sorted values; 0 where there are none.
func quantile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(share*float64(len(sorted)-1)+0.5)]
}
