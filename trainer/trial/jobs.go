package trial

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// ofJobSet is the owner of what JobSet creates.
func ofJobSet(job *api.TrainJob, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: jobset.SchemeGroupVersion.String(), Kind: "JobSet", Name: job.Name,
		UID: uid, Controller: ptr.To(true)}
}

// tryJob creates a Job of a ReplicatedJob as JobSet does, suspended, and keeps nothing. The TrainJob controls it:
// Kueue's webhook looks for owners, and there is no JobSet yet. What a policy refuses is tried with the JobSet as its
// owner. The Job has JobSet's defaults, such as its completion mode: without those, nothing is known of it.
func (t *Trial) tryJob(ctx context.Context, job *api.TrainJob, needs *Needs, index int) error {
	built := &needs.Objects[len(needs.Objects)-1]
	if !built.taken {
		return nil
	}
	js := &jobset.JobSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(built.Object, js); err != nil {
		return fmt.Errorf("the JobSet that the API server returns: %w", err)
	}
	if index >= len(js.Spec.ReplicatedJobs) {
		return nil
	}
	rj := &js.Spec.ReplicatedJobs[index]
	err := t.client.Create(ctx, jobOf(job, rj, ofTrainJob(job)), client.DryRunAll)
	if !byPolicy(err) {
		return err
	}
	if t.client.Create(ctx, jobOf(job, rj, ofJobSet(job, checkUID)), client.DryRunAll) == nil {
		return nil
	}
	return err
}

// jobOf returns a Job of a ReplicatedJob.
func jobOf(job *api.TrainJob, rj *jobset.ReplicatedJob, owner metav1.OwnerReference) *batchv1.Job {
	template := rj.Template.DeepCopy()
	o := &batchv1.Job{ObjectMeta: tried(job, template.ObjectMeta, owner), Spec: template.Spec}
	o.Labels = labels.Merge(o.Labels, labelsOf(job, rj))
	o.Spec.Suspend = ptr.To(true)
	return o
}

// serviceOf returns the Service by which the pods of a JobSet have names.
func serviceOf(job *api.TrainJob) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: tried(job, metav1.ObjectMeta{}, ofJobSet(job, checkUID)),
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
			Selector: map[string]string{jobset.JobSetNameKey: job.Name}},
	}
}
