package model

import (
	"context"
	"fmt"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
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
