package model

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func (w *world) userActions() []action {
	var all []action
	there := map[string]bool{}
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		there[tj.Name] = true
		if w.budget.Deletions > 0 && tj.DeletionTimestamp.IsZero() {
			all = append(all, action{"a user deletes " + tj.Name, maybe, func(w *world) {
				w.budget.Deletions--
				must(w.api().Delete(background, tj.DeepCopy()))
			}})
		}
	}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if w.budget.Deactivations > 0 && workload.IsActive(wl) && !workloadfinish.IsFinished(wl) &&
			wl.Annotations[api.DeactivateAnnotation] == "" {
			all = append(all, action{"a user deactivates " + wl.Name, maybe, func(w *world) {
				w.budget.Deactivations--
				wl := wl.DeepCopy()
				if workload.HasQuotaReservation(wl) { // as the webhook does
					metav1.SetMetaDataAnnotation(&wl.ObjectMeta, api.DeactivateAnnotation, "user")
				} else {
					wl.Spec.Active = ptr.To(false)
				}
				w.update(wl)
			}})
		}
		if w.budget.Deletions > 0 && wl.DeletionTimestamp.IsZero() {
			all = append(all, action{"a user deletes Workload " + wl.Name, maybe, func(w *world) {
				w.budget.Deletions--
				must(w.api().Delete(background, wl.DeepCopy()))
			}})
		}
	}
	for _, pod := range list[*corev1.Pod](w, "Pod") {
		if w.budget.Checkpoints > 0 && w.ledger.Pods[pod.UID] != "" && pod.Status.Phase == corev1.PodRunning {
			all = append(all, action{"the process of " + pod.Name + " saves its work", maybe, func(w *world) { w.save(pod) }})
		}
	}
	for _, name := range names {
		if w.budget.Creations > 0 && !there[name] {
			all = append(all, action{"a user creates " + name + " again", maybe, func(w *world) {
				w.budget.Creations--
				must(w.api().Create(background, trainJob(name)))
			}})
		}
	}
	return all
}

// save is a checkpoint that a process reports, and that its pod is ready.
func (w *world) save(pod *corev1.Pod) {
	w.budget.Checkpoints--
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		if tj.UID == w.ledger.Pods[pod.UID] {
			tj = tj.DeepCopy()
			tj.Status.TrainerStatus = &trainerapi.TrainerStatus{Metrics: []trainerapi.Metric{
				{Name: "saved", Value: fmt.Sprint(w.budget.Checkpoints)},
			}}
			w.updateStatus(tj)
		}
	}
	for _, js := range list[*jobset.JobSet](w, "JobSet") {
		if js.Name == pod.Labels[jobset.JobSetNameKey] {
			js = js.DeepCopy()
			js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Active: 1, Ready: 1}}
			w.updateStatus(js)
		}
	}
}

// saved has the process of the pod that runs save its work, a minute before the search starts.
func (w *world) saved(t *testing.T) {
	t.Helper()
	for _, pod := range list[*corev1.Pod](w, "Pod") {
		w.budget.Checkpoints++
		w.save(pod)
	}
	for range 10 {
		for _, kind := range watched {
			w.sync(kind)
		}
		if list[*api.TrainJob](w, "TrainJob")[0].Status.Checkpoint != nil {
			w.clock.Step(time.Minute)
			return
		}
		w.reconcile(names[0])
	}
	t.Fatal("no checkpoint is written")
}

