package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilqueue "sigs.k8s.io/kueue/pkg/util/queue"
	utilresource "sigs.k8s.io/kueue/pkg/util/resource"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/podsets"
)

func topCommand(c *cli) *cobra.Command {
	var output string
	var o clusterOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show quota by ClusterQueue, flavor and team",
		Args:  cobra.NoArgs,
		Long: "Show for each ClusterQueue and flavor what is nominal, used, borrowed and waited for, then what each team " +
			"(namespace) uses and waits for, and who is preempted by whom.\n\nIt needs the right to list ClusterQueues and " +
			"the Workloads of all namespaces.\n\nWith --clusters, it shows those that MultiKueue dispatches to as well, and " +
			"with --contexts several clusters together.",
		Example: "  kubectl signalbox top",
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error {
			return top(ctx, s, o, output)
		}),
	}
	o.addTo(cmd)
	outputFlag(cmd, &output, "json", "yaml")
	return cmd
}

// quotaRow is the quota of a flavor in a ClusterQueue.
type quotaRow struct {
	Cluster      string `json:"cluster,omitempty"`
	ClusterQueue string `json:"clusterQueue"`
	Cohort       string `json:"cohort,omitempty"`
	Flavor       string `json:"flavor"`
	Resource     string `json:"resource"`
	Nominal      string `json:"nominal"`
	Used         string `json:"used"`
	Borrowed     string `json:"borrowed"`
	// Waiting is what the Workloads that wait in the ClusterQueue ask for, of any of its flavors.
	Waiting string `json:"waiting"`
}

// teamRow is what a namespace uses and waits for.
type teamRow struct {
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace"`
	Resource  string `json:"resource"`
	Flavor    string `json:"flavor,omitempty"`
	Used      string `json:"used"`
	Waiting   string `json:"waiting,omitempty"`
}

// preemptionRow is a Workload that is being preempted.
type preemptionRow struct {
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	By        string `json:"by"`
	Why       string `json:"why"`
}

type overview struct {
	Quota       []quotaRow      `json:"quota"`
	Teams       []teamRow       `json:"teams"`
	Preemptions []preemptionRow `json:"preemptions"`
	Missing     []string        `json:"missingRights,omitempty"`
}

func top(ctx context.Context, s *session, o clusterOptions, output string) error {
	members, err := s.members(o.contexts)
	if err != nil {
		return err
	}
	view := overview{Quota: []quotaRow{}, Teams: []teamRow{}, Preemptions: []preemptionRow{}}
	members, err = view.addAll(ctx, members, o.clusters)
	if err != nil && len(members) == 1 {
		return err
	}
	if output != "" {
		return errors.Join(err, printAs(s.streams.Out, output, view))
	}
	if err := view.write(s, o); err != nil {
		return err
	}
	for _, m := range members {
		m.tellMissing()
	}
	return err
}

// addAll adds what clusters have, and those that MultiKueue dispatches to from these if that is asked for. It returns
// all of them.
func (v *overview) addAll(ctx context.Context, members []member, workers bool) ([]member, error) {
	var failed []error
	for i, named := 0, len(members); i < len(members); i++ {
		m := members[i]
		q, err := v.add(ctx, m)
		if err == nil && workers && i < named {
			var further []member
			further, err = m.workers(ctx, q)
			members = append(members, further...)
		}
		failed = append(failed, m.failed(err))
		for _, right := range m.missing {
			v.Missing = append(v.Missing, strings.TrimPrefix(m.name+": "+right, ": "))
		}
	}
	return members, errors.Join(failed...)
}

// add adds what a cluster has.
func (v *overview) add(ctx context.Context, m member) (*queues, error) {
	q, err := m.queues(ctx, m.namespace)
	if err != nil {
		return nil, err
	}
	if !q.clusterQueues {
		return nil, errors.New("you may not list ClusterQueues, so that there is nothing to show; ask for the right to " +
			"list clusterqueues.kueue.x-k8s.io (Kueue's ClusterRole kueue-batch-admin-role has it), or use kubectl " +
			"signalbox list")
	}
	for _, r := range quotaRows(q) {
		r.Cluster = m.name
		v.Quota = append(v.Quota, r)
	}
	for _, r := range teamRows(q) {
		r.Cluster = m.name
		v.Teams = append(v.Teams, r)
	}
	for _, r := range preemptionRows(q) {
		r.Cluster = m.name
		v.Preemptions = append(v.Preemptions, r)
	}
	return q, nil
}

// write writes three tables, with a column for the cluster if there are several.
func (v *overview) write(s *session, o clusterOptions) error {
	out := s.streams.Out
	print := func(header []string, rows [][]string, clusters []string) error {
		for i := range rows {
			if o.shown() {
				rows[i] = slices.Insert(rows[i], 0, orNone(clusters[i]))
			}
		}
		if o.shown() {
			header = slices.Insert(header, 0, "CLUSTER")
		}
		return table(out, header, rows)
	}
	header := []string{"CLUSTERQUEUE", "COHORT", "FLAVOR", "RESOURCE", "NOMINAL", "USED", "BORROWED", "WAITING"}
	rows := utilslices.Map(v.Quota, func(r *quotaRow) []string {
		return []string{r.ClusterQueue, orNone(r.Cohort), r.Flavor, r.Resource, r.Nominal, r.Used, r.Borrowed, r.Waiting}
	})
	if err := print(header, rows,
		utilslices.Map(v.Quota, func(r *quotaRow) string { return r.Cluster })); err != nil {
		return err
	}
	fmt.Fprintln(out)
	rows = utilslices.Map(v.Teams, func(r *teamRow) []string {
		return []string{r.Namespace, orNone(r.Flavor), r.Resource, r.Used, orNone(r.Waiting)}
	})
	if err := print([]string{"NAMESPACE", "FLAVOR", "RESOURCE", "USED", "WAITING"}, rows,
		utilslices.Map(v.Teams, func(r *teamRow) string { return r.Cluster })); err != nil {
		return err
	}
	if len(v.Preemptions) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	rows = utilslices.Map(v.Preemptions, func(r *preemptionRow) []string {
		return []string{r.Namespace + "/" + r.Name, r.By, r.Why}
	})
	return print([]string{"PREEMPTED", "BY", "WHY"}, rows,
		utilslices.Map(v.Preemptions, func(r *preemptionRow) string { return r.Cluster }))
}

