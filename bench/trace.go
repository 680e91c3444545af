package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// stages are the requests that a TrainJob waits for on its way.
var stages = []string{
	"TrainJob created", "Workload created", "admitted", "started", "JobSet created", "Service created", "Job created",
	"pod bound", "pod's status written",
}

const (
	byCreation = iota
	byWorkload
	byAdmission
	byStart
	byJobSet
	byService
	byJob
	byBinding
	byStatus
)

// answer is to a request of a stage: when the API server had answered it, and how long that took.
type answer struct {
	at   time.Time
	took time.Duration
}

// way is what was requested for a TrainJob, by stage; requests that never came have no time.
type way [byStatus + 1]answer

// trace prints for each stage how long after the previous one its request was answered, over all TrainJobs of an audit
// log that came to a pod, and how long the API server took for the request itself. The log's level is Metadata or more.
// The stages are in the order of their medians: Kubeflow Trainer creates the JobSet before the start.
func trace(out io.Writer, log string) error {
	requests, err := audit.Since(log, 0, func(r audit.Request) bool {
		return r.Writes() && !r.DryRun() && r.ResponseStatus.Code < 300
	})
	if err != nil {
		return err
	}
	ways, created := waysOf(requests)
	if len(ways) == 0 {
		return fmt.Errorf("%s has no TrainJob that came to a pod", log)
	}
	fmt.Fprintf(out, "The way of %d of %d TrainJobs, which came to a pod. Times are in ms, of the audit log.\n\n",
		len(ways), created)
	fmt.Fprintln(out, "| stage | after the previous, p50 | p95 | p99 | the request itself, p50 | p99 |")
	fmt.Fprintln(out, "| --- | --: | --: | --: | --: | --: |")
	order := orderOf(ways)
	for i, stage := range order {
		var after, took []float64
		for _, w := range ways {
			took = append(took, inMilliseconds(w[stage].took))
			if i > 0 {
				after = append(after, inMilliseconds(w[stage].at.Sub(w[order[i-1]].at)))
			}
		}
		fmt.Fprintf(out, "| %s |%s%s\n", stages[stage], cells(after, 0.5, 0.95, 0.99), cells(took, 0.5, 0.99))
	}
	for _, span := range [][2]int{{byCreation, byStatus}, {byAdmission, byStatus}, {byStart, byStatus}} {
		var took []float64
		for _, w := range ways {
			took = append(took, inMilliseconds(w[span[1]].at.Sub(w[span[0]].at)))
		}
		fmt.Fprintf(out, "| **%s → %s** |%s | |\n", stages[span[0]], stages[span[1]], cells(took, 0.5, 0.95, 0.99))
	}
	return nil
}

// orderOf returns the stages by the medians of their times since the TrainJob was created.
func orderOf(ways []*way) []int {
	order, medians := []int{}, [len(way{})]time.Duration{}
	for stage := range medians {
		var since []time.Duration
		for _, w := range ways {
			since = append(since, w[stage].at.Sub(w[byCreation].at))
		}
		slices.Sort(since)
		order, medians[stage] = append(order, stage), since[len(since)/2]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(medians[a], medians[b]) })
	return order
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// cells are the quantiles of values as cells of a table; empty ones of none.
func cells(values []float64, quantiles ...float64) string {
	slices.Sort(values)
	var b strings.Builder
	for _, q := range quantiles {
		if len(values) == 0 {
			b.WriteString(" |")
			continue
		}
		fmt.Fprintf(&b, " %.0f |", values[min(len(values)-1, int(q*float64(len(values))))])
	}
	return b.String()
}

// workloadName and podName are the names that Kueue and the Job controller make of a TrainJob's.
var (
	workloadName = regexp.MustCompile(`^trainjob-(.+)-[0-9a-f]{5}$`)
	podName      = regexp.MustCompile(`^(.+)-[^-]+-\d+-\d+-[a-z0-9]{5}$`)
	jobName      = regexp.MustCompile(`^(.+)-[^-]+-\d+$`)
)

// waysOf returns the ways of the TrainJobs that have come through all stages, and how many were created. A stage is its
// first request, but admission and start are the last before a start and before a pod: those before didn't lead to it.
func waysOf(requests []audit.Request) (all []*way, created int) {
	slices.SortStableFunc(requests, func(a, b audit.Request) int { return a.Answered.Compare(b.Answered) })
	ways := map[string]*way{}
	for _, r := range requests {
		stage, name := stageOf(r)
		if name == "" {
			continue
		}
		key := r.ObjectRef.Namespace + "/" + name
		if ways[key] == nil {
			if stage != byCreation {
				continue
			}
			ways[key] = &way{}
			all = append(all, ways[key])
		}
		w := ways[key]
		last := stage == byAdmission && w[byStart].at.IsZero() || stage == byStart && w[byBinding].at.IsZero()
		if w[stage].at.IsZero() || last {
			w[stage] = answer{r.Answered, r.Answered.Sub(r.Received)}
		}
	}
	created = len(all)
	return slices.DeleteFunc(all, func(w *way) bool {
		return slices.ContainsFunc(w[:], func(a answer) bool { return a.at.IsZero() })
	}), created
}

// stageOf returns the stage that a request belongs to, and the TrainJob's name; "" for none.
func stageOf(r audit.Request) (stage int, name string) {
	o := r.ObjectRef
	part := func(pattern *regexp.Regexp) string {
		if found := pattern.FindStringSubmatch(o.Name); found != nil {
			return found[1]
		}
		return ""
	}
	switch what := r.Verb + " " + strings.TrimSuffix(o.Resource+"/"+o.Subresource, "/"); {
	case what == "create trainjobs":
		return byCreation, o.Name
	case what == "create workloads" && o.APIGroup == "kueue.x-k8s.io":
		return byWorkload, part(workloadName)
	case o.Resource == "workloads" && o.Subresource == "status" && strings.Contains(r.User.Username, "kueue"):
		return byAdmission, part(workloadName)
	case what == "patch trainjobs":
		return byStart, o.Name
	case what == "create jobsets":
		return byJobSet, o.Name
	case what == "create services":
		return byService, o.Name
	case what == "create jobs":
		return byJob, part(jobName)
	case what == "create pods/binding":
		return byBinding, part(podName)
	case o.Resource == "pods" && o.Subresource == "status" && !strings.Contains(r.User.Username, "scheduler"):
		return byStatus, part(podName)
	}
	return 0, ""
}
