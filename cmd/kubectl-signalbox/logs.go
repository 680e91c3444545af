package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

type logOptions struct {
	following, timestamps bool
	tail                  int64
	rank                  string
}

func logsCommand(c *cli) *cobra.Command {
	o := logOptions{tail: -1}
	cmd := &cobra.Command{
		Use: "logs TRAINJOB", Short: "Print the logs of all ranks of a TrainJob",
		Long: "Print the logs of all pods of a TrainJob; each line begins with the ReplicatedJob and the rank.\n\nWith " +
			"--follow it goes on through preemption, restart and resume, until the TrainJob has ended.",
		Example:           "  kubectl signalbox logs resnet -f\n  kubectl signalbox logs resnet --rank node-0 --tail 20",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTrainJobs(c),
		RunE: connected(c, func(ctx context.Context, s *session, args []string) error {
			return (&tail{session: s, name: args[0], logOptions: o}).run(ctx)
		}),
	}
	cmd.Flags().BoolVarP(&o.following, "follow", "f", false, "go on until the TrainJob has ended")
	cmd.Flags().BoolVar(&o.timestamps, "timestamps", false, "begin each line with its time")
	cmd.Flags().Int64Var(&o.tail, "tail", -1, "lines of each container to begin with; -1 for all")
	cmd.Flags().StringVar(&o.rank, "rank", "", "print one rank alone, such as node-0")
	return cmd
}

// tail prints the logs of a TrainJob's containers, each once.
type tail struct {
	*session
	name string
	logOptions
	// in are the clusters whose pods are followed, by MultiKueue's names; "" is this one.
	in map[string]*session

	mu      sync.Mutex // of the output
	started sync.Map   // by pod, container and run
	all     sync.WaitGroup
}

