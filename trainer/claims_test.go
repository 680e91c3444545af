package trainer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// withClaims gives the torch runtime a claim that its initializer writes to and its nodes mount.
func withClaims(h *harness, policy jobset.RetentionPolicyType) *api.TrainingRuntime {
	h.t.Helper()
	rt := &api.TrainingRuntime{}
	h.get(rt, "torch")
	spec := &rt.Spec.Template.Spec
	spec.VolumeClaimPolicies = []jobset.VolumeClaimPolicy{{
		Templates:       []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "cache"}}},
		RetentionPolicy: &jobset.VolumeRetentionPolicy{WhenDeleted: &policy},
	}}
	for i := range spec.ReplicatedJobs {
		pod := &spec.ReplicatedJobs[i].Template.Spec.Template.Spec
		pod.Volumes = nil
		for j := range pod.Containers {
			pod.Containers[j].VolumeMounts = nil
		}
		if spec.ReplicatedJobs[i].Name != "launcher" {
			pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cache", MountPath: "/workspace"}}
		}
	}
	if err := h.store.Update(h.t.Context(), rt); err != nil {
		h.t.Fatal(err)
	}
	return rt
}

const doneOnce = started + "\nstatus: {jobsStatus: [{name: dataset-initializer, succeeded: 1, ready: 0, active: 0, " +
	"failed: 0, suspended: 0}, {name: node, succeeded: 0, ready: 0, active: 0, failed: 0, suspended: 0}]}"

// claimed returns the claims that the pods of the JobSet's ReplicatedJobs mount, by their names.
func claimed(js *jobset.JobSet) map[string]string {
	all := map[string]string{}
	for _, rj := range js.Spec.ReplicatedJobs {
		for _, v := range rj.Template.Spec.Template.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				all[rj.Name] = v.Name + "=" + v.PersistentVolumeClaim.ClaimName
			}
		}
	}
	return all
}

func TestClaims(t *testing.T) {
	for policy, owned := range map[jobset.RetentionPolicyType]bool{
		jobset.RetentionPolicyDelete: true, jobset.RetentionPolicyRetain: false,
	} {
		t.Run(string(policy), func(t *testing.T) {
			h := newHarness(t)
			withClaims(h, policy)
			h.put(h.pinned(h.trainJob("torch", started)))
			h.reconcile("job")
			h.wantRequests("the claim comes before what mounts it", "create PersistentVolumeClaim cache-job",
				"create JobSet job")
			claim, js := &corev1.PersistentVolumeClaim{}, &jobset.JobSet{}
			if !h.get(claim, "cache-job") || metav1.IsControlledBy(claim, h.job("job")) != owned {
				t.Errorf("it goes with the TrainJob, or stays: got %v", claim.OwnerReferences)
			}
			if !h.get(js, "job") || len(js.Spec.VolumeClaimPolicies) > 0 {
				t.Errorf("JobSet has no claims to delete: got %v", js.Spec.VolumeClaimPolicies)
			}
			mounted := claimed(js)
			if mounted["dataset-initializer"] != "cache=cache-job" || mounted["node"] != "cache=cache-job" ||
				mounted["launcher"] != "" {
				t.Errorf("who mounts it has it: got %v", mounted)
			}
			h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
			h.reconcile("job")
			h.remove(js, "job")
			h.reconcile("job")
			if !h.get(claim, "cache-job") {
				t.Error("a stop deletes no data")
			}
			h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
			h.reconcile("job")
			if !h.get(js, "job") || claimed(js)["node"] != "cache=cache-job" {
				t.Errorf("it has them again: got %v", js.Spec.ReplicatedJobs)
			}
		})
	}
}

