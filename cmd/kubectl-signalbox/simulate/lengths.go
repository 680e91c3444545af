package simulate

import (
	"fmt"
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Length is how long a Workload keeps its quota, and how that is known.
type Length struct {
	// Low and High are what it lies between in most cases; Mid is the best guess. All are from when it got its quota.
	Low, Mid, High time.Duration
	// Source is how it is known: Progress, Similar, Runtime, Limit, All or Unknown.
	Source Source
}

// Source is how the length of a run is known.
type Source string

// The sources, the best first.
const (
	// Progress: the training process has reported how long it still takes.
	Progress Source = "Progress"
	// Similar: runs of the same runtime and size have finished.
	Similar Source = "Similar"
	// Runtime: runs of the same runtime have finished.
	Runtime Source = "Runtime"
	// Limit: the TrainJob has a maximum execution time.
	Limit Source = "Limit"
	// All: other runs in the same ClusterQueue have finished.
	All Source = "All"
	// Unknown: nothing is known.
	Unknown Source = "Unknown"
)

var unknownLength = Length{Low: 5 * time.Minute, Mid: time.Hour, High: 24 * time.Hour, Source: Unknown}

// kind is what runs are compared by: Similar by both, Runtime by the runtime alone, and All by nothing.
type kind struct {
	Source
	runtime string
	pods    int32
}

// Estimates are the lengths of runs, from what has finished and from what runs say of themselves.
type Estimates struct {
	now  time.Time
	jobs map[types.UID]*api.TrainJob
	runs map[kind][]time.Duration // that have finished, the shortest first
}

// NewEstimates returns the estimates that follow from Workloads, of which those that have finished count, and from
// TrainJobs.
func NewEstimates(workloads []kueue.Workload, jobs []api.TrainJob, now time.Time) *Estimates {
	e := &Estimates{
		now: now, runs: map[kind][]time.Duration{},
		jobs: utilslices.ToRefMap(jobs, func(job *api.TrainJob) types.UID { return job.UID }),
	}
	for i := range workloads {
		wl := &workloads[i]
		if !workloadfinish.IsFinished(wl) || !workload.HasQuotaReservation(wl) {
			continue
		}
		finished := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
		for _, k := range e.kindsOf(wl) {
			e.runs[k] = append(e.runs[k], finished.LastTransitionTime.Sub(quotaSince(wl, now)))
		}
	}
	for _, runs := range e.runs {
		slices.Sort(runs)
	}
	return e
}

// trainJob returns the TrainJob of a Workload; nil if it isn't known.
func (e *Estimates) trainJob(wl *kueue.Workload) *api.TrainJob {
	for _, ref := range wl.OwnerReferences {
		if job := e.jobs[ref.UID]; job != nil {
			return job
		}
	}
	return nil
}

// kindsOf returns what a Workload is compared by, the closest first. One without a TrainJob is compared by its image.
func (e *Estimates) kindsOf(wl *kueue.Workload) [3]kind {
	pods, runtime := int32(0), ""
	for i := range wl.Spec.PodSets {
		pods += wl.Spec.PodSets[i].Count
	}
	if job := e.trainJob(wl); job != nil {
		runtime = ptr.Deref(job.Spec.RuntimeRef.Kind, "") + "/" + job.Spec.RuntimeRef.Name
	} else if len(wl.Spec.PodSets) > 0 && len(wl.Spec.PodSets[0].Template.Spec.Containers) > 0 {
		runtime = wl.Spec.PodSets[0].Template.Spec.Containers[0].Image
	}
	return [3]kind{{Similar, runtime, pods}, {Runtime, runtime, 0}, {All, "", 0}}
}

// enough is how many runs count more than a limit that a user has set.
const enough = 3

// Of returns the length of a Workload's run that has had quota since a time.
func (e *Estimates) Of(wl *kueue.Workload, since time.Time) Length {
	elapsed := max(e.now.Sub(since), 0)
	if length, known := e.progress(wl, since); known {
		return length
	}
	limit := time.Duration(ptr.Deref(wl.Spec.MaximumExecutionTimeSeconds, 0)) * time.Second
	kinds := e.kindsOf(wl)
	similar, runtime, all := kinds[0], kinds[1], kinds[2]
	length := unknownLength
	switch {
	case len(e.runs[similar]) > 0:
		length = e.quantiles(similar, elapsed)
	case len(e.runs[runtime]) >= enough:
		length = e.quantiles(runtime, elapsed)
	case limit > 0:
		length = Length{Low: limit / 5, Mid: limit * 3 / 4, High: limit, Source: Limit}
	case len(e.runs[all]) >= enough:
		length = e.quantiles(all, elapsed)
	}
	if limit > 0 {
		length.Low, length.Mid, length.High = min(length.Low, limit), min(length.Mid, limit), min(length.High, limit)
	}
	return length.atLeast(elapsed)
}

// atLeast returns the length of a run that has taken a time already: one that has taken longer than was expected is
// expected to take a fifth longer.
func (l Length) atLeast(elapsed time.Duration) Length {
	if l.Mid <= elapsed {
		l.Mid = elapsed + elapsed/5 + time.Second
	}
	l.Low = min(max(l.Low, elapsed), l.Mid)
	l.High = max(l.High, l.Mid)
	return l
}

// quantiles returns the length by the runs of a kind. Those that were over by now don't count.
func (e *Estimates) quantiles(k kind, elapsed time.Duration) Length {
	runs := e.runs[k]
	longer := runs
	for len(longer) > 0 && longer[0] <= elapsed {
		longer = longer[1:]
	}
	if len(longer) == 0 {
		longer = runs[len(runs)-1:]
	}
	at := func(percent int) time.Duration { return longer[(len(longer)-1)*percent/100] }
	length := Length{Low: at(10), Mid: at(50), High: at(90), Source: k.Source}
	if len(longer) < enough { // one run shows little of how they differ
		length.Low, length.High = length.Low*7/10, length.High*14/10
	}
	return length
}

// progress returns the length by what the training process has reported (status.trainerStatus).
func (e *Estimates) progress(wl *kueue.Workload, since time.Time) (Length, bool) {
	job := e.trainJob(wl)
	if job == nil || job.Status.TrainerStatus == nil || !holdsQuota(wl) {
		return Length{}, false
	}
	s := job.Status.TrainerStatus
	at := e.now
	if !s.LastUpdatedTime.IsZero() {
		at = s.LastUpdatedTime.Time
	}
	elapsed := at.Sub(since)
	if elapsed < 0 {
		return Length{}, false // it is of an earlier run
	}
	var left time.Duration
	switch percent := time.Duration(ptr.Deref(s.ProgressPercentage, 0)); {
	case s.EstimatedRemainingSeconds != nil:
		left = time.Duration(*s.EstimatedRemainingSeconds) * time.Second
	case percent >= 5:
		left = elapsed * (100 - percent) / percent
	default:
		return Length{}, false
	}
	length := Length{Low: elapsed + left*8/10, Mid: elapsed + left, High: elapsed + left*13/10, Source: Progress}
	return length.atLeast(max(e.now.Sub(since), 0)), true
}

// Low returns the lengths by which runs end early.
func (e *Estimates) Low() Lengths {
	return func(wl *kueue.Workload, since time.Time) time.Time { return since.Add(e.Of(wl, since).Low) }
}

// Mid returns the lengths by which runs end as expected.
func (e *Estimates) Mid() Lengths {
	return func(wl *kueue.Workload, since time.Time) time.Time { return since.Add(e.Of(wl, since).Mid) }
}

// High returns the lengths by which runs end late.
func (e *Estimates) High() Lengths {
	return func(wl *kueue.Workload, since time.Time) time.Time { return since.Add(e.Of(wl, since).High) }
}

// Sure says how sure a forecast is, from what the lengths of the runs that it waits for are known by.
func (e *Estimates) Sure(cluster *Cluster, ended []types.NamespacedName) string {
	sources := map[Source]int{}
	for _, key := range ended {
		if wl := cluster.Workload(key); wl != nil {
			sources[e.Of(wl, quotaSince(wl, e.now)).Source]++
		}
	}
	total := len(ended)
	known := sources[Progress] + sources[Similar]
	switch {
	case total == 0:
		return "sure"
	case sources[Unknown] > 0:
		return fmt.Sprintf("a guess: nothing is known of the length of %d of %d runs", sources[Unknown], total)
	case known == total:
		return fmt.Sprintf("good: %d runs report their progress, and runs like the other %d have finished before",
			sources[Progress], sources[Similar])
	}
	return fmt.Sprintf("fair: of %d runs, %d are known by their progress or by runs like them", total, known)
}
