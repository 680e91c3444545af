package model

import (
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
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
			wl.Annotations[integration.DeactivateAnnotation] == "" {
			all = append(all, action{"a user deactivates " + wl.Name, maybe, func(w *world) {
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
			all = append(all, action{"a user deletes Workload " + wl.Name, maybe, func(w *world) {
				w.budget.Deletions--
				must(w.api().Delete(background, wl.DeepCopy()))
			}})
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
