package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// startedBy matches the event of a start by the field.
func startedBy(field string) gomegatypes.GomegaMatcher {
	words := "; in two writes, by spec." + field
	if atomicStarts() {
		words = "; in one write, by spec." + field
	}
	return gomega.And(gomega.HavePrefix("Started: "), gomega.HaveSuffix(words))
}

// boundOn names the GPU kinds of the nodes that a ReplicatedJob's pods are bound to.
func boundOn(ctx context.Context, tj *api.TrainJob, replicatedJob string) string {
	ginkgo.GinkgoHelper()
	var kinds []string
	for _, p := range podsOf(ctx, tj) {
		if p.Labels[jobset.ReplicatedJobNameKey] == replicatedJob && p.Spec.NodeName != "" {
			kind, _, _ := strings.Cut(p.Spec.NodeName, "-")
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, " ")
}

func upgradeSpecs() {
	ginkgo.It("loses none of 50 queued and running TrainJobs from v2.1 to v2.3, "+
		"with the manager running on", func(ctx context.Context) {
		const jobs = 50
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 64}, onTwoGroups(ctx))
		g.runtime(ctx, "long", "forever", withOpenInitializer)
		g.runtime(ctx, "short", "1s", withOpenInitializer)
		given := listFrom(usersOverrides[legacy.PodTemplateOverrides])
		var all []*api.TrainJob
		submit := func(runtime string, n int) {
			for range n {
				name := fmt.Sprintf("job-%02d", len(all))
				tj := g.trainJob(name, runtime, 1, priority(low))
				all = append(all, g.submitRaw(ctx, tj, legacy.PodTemplateOverrides, given))
			}
		}
		// The first eight hold the quota until they are told to end, however slow the upgrade is.
		submit("long", 8)
		for _, tj := range all {
			gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue(), tj.Name)
		}
		submit("short", jobs-8)
		manager := cluster.logEnd("signalbox")
		for _, tj := range all[8:] {
			gomega.Expect(running(ctx, tj)()).To(gomega.BeFalse(), tj.Name)
		}

		// from the moment of the upgrade, whoever runs has been started by the one before
		installed.Store(&dialect.Kubeflow23)
		cluster.mustAct("upgrade", "trainer")
		learnDialect(ctx)
		gomega.Expect(current().Field).To(gomega.Equal(overrides.RuntimePatches))
		gomega.Eventually(func() string { return cluster.logSince("signalbox", manager) }).Should(gomega.And(
			gomega.ContainSubstring("Another Trainer is installed"), gomega.ContainSubstring(`"Starting","as"`)),
			"the manager restarts with it")
		gomega.Eventually(func() error {
			return user.Create(ctx, g.trainJob("urgent", "short", 1, priority(high)), client.DryRunAll)
		}).Should(gomega.Succeed(), "its webhook answers again")
		// One that runs is preempted, so that it has to start again beside the other Trainer.
		urgent := g.submit(ctx, g.trainJob("urgent", "short", 1, priority(high)))
		gomega.Eventually(complete(ctx, urgent), "90s").Should(gomega.BeTrue())
		gomega.Eventually(func() int {
			g.end(ctx, "job-0") // the preempted one's new pods too
			finished := 0
			for _, tj := range all {
				if complete(ctx, tj)() {
					finished++
				}
			}
			return finished
		}, "4m", "1s").Should(gomega.Equal(jobs))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())

		again, migrated := 0, 0
		for _, tj := range all {
			switch starts := watched.startsOf(tj); starts {
			case 1:
			case 2:
				again++
			default:
				ginkgo.Fail(fmt.Sprintf("TrainJob %s was started %d times", tj.Name, starts))
			}
			if slices.ContainsFunc(get(ctx, tj).Spec.RuntimePatches,
				func(p trainerapi.RuntimePatch) bool { return p.Manager == legacy.ConvertedManager }) {
				migrated++
			}
			for _, p := range podsOf(ctx, tj) {
				gomega.Expect(p.Annotations).To(gomega.HaveKeyWithValue("note", ""), "what users said, on pod %s", p.Name)
				if p.Labels[jobset.ReplicatedJobNameKey] != "node" {
					continue
				}
				gomega.Expect(p.Labels).To(gomega.HaveKeyWithValue("team", "a"), p.Name)
				gomega.Expect(p.Spec.Volumes[0].Name).To(gomega.Equal("scratch"), p.Name)
				gomega.Expect(p.Spec.Containers[0].VolumeMounts).To(
					gomega.ContainElement(gomega.HaveField("MountPath", "/scratch")), p.Name)
				gomega.Expect(own(p.Spec.Tolerations)).To(gomega.ConsistOf(spot,
					corev1.Toleration{Key: "mine", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
					corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "a100",
						Effect: corev1.TaintEffectNoSchedule}), p.Name)
			}
		}
		gomega.Expect(again).To(gomega.Equal(1), "the preempted one ran twice")
		gomega.Expect(migrated).To(gomega.BeNumerically(">=", jobs-8),
			"what the users of waiting TrainJobs said is in runtimePatches")
		ginkgo.AddReportEntry(fmt.Sprintf(
			"upgrade from v2.1.0 to v2.3.0: 8 running and %d waiting, all finished, %d of them started again after a "+
				"preemption, what users said moved in %d", jobs-8, again, migrated))
	})
}

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
