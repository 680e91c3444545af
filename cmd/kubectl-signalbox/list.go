package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/podsets"
)

// listOptions are the flags of list.
type listOptions struct {
	all, watch bool
	selector   string
	output     string
	clusterOptions
}

func listCommand(c *cli) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List TrainJobs with their place in the queue", Args: cobra.NoArgs,
		Long: "List TrainJobs with their state, their place in the queue, flavor, nodes, priority and how long they have " +
			"waited.\n\nPLACE is the place among those that wait in the same ClusterQueue, by Kueue's order; it needs the " +
			"right to list Workloads of all namespaces.\n\nWith --clusters, what MultiKueue runs in another cluster is " +
			"shown as it is there. With --contexts, the TrainJobs of several clusters are listed together.",
		Example: "  kubectl signalbox list -n vision\n  kubectl signalbox list -A -o wide --watch",
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error {
			return list(ctx, s, o)
		}),
	}
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "list the TrainJobs of all namespaces")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "go on, and print each TrainJob that changes")
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "a label selector, such as team=vision")
	o.addTo(cmd)
	outputFlag(cmd, &o.output, "wide", "json", "yaml", "name")
	return cmd
}

// row is what list says of a TrainJob.
type row struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	State     string `json:"state"`
	inQueue
	Nodes  string `json:"nodes,omitempty"`
	Flavor string `json:"flavor,omitempty"`
	Waited string `json:"waited,omitempty"`
	Age    string `json:"age"`
	Cause  string `json:"cause,omitempty"`
	// Checkpoint is the last one that was reported; nil for none.
	Checkpoint *api.Checkpoint `json:"checkpoint,omitempty"`
}

// inQueue is where a TrainJob stands in its queue.
type inQueue struct {
	// Cluster is where MultiKueue runs it, after the context of --contexts; "" for neither.
	Cluster      string `json:"cluster,omitempty"`
	Queue        string `json:"queue,omitempty"`
	ClusterQueue string `json:"clusterQueue,omitempty"`
	// Place is from 1; 0 if it doesn't wait, or if that isn't known. Waiting is how many wait there.
	Place    int   `json:"place,omitempty"`
	Waiting  int   `json:"waiting,omitempty"`
	Priority int32 `json:"priority"`
}

func list(ctx context.Context, s *session, o listOptions) error {
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	if o.watch && o.shown() {
		return errors.New("--watch shows one cluster; leave --clusters and --contexts out, and name it by --context")
	}
	selects := client.MatchingLabelsSelector{Selector: selector}
	rows, version, err := s.allRows(ctx, o, selects)
	if err != nil {
		return err
	}
	if err := s.printRows(rows, o, true); err != nil || !o.watch {
		if len(rows) == 0 && o.output != "json" && o.output != "yaml" {
			fmt.Fprintln(s.streams.ErrOut, "No TrainJobs found.")
		}
		return err
	}
	return s.watchRows(ctx, o, []client.ListOption{client.InNamespace(s.namespaceOf(o.all)), selects,
		&client.ListOptions{Raw: watchFrom(version)}})
}

// allRows returns the rows of all clusters, and as of which version the last one's are.
func (s *session) allRows(
	ctx context.Context, o listOptions, selects client.ListOption,
) (rows []row, version string, err error) {
	members, err := s.members(o.contexts)
	if err != nil {
		return nil, "", err
	}
	rows = []row{}
	for _, m := range members {
		read, at, err := m.rows(ctx, o, selects)
		if err != nil {
			return nil, "", m.failed(err)
		}
		for i := range read {
			read[i].Cluster = strings.Trim(m.name+"/"+read[i].Cluster, "/")
		}
		rows, version = append(rows, read...), at
	}
	return rows, version, nil
}

