package model

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// environment are what happens around the TrainJobs.
func (w *world) environment() []action {
	rejected := func(name string, r rejects) action {
		return action{name, maybe, func(w *world) { w.rejects = r }}
	}
	all := []action{
		rejected("a user fills first: nothing of it can be written", rejects{Spec: true, Status: true, Large: true}),
		rejected("a user fills first: its status can't be written", rejects{Status: true, Large: true}),
		rejected("a webhook of others rejects all updates of first", rejects{Spec: true}),
		rejected("a webhook of others rejects starts of first", rejects{Starts: true}),
		rejected("a webhook of others rejects stops of first", rejects{Stops: true}),
	}
	if w.rejects != (rejects{}) {
		all = append(all, rejected("first can be written again", rejects{}))
	}
	if !w.outside() {
		all = append(all, action{"the namespace leaves Kueue's selector", maybe, func(w *world) { w.relabel("kube-system") }})
	}
	for _, o := range w.all("ClusterTrainingRuntime") {
		rt := o.(*api.ClusterTrainingRuntime)
		all = append(all, action{"an author changes the runtime", maybe, func(w *world) {
			rt := rt.DeepCopy()
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "example.com/train:2"
			w.update(rt)
			w.wakeWaiting()
		}}, action{"an author deletes the runtime", maybe, func(w *world) {
			w.ledger.Harmed = true
			must(w.store.Delete(background, rt.DeepCopy()))
			w.wakeWaiting()
		}})
	}
	return all
}

// wakeWaiting enqueues the TrainJobs that a changed runtime concerns.
func (w *world) wakeWaiting() {
	for _, o := range w.cache["TrainJob"] {
		if ptr.Deref(o.(*api.TrainJob).Spec.Suspend, false) {
			w.queue[o.GetName()] = true
		}
	}
}

// relabel gives the namespace of all TrainJobs the labels of another.
func (w *world) relabel(as string) {
	w.ledger.Harmed = true
	for _, o := range w.all("Namespace") {
		o := o.DeepCopyObject().(client.Object)
		o.SetLabels(map[string]string{"kubernetes.io/metadata.name": as})
		w.update(o)
	}
	for _, o := range w.cache["TrainJob"] { // integration.(*Reconciler).jobsIn
		w.queue[o.GetName()] = true
	}
}

// relents lets hostile users take back what keeps others: finalizers, what blocks deletions, and forged objects.
func (w *world) relents() {
	w.rejects = rejects{}
	w.relabel(namespace)
	if len(w.all("ClusterTrainingRuntime")) == 0 {
		must(w.store.Create(background, clusterRuntime()))
	}
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		tj := tj.DeepCopy()
		tj.Labels = trainJob(tj.Name).Labels
		for _, name := range []string{
			api.StopAnnotation, "kueue.x-k8s.io/elastic-job", "kueue.x-k8s.io/job-min-parallelism",
		} {
			delete(tj.Annotations, name)
		}
		w.update(tj)
	}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		w.sendWorkload(wl, `{"metadata":{"annotations":{"signalbox.dev/deactivate":null}},"spec":{"active":true}}`)
	}
	for _, kind := range owning {
		for _, o := range w.all(kind) {
			_, forged := o.GetLabels()[mine]
			if slices.Contains(o.GetFinalizers(), foreign) {
				w.unfinalize(o, foreign)
			}
			if kind != "ConfigMap" && !forged {
				continue
			}
			there := o.DeepCopyObject().(client.Object)
			err := w.api().Delete(background, there, client.PropagationPolicy(metav1.DeletePropagationBackground),
				client.Preconditions{UID: ptr.To(o.GetUID())})
			must(client.IgnoreNotFound(err))
			if pod, ok := o.(*corev1.Pod); ok { // without grace
				if err := w.store.Get(background, client.ObjectKeyFromObject(pod), there); err == nil {
					w.terminate(there.(*corev1.Pod))
				}
			}
		}
	}
}
