package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// moment is something that happens to a TrainJob once, or is counted the first time.
type moment string

// The moments of a TrainJob, by what the API server's watches show of it and its objects.
const (
	submitted moment = "submitted" // the TrainJob is there
	queued    moment = "queued"    // its Workload is there
	told      moment = "told"      // its status says something
	admitted  moment = "admitted"  // the Workload's condition Admitted is true
	started   moment = "started"   // suspend is false
	built     moment = "built"     // its JobSet is there and not suspended
	pod       moment = "pod"       // its first pod is there
	bound     moment = "bound"     // all of its pods have nodes
	runs      moment = "running"   // all of its pods run, or have run
	finished  moment = "finished"  // its condition Complete or Failed is true
	freed     moment = "freed"     // the Workload's condition Finished is true
	evicted   moment = "evicted"   // the Workload's condition Evicted is true
	released  moment = "released"  // an evicted Workload's quota is free: its condition QuotaReserved is not true any more
)

// timeline sees every version of the TrainJobs, Workloads, JobSets and pods of the namespace. All profiles are seen by
// the same watches of the same process, so that what they are late by is the same.
type timeline struct {
	mu     sync.Mutex
	jobs   map[string]map[moment]time.Time
	faults map[string]int
	// running is the GPUs of bound pods that have not ended, by flavor.
	running map[string]map[string]int64
	peak    map[string]int64
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// faults that are counted.
const (
	startedTwice   = "started twice"
	wrongPlacement = "pods with a wrong selector or toleration"
	quotaOverused  = "instants at which quota was over-used"
	endedInFailure = "failed"
)

func follow(ctx context.Context, c client.WithWatch) *timeline {
	ctx, cancel := context.WithCancel(ctx)
	t := &timeline{
		jobs:    map[string]map[moment]time.Time{},
		faults:  map[string]int{},
		running: map[string]map[string]int64{},
		peak:    map[string]int64{},
		stop:    cancel,
	}
	for _, list := range []client.ObjectList{
		&api.TrainJobList{}, &kueue.WorkloadList{}, &jobset.JobSetList{}, &corev1.PodList{},
	} {
		t.done.Go(func() { watched(ctx, c, list, t.see) })
	}
	return t
}

func (t *timeline) end() {
	t.stop()
	t.done.Wait()
}

// watched has every version of the namespace's objects of a kind seen, until the context ends.
func watched(
	ctx context.Context, c client.WithWatch, list client.ObjectList,
	see func(kind watch.EventType, o client.Object, now time.Time),
) {
	version := ""
	for ctx.Err() == nil {
		events, err := c.Watch(ctx, list, client.InNamespace(namespace),
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
		if err != nil {
			version = ""
			continue
		}
		for e := range events.ResultChan() {
			o, ok := e.Object.(client.Object)
			if !ok {
				version = ""
				break
			}
			version = o.GetResourceVersion()
			see(e.Type, o, time.Now())
		}
		events.Stop()
	}
}

func (t *timeline) see(kind watch.EventType, o client.Object, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch o := o.(type) {
	case *api.TrainJob:
		t.trainJob(o, now)
	case *kueue.Workload:
		if owner := metav1.GetControllerOf(o); owner != nil {
			t.mark(owner.Name, queued, now)
			if apimeta.IsStatusConditionTrue(o.Status.Conditions, kueue.WorkloadAdmitted) {
				t.mark(owner.Name, admitted, now)
			}
			if apimeta.IsStatusConditionTrue(o.Status.Conditions, kueue.WorkloadFinished) {
				t.mark(owner.Name, freed, now)
			}
			if apimeta.IsStatusConditionTrue(o.Status.Conditions, kueue.WorkloadEvicted) {
				t.mark(owner.Name, evicted, now)
				if !apimeta.IsStatusConditionTrue(o.Status.Conditions, kueue.WorkloadQuotaReserved) {
					t.mark(owner.Name, released, now)
				}
			}
		}
	case *jobset.JobSet:
		if !ptr.Deref(o.Spec.Suspend, false) {
			t.mark(o.Name, built, now)
		}
	case *corev1.Pod:
		t.pod(kind, o, now)
	}
}

func (t *timeline) mark(job string, m moment, at time.Time) bool {
	if t.jobs[job] == nil {
		t.jobs[job] = map[moment]time.Time{}
	}
	if _, was := t.jobs[job][m]; was {
		return false
	}
	t.jobs[job][m] = at
	return true
}

func (t *timeline) trainJob(o *api.TrainJob, now time.Time) {
	t.mark(o.Name, submitted, now)
	if len(o.Status.Conditions) > 0 || o.Status.Queue != nil {
		t.mark(o.Name, told, now)
	}
	running := !ptr.Deref(o.Spec.Suspend, false)
	if running {
		t.mark(o.Name, started, now)
	} else if _, was := t.jobs[o.Name][started]; was {
		// Nothing preempts here: a stop is followed by a second start.
		t.faults[startedTwice]++
	}
	failed := apimeta.IsStatusConditionTrue(o.Status.Conditions, trainerapi.TrainJobFailed)
	if failed || apimeta.IsStatusConditionTrue(o.Status.Conditions, trainerapi.TrainJobComplete) {
		if t.mark(o.Name, finished, now) && failed {
			t.faults[endedInFailure]++
		}
	}
}

func (t *timeline) pod(kind watch.EventType, o *corev1.Pod, now time.Time) {
	job := o.Labels[jobset.JobSetNameKey]
	if kind == watch.Added {
		t.mark(job, pod, now)
		flavor := o.Spec.NodeSelector["pool"]
		tolerated := slices.ContainsFunc(o.Spec.Tolerations, func(tol corev1.Toleration) bool {
			return tol.Key == "pool" && tol.Value == flavor
		})
		if flavor == "" || !tolerated {
			t.faults[wrongPlacement]++
		}
	}
	if o.Status.Phase == corev1.PodRunning || o.Status.Phase == corev1.PodSucceeded {
		t.mark(job, runs, now) // of one pod each
	}
	flavor := o.Spec.NodeSelector["pool"]
	if t.running[flavor] == nil {
		t.running[flavor] = map[string]int64{}
	}
	ended := kind == watch.Deleted || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
	if o.Spec.NodeName == "" || ended {
		delete(t.running[flavor], o.Name)
	} else if _, was := t.running[flavor][o.Name]; !was {
		t.mark(job, bound, now) // of one pod each
		q := o.Spec.Containers[0].Resources.Requests[gpu]
		t.running[flavor][o.Name] = q.Value()
		sum := int64(0)
		for n := range maps.Values(t.running[flavor]) {
			sum += n
		}
		t.peak[flavor] = max(t.peak[flavor], sum)
		if sum > quotaOfFlavor {
			t.faults[quotaOverused]++
		}
	}
}

// takeFaults returns what has gone wrong since it was last asked.
func (t *timeline) takeFaults() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	faults := t.faults
	t.faults = map[string]int{}
	return faults
}

// count returns how many TrainJobs have come to a moment.
func (t *timeline) count(m moment) int { return t.countOf("", m) }

// countOf counts those whose names have a prefix.
func (t *timeline) countOf(prefix string, m moment) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for name, moments := range t.jobs {
		if _, has := moments[m]; has && strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}

// at returns when a TrainJob came to a moment; the zero time if it hasn't.
func (t *timeline) at(job string, m moment) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.jobs[job][m]
}

