package e2e

import (
	"context"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// withVolume is an entry that adds a volume to a TrainJob's pods.
func withVolume(source corev1.VolumeSource) func(*api.TrainJob) {
	return entryFor("example.com/team", "node", func(_ *metav1.ObjectMeta, pod *trainerapi.PodSpecPatch) {
		pod.Volumes = []corev1.Volume{{Name: "mine", VolumeSource: source}}
	})
}

var (
	theNodesFiles = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	aSecret       = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "any"}}
)

var _ = ginkgo.Describe("An entry", func() {
	if !cluster.bundled() {
		ginkgo.It("doesn't reach a node's files beside Kubeflow Trainer either", func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "torch", "1s")
			gomega.Expect(user.Create(ctx, g.trainJob("reaches", "torch", 1, withVolume(theNodesFiles)))).To(gomega.MatchError(
				gomega.And(gomega.ContainSubstring("volumes[0].hostPath"), gomega.ContainSubstring("limits.hostPaths"))))
			named := g.submit(ctx, g.trainJob("named", "torch", 1, withVolume(aSecret)))
			gomega.Eventually(complete(ctx, named)).Should(gomega.BeTrue())
		})
		return
	}

	ginkgo.It("doesn't reach a node's files, and its runtime may", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "1s")
		for says, change := range map[string]func(*api.TrainJob){
			`template.spec.volumes[0].hostPath: Invalid value: "{\"path\":\"/\"}"`: withVolume(theNodesFiles),
			"volumes[0].flexVolume": withVolume(corev1.VolumeSource{
				FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/bind"}}),
			"spec.podTemplateOverrides[0].spec.volumes[0].hostPath": func(tj *api.TrainJob) {
				tj.Spec.PodTemplateOverrides = []api.PodTemplateOverride{{
					TargetJobs: []api.TargetJob{{Name: "node"}},
					Spec:       &api.PodTemplateSpecOverride{Volumes: []corev1.Volume{{Name: "mine", VolumeSource: theNodesFiles}}},
				}}
			},
			"securityContext.privileged": entryFor("example.com/team", "node",
				func(_ *metav1.ObjectMeta, pod *trainerapi.PodSpecPatch) {
					pod.Containers = []trainerapi.ContainerPatch{{Name: "node",
						SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}}
				}),
		} {
			gomega.Expect(user.Create(ctx, g.trainJob("reaches", "torch", 1, change))).To(gomega.MatchError(gomega.And(
				gomega.ContainSubstring(says), gomega.ContainSubstring("limits.hostPaths"))))
		}
		g.runtime(ctx, "shipped", "1s", func(rt *api.TrainingRuntime) {
			podSpec(rt).Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: theNodesFiles}}
			podSpec(rt).Containers[0].VolumeMounts = []corev1.VolumeMount{
				{Name: "scratch", MountPath: "/scratch", SubPath: "scratch", ReadOnly: true}}
		})
		wider := entryFor("example.com/team", "node", func(_ *metav1.ObjectMeta, pod *trainerapi.PodSpecPatch) {
			pod.Containers = []trainerapi.ContainerPatch{{Name: "node",
				VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/host"}}}}
		})
		gomega.Expect(user.Create(ctx, g.trainJob("wider", "shipped", 1, wider))).To(gomega.MatchError(
			gomega.ContainSubstring("containers[node].volumeMounts[0]")))
		runs := g.submit(ctx, g.trainJob("runs", "shipped", 1))
		named := g.submit(ctx, g.trainJob("named", "torch", 1, withVolume(aSecret)))
		gomega.Eventually(complete(ctx, runs)).Should(gomega.BeTrue())
		gomega.Eventually(complete(ctx, named)).Should(gomega.BeTrue(), "Secrets of the namespace are allowed")
	})

	ginkgo.It("reaches what the configuration allows, "+
		"and isn't queued when that is taken back", func(ctx context.Context) {
		limited := func(hostPaths, secrets bool) {
			cluster.configure(func(map[string]any) {}, func(c map[string]any) {
				c["limits"] = map[string]any{"hostPaths": hostPaths, "secrets": secrets}
			})
		}
		limited(true, false)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		waits := g.submit(ctx, g.trainJob("waits", "torch", 2, withVolume(theNodesFiles)))
		gomega.Eventually(func() *kueue.Workload { return workloadOf(ctx, waits) }).ShouldNot(gomega.BeNil())
		for says, change := range map[string]func(*api.TrainJob){
			"template.spec.volumes[0].secret": withVolume(aSecret),
			"spec.trainer.env[0].valueFrom.secretKeyRef": func(tj *api.TrainJob) {
				tj.Spec.Trainer.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{
					SecretKeyRef: &corev1.SecretKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: "any"}, Key: "token"}}}}
			},
		} {
			gomega.Expect(user.Create(ctx, g.trainJob("named", "torch", 1, change))).To(gomega.MatchError(gomega.And(
				gomega.ContainSubstring(says), gomega.ContainSubstring("limits.secrets"))))
		}
		limited(false, true)
		gomega.Eventually(blockedBy(ctx, waits)).Should(gomega.And(
			gomega.HavePrefix("LimitExceeded: "), gomega.ContainSubstring("limits.hostPaths")))
		gomega.Consistently(running(ctx, waits), "1s").Should(gomega.BeFalse())
		gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
	})
})
