package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// brokenOptions are what is measured where nodes are broken.
type brokenOptions struct {
	trainOptions
	// nodes are of one kind, and broken of them reject each pod.
	nodes, broken int
	// work is the least that a TrainJob has; the most is twice that. Where all run at once, the emptiest nodes are those
	// that reject pods, which kube-scheduler prefers.
	work time.Duration
}

const (
	// avoidFor is Signalbox's nodes.avoidFor.
	avoidFor = "1h"
	// unsimulated is the runtime of pods that nobody but the benchmark starts or rejects.
	unsimulated = "unsimulated"
	// most lost tries of a TrainJob have a row of their own on the page. The goal is at most two.
	most = 4
)

// broken measures how many tries TrainJobs lose to nodes that reject each pod.
func broken(ctx context.Context, o brokenOptions) error {
	if o.broken < 0 || o.broken > o.nodes || o.work <= 0 {
		return fmt.Errorf("--broken is %d and --work %s; they must be 0 to the %d of --nodes, and more than 0",
			o.broken, o.work, o.nodes)
	}
	g, err := o.ground(ctx, o.nodes, 8*o.nodes, urgentRuns)
	if err != nil {
		return err
	}
	if err := g.apply(ctx, runtimeFor(unsimulated, "24h, sim.signalbox.dev/ready-after: never")); err != nil {
		return err
	}
	if o.profile == "bundled" {
		if err := configure(o.cluster, sections{"nodes": {"avoidFor": avoidFor}}); err != nil {
			return err
		}
	}
	p := newTrainings()
	p.kubelets = kubelets{broken: sets.New[string](), bound: sets.New[types.UID]()}
	for _, i := range rand.New(rand.NewPCG(o.seed, 1)).Perm(o.nodes)[:o.broken] {
		p.broken.Insert(nodeOf("a100", i))
	}
	t, err := o.begin(ctx, g, p, &trainRun{
		Title: "Broken nodes", Columns: []string{"bundled", "builtin"}, Column: o.profile,
		Says: fmt.Sprintf("%d TrainJobs of one pod with work of %s to %s and 1 to 8 GPUs are submitted at once. Of %d "+
			"nodes of 8 GPUs, %d reject each pod (UnexpectedAdmissionError); the quota is that of all (seed %d). A lost try is "+
			"a pod that a broken node rejects. Signalbox's nodes.avoidFor is %s; nothing is tainted.",
			o.jobs, o.work, 2*o.work, o.nodes, o.broken, o.seed, avoidFor),
	})
	if err != nil {
		return err
	}
	defer t.end()
	began := time.Now()
	if err := t.train(ctx, func(dice *rand.Rand) *training {
		one := shortWork(dice)
		one.work = o.work + one.work%o.work
		return one
	}, func(job *api.TrainJob) { job.Spec.RuntimeRef.Name = unsimulated }); err != nil {
		return err
	}
	limited, stop := context.WithTimeout(ctx, o.over)
	defer stop()
	err = t.untilEvery(limited, time.Second, "all have ended", t.have(o.jobs, finished))
	if err != nil && limited.Err() == nil {
		return err
	}
	if err := t.addTries(ctx, time.Since(began)); err != nil {
		return err
	}
	return t.write(ctx)
}

// kubelets are those that the benchmark simulates, if broken isn't nil.
type kubelets struct {
	// broken are the nodes that reject pods.
	broken sets.Set[string]
	// bound are the pods that have had a node, and starting those of which no kubelet has said anything yet.
	bound    sets.Set[types.UID]
	starting []*corev1.Pod
}

// lostTries are what a TrainJob has lost to broken nodes.
type lostTries struct {
	tries sets.Set[types.UID] // the pods
	// met is when the first was lost, and again when the pods ran after that; zero if they haven't.
	met, again time.Time
}

// lose counts a pod that is on a broken node.
func (l *lostTries) lose(pod *corev1.Pod, now time.Time) {
	if l.tries.Len() == 0 {
		l.met = now
	}
	l.tries = l.tries.Union(sets.New(pod.UID))
}

