package e2e

import (
	"context"
	"fmt"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/podsets"
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

	ginkgo.It("of JobSet don't matter to the claims of a runtime", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.claiming(ctx, "claims", "1s", jobset.RetentionPolicyDelete)
		tj := g.submit(ctx, g.trainJob("claims", "claims", 1))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
	})
})
