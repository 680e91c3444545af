package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// training is the training process of a TrainJob of one pod. It saves its work from time to time, ends when that is
// done, and continues after a stop at what it had saved. It ignores SIGTERM, as most do: what isn't saved is lost.
type training struct {
	gpus int64
	// work is how long it has to run in all, saved how much of that is safe.
	work, saved time.Duration
	// pod is what it runs in, since when; zero while it doesn't run.
	pod   types.UID
	since time.Time
	// at is how much it had done when the pod began.
	at   time.Duration
	done bool
}

// progress is how much of its work is done.
func (p *training) progress(now time.Time) time.Duration { return min(p.work, p.at+now.Sub(p.since)) }

// trainings are all of them, by the names of their TrainJobs.
type trainings struct {
	mu  sync.Mutex
	all map[string]*training
	// every is how often each saves its work.
	every time.Duration
	// saves is called when one has saved, with how much, outside of the lock.
	saves func(ctx context.Context, name string, saved time.Duration) error
	spent spent
	// heldLost is what is lost of the time of GPUs until the pods are gone, and leaving are those that aren't yet.
	heldLost float64
	leaving  map[types.UID]leaving
}

// spent is what became of the time of GPUs, in GPU seconds, and how often a process was stopped.
type spent struct {
	Useful float64 `json:"usefulGPUSeconds"`
	Lost   float64 `json:"lostGPUSeconds"`
	Stops  int     `json:"stops"`
	Ended  int     `json:"ended"`
}

// total returns what was spent until now.
func (p *trainings) total() spent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spent
}

// see follows a pod.
func (p *trainings) see(kind watch.EventType, pod *corev1.Pod, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.all[pod.Labels[jobset.JobSetNameKey]]
	runs := kind != watch.Deleted && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp.IsZero()
	switch {
	case one == nil || one.done:
	case runs && one.pod == "":
		one.pod, one.since, one.at = pod.UID, now, one.saved
	case !runs && one.pod == pod.UID:
		p.spent.Stops++
		unsaved := one.progress(now) - one.saved
		p.spent.Lost += unsaved.Seconds() * float64(one.gpus)
		one.pod = ""
		p.leaving[pod.UID] = leaving{one.gpus, now.Add(-unsaved)}
	}
	if left, is := p.leaving[pod.UID]; is && (kind == watch.Deleted || gone(pod)) {
		p.heldLost += now.Sub(left.saved).Seconds() * float64(left.gpus)
		delete(p.leaving, pod.UID)
	}
}

// step has those save that are to, and returns them and the pods that have ended, by the name of the TrainJob.
func (p *trainings) step(now time.Time) (saved map[string]time.Duration, ended []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	saved = map[string]time.Duration{}
	for name, one := range p.all {
		if one.pod == "" || one.done {
			continue
		}
		progress := one.progress(now)
		if progress < one.work && progress-one.saved < p.every {
			continue
		}
		p.spent.Useful += (progress - one.saved).Seconds() * float64(one.gpus)
		one.saved = progress
		if one.done = progress == one.work; one.done {
			p.spent.Ended++
			ended = append(ended, name)
			continue
		}
		saved[name] = progress
	}
	return saved, ended
}

// run has them work until the context ends.
func (p *trainings) run(ctx context.Context, c client.Client) error {
	var sending sync.WaitGroup
	defer sending.Wait()
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		saved, ended := p.step(time.Now())
		for name, progress := range saved {
			sending.Go(func() {
				if err := p.saves(ctx, name, progress); err != nil && ctx.Err() == nil {
					fmt.Println("lost: a report:", err) // a stopped one may report no more
				}
			})
		}
		for _, name := range ended {
			if err := succeed(ctx, c, name); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// succeed ends the pods of a TrainJob, as a kubelet does when their processes exit with 0.
func succeed(ctx context.Context, c client.Client, name string) error {
	var pods corev1.PodList
	of := client.MatchingLabels{jobset.JobSetNameKey: name}
	if err := c.List(ctx, &pods, client.InNamespace(namespace), of); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		before := pod.DeepCopy()
		pod.Status.Phase = corev1.PodSucceeded
		for n := range pod.Status.ContainerStatuses {
			pod.Status.ContainerStatuses[n].Ready = false
			pod.Status.ContainerStatuses[n].State = corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"},
			}
		}
		if err := c.Status().Patch(ctx, pod, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("ending pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// seconds is how a process reports how much it has saved.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) }
