package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/kubeflow/trainer/v2/pkg/constants"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// training is the training process of a TrainJob. It works while all of its pods run, saves its work from time to time,
// ends when that is done, and continues after a stop at what it had saved. It ignores SIGTERM, as most do: what isn't
// saved is lost.
type training struct {
	// gpus is what each pod has, nodes how many pods the TrainJob asks for; 0 for one.
	gpus  int64
	nodes int32
	// work is how long a single pod would have to run in all, saved how much of that is safe.
	work, saved time.Duration
	// pods run. They work together, that is as many, since since; 0 while not all of them run.
	pods     sets.Set[types.UID]
	together int
	since    time.Time
	// at is how much it had done when the pods began.
	at   time.Duration
	done bool
	lostTries
}

// progress is how much of its work is done.
func (p *training) progress(now time.Time) time.Duration {
	return min(p.work, p.at+now.Sub(p.since)*time.Duration(p.together))
}

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
	kubelets
}

// spent is what became of the time of GPUs, in GPU seconds, and how often a process was stopped.
type spent struct {
	Useful, Lost float64
	Stops, Ended int
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
	if one != nil {
		p.bind(one, pod, now)
	}
	switch {
	case one == nil || one.done:
	case runs && !one.pods.Has(pod.UID):
		one.pods = one.pods.Union(sets.New(pod.UID))
		if one.pods.Len() == together(pod) {
			p.begin(one, now)
		}
	case !runs && one.pods.Has(pod.UID):
		if one.together > 0 {
			p.stop(one, now)
		}
		one.pods.Delete(pod.UID)
	}
	if kind == watch.Deleted || gone(pod) {
		p.left(pod.UID, now)
	}
}

// together returns how many pods work with a pod, itself among them: torch is told so.
func together(pod *corev1.Pod) int {
	for _, container := range pod.Spec.Containers {
		for _, env := range container.Env {
			if n, err := strconv.Atoi(env.Value); err == nil && env.Name == constants.TorchEnvNumNodes {
				return n
			}
		}
	}
	return 1
}

// begin has the pods of one work.
func (p *trainings) begin(one *training, now time.Time) {
	for uid := range one.pods {
		p.left(uid, now) // it ran on when the others were stopped
	}
	one.together, one.since, one.at = one.pods.Len(), now, one.saved
	one.ran(now)
}

// stop has them stop.
func (p *trainings) stop(one *training, now time.Time) {
	p.spent.Stops++
	unsaved := one.progress(now) - one.saved
	p.spent.Lost += unsaved.Seconds() * float64(one.gpus)
	for uid := range one.pods {
		p.leaving[uid] = leaving{one.gpus, now.Add(-unsaved / time.Duration(one.together))}
	}
	one.together = 0
}

// left counts what is lost of a pod that is gone.
func (p *trainings) left(uid types.UID, now time.Time) {
	if left, is := p.leaving[uid]; is {
		p.heldLost += now.Sub(left.saved).Seconds() * float64(left.gpus)
		delete(p.leaving, uid)
	}
}

// step has those save that are to, and returns them and the pods that have ended, by the name of the TrainJob.
func (p *trainings) step(now time.Time) (saved map[string]time.Duration, ended []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	saved = map[string]time.Duration{}
	for name, one := range p.all {
		if one.together == 0 || one.done {
			continue
		}
		progress := one.progress(now)
		if progress < one.work && progress-one.saved < p.every*time.Duration(one.together) {
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
		err := p.startPods(ctx, c)
		for _, name := range ended {
			err = errors.Join(err, succeed(ctx, c, name))
		}
		if err != nil && ctx.Err() == nil {
			return err
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
		status := *pods.Items[i].Status.DeepCopy()
		status.Phase = corev1.PodSucceeded
		for n := range status.ContainerStatuses {
			status.ContainerStatuses[n].Ready = false
			status.ContainerStatuses[n].State = corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"},
			}
		}
		if err := writeStatus(ctx, c, &pods.Items[i], status); err != nil {
			return err
		}
	}
	return nil
}

// writeStatus writes what a kubelet says of a pod, unless it is gone.
func writeStatus(ctx context.Context, c client.Client, pod *corev1.Pod, status corev1.PodStatus) error {
	after := pod.DeepCopy()
	after.Status = status
	if err := c.Status().Patch(ctx, after, client.MergeFrom(pod)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("status of pod %s: %w", pod.Name, err)
	}
	return nil
}

// seconds is how a process reports how much it has saved.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) }
