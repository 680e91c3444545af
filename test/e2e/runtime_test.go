package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/podsets"
)

var _ = ginkgo.Describe("A runtime", func() {
	cpus := func(ctx context.Context, tj *api.TrainJob) func() string {
		return func() string {
			wl := workloadOf(ctx, tj)
			if wl == nil {
				return ""
			}
			return wl.Spec.PodSets[0].Template.Spec.Containers[0].Resources.Requests.Cpu().String()
		}
	}

	ginkgo.It("that is edited leaves a running TrainJob alone, "+
		"and a queued one follows it before it is admitted", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever")
		runs := g.submit(ctx, g.trainJob("runs", "torch", 1))
		gomega.Eventually(bound(ctx, runs)).Should(gomega.Equal(1))
		waits := g.submit(ctx, g.trainJob("waits", "torch", 1))
		gomega.Eventually(cpus(ctx, waits)).Should(gomega.Equal("1"))
		before := workloadOf(ctx, runs).UID

		gomega.Eventually(func() error {
			pod := &get(ctx, rt).Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
			pod.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
			return admin.Update(ctx, rt)
		}).Should(gomega.Succeed())
		gomega.Eventually(cpus(ctx, waits)).Should(gomega.Equal("3"))
		gomega.Expect(running(ctx, waits)()).To(gomega.BeFalse())
		gomega.Expect(cpus(ctx, runs)()).To(gomega.Equal("1"))
		gomega.Eventually(func() error { // of what changes no quota, but can't be changed in a JobSet
			get(ctx, rt).Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Args = []string{"edited"}
			return admin.Update(ctx, rt)
		}).Should(gomega.Succeed())
		gomega.Expect(workloadOf(ctx, runs).UID).To(gomega.Equal(before))
		g.complete(ctx, runs)
		gomega.Expect(watched.startsOf(runs)).To(gomega.Equal(1))

		gomega.Eventually(bound(ctx, waits)).Should(gomega.Equal(1))
		gomega.Expect(podsOf(ctx, waits)[0].Spec.Containers[0].Resources.Requests.Cpu().String()).To(gomega.Equal("3"),
			"it runs what its quota was given for")
		gomega.Expect(podsOf(ctx, waits)[0].Spec.Containers[0].Args).To(gomega.Equal([]string{"edited"}))
		g.complete(ctx, waits)
	})

	ginkgo.It("says for how long its TrainJobs stay after their end, unless they do", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "torch", "1s", func(rt *api.TrainingRuntime) {
			metav1.SetMetaDataAnnotation(&rt.Spec.Template.ObjectMeta, api.TTLAnnotation, "2")
		})
		says := func(value string) func(*api.TrainJob) {
			return func(tj *api.TrainJob) { metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.TTLAnnotation, value) }
		}
		short, stays := g.trainJob("short", "torch", 1), g.trainJob("stays", "torch", 1, says("3600"))
		now := g.trainJob("now", "torch", 1, says("0,failed=3600"))
		gomega.Expect(user.Create(ctx, g.trainJob("wrong", "torch", 1, says("1h")))).To(gomega.MatchError(
			gomega.ContainSubstring("metadata.annotations[" + api.TTLAnnotation + "]: Invalid value: \"1h\"")))
		for _, tj := range []*api.TrainJob{short, stays, now} {
			g.submit(ctx, tj)
		}
		gone := func(tj *api.TrainJob) func() bool {
			return func() bool {
				return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(tj), &api.TrainJob{}))
			}
		}
		gomega.Eventually(gone(short)).Should(gomega.BeTrue())
		gomega.Eventually(gone(now)).Should(gomega.BeTrue())
		gomega.Eventually(complete(ctx, stays)).Should(gomega.BeTrue())
		gomega.Expect(watched.startsOf(short)).To(gomega.Equal(1))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(eventsOf(ctx, short)).Should(gomega.ContainElement(gomega.HavePrefix("Expired: ")))
	})

	ginkgo.It("that is deleted leaves a running TrainJob alone; a queued one says so, holds no quota, "+
		"and starts when it is back", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever")
		runs := g.submit(ctx, g.trainJob("runs", "torch", 1))
		gomega.Eventually(bound(ctx, runs)).Should(gomega.Equal(1))
		waits := g.submit(ctx, g.trainJob("waits", "torch", 1))
		gomega.Eventually(cpus(ctx, waits)).Should(gomega.Equal("1"))
		gomega.Expect(admin.Delete(ctx, rt)).To(gomega.Succeed())

		gomega.Eventually(blocked(ctx, waits)).Should(gomega.Equal(integration.ReasonRuntimeNotFound))
		message := apimeta.FindStatusCondition(get(ctx, waits).Status.Conditions, api.ConditionBlocked).Message
		gomega.Expect(message).To(gomega.And(gomega.ContainSubstring("spec.runtimeRef"), gomega.ContainSubstring(`TrainingRuntime "torch"`), gomega.ContainSubstring("create it")))
		gomega.Eventually(eventsOf(ctx, waits)).Should(
			gomega.ContainElement(gomega.HavePrefix(integration.ReasonRuntimeNotFound + ": ")))
		g.complete(ctx, runs)
		gomega.Expect(watched.startsOf(runs)).To(gomega.Equal(1))
		// Kueue, which doesn't know that it is blocked, gives it the quota that is free now; at once it is put on hold.
		gomega.Eventually(condition(ctx, waits, kueue.WorkloadQuotaReserved)).Should(
			gomega.Equal("False/" + kueue.WorkloadOnHold))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Consistently(g.used(ctx)).Should(gomega.BeZero(), "what can't start holds no quota")

		g.runtime(ctx, "torch", "1s")
		gomega.Eventually(complete(ctx, waits)).Should(gomega.BeTrue())
		gomega.Expect(blocked(ctx, waits)()).To(gomega.BeEmpty())
	})

	ginkgo.It("of more ReplicatedJobs than a Workload holds PodSets is refused with an event and a "+
		"condition", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		rt := g.runtime(ctx, "wide", "1s", func(rt *api.TrainingRuntime) {
			for i := range podsets.Max {
				rt.Spec.Template.Spec.ReplicatedJobs = append(rt.Spec.Template.Spec.ReplicatedJobs,
					step(fmt.Sprintf("extra-%d", i), "", "1s"))
			}
		})
		tj := g.submit(ctx, g.trainJob("wide", "wide", 1))
		gomega.Eventually(blocked(ctx, tj)).Should(gomega.Equal(integration.ReasonTooManyPodSets))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.And(
			gomega.HavePrefix(integration.ReasonTooManyPodSets+": "), gomega.ContainSubstring("has 19 replicatedJobs"),
			gomega.ContainSubstring(fmt.Sprintf("at most %d", maxPodSets[os.Getenv("SIGNALBOX_KUEUE")])))))
		gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil())

		gomega.Eventually(func() error {
			rt := get(ctx, rt)
			rt.Spec.Template.Spec.ReplicatedJobs = rt.Spec.Template.Spec.ReplicatedJobs[:1]
			return admin.Update(ctx, rt)
		}).Should(gomega.Succeed())
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue(), "it follows the runtime that was mended")
	})
})

