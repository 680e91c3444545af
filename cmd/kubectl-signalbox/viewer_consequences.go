package main

import (
	"context"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// consequences returns what will happen to a TrainJob and to others, by a simulation if the user may see what it needs.
func consequences(ctx context.Context, s *session, job *api.TrainJob, k *known, does string) ([]string, error) {
	wl := k.index.WorkloadOf(job)
	all := ownConsequences(job, wl, does)
	others := after.IndexOf(job)
	switch {
	case does == "resume" && len(others) > 0:
		return append(all, "It runs after "+strings.Join(others, ", ")+"."), nil
	case wl == nil:
		return all, nil // it has no quota, and asks for none
	case !k.complete():
		return append(all, "What becomes of others can't be said: that needs all queues and Workloads."), nil
	case does == "resume":
		views, err := s.simulate(ctx, []*api.TrainJob{job}, k.queues,
			simulateOptions{set: []string{"queue=" + string(wl.Spec.QueueName)}})
		if err != nil {
			return nil, err
		}
		return append(all, "As things are, it "+views[0].becomes()+"."), nil
	}
	settled, err := simulate.Settle(ctx, k.Without(client.ObjectKeyFromObject(wl)), time.Now())
	if err != nil {
		return nil, err
	}
	if started := k.Owners(settled.Admitted); len(started) > 0 {
		return append(all, "As things are, these get quota at once: "+strings.Join(started, ", ")+"."), nil
	}
	return append(all, "As things are, none of those that wait gets the quota at once."), nil
}

// ownConsequences returns what will happen to the TrainJob itself.
func ownConsequences(job *api.TrainJob, wl *kueue.Workload, does string) (all []string) {
	const again = "it is queued again, in its place by the time of its submission"
	inQueue := queued(job, wl)
	switch {
	case does == "resume" && !inQueue:
		return []string{"It runs at once, outside quota."}
	case does == "resume":
		return []string{"I" + again[1:] + "."}
	case inQueue && (wl == nil || wl.Status.Admission == nil):
		all = append(all, "It is no longer considered.")
	default:
		all = append(all, "Its pods get SIGTERM, and what it has computed since its last checkpoint is lost.")
	}
	if inQueue && wl != nil && wl.Status.Admission != nil {
		all = append(all, "When they have ended, its quota is free.")
	}
	if does == "restart" {
		all = append(all, "Then "+again+"; others may get the quota first.")
	}
	return all
}
