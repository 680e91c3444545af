package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// admit is Kueue's admission of the only Workload.
func (h *harness) admit(change ...func(*kueue.PodSetAssignment)) {
	h.t.Helper()
	wl := h.workload()
	a := kueue.PodSetAssignment{Name: wl.Spec.PodSets[0].Name, Count: ptr.To(wl.Spec.PodSets[0].Count),
		Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a"},
		ResourceUsage: corev1.ResourceList{gpu: *resource.NewQuantity(int64(wl.Spec.PodSets[0].Count), resource.DecimalSI)}}
	for _, c := range change {
		c(&a)
	}
	workload.SetQuotaReservation(wl, &kueue.Admission{ClusterQueue: "queue",
		PodSetAssignments: []kueue.PodSetAssignment{a}}, h.clock)
	workload.SyncAdmittedCondition(wl, h.clock.Now())
	h.updateStatus(wl)
}

func (h *harness) evict(reason string) {
	h.t.Helper()
	wl := h.workload()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadEvicted,
		Status: metav1.ConditionTrue,
		Reason: reason, Message: "evicted", LastTransitionTime: metav1.NewTime(h.clock.Now())})
	h.updateStatus(wl)
}

// end is Trainer's end of a TrainJob.
func (h *harness) end(name, condition string) {
	h.t.Helper()
	job := h.trainJob(name)
	apimeta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue,
		Reason: "Over", Message: "over", LastTransitionTime: metav1.NewTime(h.clock.Now())})
	h.updateStatus(job)
}

// build is Trainer's JobSet of a TrainJob.
func (h *harness) build(name string) *jobset.JobSet {
	h.t.Helper()
	job := h.trainJob(name)
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name,
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))}}}
	js.Spec.ReplicatedJobs = []jobset.ReplicatedJob{node()}
	js.Spec.Suspend = ptr.To(ptr.Deref(job.Spec.Suspend, false))
	h.create(js)
	return js
}

// pod is one of a JobSet that runs.
func (h *harness) pod(js *jobset.JobSet) *corev1.Pod {
	h.t.Helper()
	labels := map[string]string{jobset.JobSetNameKey: js.Name, jobset.JobSetUIDKey: string(js.UID),
		jobset.ReplicatedJobNameKey: "node"}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: js.Name + "-node-0", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(js, jobset.SchemeGroupVersion.WithKind("JobSet"))}}}
	h.create(job)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: js.Name + "-node-0-0", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}}}
	pod.Spec.NodeName = "node"
	pod.Status.Phase = corev1.PodRunning
	h.create(pod)
	return pod
}

// collect is the garbage collector's end of a JobSet and its Jobs.
func (h *harness) collect(js *jobset.JobSet) {
	h.t.Helper()
	h.must(h.store.Get(h.t.Context(), client.ObjectKeyFromObject(js), js))
	if len(js.Finalizers) > 0 {
		js.Finalizers = nil
		h.update(js)
	}
	h.must(client.IgnoreNotFound(h.store.Delete(h.t.Context(), js)))
	h.must(h.store.DeleteAllOf(h.t.Context(), &batchv1.Job{}, client.InNamespace(js.Namespace),
		client.MatchingLabels{jobset.JobSetUIDKey: string(js.UID)}))
}

func node() jobset.ReplicatedJob {
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	rj.Template.Labels = map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node", Image: "example.com/train:1"}}
	return rj
}

func fixtures() []client.Object {
	rt := &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch",
		Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}}}
	rt.Spec.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1)}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{node()}
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team,
			Labels: map[string]string{"kubernetes.io/metadata.name": team}}},
		&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": "a"}}},
		&kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "queue"}},
		rt,
	}
}

// newTrainJob is one as the webhook leaves it.
func newTrainJob(name string) *api.TrainJob {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name, Labels: map[string]string{constants.QueueLabel: "queue"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
				Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: "torch"},
			ManagedBy: ptr.To("trainer.kubeflow.org/trainjob-controller"),
			Trainer: &trainerapi.Trainer{NumNodes: ptr.To[int32](1),
				ResourcesPerNode: &corev1.ResourceRequirements{Requests: one, Limits: one}},
			Suspend: ptr.To(true),
		}},
	}
}

// ask sends a request to a webhook; the objects are JSON, old is "" on creation.
func (h *harness) ask(path, user, old, sent string) webhookadmission.Response {
	h.t.Helper()
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "request",
		Operation: admissionv1.Create,
		Namespace: team, Name: "job", UserInfo: authenticationv1.UserInfo{Username: user},
		Object: runtime.RawExtension{Raw: []byte(sent)}}}
	if old != "" {
		request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Raw: []byte(old)}
	}
	if h.handlers[path] == nil {
		h.t.Fatalf("nothing is served at %s", path)
	}
	return h.handlers[path].Handler.Handle(h.t.Context(), request)
}

// patches returns the sorted operations of an answer, as "op path value".
func patches(t *testing.T, answer webhookadmission.Response) []string {
	t.Helper()
	var all []string
	for _, o := range answer.Patches {
		value := ""
		if o.Value != nil {
			value = encoded(t, o.Value)
		}
		all = append(all, strings.TrimSpace(o.Operation+" "+o.Path+" "+value))
	}
	slices.Sort(all)
	return all
}

func jobOf() *batchv1.Job { return &batchv1.Job{} }

// neutral reports whether a TrainJob has no entry of an admission.
func neutral(d *dialect.Dialect, job *api.TrainJob) bool {
	own := d.Own(job)
	return own == nil || admission.IsNeutral(own)
}

var jobEnded = batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}

func finishedOf(wl *kueue.Workload) *metav1.Condition {
	return apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
}

func conditionOf(job *api.TrainJob, name string) *metav1.Condition {
	return apimeta.FindStatusCondition(job.Status.Conditions, name)
}

// growsBySlice has the slice admitted, and the TrainJob started on it.
func (h *harness) growsBySlice() {
	h.t.Helper()
	h.admitSlice()
	h.finishOld()
	h.settle("job")
	h.stopsPods()
	h.clock.Step(11 * time.Second)
	h.settle("job")
}