// ran notes that all pods run.
func (l *lostTries) ran(now time.Time) {
	if l.tries.Len() > 0 && l.again.IsZero() {
		l.again = now
	}
}

// bind notes a pod that waits for the kubelet of its node, which is lost if that is broken. A pod that is bound is seen
// as often as its status changes; it is noted once.
func (p *trainings) bind(one *training, pod *corev1.Pod, now time.Time) {
	waits := pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp.IsZero()
	if p.broken == nil || !waits || p.bound.Has(pod.UID) {
		return
	}
	p.bound.Insert(pod.UID)
	p.starting = append(p.starting, pod.DeepCopy())
	if p.broken.Has(pod.Spec.NodeName) {
		one.lose(pod, now)
	}
}

// startPods writes what the kubelets of the nodes say of new pods, where the benchmark simulates them.
func (p *trainings) startPods(ctx context.Context, c client.Client) (err error) {
	p.mu.Lock()
	pods := p.starting
	p.starting = nil
	p.mu.Unlock()
	for _, pod := range pods {
		status := corev1.PodStatus{
			Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
			Message: "Allocate failed due to no healthy devices present",
		}
		if !p.broken.Has(pod.Spec.NodeName) {
			status = runningStatus(pod)
		}
		err = errors.Join(err, writeStatus(ctx, c, pod, status))
	}
	return err
}

// runningStatus is that of a pod whose containers run.
func runningStatus(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady} {
		status.Conditions = append(status.Conditions,
			corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

// addTries adds to the page what was lost to broken nodes.
func (t *trial) addTries(ctx context.Context, took time.Duration) error {
	lost, again := t.trainings.lostTries()
	p, sum := t.page, 0
	var counts [most + 2]int
	for _, n := range lost {
		sum += n
		counts[min(n, most+1)]++
	}
	p.add("TrainJobs that met a broken node", float64(len(lost)))
	p.add("tries that these lost, all", float64(sum))
	p.add("… mean", float64(sum)/float64(max(len(lost), 1)))
	p.add("… the most", float64(slices.Max(append(lost, 0))))
	for n := 1; n <= most; n++ {
		p.add(fmt.Sprintf("TrainJobs that lost %d", n), float64(counts[n]))
	}
	p.add(fmt.Sprintf("TrainJobs that lost more than %d", most), float64(counts[most+1]))
	p.addQuantiles("from the first that was lost until it ran", again)
	p.add("TrainJobs that failed for good", float64(t.seen.takeFaults()[endedInFailure]))
	p.add("TrainJobs that had not ended", float64(t.jobs-t.seen.countOf(trainee, finished)))
	p.add("time, s", took.Seconds())
	return t.addAvoided(ctx)
}

// lostTries returns how many tries each TrainJob lost that lost any, and the seconds after which they ran, sorted.
func (p *trainings) lostTries() (lost []int, again []float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		if one.tries.Len() == 0 {
			continue
		}
		lost = append(lost, one.tries.Len())
		if !one.again.IsZero() {
			again = append(again, one.again.Sub(one.met).Seconds())
		}
	}
	slices.Sort(again)
	return lost, again
}

// addAvoided adds to the page which nodes TrainJobs avoid.
func (t *trial) addAvoided(ctx context.Context) error {
	var jobs api.TrainJobList
	if err := t.client.List(ctx, &jobs, client.InNamespace(namespace)); err != nil {
		return err
	}
	avoided := sets.New[string]()
	for i := range jobs.Items {
		for _, n := range jobs.Items[i].Status.Avoided {
			avoided.Insert(n.Name)
		}
	}
	t.page.add("broken nodes that a TrainJob avoids", float64(avoided.Intersection(t.trainings.broken).Len()))
	t.page.add("other nodes that one avoids", float64(avoided.Difference(t.trainings.broken).Len()))
	return nil
}
