package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// lately is for how long back nodes are looked for that TrainJobs avoid.
const lately = time.Hour

func nodesCommand(c *cli) *cobra.Command {
	var output string
	since := lately
	cmd := &cobra.Command{
		Use: "nodes", Short: "Show nodes that TrainJobs keep off", Args: cobra.NoArgs,
		Long: "Show the nodes on which pods of TrainJobs were lost, rejected, not started or failed at once, so that the " +
			"TrainJobs keep off them (nodes.avoidFor of the configuration): of how many namespaces and TrainJobs, and what " +
			"the last pod showed.\n\nIt shows the TrainJobs that you may list.",
		Example: "  kubectl signalbox nodes --since 24h",
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error {
			return nodes(ctx, s, since, output)
		}),
	}
	cmd.Flags().DurationVar(&since, "since", since, "how long ago the last pod may be")
	outputFlag(cmd, &output, "json", "yaml")
	return cmd
}

// avoidedRow is a node that TrainJobs keep off.
type avoidedRow struct {
	Node       string    `json:"node"`
	Namespaces []string  `json:"namespaces"`
	TrainJobs  int       `json:"trainJobs"`
	Reason     string    `json:"reason"`
	Message    string    `json:"message,omitempty"`
	Pod        string    `json:"pod"`
	Time       time.Time `json:"time"`
	Tainted    bool      `json:"tainted"`
}

func nodes(ctx context.Context, s *session, since time.Duration, output string) error {
	rows, err := avoidedRows(ctx, s, since, true)
	if err != nil {
		return err
	}
	if output != "" {
		return printAs(s.streams.Out, output, struct {
			Nodes   []avoidedRow `json:"nodes"`
			Missing []string     `json:"missingRights,omitempty"`
		}{rows, s.missing})
	}
	if len(rows) == 0 {
		fmt.Fprintf(s.streams.Out, "No TrainJob keeps off a node since %s ago.\n", since)
		s.tellMissing()
		return nil
	}
	err = table(s.streams.Out, []string{"NODE", "NAMESPACES", "TRAINJOBS", "REASON", "MESSAGE", "AGE", "TAINTED"},
		utilslices.Map(rows, func(r *avoidedRow) []string {
			return []string{r.Node, fmt.Sprint(len(r.Namespaces)), fmt.Sprint(r.TrainJobs), printable(r.Reason),
				orNone(printable(r.Message)), age(r.Time), map[bool]string{true: "yes", false: "no"}[r.Tainted]}
		}))
	s.tellMissing()
	return err
}

// avoidedRows returns the nodes that TrainJobs keep off, those of most namespaces first. alone is whether what a
// TrainJob without another pod says of an image counts.
func avoidedRows(ctx context.Context, s *session, since time.Duration, alone bool) ([]avoidedRow, error) {
	var jobs api.TrainJobList
	if _, err := s.listWide(ctx, &jobs, "trainjobs.trainer.kubeflow.org", s.namespace); err != nil {
		return nil, err
	}
	nodes := map[string]*corev1.Node{}
	tally := func() map[string]avoid.Count {
		return avoid.Policy{For: since, AtMost: configapi.MaxAvoided}.Tally(jobs.Items, func(n api.AvoidedNode) bool {
			node := nodes[n.Name]
			return (alone || n.Reason != avoid.NotStartedAlone) && (node == nil || !avoid.Replaced(n, node))
		}, time.Now())
	}
	rows := []avoidedRow{}
	if len(tally()) == 0 {
		return rows, nil
	}
	var list corev1.NodeList
	if _, err := s.list(ctx, &list, "nodes"); err != nil {
		return nil, err
	}
	tainted := sets.New[string]()
	for i := range list.Items {
		node := &list.Items[i]
		nodes[node.Name] = node
		if hasTaint(node) {
			tainted.Insert(node.Name)
		}
	}
	counts := tally()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		c := counts[name]
		rows = append(rows, avoidedRow{Node: name, Namespaces: sets.List(c.Namespaces), TrainJobs: c.TrainJobs,
			Reason: c.Last.Reason, Message: c.Last.Message, Pod: c.Last.Pod, Time: c.Last.Time.Time, Tainted: tainted.Has(name)})
	}
	slices.SortStableFunc(rows, func(a, b avoidedRow) int { return cmp.Compare(len(b.Namespaces), len(a.Namespaces)) })
	return rows, nil
}

func hasTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == api.AvoidedTaint })
}

// leftTainted looks for nodes that have the taint, and that no TrainJob remembers: nobody takes the taint from them
// once nodes.taint is false.
func leftTainted(ctx context.Context, s *session, r *report) error {
	var nodes corev1.NodeList
	var jobs api.TrainJobList
	if _, err := s.list(ctx, &nodes, "nodes"); err != nil {
		return err
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return !hasTaint(&n) })
	if len(nodes.Items) == 0 {
		return nil
	}
	seen, err := s.listWide(ctx, &jobs, "trainjobs.trainer.kubeflow.org", s.namespace)
	if err != nil || seen != everywhere {
		return err
	}
	remembered := sets.New[string]()
	for i := range jobs.Items {
		for _, n := range jobs.Items[i].Status.Avoided {
			remembered.Insert(n.Name)
		}
	}
	for i := range nodes.Items {
		if name := nodes.Items[i].Name; !remembered.Has(name) {
			r.add(poor, "Node "+name, "it has taint "+api.AvoidedTaint+", and no TrainJob keeps off it; if the taint stays, "+
				"nodes.taint is false, and Signalbox doesn't remove it", "kubectl taint nodes "+name+" "+api.AvoidedTaint+"-")
		}
	}
	return nil
}

// checkAvoided looks for nodes that TrainJobs of several namespaces keep off, and for taints that are left.
func checkAvoided(ctx context.Context, s *session, r *report) error {
	rows, err := avoidedRows(ctx, s, lately, false)
	for _, row := range rows {
		if len(row.Namespaces) > 1 {
			r.add(poor, "Node "+row.Node, fmt.Sprintf("TrainJobs of %d namespaces keep off it: of the last, a pod %s (%s)",
				len(row.Namespaces), avoid.Says(api.AvoidedNode{Reason: row.Reason}), orNone(printable(row.Message))),
				"kubectl describe node "+row.Node)
		}
	}
	return errors.Join(err, leftTainted(ctx, s, r))
}
