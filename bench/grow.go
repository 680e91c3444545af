package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// growOptions are what is measured of TrainJobs that grow.
type growOptions struct {
	trainOptions
	// every is Signalbox's grow.every; 0 if nothing grows.
	every time.Duration
	// policies is a file of what the chart renders, with the policy by which nothing is preempted for what grows.
	policies string
}

const (
	// growPolicy is the name of that policy.
	growPolicy = "signalbox-grow"
	// growNodes is how many nodes of one GPU a TrainJob asks for; it runs with one, too.
	growNodes = 4
	// growQuota is the quota for each TrainJob, when all have started with one node.
	growQuota = 3
	// thirdEvery is how often, on average, an urgent TrainJob takes a third of the quota, and thirdRuns for how long.
	thirdEvery = 2 * time.Minute
	thirdRuns  = "1m"
)

// growing measures what becomes of the time of GPUs with TrainJobs that were partially admitted.
func growing(ctx context.Context, o growOptions) error {
	quota := growQuota * o.jobs
	g, err := o.ground(ctx, (quota+7)/8, 1, thirdRuns)
	if err != nil {
		return err
	}
	column, further := "growing", sections{"preemption": {"checkpointWithin": o.within.String()}}
	if o.every > 0 {
		further["grow"] = map[string]any{"enabled": true, "every": o.every.String(), "policy": growPolicy}
		if err := g.addPolicy(ctx, o.policies); err != nil {
			return err
		}
	} else {
		column = "not growing"
	}
	p := newTrainings()
	reports, err := withReports(ctx, g, o.cluster, further)
	if err != nil {
		return err
	}
	p.saves = reports.send
	t, err := o.begin(ctx, g, p, &trainRun{
		Title: "TrainJobs that grow", Columns: []string{"growing", "not growing"}, Column: column,
		Says: fmt.Sprintf("%d TrainJobs of %d nodes of one GPU are admitted with one node each. Then they share %d GPUs for "+
			"%s (seed %d), of which an urgent TrainJob takes a third for %s, every %s on average. Each saves its work every "+
			"%s. Signalbox's checkpointWithin is %s, and grow.every %s where they grow.",
			o.jobs, growNodes, quota, o.over, o.seed, thirdRuns, thirdEvery, savesEvery, o.within, o.every),
	})
	if err != nil {
		return err
	}
	defer t.end()
	if err := t.trainInPart(ctx, quota); err != nil {
		return err
	}
	if err := t.disturb(ctx, thirdEvery, func(job *api.TrainJob) {
		job.Spec.Trainer.NumNodes = ptr.To(int32(quota / 3))
	}); err != nil {
		return err
	}
	t.addSpent()
	if err := t.addGrown(ctx); err != nil {
		return err
	}
	return t.write(ctx)
}

// addPolicy installs what the chart renders for TrainJobs that grow.
func (g *ground) addPolicy(ctx context.Context, path string) error {
	rendered, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--policies: %w", err)
	}
	var policy []string
	for _, document := range strings.Split(string(rendered), "\n---\n") {
		if strings.Contains(document, "\n  name: "+growPolicy+"\n") {
			policy = append(policy, document)
		}
	}
	if len(policy) != 2 {
		return fmt.Errorf("%s has %d objects named %s, not a policy and its binding", path, len(policy), growPolicy)
	}
	return g.apply(ctx, strings.Join(policy, "\n---\n"))
}

// trainInPart submits those that train, has each admitted with one node, and then gives the queue its quota.
func (t *trial) trainInPart(ctx context.Context, all int) error {
	err := t.train(ctx, func(dice *rand.Rand) *training {
		work := t.over / 2 * growNodes
		return &training{gpus: 1, work: work + time.Duration(dice.Int64N(int64(work)))}
	}, func(job *api.TrainJob) {
		job.Spec.Trainer.NumNodes = ptr.To(int32(growNodes))
		job.Annotations[api.GrowAnnotation] = "true"
		job.Annotations[overrides.MinParallelismAnnotation] = "1"
	})
	for n := 1; err == nil && n <= t.jobs; n++ {
		if err = t.resize(ctx, n); err == nil {
			err = t.until(ctx, "one more is admitted", t.have(n, admitted))
		}
	}
	if err != nil {
		return err
	}
	if err := t.until(ctx, "all run", t.have(t.jobs, runs)); err != nil {
		return err
	}
	t.trainings.mu.Lock()
	t.trainings.spent = spent{} // it is measured from now on
	t.trainings.mu.Unlock()
	return t.resize(ctx, all)
}

// resize gives the queue quota for so many GPUs.
func (t *trial) resize(ctx context.Context, gpus int) error {
	return t.patchQueue(ctx, func(spec *kueue.ClusterQueueSpec) {
		spec.ResourceGroups[0].Flavors = []kueue.FlavorQuotas{quota("a100", gpus)}
	})
}

// addGrown adds to the page how often TrainJobs have grown.
func (t *trial) addGrown(ctx context.Context) error {
	var all corev1.EventList
	err := t.client.List(ctx, &all, client.InNamespace(namespace), client.MatchingFields{"reason": "Grows"})
	grown := 0
	for i := range all.Items {
		grown += max(1, int(all.Items[i].Count))
	}
	t.page.add("times a TrainJob grew", float64(grown))
	return err
}