// TestClaimLost holds that what a finished initializer has written is there, or it runs again with its quota.
func TestClaimLost(t *testing.T) {
	for name, there := range map[string]bool{"there": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			withClaims(h, jobset.RetentionPolicyRetain)
			job := h.pinned(h.trainJob("torch", doneOnce))
			metav1.SetMetaDataLabel(&job.ObjectMeta, "kueue.x-k8s.io/queue-name", "queue")
			h.put(job)
			if there {
				h.put(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cache-job",
					Labels: map[string]string{jobset.JobSetNameKey: "job"}}})
			}
			h.reconcile("job")
			js := &jobset.JobSet{}
			made := h.get(js, "job")
			if made != there || there && (podsets.ReplicatedJob(js.Spec.ReplicatedJobs, "dataset-initializer") != nil) {
				t.Errorf("it goes on where it was, or starts again: got %v", js.Spec.ReplicatedJobs)
			}
			now := h.job("job")
			if again := ptr.Deref(now.Spec.Suspend, false); again == there ||
				(*now.Status.JobsStatus[0].Succeeded == 0) == there {
				t.Errorf("suspended: %v, %v", again, now.Status.JobsStatus)
			}
			if !there {
				h.wantEvents("it says why", "ClaimLost")
			}
		})
	}
}

func TestClaimTaken(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*corev1.PersistentVolumeClaim, *api.TrainJob)
		refused bool
	}{
		"its own": {func(claim *corev1.PersistentVolumeClaim, job *api.TrainJob) { ownedBy(job, claim) }, false},
		"retained": {func(claim *corev1.PersistentVolumeClaim, _ *api.TrainJob) {
			claim.Labels = map[string]string{jobset.JobSetNameKey: "job"}
		}, false},
		"retained of another": {func(claim *corev1.PersistentVolumeClaim, _ *api.TrainJob) {
			claim.Labels = map[string]string{jobset.JobSetNameKey: "my-job"}
		}, true},
		"a user's": {func(*corev1.PersistentVolumeClaim, *api.TrainJob) {}, true},
		"of another owner": {func(claim *corev1.PersistentVolumeClaim, _ *api.TrainJob) {
			claim.Labels = map[string]string{jobset.JobSetNameKey: "job"}
			claim.OwnerReferences = []metav1.OwnerReference{{UID: "other", Controller: ptr.To(true)}}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			rt := withClaims(h, jobset.RetentionPolicyDelete)
			job := h.pinned(h.trainJob("torch", settled))
			h.put(job)
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cache-job"}}
			c.change(claim, job)
			h.put(claim)
			err := h.startable(job, &rt.Spec, h.effective(job, &rt.Spec))
			blocked := (*admission.BlockedError)(nil)
			if errors.As(err, &blocked) != c.refused || c.refused && (blocked.Reason != ReasonNameTaken ||
				!strings.Contains(err.Error(), `PersistentVolumeClaim "cache-job"`)) {
				t.Errorf("it isn't queued: got %v", err)
			}
			h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
			h.reconcile("job")
			if made := h.get(&jobset.JobSet{}, "job"); made == c.refused {
				t.Errorf("it has none of another's: made %v", made)
			}
			if c.refused {
				h.wantEvents("it says so", `there is a PersistentVolumeClaim "cache-job" already`)
			}
		})
	}
}

func TestOwnerUnknown(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	job := &api.TrainJob{}
	job.Name, job.CreationTimestamp = "model", metav1.NewTime(created)
	unknown := apierrors.NewNotFound(
		schema.GroupResource{Group: trainerapi.GroupVersion.Group, Resource: "trainjobs"},
		"model",
	)
	for name, test := range map[string]struct {
		err   error
		after time.Duration
		want  bool
	}{
		"another's webhook doesn't know it yet": {fmt.Errorf("applying the JobSet: %w", unknown), time.Second, true},
		"nor will it":                           {fmt.Errorf("applying the JobSet: %w", unknown), unknownFor, false},
		"something else is missing": {
			apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "model"), time.Second, false,
		},
		"refused for what it is": {
			apierrors.NewForbidden(schema.GroupResource{}, "model", errors.New("no")), time.Second, false,
		},
		"made": {nil, time.Second, false},
	} {
		if got := ownerUnknown(job, test.err, created.Add(test.after)); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
