package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// spoken is what a command has written, and its exit code.
type spoken struct {
	out, err string
	code     int
}

// plugin runs kubectl signalbox as a user of the control plane, "" for the admin, in the namespace.
func (g *ground) plugin(ctx context.Context, who string, args ...string) spoken {
	ginkgo.GinkgoHelper()
	return pluginWith(ctx, cluster.kubeconfig(who), append(args, "--namespace", g.namespace)...)
}

// pluginWith runs a command with a kubeconfig.
func pluginWith(ctx context.Context, kubeconfig string, args ...string) spoken {
	ginkgo.GinkgoHelper()
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.dir, "..", "bin", "kubectl-signalbox"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
	}
	return spoken{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// asked runs a command that succeeds, and reads its JSON into a value.
func (g *ground) asked(ctx context.Context, who string, to any, args ...string) {
	ginkgo.GinkgoHelper()
	answer := g.plugin(ctx, who, append(args, "-o", "json")...)
	gomega.Expect(answer.code).To(gomega.BeZero(), answer.err)
	gomega.Expect(json.Unmarshal([]byte(answer.out), to)).To(gomega.Succeed(), answer.out)
}

// both are the users that each verb is tried as.
var both = map[string]string{"an ordinary user": "user", "an admin": ""}

func init() {
	if cluster.bundled() {
		ginkgo.Describe("kubectl signalbox", ginkgo.Label("plugin"), func() {
			for _, name := range slices.Sorted(maps.Keys(both)) {
				ginkgo.Context("as "+name, func() { pluginSpecs(both[name]) })
			}
		})
	}
}

func pluginSpecs(who string) {
	ginkgo.It("lists TrainJobs with their places, and shows the quota", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
			cq.Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyNever
		})
		g.runtime(ctx, "torch", "forever")
		first := g.submit(ctx, g.trainJob("first", "torch", 1, priority(low)))
		gomega.Eventually(state(ctx, first)).Should(gomega.Equal(api.StateRunning))
		waits := g.submit(ctx, g.trainJob("waits", "torch", 1, priority(low)))
		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		for _, tj := range []*api.TrainJob{waits, urgent} {
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
		}
		var rows []map[string]any
		g.asked(ctx, who, &rows, "list")
		gomega.Expect(rows).To(gomega.HaveLen(3))
		gomega.Expect(rows[0]).To(gomega.And(gomega.HaveKeyWithValue("name", "first"),
			gomega.HaveKeyWithValue("state", "Running"), gomega.HaveKeyWithValue("flavor", "a100")))
		gomega.Expect(rows[1]).To(gomega.And(gomega.HaveKeyWithValue("name", "urgent"),
			gomega.HaveKeyWithValue("place", 1.0), gomega.HaveKeyWithValue("waiting", 2.0)))
		gomega.Expect(
			rows[2],
		).To(
			gomega.And(gomega.HaveKeyWithValue("name", "waits"), gomega.HaveKeyWithValue("place", 2.0)),
		)
		gomega.Expect(
			g.plugin(ctx, who, "list", "-o", "name").out,
		).To(
			gomega.Equal("trainjob.trainer.kubeflow.org/first\n" +
				"trainjob.trainer.kubeflow.org/urgent\ntrainjob.trainer.kubeflow.org/waits\n"),
		)
		gomega.Expect(g.plugin(ctx, who, "list", "-o", "wide").out).To(gomega.ContainSubstring("QuotaUsed"))
		gomega.Expect(g.plugin(ctx, who, "explain", "urgent").out).To(gomega.ContainSubstring("PreemptionNotAllowed"))
		var top struct {
			Quota []map[string]string `json:"quota"`
		}
		g.asked(ctx, who, &top, "top")
		gomega.Expect(top.Quota).To(gomega.ContainElement(gomega.And(gomega.HaveKeyWithValue("clusterQueue", g.queue),
			gomega.HaveKeyWithValue("resource", "nvidia.com/gpu"), gomega.HaveKeyWithValue("used", "8"),
			gomega.HaveKeyWithValue("waiting", "16"))))
	})

	ginkgo.It("stops, resumes and restarts a TrainJob, and waits for it", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("job", "torch", 1))
		waited := g.plugin(ctx, who, "wait", "job", "--for=running", "--timeout=1m")
		gomega.Expect(waited.code).To(gomega.BeZero(), waited.err)
		gomega.Expect(waited.out).To(gomega.HaveSuffix("TrainJob job is Running\n"))
		gomega.Expect(g.plugin(ctx, who, "stop", "job").code).To(gomega.BeZero())
		gomega.Eventually(func() bool { return workload.IsOnHold(workloadOf(ctx, tj)) }).Should(gomega.BeTrue())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(podsOf(ctx, tj)).To(gomega.BeEmpty(), "its quota is given back when its pods have ended")
		gomega.Consistently(running(ctx, tj), "3s").Should(gomega.BeFalse())
		gomega.Expect(g.plugin(ctx, who, "wait", "job", "--for=running", "--timeout=1s").code).To(gomega.Equal(2))
		gomega.Expect(
			g.plugin(ctx, who, "explain", "job").out,
		).To(
			gomega.ContainSubstring("kubectl signalbox resume job"),
		)
		gomega.Expect(g.plugin(ctx, who, "resume", "job").code).To(gomega.BeZero())
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		before := watched.startsOf(tj)
		gomega.Expect(g.plugin(ctx, who, "restart", "job").code).To(gomega.BeZero())
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(before + 1))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		outside := g.submit(ctx, g.trainJob("outside", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels, tj.Spec.Suspend = nil, ptr.To(false)
		}))
		gomega.Expect(g.plugin(ctx, who, "stop", "outside").code).To(gomega.BeZero())
		gomega.Eventually(running(ctx, outside)).Should(gomega.BeFalse(), "it is in no queue")
	})

	ginkgo.It("says what Kueue would do with a TrainJob", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever")
		g.clusterQueue(ctx, g.queue+"-spot", map[string]int64{"h100": 64})
		g.localQueue(ctx, "spot", g.queue+"-spot")
		first := g.submit(ctx, g.trainJob("first", "torch", 1))
		gomega.Eventually(state(ctx, first)).Should(gomega.Equal(api.StateRunning))
		tj := g.submit(ctx, g.trainJob("second", "torch", 2))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
		var answer struct {
			Verdict string                        `json:"verdict"`
			After   []string                      `json:"after"`
			Flavors map[string]string             `json:"flavors"`
			Changes []struct{ Set string }        `json:"changes"`
			Start   struct{ Likely *metav1.Time } `json:"start"`
		}
		g.asked(ctx, who, &answer, "simulate", "second", "--until")
		gomega.Expect(answer.Verdict).To(gomega.Equal("Waits"))
		gomega.Expect(answer.After).To(gomega.Equal([]string{g.namespace + "/first"}))
		gomega.Expect(answer.Changes).To(
			gomega.ConsistOf(struct{ Set string }{"queue=spot"}, struct{ Set string }{"nodes=1"}))
		gomega.Expect(answer.Start.Likely.Time).To(gomega.BeTemporally(">", tj.CreationTimestamp.Time))
		g.asked(ctx, who, &answer, "simulate", "second", "--set", "nodes=1")
		gomega.Expect(answer.Verdict).To(gomega.Equal("Admitted"))
		gomega.Expect(answer.Flavors).To(gomega.HaveKeyWithValue("nvidia.com/gpu", "a100"))
		g.asked(ctx, who, &answer, "simulate", "second", "--set", "nodes=3")
		gomega.Expect(answer.Verdict).To(gomega.Equal("Never"))
		bad := g.plugin(ctx, who, "simulate", "second", "--set", "nodes=none")
		gomega.Expect(bad.code).To(gomega.Equal(1))
		gomega.Expect(bad.err).To(gomega.ContainSubstring("--set nodes=none: nodes must be a whole number of at least 1"))
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning), "as it was foretold")
	})

	ginkgo.It("finds what is wrong with an installation", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.localQueue(ctx, "lost", "nowhere")
		answer := g.plugin(ctx, who, "doctor")
		gomega.Expect(answer.code).To(gomega.Equal(1), answer.out)
		gomega.Expect(answer.out).To(gomega.ContainSubstring("its ClusterQueue nowhere doesn't exist"))
		version := g.plugin(ctx, who, "version")
		gomega.Expect(version.code).To(gomega.BeZero(), version.err)
		gomega.Expect(version.out).To(gomega.ContainSubstring("Kubernetes"))
		unknown := g.plugin(ctx, who, "explain", "nobody")
		gomega.Expect(unknown.code).To(gomega.Equal(1))
		gomega.Expect(strings.Count(unknown.err, "\n")).To(gomega.Equal(1), unknown.err)
	})
}
