package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// read takes the figures from the requests of the run.
func (r *largeRun) read(requests []audit.Request, shape largeShape) error {
	submitted, started, built := map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}
	bound := map[string]time.Time{} // by pod
	writes := 0
	for _, request := range requests {
		ref, ours := request.ObjectRef, request.User.Username == "signalbox"
		if ours {
			writes++
		}
		if request.ResponseStatus.Code >= 300 || request.DryRun() {
			continue // a request more, that changed nothing
		}
		switch {
		case ref.Resource == "trainjobs" && request.Verb == "create":
			submitted[ref.Name] = request.Answered
		case ours && ref.Resource == "trainjobs" && ref.Subresource == "" && started[ref.Name].IsZero():
			started[ref.Name] = request.Answered
		case ours && ref.Resource == "jobsets" && request.ResponseStatus.Code == 201:
			built[ref.Name] = request.Answered
		case ref.Resource == "pods" && ref.Subresource == "binding":
			bound[ref.Name] = request.Answered
		}
	}
	if len(started) != shape.jobs || len(built) != shape.jobs || len(bound) != shape.jobs*int(shape.pods) {
		return fmt.Errorf("the audit log tells of %d starts, %d JobSets and %d bound pods, of %d TrainJobs of %d pods",
			len(started), len(built), len(bound), shape.jobs, shape.pods)
	}
	for _, job := range slices.Sorted(maps.Keys(started)) {
		last := time.Time{}
		for pod, at := range bound {
			if strings.HasPrefix(pod, job+"-") && at.After(last) {
				last = at
			}
		}
		r.StartSeconds = max(r.StartSeconds, started[job].Sub(submitted[job]).Seconds())
		r.JobSetSeconds = max(r.JobSetSeconds, built[job].Sub(started[job]).Seconds())
		r.BoundSeconds = max(r.BoundSeconds, last.Sub(started[job]).Seconds())
	}
	r.WritesPerJob = float64(writes) / float64(shape.jobs)
	return nil
}

func (r *largeRun) String() string {
	return fmt.Sprintf("%s: %.1f writes, JobSet after %.2f s, all bound after %.1f s, CPU %.1f s, peak %d MiB",
		r.Shape, r.WritesPerJob, r.JobSetSeconds, r.BoundSeconds, r.CPU, r.Peak>>20)
}

// largeMarkdown is the page.
func largeMarkdown(runs []largeRun) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Large TrainJobs\n\n`make bench WHAT=large` makes this page (%s). All have a topology. Writes are "+
		"Signalbox's for a TrainJob, from its submission until it is deleted, conflicts and events among them. Times "+
		"are the longest of a shape.\n\n"+
		"| | writes | submission → start, s | start → JobSet, s | start → all pods bound, s | Signalbox's CPU, s | "+
		"its peak memory, MiB | TrainJob, bytes | Workload, bytes | JobSet, bytes | ConfigMap, bytes |\n"+
		"| --- |%s\n", machine(), strings.Repeat(" --: |", 10))
	for i := range runs {
		r := &runs[i]
		fmt.Fprintf(&b, "| %s | %.1f | %.2f | %.2f | %.1f | %.1f | %d | %d | %d | %d | %d |\n", r.Shape, r.WritesPerJob,
			r.StartSeconds, r.JobSetSeconds, r.BoundSeconds, r.CPU, r.Peak>>20,
			r.Objects["TrainJob"], r.Objects["Workload"], r.Objects["JobSet"], r.Objects["ConfigMap"])
	}
	return b.String()
}
