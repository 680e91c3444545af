package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/resources"
	utilpriority "sigs.k8s.io/kueue/pkg/util/priority"
	utilresource "sigs.k8s.io/kueue/pkg/util/resource"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// mostWaiting is how many of a ClusterQueue's line are shown, and mostInAll of all lines together, if that leaves each
// leastWaiting: a browser draws so many at once.
const (
	mostWaiting  = 20
	leastWaiting = 1
	mostInAll    = 200
)

// now shows who holds which quota, and who waits.
func (v *viewer) now(ctx context.Context, k *known, _ serve.Request) (serve.Answer, error) {
	s := v.session("")
	var nodes corev1.NodeList
	if _, err := s.list(ctx, &nodes, "nodes"); err != nil {
		return serve.Answer{}, err
	}
	held := heldBy(k)
	view := page.Now{Cohorts: cohortsOf(k, held, v.planner.plan(k, &v.changes))}
	if k.workloads == everywhere { // else what is shown as free would not be
		view.Flavors = flavorsOf(k, held, nodes.Items)
	}
	for _, p := range preemptionRows(k.queues) {
		view.Preemptions = append(view.Preemptions,
			page.Preemption{Namespace: p.Namespace, Name: p.Name, By: p.By, Why: p.Why})
	}
	if p := v.planner.plan(k, &v.changes); p != nil && p.mid != nil {
		view.Planned, view.Incomplete = &p.at, !p.mid.Complete
	}
	return shows("Now", append(s.missing, k.missing...), view), nil
}

// holding is what one Workload counts of a flavor.
type holding struct {
	queue  string
	fr     resources.FlavorResource
	amount resource.Quantity
	page.Part
}

// heldBy returns what all Workloads that have quota count, in the order of their names.
func heldBy(k *known) []holding {
	var all []holding
	for i := range k.Workloads {
		wl := &k.Workloads[i]
		if isFinished(wl) || wl.Status.Admission == nil {
			continue
		}
		part, name := page.Part{Class: "other"}, wl.Namespace+"/"+simulate.Owner(wl)
		if job := k.jobOf(wl); job != nil {
			part.Class, part.Href = page.Tint(name), page.JobPath(job.Namespace, job.Name)
		}
		reserved := ""
		if !workload.IsAdmitted(wl) || apimeta.IsStatusConditionFalse(wl.Status.Conditions, kueue.WorkloadPodsReady) {
			part.Class, reserved = "reserved", ", doesn't run yet"
		}
		for fr, amount := range simulate.Held(wl) {
			part.Amount = amount.AsApproximateFloat64()
			part.Title = fmt.Sprintf("%s: %s %s%s", name, amount.String(), fr.Resource, reserved)
			all = append(all, holding{string(wl.Status.Admission.ClusterQueue), fr, amount, part})
		}
	}
	slices.SortStableFunc(all, func(a, b holding) int { return cmp.Compare(a.Title, b.Title) })
	return all
}

// parts returns the parts of a bar for those that hold something.
func parts(held []holding, of func(*holding) bool) (all []page.Part) {
	for i := range held {
		if of(&held[i]) {
			all = append(all, held[i].Part)
		}
	}
	return all
}

// flavorsOf shows each flavor's quota of all ClusterQueues, and what of it no node has; nodes are none if the user may
// not read them.
func flavorsOf(k *known, held []holding, nodes []corev1.Node) []page.Quota {
	var all []page.Quota
	quota, known := nominal(k.ClusterQueues), sets.New[corev1.ResourceName]()
	for i := range nodes {
		known.Insert(slices.Collect(maps.Keys(nodes[i].Status.Allocatable))...)
	}
	known.Delete(corev1.ResourcePods) // Kueue counts pods as a resource of its own
	for i := range k.Cohorts {
		eachQuota(k.Cohorts[i].Spec.ResourceGroups, func(of kueue.ResourceFlavorReference, rq *kueue.ResourceQuota) {
			quota[string(of)] = utilresource.MergeResourceListKeepSum(quota[string(of)],
				corev1.ResourceList{rq.Name: rq.NominalQuota})
		})
	}
	for i := range k.Flavors {
		flavor := &k.Flavors[i]
		has, _ := allocatable(nodes, flavor.Spec.NodeLabels)
		for _, name := range slices.Sorted(maps.Keys(quota[flavor.Name])) {
			there := has[name]
			if !known.Has(name) {
				there = quota[flavor.Name][name] // it is elsewhere, or no resource of nodes
			}
			all = append(all, flavorOf(flavor.Name, name, held, quota[flavor.Name][name], there))
		}
	}
	return all
}

