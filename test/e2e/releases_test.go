package e2e

import (
	"context"
	"fmt"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/trainer"
)

// maxPodSets is how many PodSets a Workload holds, by release of Kueue.
var maxPodSets = map[string]int{"0.18": 10, "0.19": podsets.Max}

var _ = ginkgo.Describe("Releases", func() {
	ginkgo.It("of Kubernetes, Kueue and JobSet are found and reported", func() {
		for name, variable := range map[string]string{
			"Kubernetes": "SIGNALBOX_KUBERNETES", "Kueue": "SIGNALBOX_KUEUE", "JobSet": "SIGNALBOX_JOBSET",
		} {
			gomega.Expect(cluster.metrics()).To(gomega.ContainSubstring(fmt.Sprintf(
				"signalbox_release_info{component=%q,release=%q,supported=\"true\"} 1", name, os.Getenv(variable))))
		}
	})

	if !cluster.bundled() {
		return
	}

	ginkgo.It("of JobSet that lack a field of the runtime block the TrainJob, "+
		"and others don't", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "claims", "1s", func(rt *api.TrainingRuntime) {
			size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
			spec := &rt.Spec.Template.Spec
			spec.VolumeClaimPolicies = []jobset.VolumeClaimPolicy{{Templates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
					Resources: corev1.VolumeResourceRequirements{Requests: size}},
			}}}}
			c := &spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
		})
		tj := g.submit(ctx, g.trainJob("claims", "claims", 1))
		if os.Getenv("SIGNALBOX_JOBSET") >= "0.11" {
			gomega.Eventually(func() []corev1.Pod { return podsOf(ctx, tj) }).Should(gomega.HaveLen(1))
			gomega.Expect(podsOf(ctx, tj)[0].Spec.Volumes).NotTo(gomega.BeEmpty(), "JobSet mounts the claim")
			return
		}
		gomega.Eventually(blocked(ctx, tj)).Should(gomega.Equal(trainer.ReasonInvalidJobSet))
		gomega.Expect(told(ctx, tj, api.ConditionBlocked)).To(
			gomega.ContainSubstring(`unknown field "spec.volumeClaimPolicies"`))
		gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil(), "it holds no quota")
	})
})
