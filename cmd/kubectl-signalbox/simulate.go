package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/features"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/simulate"
	"github.com/signalbox-dev/signalbox/store"
)

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	file   string
	set    []string
	until  bool
	output string
}

const simulateLong = `Run Kueue's own scheduler, in this process, on a copy of the cluster's queues and Workloads, and say what
becomes of a TrainJob: it is admitted now, and where; or after whose end; or by preempting whom; or never, and what would
make it fit. Nothing in the cluster is changed.

--set changes the TrainJob before: nodes=N, queue=NAME, priority=CLASS (a WorkloadPriorityClass), or resource.NAME=QUANTITY
for each node, such as resource.nvidia.com/gpu=4.

--until estimates when it starts, from the progress that runs report, from runs like them that have finished, and from
maximum execution times; it says how sure that is.

It needs the right to list ClusterQueues, and Workloads of all namespaces.`

func simulateCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use: "simulate TRAINJOB | -f FILE", Short: "Say what Kueue would do with a TrainJob, and when",
		Long: simulateLong,
		Example: "  kubectl signalbox simulate resnet --until\n  kubectl signalbox simulate -f job.yaml\n" +
			"  kubectl signalbox simulate resnet --set nodes=4 --set queue=spot",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeTrainJobs(flags, streams),
		RunE: connected(flags, streams, func(ctx context.Context, s *session, args []string) error {
			if (len(args) == 1) == (o.file != "") {
				return errors.New("name either a TrainJob or a file with -f")
			}
			return runSimulate(ctx, s, strings.Join(args, ""), o)
		}),
	}
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "a file with a TrainJob that isn't in the cluster; - for standard input")
	cmd.Flags().StringArrayVar(&o.set, "set", nil, "change the TrainJob before: nodes=4, queue=NAME, priority=CLASS, resource.NAME=QUANTITY")
	cmd.Flags().BoolVar(&o.until, "until", false, "estimate when it starts")
	outputFlag(cmd, &o.output, "json", "yaml")
	return cmd
}

// simulated is what simulate says.
type simulated struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Verdict   string            `json:"verdict"`
	Flavors   map[string]string `json:"flavors,omitempty"`
	// Nodes are the pods of each PodSet that it gets.
	Nodes   map[string]int32  `json:"nodes,omitempty"`
	Preempt []string          `json:"preempts,omitempty"`
	After   []string          `json:"after,omitempty"`
	Ahead   []string          `json:"ahead,omitempty"`
	Message string            `json:"message,omitempty"`
	Changes []simulatedChange `json:"changes,omitempty"`
	Start   *estimate         `json:"start,omitempty"`
	Missing []string          `json:"missingRights,omitempty"`
}

// simulatedChange is a change that would have it admitted.
type simulatedChange struct {
	Set     string            `json:"set"`
	Flavors map[string]string `json:"flavors,omitempty"`
}

// estimate is when it starts.
type estimate struct {
	Earliest time.Time `json:"earliest"`
	Likely   time.Time `json:"likely"`
	Latest   time.Time `json:"latest"`
	Sure     string    `json:"sure"`
}

func runSimulate(ctx context.Context, s *session, name string, o simulateOptions) error {
	job, err := s.simulatedJob(ctx, name, o)
	if err != nil {
		return err
	}
	q, err := s.queues(ctx, s.namespace)
	if err != nil {
		return err
	}
	if !q.clusterQueues || !q.others {
		return fmt.Errorf("a simulation needs all queues and Workloads, and you may not %s; ask for these rights (Kueue's "+
			"ClusterRole kueue-batch-admin-role has them)", strings.Join(s.missing, ", nor "))
	}
	wl, err := s.simulatedWorkload(ctx, job, q, o)
	if err != nil {
		return err
	}
	now := time.Now()
	var jobs api.TrainJobList
	if _, err := s.list(ctx, &jobs, "trainjobs.trainer.kubeflow.org"); err != nil {
		return err
	}
	estimates := simulate.NewEstimates(q.Workloads, jobs.Items, now)
	cluster := q.With(put(q.Workloads, wl))
	answer, err := simulate.Ask(ctx, cluster, client.ObjectKeyFromObject(wl), estimates.Mid(), now)
	if err != nil {
		return err
	}
	view := viewOf(job, cluster, answer)
	view.Missing = s.missing
	if o.until && answer.Verdict == simulate.Waits {
		if view.Start, err = estimateOf(ctx, cluster, wl, estimates, now); err != nil {
			return err
		}
	}
	if o.output != "" {
		return printAs(s.streams.Out, o.output, view)
	}
	view.write(s)
	return nil
}

