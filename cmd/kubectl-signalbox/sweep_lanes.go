package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// lane is for how many before it a TrainJob of a sweep with --at-most waits: for one alone, it would run beside those
// before that when that is deleted.
const lane = 8

// sweptBefore returns the TrainJobs of a sweep that are there, by their names; none if the user may not list them.
func (s *session) sweptBefore(ctx context.Context, job *unstructured.Unstructured) (map[string]*api.TrainJob, error) {
	var jobs api.TrainJobList
	if _, err := s.list(ctx, &jobs, "trainjobs.trainer.kubeflow.org in namespace "+job.GetNamespace(),
		client.InNamespace(job.GetNamespace()), client.MatchingLabels{api.SweepLabel: job.GetName()}); err != nil {
		return nil, err
	}
	there := map[string]*api.TrainJob{}
	for i := range jobs.Items {
		there[jobs.Items[i].Name] = &jobs.Items[i]
	}
	return there, nil
}

// inLanes has the TrainJobs of a sweep run in so many lanes, in each one after the other, and returns their numbers so
// that each follows those that it waits for. One that is missing comes after all of its lane that are there and have
// not ended: they may run already.
func inLanes(jobs []*unstructured.Unstructured, there map[string]*api.TrainJob, atMost int) []int {
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	if atMost == 0 {
		return order
	}
	rank := map[int]int{}
	for first := range min(atMost, len(jobs)) {
		for place, i := range laneFrom(jobs, there, first, atMost) {
			rank[i] = place
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rank[a], rank[b]) })
	return order
}

// laneFrom plans one lane, and returns the numbers of its TrainJobs in the order in which they run. Those that have
// ended are first.
func laneFrom(jobs []*unstructured.Unstructured, there map[string]*api.TrainJob, first, atMost int) []int {
	var ended, line []int
	for i := first; i < len(jobs); i += atMost {
		switch is := there[jobs[i].GetName()]; {
		case is == nil:
		case after.EndOf(is) == "":
			line = append(line, i)
		default:
			ended = append(ended, i)
		}
	}
	for i := first; i < len(jobs); i += atMost {
		if there[jobs[i].GetName()] != nil {
			continue
		}
		at := slices.IndexFunc(line, func(other int) bool { // which would wait for it
			is := there[jobs[other].GetName()]
			return is != nil && slices.Contains(after.Pending(is), jobs[i].GetName())
		})
		if at < 0 {
			at = len(line)
		}
		runAfter(jobs, i, line[:at])
		line = slices.Insert(line, at, i)
	}
	return append(ended, line...)
}

// runAfter has a TrainJob run after those before it in its lane, the nearest ones, and after those that the manifest
// names.
func runAfter(jobs []*unstructured.Unstructured, i int, before []int) {
	var all []string
	for _, k := range slices.Backward(before[max(len(before)-lane, 0):]) {
		all = append(all, jobs[k].GetName()+"="+string(after.Any))
	}
	annotations := jobs[i].GetAnnotations()
	if own := annotations[api.AfterAnnotation]; own != "" {
		all = append(all, own)
	}
	if len(all) > 0 {
		jobs[i].SetAnnotations(labels.Merge(annotations, labels.Set{api.AfterAnnotation: strings.Join(all, ",")}))
	}
}
