package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// runsAfter has a TrainJob run after others.
func runsAfter(value string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) { metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.AfterAnnotation, value) }
}

var _ = ginkgo.Describe("A TrainJob that runs after others", func() {
	ginkgo.It("waits without quota and pods, and can't be made not to", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "forever", "forever")
		g.runtime(ctx, "short", "1s")
		last := g.trainJob("last", "short", 1, runsAfter("prepare=ok,warmup=any"))
		if os.Getenv("SIGNALBOX_KUEUE") == "0.18" {
			gomega.Expect(user.Create(ctx, last)).To(gomega.MatchError(gomega.ContainSubstring(
				"feature gate AdmissionGatedBy, which is off in this cluster")))
			return
		}
		warmup := g.submit(ctx, g.trainJob("warmup", "forever", 1))
		g.submit(ctx, last)
		gomega.Eventually(func() string {
			if wl := workloadOf(ctx, last); wl != nil {
				return wl.Annotations[kueueconstants.AdmissionGatedByAnnotation]
			}
			return ""
		}).Should(gomega.Equal(after.Gate))
		for way, send := range ways {
			gomega.Eventually(func() error {
				before := raw(ctx, last)
				changed := before.DeepCopy()
				annotations := changed.GetAnnotations()
				delete(annotations, kueueconstants.AdmissionGatedByAnnotation)
				changed.SetAnnotations(annotations)
				return send(ctx, user, before, changed)
			}).Should(gomega.Succeed(), way)
			gomega.Expect(after.Gated(get(ctx, last))).To(gomega.BeTrue(), way)
		}
		gomega.Expect(user.Patch(ctx, last.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(
			`{"metadata":{"annotations":{"signalbox.dev/after":null}}}`)))).To(gomega.MatchError(
			gomega.ContainSubstring("delete the TrainJob, and create it again")))

		gomega.Eventually(blocked(ctx, last), "20s").Should(gomega.Equal(after.Reason), "nobody is there of one name")
		goes := func(tj *api.TrainJob) { metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.TTLAnnotation, "0") }
		prepare := g.submit(ctx, g.trainJob("prepare", "short", 1, goes))
		noted := func() string { return get(ctx, last).Annotations[api.AfterEndedAnnotation] }
		gomega.Eventually(noted).Should(gomega.Equal("prepare=ok,warmup=there"), "how it has ended isn't forgotten")
		gomega.Eventually(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(prepare), &api.TrainJob{}))
		}).Should(gomega.BeTrue())
		gomega.Eventually(bound(ctx, warmup)).Should(gomega.Equal(1))
		gomega.Eventually(blocked(ctx, last)).Should(gomega.BeEmpty())
		gomega.Expect(flavor(ctx, last)()).To(gomega.BeEmpty(), "there is quota, and the other runs")
		gomega.Expect(bound(ctx, last)()).To(gomega.Equal(0))
		shown := g.plugin(ctx, "", "explain", "last").out
		gomega.Expect(shown).To(gomega.And(gomega.ContainSubstring("RunsAfterOthers"),
			gomega.MatchRegexp(`(?m)^  warmup +has ended +Running$`), gomega.MatchRegexp(`(?m)^  prepare +has succeeded +Missing$`)))
		g.complete(ctx, warmup)
		gomega.Eventually(complete(ctx, last)).Should(gomega.BeTrue())
		gomega.Expect(watched.startsOf(last)).To(gomega.Equal(1))
	})

	ginkgo.It("says that it never runs, and runs when that is mended", func(ctx context.Context) {
		if os.Getenv("SIGNALBOX_KUEUE") == "0.18" {
			return // it isn't created
		}
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "short", "1s")
		cleans := g.submit(ctx, g.trainJob("cleans", "short", 1, runsAfter("last=any")))
		last := g.submit(ctx, g.trainJob("last", "short", 1, runsAfter("prepare=ok")))
		prepare := g.submit(ctx, g.trainJob("prepare", "short", 1, runsAfter("last=ok")))
		for _, tj := range []*api.TrainJob{prepare, last, cleans} {
			gomega.Eventually(blocked(ctx, tj)).Should(gomega.Equal(after.Reason))
		}
		gomega.Eventually(eventsOf(ctx, last)).Should(gomega.ContainElement(gomega.ContainSubstring(
			"last waits for prepare waits for last")))
		gomega.Expect(user.Delete(ctx, prepare)).To(gomega.Succeed())
		g.submit(ctx, g.trainJob("prepare", "short", 1))
		for _, tj := range []*api.TrainJob{prepare, last, cleans} {
			gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		}
	})

	ginkgo.It("keeps a sweep within --at-most when the same command creates what was deleted", func(ctx context.Context) {
		if os.Getenv("SIGNALBOX_KUEUE") == "0.18" || !cluster.bundled() {
			return // it isn't created, or the plugin is tried with the other Trainer
		}
		g := newGround(ctx, map[string]int64{"a100": 32})
		g.runtime(ctx, "torch", "forever")
		manifest := filepath.Join(ginkgo.GinkgoT().TempDir(), "job.yaml")
		text, err := yaml.Marshal(g.trainJob("swept", "torch", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(os.WriteFile(manifest, []byte("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n"+
			string(text)), 0o600)).To(gomega.Succeed())
		sweep := func() {
			ginkgo.GinkgoHelper()
			answer := g.plugin(ctx, "user", "sweep", "-f", manifest, "--set", "x=1..4", "--at-most", "1")
			gomega.Expect(answer.code).To(gomega.BeZero(), answer.err)
		}
		running := func() (names []string) {
			for i := range 4 {
				if tj := g.trainJob(fmt.Sprintf("swept-%d", i), "torch", 1); bound(ctx, tj)() > 0 {
					names = append(names, tj.Name)
				}
			}
			return names
		}
		sweep()
		gomega.Eventually(running).Should(gomega.Equal([]string{"swept-0"}))
		gomega.Expect(user.Delete(ctx, g.trainJob("swept-0", "torch", 1))).To(gomega.Succeed())
		gomega.Eventually(running).Should(gomega.Equal([]string{"swept-1"}))
		sweep()
		again := get(ctx, g.trainJob("swept-0", "torch", 1))
		gomega.Expect(again.Annotations[api.AfterAnnotation]).To(gomega.Equal("swept-3=any,swept-2=any,swept-1=any"))
		gomega.Consistently(running, "5s").Should(gomega.Equal([]string{"swept-1"}))
		for _, name := range []string{"swept-1", "swept-2", "swept-3"} {
			gomega.Expect(user.Delete(ctx, g.trainJob(name, "torch", 1))).To(gomega.Succeed())
		}
		gomega.Eventually(running).Should(gomega.Equal([]string{"swept-0"}))
	})
})
