package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
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

// settleLedger stops all that runs, so that every run is recorded, and adds to the page what Signalbox has recorded of
// the whole measurement, and what the pods say.
func (t *trial) settleLedger(ctx context.Context) error {
	if err := t.patchQueue(ctx, func(spec *kueue.ClusterQueueSpec) {
		spec.StopPolicy = ptr.To(kueue.HoldAndDrain)
	}); err != nil {
		return fmt.Errorf("stopping the queue: %w", err)
	}
	if err := wait.PollUntilContextTimeout(ctx, time.Second, 5*time.Minute, true, t.allReleased); err != nil {
		return fmt.Errorf("waiting until no TrainJob holds quota: %w", err)
	}
	sum, err := t.recorded(ctx)
	if err != nil {
		return fmt.Errorf("listing the records of used quota: %w", err)
	}
	t.trainings.mu.Lock()
	defer t.trainings.mu.Unlock()
	useful, lost, p := t.trainings.spent.Useful, t.trainings.heldLost, t.page
	const pods, ledger = "with a drain at the end, by the pods: GPU seconds ", "… by the ledger: "
	p.add(pods+"useful", useful)
	p.add(pods+"lost", lost)
	p.add(ledger+"useful", sum.useful)
	p.add(ledger+"lost", sum.lost)
	p.add(ledger+"idle", sum.idle)
	p.add(ledger+"unknown", sum.unknown)
	p.add(ledger+"more than by the pods, % of useful, lost and unknown",
		100*((sum.useful+sum.lost+sum.unknown)/max(useful+lost, 1)-1))
	return nil
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

// ledgerSums are GPU seconds of those that train.
type ledgerSums struct{ useful, lost, idle, unknown float64 }

// recorded returns what Signalbox has recorded.
func (w *waiters) recorded(ctx context.Context) (s ledgerSums, err error) {
	var records usageapi.QuotaUsageList
	err = w.client.List(ctx, &records, client.InNamespace(namespace))
	for i := range records.Items {
		for _, row := range records.Items[i].Rows {
			if row.Team != trainingTeam || row.Resource != string(gpu) {
				continue
			}
			s.useful += float64(row.Useful) / 1000
			s.lost += float64(row.Lost) / 1000
			s.idle += float64(row.Idle) / 1000
			s.unknown += float64(row.Unknown) / 1000
		}
	}
	return s, err
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