// blocked is the reason of a TrainJob's condition Blocked, "" where it has none.
func blocked(ctx context.Context, tj *api.TrainJob) func() string {
	return func() string {
		ginkgo.GinkgoHelper()
		if c := apimeta.FindStatusCondition(get(ctx, tj).Status.Conditions, api.ConditionBlocked); c != nil &&
			c.Status == metav1.ConditionTrue {
			return c.Reason
		}
		return ""
	}
}

var _ = ginkgo.Describe("A Workload", func() {
	ginkgo.It("is stored as it was computed, so that nothing is written to bring it in step", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
			hold := kueue.Hold
			cq.Spec.StopPolicy = &hold
		})
		g.runtime(ctx, "full", "1s", func(rt *api.TrainingRuntime) {
			c := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
			c.Ports = []corev1.ContainerPort{{ContainerPort: 29500}}
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}}
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intPort(80)}}}
			c.Env = []corev1.EnvVar{{Name: "POD",
				ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
		})
		from := cluster.auditEnd()
		tj := g.submit(ctx, g.trainJob("full", "full", 1, func(tj *api.TrainJob) {
			tj.Spec.Trainer.ResourcesPerNode.Requests[corev1.ResourceCPU] = resource.MustParse("2000m")
		}))
		gomega.Eventually(func() any { return workloadOf(ctx, tj) }).ShouldNot(gomega.BeNil())
		var js jobset.JobSet
		if !cluster.bundled() { // which makes none before the start
			gomega.Eventually(func() error { return admin.Get(ctx, client.ObjectKeyFromObject(tj), &js) }).Should(
				gomega.Succeed())
		}
		for i := range 3 { // each makes Signalbox look at the TrainJob again
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"e2e/touched":"%d"}}}`, i)
			gomega.Expect(user.Patch(ctx, tj, client.RawPatch("application/merge-patch+json", patch))).To(gomega.Succeed())
		}
		writes := func() int {
			return len(cluster.requests(from, func(r request) bool {
				return r.Writes() && r.User.Username == "signalbox" && r.ObjectRef.Namespace == g.namespace &&
					r.ObjectRef.Resource == "workloads"
			}))
		}
		gomega.Eventually(writes).Should(gomega.Equal(1))
		gomega.Consistently(writes).Should(gomega.Equal(1), "the create, and no update")
		// Kueue's webhook doesn't find the TrainJob until its cache has it; that is no answer.
		dryRuns := cluster.requests(from, func(r request) bool {
			return r.User.Username == "signalbox" && r.DryRun() && r.ResponseStatus.Code != http.StatusNotFound
		})
		asked := map[string]int{}
		for _, r := range dryRuns {
			asked[r.ObjectRef.Resource]++
		}
		for resource, times := range asked {
			gomega.Expect(resource).To(gomega.BeElementOf("jobsets", "services", "jobs", "pods"))
			gomega.Expect(times).To(gomega.Equal(1), "each is tried once: %s", resource)
		}
	})
})
