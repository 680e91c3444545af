package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// priority is one in use, by its class.
type priority struct {
	name  string
	value int32
}

// checkPriorities looks for priorities that are so close to each other that a minimum runtime has no effect between
// them. It does so where Kueue counts boosts, without which the manager accepts none.
func checkPriorities(ctx context.Context, s *session, r *report) error {
	config, err := s.kueueConfig(ctx)
	if err != nil {
		config = nil // checkConfig says so
	}
	if err := s.useGates(ctx, config); err != nil || !simulate.CountsBoosts() {
		return err
	}
	var classes kueue.WorkloadPriorityClassList
	if read, err := s.list(ctx, &classes, "workloadpriorityclasses.kueue.x-k8s.io"); err != nil || !read {
		return err
	}
	inUse := []priority{{"no class", 0}}
	for i := range classes.Items {
		inUse = append(inUse, priority{"class " + classes.Items[i].Name, classes.Items[i].Value})
	}
	slices.SortFunc(inUse, func(a, b priority) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.name, b.name))
	})
	for i, above := range inUse[1:] {
		below := inUse[i]
		if gap := int64(above.value) - int64(below.value); gap > 0 && gap <= int64(boost.Highest) {
			r.add(poor, "WorkloadPriorityClasses", fmt.Sprintf("the priorities of %s (%d) and of %s (%d) differ by %d: "+
				"TrainJobs of the lower one have no minimum runtime, and aren't weighed against equals",
				below.name, below.value, above.name, above.value, gap),
				fmt.Sprintf("set values that differ by %d or more", boost.Highest+1))
		}
	}
	return nil
}
