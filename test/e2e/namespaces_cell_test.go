package e2e

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// cell is a TrainJob on a runtime in a namespace, and what runs the same pods.
type cell struct {
	row    *row
	column column
	job    *api.TrainJob
	twin   client.Object
}

func (c cell) refused() bool {
	return c.row.says != "" && (len(c.row.only) == 0 || slices.Contains(c.row.only, c.column.name))
}

// twinOf returns the JobSet of a TrainJob that ran, as a user would have written it.
func twinOf(ctx context.Context, tj *api.TrainJob, source *trainerapi.TrainingRuntimeSpec) jobset.JobSetSpec {
	ginkgo.GinkgoHelper()
	js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: tj.Name}})
	spec := js.Spec
	spec.Suspend, spec.ManagedBy = ptr.To(true), nil
	if spec.Network != nil {
		spec.Network.Subdomain = "" // the name of the JobSet
	}
	// The bundled Trainer mounts claims that it has made.
	spec.VolumeClaimPolicies = source.Template.Spec.VolumeClaimPolicies
	claims := map[string]bool{}
	for _, p := range spec.VolumeClaimPolicies {
		for _, c := range p.Templates {
			claims[c.Name] = true
		}
	}
	for i := range spec.ReplicatedJobs {
		job := &spec.ReplicatedJobs[i].Template.Spec
		pod := &job.Template
		// Kueue has given them to the TrainJob's pods; a Job's PodSet has another name.
		for _, of := range []map[string]string{pod.Labels, pod.Annotations} {
			maps.DeleteFunc(of, func(key, _ string) bool { return strings.HasPrefix(key, kueue.SchemeGroupVersion.Group+"/") })
		}
		pod.Spec.NodeSelector, pod.Spec.Tolerations = nil, nil // the flavor's
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return claims[v.Name] })
		if pod.Spec.RestartPolicy == "" {
			pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // which JobSet writes, and a Job needs
		}
	}
	return spec
}

// completed reports whether a twin has.
func (c cell) completed(ctx context.Context) bool {
	ginkgo.GinkgoHelper()
	if c.twin == nil || c.twin.GetUID() == "" {
		return false // it was refused
	}
	switch twin := get(ctx, c.twin).(type) {
	case *batchv1.Job:
		return slices.ContainsFunc(twin.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
		})
	case *jobset.JobSet:
		return apimeta.IsStatusConditionTrue(twin.Status.Conditions, string(jobset.JobSetCompleted))
	}
	return false
}

// isBlocked returns what is wrong with a TrainJob that should be blocked before it holds quota; "" if nothing is.
func (c cell) isBlocked(ctx context.Context) string {
	ginkgo.GinkgoHelper()
	why, says := blockedBy(ctx, c.job)(), regexp.MustCompile(c.row.says)
	switch {
	case !says.MatchString(why):
		return fmt.Sprintf("blocked by %q, not by %q; events %q", why, c.row.says, eventsOf(ctx, c.job)())
	case !slices.ContainsFunc(eventsOf(ctx, c.job)(), says.MatchString):
		return fmt.Sprintf("no event says that it is blocked by %q", c.row.says)
	case watched.startsOf(c.job) > 0:
		return "it was started"
	}
	if wl := workloadOf(ctx, c.job); wl != nil && apimeta.IsStatusConditionTrue(wl.Status.Conditions,
		kueue.WorkloadQuotaReserved) {
		return "it holds quota"
	}
	return ""
}

// isComplete returns what is wrong with a TrainJob that should be complete; "" if nothing is.
func (c cell) isComplete(ctx context.Context) string {
	ginkgo.GinkgoHelper()
	if complete(ctx, c.job)() {
		return ""
	}
	return fmt.Sprintf("not complete, blocked by %q; events %q", blockedBy(ctx, c.job)(), eventsOf(ctx, c.job)())
}
