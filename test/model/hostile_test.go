package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Hostile users act on the first TrainJob and on what belongs to it. Their requests pass the webhooks; what the chart's
// policies reject is not among them, unless others may do it.

const (
	foreign = "example.com/mine" // a user's finalizer
	mine    = "example.com/mine" // and label
)

// meddled reports whether hostile users may have kept the TrainJobs of a name from their ends.
func (w *world) meddled(name string) bool {
	return w.ledger.Harmed || w.ledger.Hostile && name == names[0]
}

// rejects is which writes of the first TrainJob are rejected: because it is too large, or by a webhook of others.
type rejects struct{ Starts, Stops, Spec, Status, Large bool }

func (r rejects) err() error {
	if r.Large {
		return apierrors.NewInternalError(errors.New("etcdserver: request is too large"))
	}
	return apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, names[0], errors.New("a webhook says no"))
}

// patch returns the answer to a patch of an object if it is rejected.
func (r rejects) patch(o client.Object, patch client.Patch) error {
	if _, ok := o.(*api.TrainJob); !ok || o.GetName() != names[0] {
		return nil
	}
	data, err := patch.Data(o)
	must(err)
	starts := strings.Contains(string(data), `"/spec/suspend","value":false`)
	stops := strings.Contains(string(data), `"suspend":true`)
	if r.Spec || r.Starts && starts || r.Stops && stops {
		return r.err()
	}
	return nil
}

// status does the same for the status.
func (r rejects) status(o client.Object) error {
	if _, ok := o.(*api.TrainJob); ok && o.GetName() == names[0] && r.Status {
		return r.err()
	}
	return nil
}

// victim is the first TrainJob with all that belongs to it; each is nil if there is none.
type victim struct {
	job       *api.TrainJob
	workloads []*kueue.Workload
	jobSet    *jobset.JobSet
	child     *batchv1.Job
	pod       *corev1.Pod
}

func (w *world) victim() victim {
	var v victim
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		if tj.Name == names[0] {
			v.job = tj
		}
	}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if owner := metav1.GetControllerOf(wl); owner != nil && owner.Name == names[0] {
			v.workloads = append(v.workloads, wl)
		}
	}
	for _, js := range list[*jobset.JobSet](w, "JobSet") {
		if js.Name == names[0] {
			v.jobSet = js
		}
	}
	for _, job := range list[*batchv1.Job](w, "Job") {
		if v.jobSet != nil && metav1.IsControlledBy(job, v.jobSet) {
			v.child = job
		}
	}
	for _, pod := range list[*corev1.Pod](w, "Pod") {
		if v.child != nil && metav1.IsControlledBy(pod, v.child) {
			v.pod = pod
		}
	}
	return v
}

// queued reports whether a TrainJob waits for quota that it can get.
func (w *world) queued(tj *api.TrainJob) bool {
	return tj.Labels[constants.QueueLabel] == "queue" && !w.outside()
}

// outside reports whether the TrainJobs' namespace has left those that Kueue manages.
func (w *world) outside() bool {
	return w.all("Namespace")[0].GetLabels()["kubernetes.io/metadata.name"] != namespace
}

// hostileActions are what hostile users, and admins who don't know of them, may do now.
func (w *world) hostileActions() []action {
	if w.budget.Hostile == 0 {
		return nil
	}
	v := w.victim()
	all := slices.Concat(v.jobActions(), v.workloadActions(), v.childActions(), v.forgeries(w), w.environment())
	for i := range all {
		do := all[i].do
		all[i].do = func(w *world) {
			w.budget.Hostile--
			w.ledger.Hostile = true
			do(w)
		}
	}
	return all
}

// patches are what users send of a TrainJob.
var patches = map[string]string{
	"its queue taken off":                `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":null}}}`,
	"its queue taken off, and suspended": `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":null}},"spec":{"suspend":true}}`,
	"another queue":                      `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"other"}}}`,
	"another queue, and suspended":       `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"other"}},"spec":{"suspend":true}}`,
	"its queue":                          `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"queue"}}}`,
	"suspended":                          `{"spec":{"suspend":true}}`,
	"resumed":                            `{"spec":{"suspend":false}}`,
	"stopped":                            `{"metadata":{"annotations":{"signalbox.dev/stop":"true"}}}`,
	"its stop taken off":                 `{"metadata":{"annotations":{"signalbox.dev/stop":null}}}`,
	"elastic":                            `{"metadata":{"annotations":{"kueue.x-k8s.io/elastic-job":"true"}}}`,
	"a maximum time":                     `{"metadata":{"labels":{"kueue.x-k8s.io/max-exec-time-seconds":"7"}}}`,
	"a priority class that nobody knows": `{"metadata":{"labels":{"kueue.x-k8s.io/priority-class":"nonesuch"}}}`,
	"a prebuilt Workload":                `{"metadata":{"labels":{"kueue.x-k8s.io/prebuilt-workload-name":"nonesuch"}}}`,
	"a wrong minimum":                    `{"metadata":{"annotations":{"kueue.x-k8s.io/job-min-parallelism":"-1"}}}`,
	"a finalizer":                        `{"metadata":{"finalizers":["example.com/mine"]}}`,
	"a made-up owner":                    `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"any","uid":"any"}]}}`,
	"a made-up controller":               `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"any","uid":"any","controller":true}]}}`,
	"two nodes":                          `{"spec":{"trainer":{"numNodes":2}}}`,
	"an entry":                           `{"spec":{"runtimePatches":[{"manager":"a.com/a"},{"manager":"kueue.x-k8s.io/manager"}]}}`,
}