// those returns the names of those that have a prefix, have come to a moment, and not to another.
func (t *timeline) those(prefix string, to, not moment) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for name, moments := range t.jobs {
		_, has := moments[to]
		_, more := moments[not]
		if has && !more && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

// all reports whether all of some TrainJobs have come to a moment.
func (t *timeline) all(names []string, to moment) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool { return t.jobs[name][to].IsZero() })
}

// span is the time between two moments.
type span struct{ from, to moment }

func (s span) String() string { return fmt.Sprintf("%s → %s", s.from, s.to) }

// spans are those that are reported.
var spans = []span{
	{submitted, queued}, {admitted, started}, {started, built}, {built, pod}, {admitted, pod}, {pod, bound},
	{submitted, bound}, {submitted, runs}, {finished, freed}, {submitted, finished}, {evicted, released},
}

// durations returns the spans of all TrainJobs that have come through both ends, among those that take tells.
func (t *timeline) durations(take func(map[moment]time.Time) bool) map[string][]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string][]time.Duration{}
	for _, moments := range t.jobs {
		if !take(moments) {
			continue
		}
		for _, s := range spans {
			from, began := moments[s.from]
			to, ended := moments[s.to]
			if began && ended {
				all[s.String()] = append(all[s.String()], max(to.Sub(from), 0))
			}
		}
	}
	return all
}
