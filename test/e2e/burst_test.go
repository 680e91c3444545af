package e2e

import (
	"context"
	"fmt"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
)

var _ = ginkgo.Describe("A burst of 100 TrainJobs whose runtime tolerates a taint of its own", func() {
	ginkgo.It("runs and finishes, 100 of 100, with one write a start", func(ctx context.Context) {
		const jobs = 100
		g := newGround(ctx, map[string]int64{"a100": 64, "h100": 64})
		g.runtime(ctx, "torch", "1s")
		from := cluster.auditEnd()
		var all []*trainer.TrainJob
		for i := range jobs {
			all = append(all, g.submit(ctx, g.trainJob(fmt.Sprintf("burst-%03d", i), "torch", 1)))
		}
		gomega.Eventually(func() int {
			finished := 0
			var list trainer.TrainJobList
			gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
			for _, tj := range list.Items {
				if meta.IsStatusConditionTrue(tj.Status.Conditions, trainer.TrainJobComplete) {
					finished++
				}
			}
			return finished
		}, "4m", "500ms").Should(gomega.Equal(jobs))
		gomega.Eventually(func() int {
			finished := 0
			var list kueue.WorkloadList
			gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
			for i := range list.Items {
				if workloadfinish.IsFinished(&list.Items[i]) && len(list.Items[i].Finalizers) == 0 {
					finished++
				}
			}
			return finished
		}).Should(gomega.Equal(jobs))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())

		var pods corev1.PodList
		gomega.Expect(admin.List(ctx, &pods, client.InNamespace(g.namespace))).To(gomega.Succeed())
		gomega.Expect(pods.Items).To(gomega.HaveLen(jobs))
		for _, p := range pods.Items {
			gomega.Expect(own(p.Spec.Tolerations)).To(gomega.ConsistOf(spot, corev1.Toleration{
				Key: "gpu", Operator: corev1.TolerationOpEqual, Value: p.Spec.NodeSelector["gpu"], Effect: corev1.TaintEffectNoSchedule}))
		}
		starts := 0
		for _, tj := range all {
			starts += watched.startsOf(tj)
		}
		ours := func(r request) bool { return r.User.Username == "signalbox" }
		here := func(r request) bool { return r.ObjectRef.Namespace == g.namespace && r.writes() }
		toTrainJobs := cluster.requests(from, func(r request) bool {
			return here(r) && r.ObjectRef.Resource == "trainjobs" && r.ObjectRef.Subresource == "" && r.User.Username != "user"
		})
		dryRuns := cluster.requests(from, func(r request) bool { return ours(r) && r.dryRun() })
		writes := cluster.requests(from, func(r request) bool { return ours(r) && here(r) })
		byKind := map[string]int{}
		for _, w := range writes {
			byKind[fmt.Sprintf("%s %s/%s %d", w.Verb, w.ObjectRef.Resource, w.ObjectRef.Subresource, w.ResponseStatus.Code)]++
		}
		var lines []string
		for k, n := range byKind {
			lines = append(lines, fmt.Sprintf("%5d %s", n, k))
		}
		slices.Sort(lines)
		ginkgo.AddReportEntry(fmt.Sprintf("burst: %d of %d finished, %d starts; %.2f writes to the TrainJob per start; %d dry runs; %.2f writes by signalbox per TrainJob",
			jobs, jobs, starts, float64(len(toTrainJobs))/float64(starts), len(dryRuns), float64(len(writes))/jobs), lines)

		gomega.Expect(starts).To(gomega.Equal(jobs))
		gomega.Expect(toTrainJobs).To(gomega.HaveLen(jobs), "exactly one write a start")
		gomega.Expect(dryRuns).To(gomega.BeEmpty())
		gomega.Expect(len(writes)).To(gomega.BeNumerically("<=", 7*jobs))
	})
})
