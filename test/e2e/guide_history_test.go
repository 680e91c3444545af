package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func historySpecs() {
	const manager = "example.com/team"
	submit := func(ctx context.Context, g *ground, history string) *api.TrainJob {
		ginkgo.GinkgoHelper()
		tj := g.trainJob("history", "guided", 1)
		tj.Labels = map[string]string{constants.QueueLabel: "held"} // so that nothing else happens to it
		return g.submitRaw(ctx, tj, "templateOverrides", listFrom(history))
	}

	ginkgo.It("is merged, the later time over the earlier, into the JobSet, "+
		"the Jobs and the pods", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "guided", "1s", guided)
		tj := g.submitRaw(ctx, g.trainJob("history", "guided", 1), "templateOverrides", listFrom(`[{manager: example.com/team,
		  job: [{metadata: {labels: {of: jobset}}}, {targetJobs: [{name: node}], metadata: {annotations: {of: job}}}],
		  pod: [{time: "2026-02-02T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {zone: later}, terminationGracePeriodSeconds: 5}},
		        {time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {zone: earlier, more: "yes"}, terminationGracePeriodSeconds: 9, securityContext: {runAsUser: 7}}}]}]`))
		gomega.Eventually(func() []string { return podsNamed(ctx, tj, "node") }).Should(gomega.HaveLen(1))
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: tj.Name}})
		gomega.Expect(js.Labels).To(gomega.HaveKeyWithValue("of", "jobset"))
		gomega.Expect(js.Spec.ReplicatedJobs[1].Template.Annotations).To(gomega.HaveKeyWithValue("of", "job"))
		pod := js.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec
		gomega.Expect(pod.NodeSelector).To(
			gomega.Equal(map[string]string{"disk": "fast", "zone": "later", "more": "yes", "gpu": "a100", "has-a100": "true"}),
			"merged by key")
		gomega.Expect(pod.TerminationGracePeriodSeconds).To(gomega.HaveValue(gomega.BeEquivalentTo(5)))
		gomega.Expect(pod.SecurityContext.RunAsUser).To(gomega.HaveValue(gomega.BeEquivalentTo(7)))
	})

	ginkgo.It("is a history: entries may be added, never changed or removed; "+
		"its times are the server's where they are missing", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "guided", "1s", guided)
		const first = `{targetJobs: [{name: node}], spec: {nodeSelector: {zone: a}}}`
		tj := submit(ctx, g, `[{manager: example.com/team, pod: [`+first+`]}]`)
		stamp := tj.Spec.TemplateOverrides[0].Pod[0].Time
		gomega.Expect(stamp).NotTo(gomega.BeNil())
		gomega.Expect(stamp.Time).To(gomega.BeTemporally("~", tj.CreationTimestamp.Time, time.Minute))
		send := func(way, history string) error {
			before := raw(ctx, tj)
			after := before.DeepCopy()
			if history == "" {
				unstructured.RemoveNestedField(after.Object, "spec", "templateOverrides")
			} else {
				gomega.Expect(unstructured.SetNestedSlice(after.Object, listFrom(history), "spec", "templateOverrides")).To(
					gomega.Succeed())
			}
			return ways[way](ctx, user, before, after)
		}
		for way := range ways {
			gomega.Expect(send(way, `[{manager: example.com/team, pod: [`+first+`]}]`)).To(gomega.Succeed(), way+": the same again, without its time")
			gomega.Expect(get(ctx, tj).Spec.TemplateOverrides[0].Pod[0].Time.Equal(stamp)).To(gomega.BeTrue(),
				way+": its time is kept")
			refusals := []string{
				`[{manager: example.com/team, pod: [{targetJobs: [{name: node}], spec: {nodeSelector: {zone: b}}}]}]`,
				`[{manager: example.com/team, pod: [{time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {zone: a}}}]}]`,
				`[{manager: example.com/other, pod: [` + first + `]}]`, `[{manager: example.com/team, job: [{metadata: {labels: {a: b}}}]}]`,
			}
			if way == "server-side apply" { // which takes another manager's entry for one beside the first
				refusals = append(refusals[:2], refusals[3:]...)
			}
			if way != "server-side apply" {
				refusals = append(refusals, "")
			}
			for _, refusal := range refusals {
				gomega.Expect(send(way, refusal)).To(gomega.MatchError(gomega.And(
					gomega.ContainSubstring("spec.templateOverrides[example.com/team].pod[0]: Forbidden: entry 0, of "),
					gomega.ContainSubstring("is history: it can't be changed, moved or removed"),
					gomega.ContainSubstring("or use spec.runtimePatches"))), way+": "+refusal)
			}
		}
		gomega.Expect(send("update", `[{manager: example.com/team, pod: [`+first+`, {targetJobs: [{name: node}], spec: {nodeSelector: {zone: b}}}]}]`)).To(gomega.Succeed(), "one is added")
		now := get(ctx, tj).Spec.TemplateOverrides[0].Pod
		gomega.Expect(now).To(gomega.HaveLen(2))
		gomega.Expect(now[0].Time.Equal(stamp)).To(gomega.BeTrue())
		gomega.Expect(now[1].Time).NotTo(gomega.BeNil())
		gomega.Expect(send("update", `[{manager: kueue.x-k8s.io/manager, pod: [`+first+`]}]`)).To(gomega.MatchError(gomega.ContainSubstring("is the integration's")))
	})

	ginkgo.It("can't change while the TrainJob runs, and warns of what to use instead", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("runs", "torch", 1))
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
		for field, list := range map[string]string{
			"templateOverrides":    `[{"manager":"` + manager + `","pod":[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"a":"b"}}}]}]`,
			"podTemplateOverrides": `[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"a":"b"}}}]`,
		} {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"`+field+`":`+list+`}}`))
			gomega.Expect(user.Patch(ctx, tj.DeepCopy(), patch)).To(
				gomega.MatchError(gomega.ContainSubstring("spec." + field +
					": Forbidden: its entries can't change while the TrainJob runs; suspend it before")))
		}
		warned := &warnings{}
		c := rest.CopyConfig(config(cluster.kubeconfig("")))
		c.WarningHandler = warned
		warning, err := client.New(c, client.Options{Scheme: admin.Scheme()})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		u, err := toUnstructured(g.trainJob("warned", "torch", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(`[{manager: example.com/team, pod: [{targetJobs: [{name: node}], spec: {nodeSelector: {zone: a}}}]}]`), "spec", "templateOverrides")).To(gomega.Succeed())
		gomega.Expect(warning.Create(ctx, u)).To(gomega.Succeed())
		gomega.Expect(warned.texts).To(gomega.HaveLen(1))
		_, equivalent, found := strings.Cut(warned.texts[0],
			"spec.templateOverrides is deprecated; the equivalent in spec is ")
		gomega.Expect(found).To(gomega.BeTrue(), warned.texts[0])
		var spec api.TrainJobSpec
		gomega.Expect(json.Unmarshal([]byte(equivalent), &spec)).To(gomega.Succeed())
		gomega.Expect(spec.RuntimePatches).To(gomega.HaveLen(1))
		gomega.Expect(spec.RuntimePatches[0].Manager).To(gomega.Equal(manager))
	})
}