// rows returns what list says of the TrainJobs of a cluster, by their names, and as of which version.
func (s *session) rows(
	ctx context.Context, o listOptions, selects client.ListOption,
) (rows []row, version string, err error) {
	namespace := s.namespaceOf(o.all)
	var jobs api.TrainJobList
	var jobsErr error
	var reading sync.WaitGroup
	reading.Go(func() { // beside the Workloads, which are as many
		jobsErr = s.pages(ctx, &jobs, client.InNamespace(namespace), selects)
	})
	q, err := s.lines(ctx, s.namespace)
	if reading.Wait(); jobsErr != nil {
		return nil, "", fmt.Errorf("listing TrainJobs: %w", jobsErr)
	}
	if err != nil {
		return nil, "", err
	}
	slices.SortStableFunc(jobs.Items, func(a, b api.TrainJob) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range jobs.Items {
		rows = append(rows, rowOf(&jobs.Items[i], q))
	}
	if o.clusters {
		s.tellClusters(ctx, rows, namespace)
	}
	return rows, jobs.ResourceVersion, nil
}

// namespaceOf returns the session's namespace, or "" for all.
func (s *session) namespaceOf(all bool) string {
	if all {
		return ""
	}
	return s.namespace
}

// watchRows prints each TrainJob that changes.
func (s *session) watchRows(ctx context.Context, o listOptions, options []client.ListOption) error {
	w, err := s.client.Watch(ctx, &api.TrainJobList{}, options...)
	if err != nil {
		return fmt.Errorf("watching TrainJobs: %w", err)
	}
	defer w.Stop()
	for event := range received(ctx, w) {
		job, is := event.Object.(*api.TrainJob)
		if !is || event.Type == watch.Bookmark {
			continue
		}
		q, err := s.lines(ctx, s.namespace)
		if err != nil {
			return err
		}
		r := rowOf(job, q)
		if event.Type == watch.Deleted {
			r.State = "Deleted"
		}
		if err := s.printRows([]row{r}, o, false); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// printRows writes rows in the format that was asked for.
func (s *session) printRows(rows []row, o listOptions, header bool) error {
	switch o.output {
	case "json", "yaml":
		return printAs(s.streams.Out, o.output, rows)
	case "name":
		for _, r := range rows {
			fmt.Fprintln(s.streams.Out, "trainjob."+trainerapi.GroupVersion.Group+"/"+r.Name)
		}
		return nil
	}
	if len(rows) == 0 {
		return nil
	}
	titles := []string{"NAME", "STATE", "QUEUE", "PLACE", "PRIORITY", "NODES", "FLAVOR", "WAITED", "AGE"}
	if o.all {
		titles = slices.Insert(titles, 0, "NAMESPACE")
	}
	if o.shown() {
		titles = slices.Insert(titles, 0, "CLUSTER")
	}
	if o.output == "wide" {
		titles = append(titles, "CLUSTERQUEUE", "CAUSE", "SAVED")
	}
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, r.cells(o))
	}
	if !header {
		titles = nil
	}
	return table(s.streams.Out, titles, cells)
}

func (r row) cells(o listOptions) []string {
	place := ""
	if r.Place > 0 {
		place = fmt.Sprintf("%d of %d", r.Place, r.Waiting)
	}
	cells := []string{r.Name, r.State, orNone(r.Queue), orNone(place), strconv.Itoa(int(r.Priority)), orNone(r.Nodes),
		orNone(r.Flavor), orNone(r.Waited), r.Age}
	if o.all {
		cells = slices.Insert(cells, 0, r.Namespace)
	}
	if o.shown() {
		cells = slices.Insert(cells, 0, orNone(r.Cluster))
	}
	if o.output == "wide" {
		cells = append(cells, orNone(r.ClusterQueue), orNone(r.Cause), orNone(r.saved()))
	}
	return cells
}

// saved returns the value of the last checkpoint and its age, such as "4200 (3m)"; "" for none.
func (r row) saved() string {
	if r.Checkpoint == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", oneLine(r.Checkpoint.Value), age(r.Checkpoint.Time.Time))
}

// rowOf returns what list says of a TrainJob.
func rowOf(job *api.TrainJob, q *queues) row {
	f := q.factsOf(job)
	e, wl := explain.Brief(f), f.Workload
	r := row{
		Namespace: job.Namespace, Name: job.Name, State: e.State, Flavor: job.Status.Flavor, Nodes: job.Status.Nodes,
		Age: age(job.CreationTimestamp.Time), Cause: string(e.Cause.Code), Checkpoint: job.Status.Checkpoint,
		inQueue: inQueue{
			Queue: e.Queue, ClusterQueue: e.ClusterQueue, Place: e.Place, Waiting: e.Waiting, Priority: e.Priority,
		},
	}
	if wl != nil {
		r.Cluster = ptr.Deref(wl.Status.ClusterName, "")
	}
	if r.Nodes == "" && wl != nil {
		pods := int32(0)
		for i := range wl.Spec.PodSets {
			pods = max(pods, wl.Spec.PodSets[i].Count)
		}
		r.Nodes = strconv.Itoa(int(pods))
	}
	if r.Flavor == "" && wl != nil && wl.Status.Admission != nil && !isFinished(wl) {
		r.Flavor = strings.Join(podsets.Flavors(wl), ",")
	}
	if ptr.Deref(job.Spec.Suspend, false) && wl != nil {
		r.Waited = age(wl.CreationTimestamp.Time)
	}
	return r
}

// tellClusters completes rows of TrainJobs that run in other clusters by what is known of them there.
func (s *session) tellClusters(ctx context.Context, rows []row, namespace string) {
	names := sets.New[string]()
	for i := range rows {
		if rows[i].Cluster != "" {
			names.Insert(rows[i].Cluster)
		}
	}
	for _, name := range sets.List(names) {
		there, err := s.at(name)
		if err == nil {
			err = there.tellRows(ctx, name, rows, namespace)
			there.tellMissing()
		}
		if err != nil {
			fmt.Fprintf(s.streams.ErrOut, "What runs in cluster %s is shown as it is known here: %v\n", name, err)
		}
	}
}

// tellRows completes the rows of the TrainJobs that run in a cluster.
func (s *session) tellRows(ctx context.Context, cluster string, rows []row, namespace string) error {
	var jobs api.TrainJobList
	if err := s.pages(ctx, &jobs, client.InNamespace(namespace),
		client.HasLabels{kueue.MultiKueueOriginLabel}); err != nil {
		return fmt.Errorf("listing TrainJobs there: %w", err)
	}
	q, err := s.lines(ctx, namespace)
	if err != nil {
		return err
	}
	for i := range jobs.Items {
		is := rowOf(&jobs.Items[i], q)
		for k := range rows {
			if r := &rows[k]; r.Cluster == cluster && r.Namespace == is.Namespace && r.Name == is.Name {
				r.Flavor, r.Nodes, r.Cause, r.State = is.Flavor, is.Nodes, is.Cause, is.State
			}
		}
	}
	return nil
}
