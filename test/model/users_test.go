package model

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
)

// collectorActions are the steps of the garbage collector.
func (w *world) collectorActions() []action {
	there, going := map[types.UID]bool{}, map[types.UID]bool{}
	children := map[types.UID]int{}
	everything := map[string][]client.Object{}
	for _, kind := range []string{"TrainJob", "Workload", "JobSet", "Job", "Pod"} {
		everything[kind] = w.all(kind)
		for _, o := range everything[kind] {
			there[o.GetUID()] = true
			going[o.GetUID()] = !o.GetDeletionTimestamp().IsZero() &&
				controllerutil.ContainsFinalizer(o, metav1.FinalizerDeleteDependents)
			if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
				children[owner.UID]++
			}
		}
	}
	var all []action
	for _, kind := range []string{"Workload", "JobSet", "Job", "Pod"} {
		for _, o := range everything[kind] {
			owner := metav1.GetControllerOfNoCopy(o)
			if owner != nil && (!there[owner.UID] || going[owner.UID] && ptr.Deref(owner.BlockOwnerDeletion, false)) &&
				o.GetDeletionTimestamp().IsZero() {
				all = append(all, action{"the garbage collector deletes " + kind + " " + o.GetName(), true, func(w *world) {
					how := metav1.DeletePropagationBackground
					if there[owner.UID] && kind != "Pod" {
						how = metav1.DeletePropagationForeground
					}
					must(w.api().Delete(background, o.DeepCopyObject().(client.Object), client.PropagationPolicy(how)))
				}})
			}
		}
	}
	for _, kind := range []string{"JobSet", "Job"} {
		for _, o := range everything[kind] {
			if going[o.GetUID()] && children[o.GetUID()] == 0 {
				all = append(all, action{"the garbage collector finalizes " + kind + " " + o.GetName(), true, func(w *world) {
					o := o.DeepCopyObject().(client.Object)
					controllerutil.RemoveFinalizer(o, metav1.FinalizerDeleteDependents)
					w.update(o)
				}})
			}
		}
	}
	return all
}

func (w *world) userActions() []action {
	var all []action
	there := map[string]bool{}
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		there[tj.Name] = true
		if w.budget.Deletions > 0 && tj.DeletionTimestamp.IsZero() {
			all = append(all, action{"a user deletes " + tj.Name, false, func(w *world) {
				w.budget.Deletions--
				must(w.api().Delete(background, tj.DeepCopy()))
			}})
		}
	}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if w.budget.Deactivations > 0 && workload.IsActive(wl) && !workloadfinish.IsFinished(wl) &&
			wl.Annotations[integration.DeactivateAnnotation] == "" {
			all = append(all, action{"a user deactivates " + wl.Name, false, func(w *world) {
				w.budget.Deactivations--
				wl := wl.DeepCopy()
				if workload.HasQuotaReservation(wl) { // as the webhook does
					wl.Annotations = map[string]string{integration.DeactivateAnnotation: "user"}
				} else {
					wl.Spec.Active = ptr.To(false)
				}
				w.update(wl)
			}})
		}
		if w.budget.Deletions > 0 && wl.DeletionTimestamp.IsZero() {
			all = append(all, action{"a user deletes Workload " + wl.Name, false, func(w *world) {
				w.budget.Deletions--
				must(w.api().Delete(background, wl.DeepCopy()))
			}})
		}
	}
	for _, name := range names {
		if w.budget.Creations > 0 && !there[name] {
			all = append(all, action{"a user creates " + name + " again", false, func(w *world) {
				w.budget.Creations--
				must(w.api().Create(background, trainJob(name)))
			}})
		}
	}
	return all
}
