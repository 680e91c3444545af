package e2e

import (
	"context"
	"fmt"
	"os"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if cluster.bundled() { // it doesn't depend on the Trainer
		ginkgo.Describe("Devices that are claimed", ginkgo.Label("kueue"), claimSpecs)
	}
}

const (
	driver  = "gpu.example.com"
	devices = corev1.ResourceName("example.com/devices") // what Kueue counts them as
)

// publishDevices does a driver's part: so many devices of a class on each a100 node.
func publishDevices(ctx context.Context, each int) {
	ginkgo.GinkgoHelper()
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{
			{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}},
		}},
	}
	gomega.Expect(admin.Create(ctx, class)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, class)).To(gomega.Succeed()) })
	for i := range nodesOfKind {
		node := fmt.Sprintf("a100-%d", i)
		slice := &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
			},
		}
		for d := range each {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", d)})
		}
		gomega.Expect(admin.Create(ctx, slice)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, slice)).To(gomega.Succeed()) })
	}
}

// claimed is a runtime whose nodes claim a device each, by a template.
func (g *ground) claimed(ctx context.Context, name string) {
	ginkgo.GinkgoHelper()
	gomega.Expect(admin.Create(ctx, &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "device"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{
				{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: driver, Count: 1}},
			},
		}}},
	})).To(gomega.Succeed())
	template := "device"
	g.runtime(ctx, name, "forever", func(rt *api.TrainingRuntime) {
		pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
		pod.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		pod.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	})
}

// claims are the devices that a TrainJob's pods have, by node.
func claims(ctx context.Context, g *ground) func() []string {
	return func() []string {
		ginkgo.GinkgoHelper()
		var list resourcev1.ResourceClaimList
		gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
		var all []string
		for _, c := range list.Items {
			if c.Status.Allocation != nil && c.DeletionTimestamp == nil {
				for _, d := range c.Status.Allocation.Devices.Results {
					all = append(all, d.Pool+"/"+d.Device)
				}
			}
		}
		return all
	}
}

// devicesUsed is how many devices Kueue counts in a ClusterQueue.
func (g *ground) devicesUsed(ctx context.Context) func() int64 {
	return func() int64 {
		ginkgo.GinkgoHelper()
		var used int64
		for _, f := range get(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.queue}}).Status.FlavorsUsage {
			for _, r := range f.Resources {
				if r.Name == devices {
					used += r.Total.Value()
				}
			}
		}
		return used
	}
}

func claimSpecs() {
	ginkgo.It("are counted, and claimed again after an eviction", func(ctx context.Context) {
		cluster.configure(func(c map[string]any) {
			c["resources"] = map[string]any{"deviceClassMappings": []any{
				map[string]any{"name": string(devices), "deviceClassNames": []any{driver}},
			}}
		}, func(map[string]any) {})
		publishDevices(ctx, 2)
		g := newGround(ctx, map[string]int64{"a100": 64}, func(cq *kueue.ClusterQueue) {
			group := &cq.Spec.ResourceGroups[0]
			group.CoveredResources = append(group.CoveredResources, devices)
			for i := range group.Flavors {
				group.Flavors[i].Resources = append(group.Flavors[i].Resources,
					kueue.ResourceQuota{Name: devices, NominalQuota: resource.MustParse("3")})
			}
		})
		g.claimed(ctx, "claims")
		tj := g.submit(ctx, g.trainJob("claims", "claims", 2))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		gomega.Expect(claims(ctx, g)()).To(gomega.HaveLen(2))
		gomega.Eventually(g.devicesUsed(ctx)).Should(gomega.BeEquivalentTo(2))
		waits := g.submit(ctx, g.trainJob("waits", "claims", 2))
		gomega.Eventually(state(ctx, waits)).Should(gomega.Equal(api.StateQueued))
		why := gomega.ContainSubstring(string(devices))
		if os.Getenv("SIGNALBOX_KUEUE_GATES") != "" { // with all on, Kueue may say that it has tried another like it
			why = gomega.Or(why, gomega.ContainSubstring("equivalent workload"))
		}
		gomega.Eventually(func() string { return told(ctx, waits, api.ConditionQuotaReserved) }).Should(
			why, "GPUs are left, devices are not")
		gomega.Expect(user.Delete(ctx, waits)).To(gomega.Succeed())

		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.devicesUsed(ctx)).Should(gomega.BeZero())
		gomega.Eventually(claims(ctx, g)).Should(gomega.BeEmpty())
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		gomega.Expect(claims(ctx, g)()).To(gomega.HaveLen(2))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(2))
	})
}

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