func (t *tail) run(ctx context.Context) error {
	job, err := t.trainJob(ctx, t.name)
	if err != nil {
		return err
	}
	t.in = map[string]*session{}
	if !t.following {
		_, in, err := t.where(ctx, job)
		if err != nil {
			return err
		}
		return t.print(ctx, in)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watches errgroup.Group
	last := api.TrainJobState("")
	err = t.follow(ctx, t.name, func(job *api.TrainJob, state api.TrainJobState) (bool, error) {
		if state != last {
			t.note("TrainJob is " + string(state))
			last = state
		}
		if job == nil {
			return true, nil
		}
		err := t.join(ctx, job, &watches)
		if err != nil && len(t.in) > 0 { // what goes wrong later is tried again when the TrainJob changes
			t.note(err.Error())
			err = nil
		}
		return slices.Contains(ends, state), err
	})
	ended := ctx.Err() != nil
	t.finish(ctx)
	cancel()
	if failed := watches.Wait(); err == nil && failed != nil && !ended && !errors.Is(failed, context.Canceled) {
		err = failed
	}
	return err
}

// join follows the logs in the cluster that runs the TrainJob, if they aren't followed there yet.
func (t *tail) join(ctx context.Context, job *api.TrainJob, watches *errgroup.Group) error {
	name, in, err := t.where(ctx, job)
	if err != nil || in == nil || t.in[name] != nil {
		return err
	}
	if _, err := ranked(ctx, in, t.name); err != nil { // whether the user may is said at once
		return err
	}
	t.in[name] = in
	watches.Go(func() error { return t.watchPods(ctx, in) })
	return nil
}

// finish waits for the logs of all containers, also of those that a watch has not shown yet.
func (t *tail) finish(ctx context.Context) {
	for _, in := range t.in {
		if pods, err := ranked(ctx, in, t.name); err == nil {
			t.startAll(ctx, in, pods)
		}
	}
	t.all.Wait()
}

// print prints the logs that there are.
func (t *tail) print(ctx context.Context, in *session) error {
	var pods []corev1.Pod
	var err error
	if in != nil {
		if pods, err = ranked(ctx, in, t.name); err != nil {
			return err
		}
	}
	for i := range pods {
		for _, container := range startedIn(&pods[i]) {
			if err := t.stream(ctx, in, &pods[i], container.Name); err != nil {
				return err
			}
		}
	}
	if len(pods) == 0 {
		t.tellMissing()
		fmt.Fprintf(t.streams.ErrOut, "TrainJob %s has no pods; kubectl signalbox explain %s says why\n", t.name, t.name)
	}
	return nil
}

// where returns the cluster that runs a TrainJob, with MultiKueue's name of it, "" for this one; nil if MultiKueue
// hasn't found one.
func (t *tail) where(ctx context.Context, job *api.TrainJob) (name string, in *session, err error) {
	if !dispatched(job) {
		return "", t.session, nil
	}
	wl, err := t.workload(ctx, job)
	if err != nil || wl == nil || wl.Status.ClusterName == nil {
		return "", nil, err
	}
	name = *wl.Status.ClusterName
	if in = t.in[name]; in != nil {
		return name, in, nil
	}
	if in, err = t.at(name); err != nil {
		return "", nil, err
	}
	in.namespace = job.Namespace
	t.note("its pods are in cluster " + name)
	return name, in, nil
}

// note writes a line that is no container's.
func (t *tail) note(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintln(t.streams.ErrOut, "--- "+text)
}

// ranked returns a TrainJob's pods, in the order of their ranks.
func ranked(ctx context.Context, in *session, job string) ([]corev1.Pod, error) {
	pods, err := in.pods(ctx, job)
	sortByRank(pods)
	return pods, err
}

// sortByRank puts pods into the order of their ranks.
func sortByRank(pods []corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Labels[jobset.ReplicatedJobNameKey], b.Labels[jobset.ReplicatedJobNameKey]),
			cmp.Compare(indexOf(&a), indexOf(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
}

// indexOf returns the rank of a pod in its ReplicatedJob.
func indexOf(p *corev1.Pod) int {
	job, _ := strconv.Atoi(p.Labels[jobset.JobIndexKey])
	pod, _ := strconv.Atoi(p.Labels[batchv1.JobCompletionIndexAnnotation])
	return job*1_000_000 + pod
}

// rankOf returns how users name a pod: the ReplicatedJob and its rank, such as node-0.
func rankOf(p *corev1.Pod) string {
	pod := p.Labels[batchv1.JobCompletionIndexAnnotation]
	if job := p.Labels[jobset.JobIndexKey]; job != "" && job != "0" {
		return fmt.Sprintf("%s-%s-%s", p.Labels[jobset.ReplicatedJobNameKey], job, pod)
	}
	return fmt.Sprintf("%s-%s", p.Labels[jobset.ReplicatedJobNameKey], pod)
}

// startedIn returns the containers of a pod that have a log.
func startedIn(p *corev1.Pod) []corev1.ContainerStatus {
	all := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	return utilslices.Pick(all, func(s *corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil
	})
}

// watchPods starts the log of each container that starts, until the context ends.
func (t *tail) watchPods(ctx context.Context, in *session) error {
	for ctx.Err() == nil {
		pods, err := ranked(ctx, in, t.name)
		if err != nil {
			return err
		}
		t.startAll(ctx, in, pods)
		w, err := in.client.Watch(ctx, &corev1.PodList{}, client.InNamespace(in.namespace), podsOf(t.name))
		if err != nil {
			return fmt.Errorf("watching the pods of TrainJob %s: %w", t.name, err)
		}
		for event := range received(ctx, w) {
			if p, is := event.Object.(*corev1.Pod); is {
				t.startAll(ctx, in, []corev1.Pod{*p})
			}
		}
		w.Stop()
	}
	return nil
}

// startAll starts the logs of containers that have not been started. The kubelet restarts a container in its pod, and
// each run has a log.
func (t *tail) startAll(ctx context.Context, in *session, pods []corev1.Pod) {
	for _, p := range pods {
		for _, container := range startedIn(&p) {
			key := fmt.Sprintf("%s/%s/%d", p.UID, container.Name, container.RestartCount)
			if _, known := t.started.LoadOrStore(key, true); known {
				continue
			}
			t.all.Go(func() {
				if err := t.stream(ctx, in, &p, container.Name); err != nil && ctx.Err() == nil {
					t.note(err.Error())
				}
			})
		}
	}
}

func (t *tail) stream(ctx context.Context, in *session, p *corev1.Pod, container string) error {
	rank := rankOf(p)
	if t.rank != "" && t.rank != rank {
		return nil
	}
	options := &corev1.PodLogOptions{Container: container, Follow: t.following, Timestamps: t.timestamps}
	if t.tail >= 0 {
		options.TailLines = ptr.To(t.tail)
	}
	lines, err := in.clients.CoreV1().Pods(in.namespace).GetLogs(p.Name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("reading the log of container %s of pod %s: %w", container, p.Name, err)
	}
	defer lines.Close()
	reader := bufio.NewReader(lines)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			t.mu.Lock()
			fmt.Fprintf(t.streams.Out, "[%s] %s\n", rank, strings.TrimSuffix(line, "\n"))
			t.mu.Unlock()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the log of container %s of pod %s: %w", container, p.Name, err)
		}
	}
}