// quotaRows returns the quota of each flavor of each ClusterQueue.
func quotaRows(q *queues) []quotaRow {
	rows := []quotaRow{}
	queues := utilslices.ToMap(q.LocalQueues, func(i int) (utilqueue.LocalQueueReference, string) {
		return utilqueue.Key(&q.LocalQueues[i]), string(q.LocalQueues[i].Spec.ClusterQueue)
	})
	all := q.waiting(func(wl *kueue.Workload) string { return queues[utilqueue.KeyFromWorkload(wl)] })
	for i := range q.ClusterQueues {
		cq := &q.ClusterQueues[i]
		waiting := all[cq.Name]
		for _, group := range cq.Spec.ResourceGroups {
			for _, fq := range group.Flavors {
				for _, rq := range fq.Resources {
					usage := usageOf(cq, fq.Name, rq.Name)
					rows = append(rows, quotaRow{
						ClusterQueue: cq.Name,
						Cohort:       string(cq.Spec.CohortName),
						Flavor:       string(fq.Name),
						Resource:     string(rq.Name),
						Nominal:      rq.NominalQuota.String(),
						Used:         usage.Total.String(),
						Borrowed:     usage.Borrowed.String(),
						Waiting:      ptr.To(waiting[rq.Name]).String(),
					})
				}
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b quotaRow) int {
		return cmp.Or(cmp.Compare(a.Cohort, b.Cohort), cmp.Compare(a.ClusterQueue, b.ClusterQueue))
	})
	return rows
}

func usageOf(
	cq *kueue.ClusterQueue, flavor kueue.ResourceFlavorReference, name corev1.ResourceName,
) kueue.ResourceUsage {
	for _, usage := range cq.Status.FlavorsReservation {
		for _, r := range usage.Resources {
			if usage.Name == flavor && r.Name == name {
				return r
			}
		}
	}
	return kueue.ResourceUsage{}
}

// waiting returns what the Workloads that wait ask for together, by what they are in.
func (q *queues) waiting(in func(*kueue.Workload) string) map[string]corev1.ResourceList {
	totals, counts := map[string]corev1.ResourceList{}, map[string]podsets.Counting{}
	for i := range q.Workloads {
		wl := &q.Workloads[i]
		if isFinished(wl) || workload.HasQuotaReservation(wl) || !workload.IsActive(wl) {
			continue
		}
		counting, found := counts[wl.Namespace]
		if !found {
			counting = q.Counting(wl.Namespace)
			counts[wl.Namespace] = counting
		}
		where := in(wl)
		totals[where] = utilresource.MergeResourceListKeepSum(totals[where], counting.Total(wl))
	}
	return totals
}

// teamRows returns what each namespace uses of each flavor, and what it waits for.
func teamRows(q *queues) []teamRow {
	type key struct{ namespace, flavor, resource string }
	used := map[key]resource.Quantity{}
	for i := range q.Workloads {
		wl := &q.Workloads[i]
		if isFinished(wl) || wl.Status.Admission == nil {
			continue
		}
		for _, a := range wl.Status.Admission.PodSetAssignments {
			for name, amount := range a.ResourceUsage {
				k := key{wl.Namespace, string(a.Flavors[name]), string(name)}
				sum := used[k]
				sum.Add(amount)
				used[k] = sum
			}
		}
	}
	rows := []teamRow{}
	for k, sum := range used {
		rows = append(rows, teamRow{Namespace: k.namespace, Flavor: k.flavor, Resource: k.resource, Used: sum.String()})
	}
	for namespace, waiting := range q.waiting(func(wl *kueue.Workload) string { return wl.Namespace }) {
		for name, sum := range waiting {
			rows = append(rows, teamRow{Namespace: namespace, Resource: string(name), Used: "0", Waiting: sum.String()})
		}
	}
	slices.SortStableFunc(rows, func(a, b teamRow) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Flavor, b.Flavor),
			cmp.Compare(a.Resource, b.Resource))
	})
	return rows
}

// preemptionRows returns the Workloads whose pods are ending because they were preempted.
func preemptionRows(q *queues) []preemptionRow {
	owners := map[string]string{}
	for i := range q.Workloads {
		wl := &q.Workloads[i]
		owners[string(wl.UID)] = wl.Namespace + "/" + simulate.Owner(wl)
	}
	rows := []preemptionRow{}
	for i := range q.Workloads {
		wl := &q.Workloads[i]
		c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPreempted)
		if c == nil || !workloadevict.IsEvicted(wl) || !workload.HasQuotaReservation(wl) || isFinished(wl) {
			continue
		}
		by := string(simulate.Preemptor(c.Message))
		rows = append(rows, preemptionRow{Namespace: wl.Namespace, Name: simulate.Owner(wl), By: cmp.Or(owners[by], by),
			Why: c.Reason})
	}
	return rows
}
