package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/util/placement"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// facts reads all that is known of a TrainJob.
func (s *session) facts(ctx context.Context, job *api.TrainJob, q *queues) (*explain.Facts, error) {
	f := q.factsOf(job)
	var pods corev1.PodList
	if _, err := s.list(ctx, &pods, "pods in namespace "+job.Namespace, client.InNamespace(job.Namespace),
		client.MatchingLabels{jobset.JobSetNameKey: job.Name}); err != nil {
		return nil, err
	}
	f.Pods = pods.Items
	js := &jobset.JobSet{}
	switch err := s.client.Get(ctx, client.ObjectKeyFromObject(job), js); {
	case err == nil:
		f.JobSet = js
	case apierrors.IsForbidden(err):
		s.lacks("get jobsets.jobset.x-k8s.io in namespace " + job.Namespace)
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	if err := s.events(ctx, f); err != nil {
		return nil, err
	}
	if err := s.decide(ctx, f, q); err != nil {
		return nil, err
	}
	f.KueueSeen, f.WebhookDown = s.kueueSeen(ctx), s.webhookDown(ctx, job)
	f.Missing = s.missing
	return f, nil
}

// factsOf returns what the queues show of a TrainJob.
func (q *queues) factsOf(job *api.TrainJob) *explain.Facts {
	return &explain.Facts{
		Now: time.Now(), Job: job, Workload: q.index.WorkloadOf(job), Queues: q.index,
		Read: explain.Read{
			QueuesRead: q.localQueues != nowhere, ClusterQueuesRead: q.clusterQueues,
			OwnRead: q.workloads != nowhere, OthersRead: q.workloads == everywhere, Assumed: q.assumed,
		},
	}
}

// decide has a simulation say what Kueue decides about a TrainJob that waits, if the user may read what that needs.
func (s *session) decide(ctx context.Context, f *explain.Facts, q *queues) error {
	if wl := f.Workload; wl == nil || !q.complete() || !workload.IsAdmissible(wl) {
		return nil
	}
	if err := s.useGates(ctx, q.Config); err != nil {
		return err
	}
	var err error
	if f.Decision, err = simulate.Decide(ctx, &q.Cluster, client.ObjectKeyFromObject(f.Workload), f.Now); err != nil {
		fmt.Fprintf(s.streams.ErrOut, "Kueue's last message is read, because the simulation has failed: %v\n", err)
	}
	return ctx.Err()
}

// workloadOf returns a TrainJob's Workload among those of its namespace; nil if there is none.
func workloadOf(job *api.TrainJob, workloads []kueue.Workload) *kueue.Workload {
	return explain.NewQueues(simulate.Cluster{Workloads: workloads}).WorkloadOf(job)
}

// events reads the events about a TrainJob and what belongs to it.
func (s *session) events(ctx context.Context, f *explain.Facts) error {
	var events corev1.EventList
	if _, err := s.list(
		ctx,
		&events,
		"events in namespace "+f.Job.Namespace,
		client.InNamespace(f.Job.Namespace),
	); err != nil {
		return err
	}
	about := map[string]bool{"TrainJob/" + f.Job.Name: true, "JobSet/" + f.Job.Name: true}
	if f.Workload != nil {
		about["Workload/"+f.Workload.Name] = true
	}
	for i := range f.Pods {
		about["Pod/"+f.Pods[i].Name] = true
	}
	if f.JobSet != nil {
		for _, rj := range f.JobSet.Spec.ReplicatedJobs {
			for i := range int(rj.Replicas) {
				about["Job/"+placement.GenJobName(f.JobSet.Name, rj.Name, i)] = true
			}
		}
	}
	for _, e := range events.Items {
		if about[e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name] {
			f.Events = append(f.Events, e)
		}
	}
	return nil
}

// webhookDown returns the name of a webhook for TrainJobs that doesn't answer; "" for none. It asks by a dry run of a
// change that changes nothing, which every user of the TrainJob may make.
func (s *session) webhookDown(ctx context.Context, job *api.TrainJob) string {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"signalbox.dev/probe":null}}}`))
	err := s.client.Patch(ctx, job.DeepCopy(), patch, client.DryRunAll, fieldOwner)
	if err == nil {
		return ""
	}
	_, rest, failed := strings.Cut(err.Error(), `failed calling webhook "`)
	name, _, _ := strings.Cut(rest, `"`)
	if !failed {
		return ""
	}
	return name
}

// kueueLease is the Lease of Kueue's leader (Kueue v0.19.2, config/components/manager/controller_manager_config.yaml).
const kueueLease = "c1f6bfd2.kueue.x-k8s.io"

// kueueSeen returns when Kueue's leader has last renewed its Lease; nil if that can't be read. It is no fact of the
// user's, so that a missing right isn't worth a word.
func (s *session) kueueSeen(ctx context.Context) *time.Time {
	var lease coordinationv1.Lease
	key := client.ObjectKey{Namespace: s.kueueNamespace, Name: kueueLease}
	if err := s.client.Get(ctx, key, &lease); err != nil || lease.Spec.RenewTime == nil {
		return nil
	}
	return &lease.Spec.RenewTime.Time
}