func (v victim) jobActions() []action {
	if v.job == nil {
		return nil
	}
	var all []action
	if v.job.DeletionTimestamp.IsZero() {
		for _, how := range []metav1.DeletionPropagation{
			metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
		} {
			for _, kept := range []bool{false, true} {
				name := fmt.Sprintf("a user deletes first in the %s", how)
				if kept {
					name += ", with a finalizer"
				}
				all = append(all, action{name, maybe, func(w *world) {
					if kept {
						w.finalize(v.job)
					}
					must(w.api().Delete(background, v.job.DeepCopy(), client.PropagationPolicy(how)))
				}})
			}
		}
	}
	for name, patch := range patches {
		all = append(all, action{"a user sends first with " + name, maybe, func(w *world) { w.send(v.job, patch) }})
	}
	for name, labels := range map[string]map[string]string{
		"no queue": {}, "another queue": {constants.QueueLabel: "other"},
	} {
		all = append(all, action{"while no webhook answers, a user gives first " + name, maybe, func(w *world) {
			job := v.job.DeepCopy()
			job.Labels = labels
			w.update(job)
		}})
	}
	slices.SortFunc(all, func(a, b action) int { return strings.Compare(a.name, b.name) })
	return append(all, v.kept(v.job, "TrainJob")...)
}

// kept are what keeps an object from being deleted: a finalizer, and an object that names it as its owner.
func (v victim) kept(o client.Object, kind string) []action {
	all := []action{{"a user creates what blocks the deletion of " + kind + " " + o.GetName(), maybe, func(w *world) {
		gvk, err := w.store.GroupVersionKindFor(o)
		must(err)
		must(w.api().Create(background, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("blocker-%d", w.uids), Finalizers: []string{foreign},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: o.GetName(),
				UID: o.GetUID(), BlockOwnerDeletion: ptr.To(true)}},
		}}))
	}}}
	if !slices.Contains(o.GetFinalizers(), foreign) && o.GetDeletionTimestamp().IsZero() {
		all = append(all, action{"a user finalizes " + kind + " " + o.GetName(), maybe, func(w *world) { w.finalize(o) }})
	}
	return all
}

func (w *world) finalize(o client.Object) {
	o = o.DeepCopyObject().(client.Object)
	o.SetFinalizers(append(o.GetFinalizers(), foreign))
	w.update(o)
}

// send sends a merge patch of a TrainJob through the webhooks.
func (w *world) send(job *api.TrainJob, patch string) {
	before := job.DeepCopy()
	before.APIVersion, before.Kind = "trainer.kubeflow.org/v1alpha1", "TrainJob"
	old, err := json.Marshal(before)
	must(err)
	after, refusal, err := w.chain().request("user", old, merge(old, patch))
	must(err)
	if refusal != "" {
		return
	}
	sent := &api.TrainJob{}
	must(json.Unmarshal(after, sent))
	if !job.DeletionTimestamp.IsZero() {
		sent.Finalizers = job.Finalizers // nobody may add one any more
	}
	if !equal(job, sent) {
		w.update(sent)
	}
}

// sendWorkload sends a merge patch of a Workload through the webhook.
func (w *world) sendWorkload(wl *kueue.Workload, patch string) {
	before := wl.DeepCopy()
	before.APIVersion, before.Kind = kueue.SchemeGroupVersion.String(), "Workload"
	old, err := json.Marshal(before)
	must(err)
	after, refusal, err := review(admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "request", Operation: admissionv1.Update, Namespace: namespace, Name: wl.Name,
		OldObject: runtime.RawExtension{Raw: old}, UserInfo: authenticationv1.UserInfo{Username: "user"},
	}}, merge(old, patch), []*admission.Webhook{w.chain().workloads}, nil)
	must(err)
	if refusal != "" {
		return
	}
	sent := &kueue.Workload{}
	must(json.Unmarshal(after, sent))
	w.update(sent)
}

func equal(a, b *api.TrainJob) bool { return describe(a) == describe(b) }

func (v victim) workloadActions() []action {
	var all []action
	for _, wl := range v.workloads {
		all = append(all, v.kept(wl, "Workload")...)
		for name, patch := range map[string]string{
			"deactivates": `{"spec":{"active":false}}`, "activates": `{"spec":{"active":true}}`,
			"activates, and takes the wish from": `{"metadata":{"annotations":{"signalbox.dev/deactivate":null}},"spec":{"active":true}}`,
		} {
			all = append(all, action{"a user " + name + " " + wl.Name, maybe, func(w *world) { w.sendWorkload(wl, patch) }})
		}
		if !wl.DeletionTimestamp.IsZero() {
			continue
		}
		for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
			metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
			for _, kept := range []bool{false, true} {
				name := fmt.Sprintf("a user deletes %s by %s", wl.Name, how)
				if kept {
					name += ", with a finalizer"
				}
				all = append(all, action{name, maybe, func(w *world) {
					if kept {
						w.finalize(wl)
					}
					must(w.api().Delete(background, wl.DeepCopy(), client.PropagationPolicy(how)))
				}})
			}
		}
	}
	if v.job != nil && len(v.workloads) > 0 {
		for _, name := range []string{"a-second", "zz-second"} {
			all = append(all, action{"a user creates Workload " + name, maybe, func(w *world) {
				first := v.workloads[0]
				second := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: first.Labels,
					Finalizers: first.Finalizers}, Spec: *first.Spec.DeepCopy()}
				controlled(second, v.job)
				if err := w.api().Create(background, second); !apierrors.IsAlreadyExists(err) {
					must(err)
				}
			}})
		}
	}
	slices.SortFunc(all, func(a, b action) int { return strings.Compare(a.name, b.name) })
	return all
}