// estimateOf returns when a Workload starts, if runs end early, as expected, and late.
func estimateOf(
	ctx context.Context, cluster *simulate.Cluster, wl *kueue.Workload, lengths *simulate.Estimates, now time.Time,
) (*estimate, error) {
	key := client.ObjectKeyFromObject(wl)
	e := &estimate{}
	for _, each := range []struct {
		lengths simulate.Lengths
		to      *time.Time
	}{{lengths.Low(), &e.Earliest}, {lengths.Mid(), &e.Likely}, {lengths.High(), &e.Latest}} {
		f, err := simulate.Until(ctx, cluster.Concerning(wl), key, each.lengths, now)
		if err != nil {
			return nil, err
		}
		*each.to = f.At
		if each.to == &e.Likely {
			e.Sure = lengths.Sure(cluster, f.Ended)
		}
	}
	return e, nil
}

// put returns the Workloads with one that takes the place of that of its name.
func put(workloads []kueue.Workload, wl *kueue.Workload) []kueue.Workload {
	all := slices.DeleteFunc(slices.Clone(workloads), func(other kueue.Workload) bool {
		return other.Namespace == wl.Namespace && other.Name == wl.Name
	})
	return append(all, *wl)
}

// simulatedJob returns the TrainJob, changed as --set says.
func (s *session) simulatedJob(ctx context.Context, name string, o simulateOptions) (*api.TrainJob, error) {
	job, err := s.jobOf(ctx, name, o.file)
	if err != nil {
		return nil, err
	}
	for _, set := range o.set {
		key, value, found := strings.Cut(set, "=")
		if !found {
			return nil, fmt.Errorf("--set %s: it must be KEY=VALUE", set)
		}
		if err := change(job, key, value); err != nil {
			return nil, fmt.Errorf("--set %s: %w", set, err)
		}
	}
	return job, nil
}

func (s *session) jobOf(ctx context.Context, name, file string) (*api.TrainJob, error) {
	if file == "" {
		return s.trainJob(ctx, name)
	}
	var files []byte
	var err error
	if file == "-" {
		all, readErr := read(file, s.streams.In)
		if readErr != nil {
			return nil, readErr
		}
		files = []byte(all[0].text)
	} else if files, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	for _, doc := range documents(string(files)) {
		job := &api.TrainJob{}
		if err := yaml.Unmarshal([]byte(doc), job); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if job.Kind == trainerapi.TrainJobKind {
			job.Namespace = cmp.Or(job.Namespace, s.namespace)
			job.Name = cmp.Or(job.Name, job.GenerateName+"simulated")
			job.UID, job.CreationTimestamp = "simulated", metav1.Now()
			s.namespace = job.Namespace
			return job, nil
		}
	}
	return nil, fmt.Errorf("%s has no TrainJob", file)
}

