package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// mostRows is how many TrainJobs are listed at once.
const mostRows = 100

// trainJobs lists TrainJobs, those of the last days first.
func (v *viewer) trainJobs(k *known, r serve.Request) serve.Answer {
	view := page.Jobs{Search: r.Values.Get("search"), State: r.Values.Get("state"), Namespace: r.Values.Get("in")}
	order := make([]int, 0, len(k.jobs))
	for i := range k.jobs {
		if strings.Contains(k.jobs[i].Name, view.Search) &&
			(view.Namespace == "" || k.jobs[i].Namespace == view.Namespace) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		one, other := &k.jobs[a], &k.jobs[b]
		return cmp.Or(other.CreationTimestamp.Compare(one.CreationTimestamp.Time),
			cmp.Compare(one.Namespace, other.Namespace), cmp.Compare(one.Name, other.Name))
	})
	skip, _ := strconv.Atoi(r.Values.Get("from"))
	skip = min(max(skip, 0), len(k.jobs))
	states := sets.New[string]()
	for _, i := range order {
		job := &k.jobs[i]
		state := k.factsOf(job).State()
		states.Insert(string(state))
		if view.State != "" && view.State != string(state) {
			continue
		}
		view.Total++
		if view.Total <= skip || len(view.Rows) >= mostRows {
			continue
		}
		row := rowOf(job, k.queues)
		place := ""
		if row.Place > 0 {
			place = strconv.Itoa(row.Place) + " of " + strconv.Itoa(row.Waiting)
		}
		view.Rows = append(view.Rows, page.Job{
			Namespace: row.Namespace, Name: row.Name, State: row.State, Queue: row.Queue, Place: place, Flavor: row.Flavor,
			Nodes: row.Nodes, Cause: row.Cause, Priority: row.Priority, Created: job.CreationTimestamp.Time,
		})
	}
	view.States = sets.List(states)
	if view.Total > skip+mostRows {
		view.Next = page.Link("/trainjobs", "search", view.Search, "in", view.Namespace, "state", view.State,
			"from", strconv.Itoa(skip+mostRows))
	}
	return shows("TrainJobs", k.missing, view)
}
