package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/audit"
)

// pace is the time between two TrainJobs that are submitted: what is measured is a start, not a burst.
const pace = 400 * time.Millisecond

// quiet is for how long nothing is written when a run is over: longer than any component waits with a write.
const quiet = 6 * time.Second

// gangResult is what gang scheduling costs.
type gangResult struct {
	Machine string              `json:"machine"`
	Jobs    int                 `json:"jobsOfEachKind"`
	Without gangFigures         `json:"without"`
	With    gangFigures         `json:"with"`
	Ratios  map[string]float64  `json:"ratios"`
	by      map[string]*tallies // by mode
}

// gangFigures are of TrainJobs of one kind.
type gangFigures struct {
	// WritesPerJob are requests that change something, by who sends them.
	WritesPerJob map[string]float64 `json:"writesPerJob"`
	// StartToJobSet and StartToBound are from the answer to the start write, in milliseconds.
	StartToJobSet times `json:"startToJobSetMs"`
	StartToBound  times `json:"startToAllPodsBoundMs"`
}

type times struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

// tallies are what the figures are made of.
type tallies struct {
	jobs           int
	writes         map[string]int
	jobSets, bound []time.Duration
}

// gangs runs the same TrainJobs without gangs and with, in turns.
func gangs(ctx context.Context, g *ground, jobs, rounds int) (*gangResult, error) {
	r := &gangResult{Machine: machine(), Jobs: jobs * rounds, by: map[string]*tallies{}}
	modes := []api.GangMode{api.GangOff, api.GangRequired}
	for _, mode := range modes {
		r.by[string(mode)] = &tallies{writes: map[string]int{}}
	}
	// The first TrainJob of a process is slower than any other: it is not counted.
	for _, mode := range modes {
		if _, err := g.runJobs(ctx, "warm-up-"+string(mode), mode, 1); err != nil {
			return nil, err
		}
	}
	for round := range rounds {
		for _, mode := range modes {
			fmt.Printf("Run %d of %d: %d TrainJobs of 2 pods, gang scheduling %s.\n", round+1, rounds, jobs, mode)
			requests, err := g.runJobs(ctx, fmt.Sprintf("%s-%d", mode, round), mode, jobs)
			if err != nil {
				return nil, err
			}
			if err := r.by[string(mode)].add(requests, jobs); err != nil {
				return nil, err
			}
		}
		slices.Reverse(modes)
	}
	r.Without, r.With = r.by[string(api.GangOff)].figures(), r.by[string(api.GangRequired)].figures()
	r.Ratios = map[string]float64{
		"writes per job":               r.With.WritesPerJob["all"] / r.Without.WritesPerJob["all"],
		"start to JobSet, p50":         r.With.StartToJobSet.P50 / r.Without.StartToJobSet.P50,
		"start to all pods bound, p50": r.With.StartToBound.P50 / r.Without.StartToBound.P50,
	}
	return r, nil
}

