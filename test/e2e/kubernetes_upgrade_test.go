package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// On a cluster that can be upgraded nothing else runs: there is no way back.
func init() {
	if nextKubernetes != "" {
		ginkgo.Describe("An upgrade of Kubernetes", ginkgo.Label("upgrade"), kubernetesUpgradeSpecs)
	}
}

func kubernetesUpgradeSpecs() {
	ginkgo.It("from 1.36 to 1.37 loses no gang: of 20 that run and 20 that wait, 40 finish", func(ctx context.Context) {
		const each = 20
		g := newGround(ctx, map[string]int64{"a100": 1000}) // so that nodes, and not quota, are what is short
		g.runtime(ctx, "torch", "forever")
		var runs, waits []*api.TrainJob
		for n := range each {
			runs = append(runs, g.submit(ctx,
				g.trainJob(fmt.Sprintf("runs-%d", n), "torch", 2, gangs(api.GangRequired), gpusEach(1))))
		}
		gomega.Eventually(g.boundOf(ctx, "runs-")).Should(gomega.Equal(2 * each))
		for n := range each { // whole nodes, of which the others have left none
			waits = append(waits, g.submit(ctx, g.trainJob(fmt.Sprintf("waits-%d", n), "torch", 2, gangs(api.GangRequired))))
		}
		pods := map[types.UID]bool{}
		for _, tj := range waits {
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(
				gomega.HavePrefix("False Unschedulable"))
		}
		for _, tj := range append(runs, waits...) {
			for _, p := range podsOf(ctx, tj) {
				pods[p.UID] = true
			}
		}
		gomega.Expect(pods).To(gomega.HaveLen(4 * each))

		cluster.mustAct("stop", "signalbox")
		said, err := deleteGangs(ctx)
		gomega.Expect(err).NotTo(gomega.HaveOccurred(), said)
		gomega.Expect(g.leftovers(ctx)()).To(gomega.BeEmpty())
		gomega.Consistently(g.boundOf(ctx, "")).Should(gomega.Equal(2*each), "the pods stay as they are")
		cluster.mustAct("upgrade", "kubernetes")
		scheduling = podGroupAPIs[nextKubernetes]
		cluster.mustAct("restart", "kueue", "jobset") // watches come back to a restarted API server up to half a minute late
		awaitKueue()
		cluster.mustAct("start", "signalbox")
		for _, tj := range append(runs, waits...) {
			gomega.Eventually(func() []string { return podGroups(ctx, tj) }).Should(gomega.ConsistOf("node=2"))
			for _, p := range podsOf(ctx, tj) {
				gomega.Expect(pods).To(gomega.HaveKey(p.UID), "no pod is made again")
			}
		}
		gomega.Consistently(g.boundOf(ctx, "waits-")).Should(gomega.BeZero(), "there is still no room")
		g.end(ctx, "") // those that wait too, once they run
		gomega.Eventually(g.finished(ctx), "3m").Should(gomega.Equal(2 * each))
		for _, tj := range append(runs, waits...) {
			gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		}
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
		ginkgo.AddReportEntry(fmt.Sprintf("upgrade: of %d gangs that ran and %d that waited, %d finished, each started once",
			each, each, g.finished(ctx)()))
	})
}

// deleteGangs runs the command that is to be run before the upgrade.
func deleteGangs(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.dir, "..", "bin", "kubectl-signalbox"), "delete-gangs")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig(""))
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
