package e2e

import (
	"context"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("A TrainJob of a thousand pods", ginkgo.Label("kueue"), thousandSpecs)
	}
}

func thousandSpecs() {
	ginkgo.It("costs 8 writes with topology and partial admission", func(ctx context.Context) {
		thousand(ctx, api.GangOff, 8)
	})

	if hasGangs {
		// A Workload and a PodGroup are created and deleted.
		ginkgo.It("costs 4 more as a gang", func(ctx context.Context) { thousand(ctx, api.GangRequired, 12) })
	}
}

// statesOfLarge is how many writes of status the TrainJob takes.
const statesOfLarge = 3

// thousand runs a TrainJob of between 1,000 and 1,200 pods, and holds the number of Signalbox's writes, but for events.
func thousand(ctx context.Context, mode api.GangMode, limit int) {
	ginkgo.GinkgoHelper()
	g := onRacks(ctx)
	moreNodes(ctx, "a100", nodesOfKind, 2) // ten nodes of 110 pods
	g.runtime(ctx, "torch", "20s", asks(map[string]string{
		kueue.PodSetPreferredTopologyAnnotation: "rack", runFor: "20s",
	}))
	from := cluster.auditEnd()
	tj := g.submit(ctx, g.trainJob("thousand", "torch", 1200, least("1000"), gangs(mode), func(tj *api.TrainJob) {
		each := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
		tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: each}
		tj.Spec.Trainer.NumProcPerNode = ptr.To[int32](1)
	}))
	most := 0
	gomega.Eventually(func() bool {
		var pods corev1.PodList
		gomega.Expect(admin.List(ctx, &pods, client.InNamespace(g.namespace))).To(gomega.Succeed())
		most = max(most, len(pods.Items))
		return complete(ctx, tj)()
	}, "10m", "2s").Should(gomega.BeTrue())
	gomega.Eventually(condition(ctx, tj, kueue.WorkloadFinished)).Should(gomega.HavePrefix("True/"))
	gomega.Expect(most).To(gomega.And(gomega.BeNumerically(">=", 1000), gomega.BeNumerically("<", 1200)))
	gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
	gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }, "2m").Should(gomega.BeEmpty())
	writes := cluster.requests(from, func(r request) bool {
		return r.Writes() && !r.DryRun() && component(r) == "signalbox" && r.ObjectRef.Namespace == g.namespace &&
			r.ObjectRef.Resource != "events" && r.ResponseStatus.Code < 300
	})
	ginkgo.AddReportEntry(fmt.Sprintf("thousand: %d pods, gang %s, %d writes", most, mode, len(writes)), summary(writes))
	states := 0
	for _, w := range writes {
		if w.ObjectRef.Resource == "trainjobs" && w.ObjectRef.Subresource == "status" {
			states++
		}
	}
	// That it waits, starts and runs is written where it lasts, which a slow machine makes it do.
	gomega.Expect(states).To(gomega.BeNumerically("<=", statesOfLarge+1), "%v", summary(writes))
	gomega.Expect(len(writes)-states).To(gomega.BeNumerically("<=", limit-statesOfLarge), "%v", summary(writes))
}