// TestBlockedIsWrittenOnce holds that the two reconcilers agree on condition Blocked of a started TrainJob that the
// bundled Trainer can't build: neither removes what the other writes.
func TestBlockedIsWrittenOnce(t *testing.T) {
	w := newWorld()
	for !w.quiet() && len(w.all("Pod")) == 0 {
		next(w).do(w)
	}
	job := &api.TrainJob{}
	must(w.store.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: names[0]}, job))
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.GangModeAnnotation, string(api.GangRequired))
	w.update(job)
	for _, kind := range []string{"Pod", "Job", "JobSet"} {
		for _, o := range w.all(kind) {
			o = o.DeepCopyObject().(client.Object)
			o.SetFinalizers(nil)
			w.update(o)
			must(client.IgnoreNotFound(w.store.Delete(context.Background(), o)))
		}
	}
	before, until := w.writes, w.clock.Now().Add(4*time.Minute)
	for n := 0; n < 500 && w.clock.Now().Before(until); n++ {
		for _, kind := range watched {
			w.sync(kind)
		}
		w.reconcile(names[0])
	}
	must(w.store.Get(context.Background(), client.ObjectKeyFromObject(job), job))
	if c := job.Status.Condition(api.ConditionBlocked); c == nil || w.writes-before > 10 {
		t.Errorf("%d writes, conditions %+v", w.writes-before, job.Status.Conditions)
	}
}

func (v victim) childActions() []action {
	var all []action
	if v.jobSet != nil {
		all = append(all, v.kept(v.jobSet, "JobSet")...)
	}
	if v.child != nil {
		all = append(all, v.kept(v.child, "Job")...)
	}
	if v.pod != nil {
		all = append(all, v.kept(v.pod, "Pod")...)
	}
	return all
}

// forgeries are objects that look as if they were of the TrainJob.
func (v victim) forgeries(w *world) []action {
	labels := map[string]string{jobset.JobSetNameKey: names[0], jobset.JobSetUIDKey: "never-was",
		jobset.ReplicatedJobNameKey: "node", mine: ""}
	if v.jobSet != nil {
		labels[jobset.JobSetUIDKey] = string(v.jobSet.UID)
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
	}
	neverWas := func(kind, version, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: "never-was",
			Controller: ptr.To(true)}}
	}
	pod := func(name string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: "a",
			TerminationGracePeriodSeconds: ptr.To[int64](100_000_000),
			Containers:                    []corev1.Container{{Name: "c", Image: "example.com/none:1"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		return pod
	}
	owned, unbound := pod("forged-owned"), pod("forged-unbound")
	owned.OwnerReferences = neverWas("Job", "batch/v1", names[0]+"-node-0")
	unbound.Spec.NodeName = ""
	job, kept := &batchv1.Job{ObjectMeta: meta("forged-job")}, &batchv1.Job{ObjectMeta: meta("forged-kept")}
	job.OwnerReferences = neverWas("JobSet", jobset.SchemeGroupVersion.String(), names[0])
	job.OwnerReferences[0].Controller = nil // a policy rejects a controller
	kept.OwnerReferences = job.OwnerReferences
	kept.Finalizers = []string{foreign}
	taken := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names[0] + "-node-0",
		Labels: map[string]string{mine: ""}}, Spec: batchv1.JobSpec{Suspend: ptr.To(true)}}
	set := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names[0],
		Labels: map[string]string{mine: ""}}, Spec: jobset.JobSetSpec{Suspend: ptr.To(true)}}
	var all []action
	for name, o := range map[string]client.Object{
		"a pod with the labels of its pods": pod("forged"), "a pod of a Job that never was": owned,
		"a pod of no node": unbound, "a Job of a JobSet that never was": job,
		"such a Job, with a finalizer": kept, "a Job of the name of its Job": taken, "a JobSet of its name": set,
	} {
		kind := ""
		switch o.(type) {
		case *corev1.Pod:
			kind = "Pod"
		case *batchv1.Job:
			kind = "Job"
		default:
			kind = "JobSet"
		}
		if slices.ContainsFunc(w.all(kind), func(there client.Object) bool { return there.GetName() == o.GetName() }) {
			continue
		}
		all = append(all, action{"a user creates " + name, maybe, func(w *world) {
			must(w.api().Create(background, o.DeepCopyObject().(client.Object)))
		}})
	}
	slices.SortFunc(all, func(a, b action) int { return strings.Compare(a.name, b.name) })
	return all
}
