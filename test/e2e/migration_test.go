package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if !cluster.bundled() {
		ginkgo.Describe("A cluster whose Kueue runs TrainJobs itself", migrationSpecs)
	}
}

func migrationSpecs() {
	ginkgo.It("migrates to Signalbox and back; running TrainJobs run on, "+
		"and queued ones start once", func(ctx context.Context) {
		back := migrateToBuiltin(ctx) // this control plane has Signalbox; docs/migration.md calls it the way back
		ginkgo.DeferCleanup(back)
		g := newGround(ctx, map[string]int64{"a100": 2 * gpusPerNode})
		g.runtime(ctx, "torch", "forever")
		g.runtime(ctx, "short", "1s")
		submit := func(name, runtime string) *api.TrainJob { return g.submit(ctx, g.trainJob(name, runtime, 1)) }
		runs, fills := submit("runs", "torch"), submit("fills", "torch")
		gomega.Eventually(bound(ctx, runs)).Should(gomega.Equal(1))
		gomega.Eventually(bound(ctx, fills)).Should(gomega.Equal(1))
		queued := func(names ...string) (all []*api.TrainJob) {
			ginkgo.GinkgoHelper()
			for _, name := range names {
				tj := submit(name, "short")
				gomega.Eventually(func() error {
					wl := workloadOf(ctx, tj)
					if wl == nil {
						return fmt.Errorf("%s has no Workload", name)
					}
					return nil
				}).Should(gomega.Succeed())
				all = append(all, tj)
			}
			return all
		}
		waiting := queued("waits-1", "waits-2")
		// What runs is known by its pods and its Workload.
		of := func(all ...*api.TrainJob) func() []types.UID {
			return func() (uids []types.UID) {
				for _, tj := range all {
					for _, p := range podsOf(ctx, tj) {
						uids = append(uids, p.UID)
					}
					if wl := workloadOf(ctx, tj); wl != nil {
						uids = append(uids, wl.UID)
					}
				}
				return uids
			}
		}
		one, both := of(runs)(), of(runs, fills)()
		gomega.Expect(both).To(gomega.HaveLen(4))
		watched.violations() // what Kueue's own integration does with its two writes is not on trial

		back(ctx)
		gomega.Consistently(of(runs, fills)).Should(gomega.Equal(both))
		for _, tj := range waiting {
			gomega.Expect(running(ctx, tj)()).To(gomega.BeFalse())
		}
		gomega.Expect(admin.Delete(ctx, fills)).To(gomega.Succeed())
		for _, tj := range waiting {
			gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
			gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		}
		gomega.Expect(of(runs)()).To(gomega.Equal(one))
		// What Kueue's own integration has started stops and starts again as any other.
		activate := func(value bool) {
			ginkgo.GinkgoHelper()
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"active":%t}}`, value))
			gomega.Expect(admin.Patch(ctx, workloadOf(ctx, runs), patch)).To(gomega.Succeed())
		}
		activate(false)
		gomega.Eventually(bound(ctx, runs)).Should(gomega.BeZero())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		activate(true)
		gomega.Eventually(bound(ctx, runs)).Should(gomega.Equal(1))

		fills = submit("fills-again", "torch")
		gomega.Eventually(bound(ctx, fills)).Should(gomega.Equal(1))
		waiting = queued("waits-3", "waits-4")
		one, both = of(runs)(), of(runs, fills)()
		gomega.Expect(watched.violations()).To(gomega.BeEmpty(), "while Signalbox was there")
		again := migrateToBuiltin(ctx)
		ginkgo.DeferCleanup(again)
		// Kueue's own integration starts only what its webhook has given an empty entry.
		for _, tj := range waiting {
			gomega.Expect(admin.Patch(ctx, tj, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"runtimePatches":[{"manager":"kueue.x-k8s.io/manager","trainingRuntimeSpec":{"template":{"spec":{}}}}]}}`)))).To(gomega.Succeed())
		}
		gomega.Consistently(of(runs, fills)).Should(gomega.Equal(both))
		gomega.Expect(admin.Delete(ctx, fills)).To(gomega.Succeed())
		for _, tj := range waiting {
			gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
			gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		}
		gomega.Expect(of(runs)()).To(gomega.Equal(one))
		ginkgo.AddReportEntry(
			"migration: to Signalbox and back with 2 TrainJobs running and 2 queued each time: the running ones kept their " +
				"pods and Workloads, the queued ones started once and finished")
		watched.violations()
	})
}

// migrateToBuiltin does what docs/migration.md says of the way back, in its order, and returns what migrates to
// Signalbox; that does nothing a second time.
func migrateToBuiltin(ctx context.Context) func(context.Context) {
	ginkgo.GinkgoHelper()
	const builtin, external = "trainer.kubeflow.org/trainjob", "TrainJob.v1alpha1.trainer.kubeflow.org"
	setKueue := func(frameworks, externals func([]any) []any) {
		ginkgo.GinkgoHelper()
		_, after := cluster.edited("kueue", func(c map[string]any) {
			integrations := c["integrations"].(map[string]any)
			all, _ := integrations["frameworks"].([]any)
			others, _ := integrations["externalFrameworks"].([]any)
			integrations["frameworks"], integrations["externalFrameworks"] = frameworks(all), externals(others)
		})
		gomega.Expect(os.WriteFile(cluster.configPath("kueue"), after, 0o644)).To(gomega.Succeed())
		var config map[string]any
		gomega.Expect(yaml.Unmarshal(after, &config)).To(gomega.Succeed())
		setKueueConfig(string(after))
		cluster.mustAct("restart", "kueue")
		awaitKueue()
	}
	with := func(name string) func([]any) []any {
		return func(l []any) []any { return append(slices.Clone(l), any(name)) }
	}
	without := func(name string) func([]any) []any {
		return func(l []any) []any {
			return slices.DeleteFunc(slices.Clone(l), func(n any) bool { return n == any(name) })
		}
	}
	// 1. Signalbox and its webhooks go.
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	gomega.Expect(admin.Get(ctx, client.ObjectKey{Name: "signalbox-mutating"}, &mutating)).To(gomega.Succeed())
	gomega.Expect(admin.Get(ctx, client.ObjectKey{Name: "signalbox-validating"}, &validating)).To(gomega.Succeed())
	gomega.Expect(admin.Delete(ctx, mutating.DeepCopy())).To(gomega.Succeed())
	gomega.Expect(admin.Delete(ctx, validating.DeepCopy())).To(gomega.Succeed())
	cluster.mustAct("stop", "signalbox")
	// 2. Kueue runs TrainJobs.
	setKueue(with(builtin), without(external))
	moved := false
	return func(ctx context.Context) {
		ginkgo.GinkgoHelper()
		if moved {
			return
		}
		moved = true
		// The same the other way round: Kueue leaves TrainJobs to another, and Signalbox comes.
		setKueue(without(builtin), with(external))
		cluster.mustAct("start", "signalbox")
		for _, o := range []client.Object{&mutating, &validating} {
			o.SetResourceVersion("")
			o.SetUID("")
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
		}
	}
}
