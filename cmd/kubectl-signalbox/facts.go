package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// facts reads all that is known of a TrainJob.
func (s *session) facts(ctx context.Context, job *api.TrainJob, q *queues) (*explain.Facts, error) {
	f := q.factsOf(job)
	var pods corev1.PodList
	if _, err := s.list(ctx, &pods, "pods in namespace "+job.Namespace, client.InNamespace(job.Namespace),
		podsOf(job.Name)); err != nil {
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
	var err error
	if f.Dependencies, err = s.dependencies(ctx, job, q); err != nil {
		return nil, err
	}
	f.KueueSeen = s.kueueSeen(ctx)
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

// mostDependencies is of how many TrainJobs it is said that others run after them.
const mostDependencies = 64

// dependencies reads the TrainJobs that one waits for, each followed by those that it waits for itself, each once.
func (s *session) dependencies(
	ctx context.Context, job *api.TrainJob, q *queues,
) (all []explain.Dependency, err error) {
	seen := sets.New(job.Name)
	var add func(of *api.TrainJob, depth int) error
	add = func(of *api.TrainJob, depth int) error {
		if !after.Waits(of) {
			return nil
		}
		for _, on := range after.Of(of) {
			if len(all) >= mostDependencies {
				return nil
			}
			d := explain.Dependency{Name: on.Name, Of: of.Name, When: on.When, State: "Missing", Depth: depth}
			other := &api.TrainJob{}
			err := s.client.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: on.Name}, other)
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("reading TrainJob %s, which %s runs after: %w", on.Name, of.Name, err)
			}
			if err == nil {
				d.State = explain.Brief(q.factsOf(other)).State
			}
			all = append(all, d)
			if seen.Has(on.Name) || err != nil {
				continue
			}
			seen.Insert(on.Name)
			if err := add(other, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return all, add(job, 0)
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

// workload reads a TrainJob's Workload; nil if there is none, or if the user may not read it.
func (s *session) workload(ctx context.Context, job *api.TrainJob) (*kueue.Workload, error) {
	q, err := s.workloads(ctx, job.Namespace)
	if err != nil {
		return nil, err
	}
	return q.WorkloadOf(job), nil
}

// workloads reads the Workloads of a namespace; none if the user may not read them.
func (s *session) workloads(ctx context.Context, namespace string) (*explain.Queues, error) {
	var list kueue.WorkloadList
	if _, err := s.list(ctx, &list, "workloads.kueue.x-k8s.io in namespace "+namespace,
		client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return explain.NewQueues(simulate.Cluster{Workloads: list.Items}), nil
}

// pods reads the pods of a TrainJob of the session's namespace.
func (s *session) pods(ctx context.Context, job string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := s.client.List(ctx, &list, client.InNamespace(s.namespace), podsOf(job)); err != nil {
		return nil, fmt.Errorf("listing the pods of TrainJob %s: %w", job, err)
	}
	return list.Items, nil
}

// podsOf selects the pods of a TrainJob in its namespace.
func podsOf(job string) client.MatchingLabels {
	return client.MatchingLabels{jobset.JobSetNameKey: job}
}

// events reads the events about a TrainJob and what belongs to it.
func (s *session) events(ctx context.Context, f *explain.Facts) error {
	var events corev1.EventList
	namespace := f.Job.Namespace
	if _, err := s.list(ctx, &events, "events in namespace "+namespace, client.InNamespace(namespace)); err != nil {
		return err
	}
	about := sets.New("TrainJob/"+f.Job.Name, "JobSet/"+f.Job.Name)
	if f.Workload != nil {
		about.Insert("Workload/" + f.Workload.Name)
	}
	for i := range f.Pods {
		about.Insert("Pod/" + f.Pods[i].Name)
	}
	f.Events = utilslices.Pick(events.Items, func(e *corev1.Event) bool {
		return about.Has(e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name) || e.InvolvedObject.Kind == "Job" &&
			isJobOf(f.JobSet, e.InvolvedObject.Name)
	})
	return nil
}

// isJobOf reports whether a Job has a name of those of a JobSet (placement.GenJobName), which may have millions.
func isJobOf(js *jobset.JobSet, name string) bool {
	return js != nil && slices.ContainsFunc(js.Spec.ReplicatedJobs, func(rj jobset.ReplicatedJob) bool {
		index, found := strings.CutPrefix(name, js.Name+"-"+rj.Name+"-")
		n, err := strconv.Atoi(index)
		return found && err == nil && n >= 0 && n < int(rj.Replicas)
	})
}

// webhookDown returns the name of a webhook for TrainJobs that doesn't answer; "" for none. It asks by a dry run of a
// change that changes nothing, which every user of the TrainJob may make.
func (s *session) webhookDown(ctx context.Context, job *api.TrainJob) string {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"signalbox.dev/probe":null}}}`))
	err := s.client.Patch(ctx, job.DeepCopy(), patch, client.DryRunAll, fieldOwner)
	if err == nil {
		return ""
	}
	_, rest, _ := strings.Cut(err.Error(), `failed calling webhook "`)
	name, _, _ := strings.Cut(rest, `"`)
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