// flavorOf shows a resource of a flavor: so much is given, and so much is there on nodes.
func flavorOf(flavor string, name corev1.ResourceName, held []holding, given, there resource.Quantity) page.Quota {
	is := func(h *holding) bool { return string(h.fr.Flavor) == flavor && h.fr.Resource == name }
	used := resource.Quantity{}
	for i := range held {
		if is(&held[i]) {
			used.Add(held[i].amount)
		}
	}
	row := page.Quota{Flavor: flavor, Resource: string(name), Nominal: given.String(), Used: used.String()}
	offline, free := given.DeepCopy(), given.DeepCopy()
	offline.Sub(there)
	free.Sub(used)
	switch {
	case offline.Sign() <= 0:
		offline = resource.Quantity{}
	case offline.Cmp(free) > 0 && free.Sign() >= 0:
		row.Others = append(row.Others, offline.String()+" offline, of which some is used")
		offline = free.DeepCopy()
	default:
		row.Others = append(row.Others, offline.String()+" offline: no node has it")
	}
	free.Sub(offline)
	row.Bar = barOf(row, given, used, append(parts(held, is), amountOf(free, "free", "free"),
		amountOf(offline, "offline", "offline")))
	return row
}

// amountOf returns a part that nobody holds.
func amountOf(q resource.Quantity, class, text string) page.Part {
	return page.Part{Amount: q.AsApproximateFloat64(), Class: class, Title: q.String() + " " + text}
}

// barOf draws quota: what is used above it is beyond a mark.
func barOf(row page.Quota, given, used resource.Quantity, parts []page.Part) page.Bar {
	total := given.AsApproximateFloat64()
	for sum, i := 0.0, 0; i < len(parts); i++ {
		sum += parts[i].Amount
		total = max(total, sum)
	}
	return page.NewBar(fmt.Sprintf("%s of %s %s of %s used", used.String(), given.String(), row.Resource, row.Flavor),
		total, given.AsApproximateFloat64(), parts)
}

// cohortsOf shows the quota and the line of each ClusterQueue, by cohort trees.
func cohortsOf(k *known, held []holding, p *plans) []page.Cohort {
	rows := map[string][]quotaRow{}
	for _, r := range quotaRows(k.queues) {
		rows[r.ClusterQueue] = append(rows[r.ClusterQueue], r)
	}
	lends := lentBy(k.queues)
	by := map[string][]page.Queue{}
	lines := 0
	for i := range k.ClusterQueues {
		if len(k.index.Line(k.ClusterQueues[i].Name)) > 0 {
			lines++
		}
	}
	most := min(mostWaiting, max(leastWaiting, mostInAll/max(lines, 1)))
	for i := range k.ClusterQueues {
		cq := &k.ClusterQueues[i]
		queue := page.Queue{Name: cq.Name}
		for _, r := range rows[cq.Name] {
			queue.Quotas = append(queue.Quotas, quotaOf(r, held, lends))
		}
		line := k.index.Line(cq.Name)
		for place, wl := range line[:min(most, len(line))] {
			queue.Waiting = append(queue.Waiting, waitingOf(k, wl, place+1, p))
		}
		queue.More = len(line) - len(queue.Waiting)
		root := string(k.Root(cq.Spec.CohortName))
		by[root] = append(by[root], queue)
	}
	var all []page.Cohort
	for _, name := range slices.Sorted(maps.Keys(by)) {
		queues := by[name]
		slices.SortFunc(queues, func(a, b page.Queue) int { return cmp.Compare(a.Name, b.Name) })
		all = append(all, page.Cohort{Name: name, Queues: queues})
	}
	return all
}

// quotaOf shows a row of top.
func quotaOf(r quotaRow, held []holding, lends map[lender]lent) page.Quota {
	row := page.Quota{Flavor: r.Flavor, Resource: r.Resource, Nominal: r.Nominal, Used: r.Used, Borrowed: r.Borrowed,
		Waiting: r.Waiting}
	given, used := resource.MustParse(r.Nominal), resource.MustParse(r.Used)
	of := lends[lender{r.ClusterQueue, r.Flavor, r.Resource}]
	if text := of.String(); text != "" {
		row.Others = append(row.Others, text)
	}
	free := given.DeepCopy()
	free.Sub(used)
	free.Sub(of.least)
	bar := parts(held, func(h *holding) bool {
		return h.queue == r.ClusterQueue && string(h.fr.Flavor) == r.Flavor && string(h.fr.Resource) == r.Resource
	})
	row.Bar = barOf(row, given, used, append(bar, amountOf(of.least, "lent", "lent"), amountOf(free, "free", "free")))
	return row
}

// waitingOf shows one that waits.
func waitingOf(k *known, wl *kueue.Workload, place int, p *plans) page.Waiting {
	w := page.Waiting{
		Place: place, Namespace: wl.Namespace, Name: simulate.Owner(wl), Priority: utilpriority.Priority(wl),
		Since: k.Ordering().GetQueueOrderTimestamp(wl).Time, Start: p.startOf(wl),
	}
	if job := k.jobOf(wl); job != nil {
		w.Href, w.Cause = page.JobPath(job.Namespace, job.Name), string(explain.Brief(k.factsOf(job)).Cause.Code)
	} else if owner := metav1.GetControllerOfNoCopy(wl); owner != nil {
		w.Cause = strings.ToLower(owner.Kind)
	}
	return w
}