// runJobs submits TrainJobs one after the other, waits until all have finished and nothing of their gangs is left, and
// returns what was asked of the API server meanwhile.
func (g *ground) runJobs(ctx context.Context, prefix string, mode api.GangMode, n int) ([]audit.Request, error) {
	from, err := audit.End(g.audit)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := range n {
		if err := g.client.Create(ctx, trainJob(fmt.Sprintf("%s-%d", prefix, i), mode)); err != nil {
			return nil, fmt.Errorf("submitting: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	err = g.until(ctx, "all TrainJobs have finished and their PodGroups are gone", func() (bool, error) {
		var list api.TrainJobList
		var podGroups schedulingv1alpha2.PodGroupList
		if err := g.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		for i := range list.Items {
			if !apimeta.IsStatusConditionTrue(list.Items[i].Status.Conditions, trainerapi.TrainJobComplete) {
				return false, nil
			}
		}
		err := g.client.List(ctx, &podGroups, client.InNamespace(namespace))
		return len(podGroups.Items) == 0, err
	})
	if err != nil {
		return nil, err
	}
	var requests []audit.Request
	last := time.Now()
	return requests, g.until(ctx, "nobody writes any more", func() (bool, error) {
		now, err := audit.Since(g.audit, from, func(r audit.Request) bool {
			return r.Writes() && r.ResponseStatus.Code < 300 && r.ObjectRef.Namespace == namespace
		})
		if len(now) > len(requests) {
			requests, last = now, time.Now()
		}
		return time.Since(last) > quiet, err
	})
}

// components are those whose writes are counted, with what they are called in the table.
var components = map[string]string{
	"signalbox": "Signalbox", "kueue": "Kueue", "jobset": "JobSet", "system:kube-scheduler": "kube-scheduler",
	"system:kube-controller-manager": "kube-controller-manager",
}

func (t *tallies) add(requests []audit.Request, jobs int) error {
	t.jobs += jobs
	started, jobSet, bound := map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}
	for _, r := range requests {
		who := r.User.Username
		if strings.HasPrefix(who, "system:serviceaccount:kube-system:") {
			who = "system:kube-controller-manager"
		}
		if name, found := components[who]; found {
			t.writes[name]++
			t.writes["all"]++
		}
		ref := r.ObjectRef
		switch {
		case who == "signalbox" && ref.Resource == "trainjobs" && ref.Subresource == "" && started[ref.Name].IsZero():
			started[ref.Name] = r.Answered
		case who == "signalbox" && ref.Resource == "jobsets" && r.ResponseStatus.Code == 201:
			jobSet[ref.Name] = r.Answered
		case ref.Resource == "pods" && ref.Subresource == "binding":
			job, _, _ := strings.Cut(ref.Name, "-node-0-")
			if r.Answered.After(bound[job]) {
				bound[job] = r.Answered
			}
		}
	}
	if len(started) != jobs || len(jobSet) != jobs || len(bound) != jobs {
		return fmt.Errorf("the audit log tells of %d starts, %d JobSets and %d TrainJobs with bound pods, of %d TrainJobs",
			len(started), len(jobSet), len(bound), jobs)
	}
	for _, name := range slices.Sorted(maps.Keys(started)) {
		t.jobSets = append(t.jobSets, jobSet[name].Sub(started[name]))
		t.bound = append(t.bound, bound[name].Sub(started[name]))
	}
	return nil
}

func (t *tallies) figures() gangFigures {
	f := gangFigures{WritesPerJob: map[string]float64{}, StartToJobSet: timesOf(t.jobSets), StartToBound: timesOf(t.bound)}
	for name, n := range t.writes {
		f.WritesPerJob[name] = float64(n) / float64(t.jobs)
	}
	return f
}

func timesOf(durations []time.Duration) times {
	slices.Sort(durations)
	at := func(share float64) float64 {
		return float64(durations[int(share*float64(len(durations)-1))].Microseconds()) / 1000
	}
	return times{P50: at(0.5), P95: at(0.95)}
}

// markdown is the result as a page.
func (r *gangResult) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# What a gang costs\n\n%d TrainJobs of 2 pods without gang scheduling and %d with, in turns, "+
		"one every %s, on %s. `make bench WHAT=gangs` makes this page.\n\n", r.Jobs, r.Jobs, pace, r.Machine)
	fmt.Fprintf(&b, "| | without | with | ratio |\n| --- | --: | --: | --: |\n")
	row := func(what string, without, with float64) {
		fmt.Fprintf(&b, "| %s | %.2f | %.2f | %.2f |\n", what, without, with, with/without)
	}
	for _, name := range []string{"Signalbox", "Kueue", "JobSet", "kube-scheduler", "kube-controller-manager", "all"} {
		row("writes per TrainJob: "+name, r.Without.WritesPerJob[name], r.With.WritesPerJob[name])
	}
	row("start write → JobSet, p50, ms", r.Without.StartToJobSet.P50, r.With.StartToJobSet.P50)
	row("start write → JobSet, p95, ms", r.Without.StartToJobSet.P95, r.With.StartToJobSet.P95)
	row("start write → all pods bound, p50, ms", r.Without.StartToBound.P50, r.With.StartToBound.P50)
	row("start write → all pods bound, p95, ms", r.Without.StartToBound.P95, r.With.StartToBound.P95)
	return b.String()
}