// change makes one change of --set.
func change(job *api.TrainJob, key, value string) error {
	if job.Spec.Trainer == nil {
		job.Spec.Trainer = &trainerapi.Trainer{}
	}
	if job.Labels == nil {
		job.Labels = map[string]string{}
	}
	name, isResource := strings.CutPrefix(key, "resource.")
	switch {
	case key == "nodes":
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 {
			return errors.New("nodes must be a whole number of at least 1")
		}
		job.Spec.Trainer.NumNodes = ptr.To(int32(n))
	case key == "queue":
		job.Labels[constants.QueueLabel] = value
	case key == "priority":
		job.Labels[constants.WorkloadPriorityClassLabel] = value
	case isResource:
		amount, err := resource.ParseQuantity(value)
		if err != nil {
			return err
		}
		if job.Spec.Trainer.ResourcesPerNode == nil {
			job.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{}
		}
		r := job.Spec.Trainer.ResourcesPerNode
		for _, list := range []*corev1.ResourceList{&r.Requests, &r.Limits} {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[corev1.ResourceName(name)] = amount
		}
	default:
		return errors.New("the keys are nodes, queue, priority and resource.NAME")
	}
	return nil
}

// simulatedWorkload returns the Workload of a TrainJob: the one that it has, if nothing is changed, or else the one that
// Signalbox would make.
func (s *session) simulatedWorkload(
	ctx context.Context, job *api.TrainJob, q *queues, o simulateOptions,
) (*kueue.Workload, error) {
	is := workloadOf(job, q.Workloads)
	if is != nil && !isFinished(is) && len(o.set) == 0 {
		return is, nil
	}
	runtime, err := store.LiveRuntime(ctx, s.client, (&server{namespace: s.namespace}).defaulted(job))
	if err != nil {
		return nil, err
	}
	if runtime == nil {
		return nil, fmt.Errorf("%s, which the TrainJob refers to, doesn't exist", store.Describe(job))
	}
	effective, err := overrides.Bundled.Compute(job, &runtime.Spec, overrides.Bundled.Others(job))
	if err != nil {
		return nil, err
	}
	sets, err := podsets.Of(effective, podsets.Features{TopologyAware: features.Enabled(features.TopologyAwareScheduling)})
	if err != nil {
		return nil, err
	}
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{
		Namespace: job.Namespace, Name: "simulated-" + job.Name, UID: "simulated", CreationTimestamp: metav1.Now(),
	}}
	if is != nil {
		wl.ObjectMeta = *is.ObjectMeta.DeepCopy()
	}
	wl.Spec.PodSets, wl.Spec.Active = sets, ptr.To(true)
	if wl.Spec.QueueName = kueue.LocalQueueName(job.Labels[constants.QueueLabel]); wl.Spec.QueueName == "" {
		return nil, errors.New("the TrainJob has no label kueue.x-k8s.io/queue-name: it runs at once, outside quota; name a " +
			"queue with --set queue=NAME")
	}
	priority, err := s.priority(ctx, job, sets)
	wl.Spec.Priority = &priority
	return wl, err
}

// priority returns a TrainJob's priority as Kueue finds it: by its WorkloadPriorityClass, or else by its pods' class.
func (s *session) priority(ctx context.Context, job *api.TrainJob, sets []kueue.PodSet) (int32, error) {
	if name := job.Labels[constants.WorkloadPriorityClassLabel]; name != "" {
		var class kueue.WorkloadPriorityClass
		if err := s.client.Get(ctx, client.ObjectKey{Name: name}, &class); err != nil {
			return 0, fmt.Errorf("reading WorkloadPriorityClass %s: %w", name, err)
		}
		return class.Value, nil
	}
	var classes schedulingv1.PriorityClassList
	if _, err := s.list(ctx, &classes, "priorityclasses.scheduling.k8s.io"); err != nil {
		return 0, err
	}
	for i := range sets {
		for j := range classes.Items {
			if name := sets[i].Template.Spec.PriorityClassName; name != "" && classes.Items[j].Name == name {
				return classes.Items[j].Value, nil
			}
		}
	}
	for i := range classes.Items {
		if classes.Items[i].GlobalDefault {
			return classes.Items[i].Value, nil
		}
	}
	return 0, nil
}
