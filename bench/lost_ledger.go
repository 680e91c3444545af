package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// teamLabel is the label by which Signalbox's records tell those that train from those that preempt them.
const teamLabel = "team"

// trainingTeam is the team of those that train.
const trainingTeam = "training"

// ledgerSums compares what Signalbox has recorded of the whole measurement with what the pods say, in GPU seconds.
type ledgerSums struct {
	Useful     float64 `json:"usefulGPUSeconds"`
	Lost       float64 `json:"lostGPUSeconds"`
	Idle       float64 `json:"idleGPUSeconds"`
	Unknown    float64 `json:"unknownGPUSeconds"`
	PodsUseful float64 `json:"podsUsefulGPUSeconds"`
	PodsLost   float64 `json:"podsLostGPUSeconds"`
}

// ran is how much more, or less, the records say that pods ran than the pods do: a part of that.
func (s *ledgerSums) ran() float64 {
	pods := s.PodsUseful + s.PodsLost
	return (s.Useful + s.Lost + s.Unknown - pods) / pods
}

// settleLedger stops all that runs, so that every run is recorded, and returns the sums.
func (w *waiters) settleLedger(ctx context.Context, p *trainings) (*ledgerSums, error) {
	cq := &kueue.ClusterQueue{}
	if err := w.client.Get(ctx, types.NamespacedName{Name: lostQueue}, cq); err != nil {
		return nil, err
	}
	before := cq.DeepCopy()
	cq.Spec.StopPolicy = ptr.To(kueue.HoldAndDrain)
	if err := w.client.Patch(ctx, cq, client.MergeFrom(before)); err != nil {
		return nil, fmt.Errorf("stopping the queue: %w", err)
	}
	if err := wait.PollUntilContextTimeout(ctx, time.Second, 5*time.Minute, true, w.allReleased); err != nil {
		return nil, fmt.Errorf("waiting until no TrainJob holds quota: %w", err)
	}
	return w.sums(ctx, p)
}

// allReleased reports whether no Workload holds quota, and no pod is left that runs.
func (w *waiters) allReleased(ctx context.Context) (bool, error) {
	var workloads kueue.WorkloadList
	if err := w.client.List(ctx, &workloads, client.InNamespace(namespace)); err != nil {
		return false, err
	}
	for i := range workloads.Items {
		conditions := workloads.Items[i].Status.Conditions
		if apimeta.IsStatusConditionTrue(conditions, kueue.WorkloadQuotaReserved) &&
			!apimeta.IsStatusConditionTrue(conditions, kueue.WorkloadFinished) {
			return false, nil
		}
	}
	return true, nil
}

// sums reads the records.
func (w *waiters) sums(ctx context.Context, p *trainings) (*ledgerSums, error) {
	var records usageapi.QuotaUsageList
	if err := w.client.List(ctx, &records, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing the records of used quota: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &ledgerSums{PodsUseful: p.spent.Useful, PodsLost: p.heldLost}
	for i := range records.Items {
		for _, row := range records.Items[i].Rows {
			if row.Team != trainingTeam || row.Resource != string(gpu) {
				continue
			}
			s.Useful += float64(row.Useful) / 1000
			s.Lost += float64(row.Lost) / 1000
			s.Idle += float64(row.Idle) / 1000
			s.Unknown += float64(row.Unknown) / 1000
		}
	}
	return s, nil
}

// markdown returns the rows of the page; none where nothing is recorded.
func (s *ledgerSums) markdown() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("\n| with a drain at the end | useful | lost | together | idle | unknown |\n"+
		"| --- | --: | --: | --: | --: | --: |\n| the pods say | %.0f | %.0f | %.0f | | |\n"+
		"| the ledger | %.0f | %.0f | %.0f (%+.2f %%) | %.0f | %.0f |\n",
		s.PodsUseful, s.PodsLost, s.PodsUseful+s.PodsLost, s.Useful, s.Lost, s.Useful+s.Lost+s.Unknown, 100*s.ran(),
		s.Idle, s.Unknown)
}

// leaving is a pod that was told to end: its process runs on until it is gone.
type leaving struct {
	gpus int64
	// saved is when it saved its work last, or began.
	saved time.Time
}

// gone reports whether a pod holds no GPU any more.
func gone(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
