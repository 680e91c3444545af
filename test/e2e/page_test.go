package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
)

// SIGNALBOX_PAGE has the page tried in Chromium (make test-page): the suite alone needs no browser and no npm.
func init() {
	if os.Getenv("SIGNALBOX_PAGE") != "" && cluster.bundled() {
		ginkgo.Describe("kubectl signalbox dashboard", ginkgo.Label("page"), func() {
			for _, name := range slices.Sorted(maps.Keys(both)) {
				ginkgo.Context("as "+name, func() { viewSpecs(both[name]) })
			}
			ginkgo.Context("attacked", hostilePageSpecs)
			ginkgo.Context("in trouble", lostPageSpecs)
		})
	}
}

// scene is a queue of eight GPUs, of which "runs" holds all; "waits" and "small" wait.
func scene(ctx context.Context, change ...func(*kueue.ClusterQueue)) *ground {
	ginkgo.GinkgoHelper()
	change = append(change, func(cq *kueue.ClusterQueue) {
		cq.Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyNever
	})
	g := newGround(ctx, map[string]int64{"a100": 8}, change...)
	g.runtime(ctx, "torch", "forever")
	runs := g.submit(ctx, g.trainJob("runs", "torch", 1))
	gomega.Eventually(state(ctx, runs)).Should(gomega.Equal(api.StateRunning))
	for _, name := range []string{"waits", "small"} {
		tj := g.submit(ctx, g.trainJob(name, "torch", 1))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
	}
	return g
}

func viewSpecs(who string) {
	ginkgo.It("shows in each view what the plugin prints, and axe finds nothing", func(ctx context.Context) {
		g := scene(ctx)
		b := g.page(ctx, who)
		g.showsNow(ctx, b, who)
		g.showsJobs(ctx, b, who)
		g.showsJob(ctx, b, who)
		g.showsWhatIf(ctx, b, who)
		g.showsNodes(ctx, b, who)
		g.showsTimeline(b)
		g.showsTeams(ctx, b, who)
		gomega.Expect(b.found()).To(gomega.BeEmpty(), "errors in the browser")
	})

	ginkgo.It(
		"stops and resumes a TrainJob, says before what that does, and shows it within seconds",
		func(ctx context.Context) {
			g := scene(ctx)
			b := g.page(ctx, who)
			path := "/trainjobs/" + g.namespace + "/runs"
			b.opens(path)
			b.do(chromedp.Click(`a[href$="/stop"]`, chromedp.ByQuery),
				chromedp.WaitVisible("#view [hx-post] button", chromedp.ByQuery))
			gomega.Expect(b.text()).To(gomega.And(gomega.ContainSubstring("its quota is free"),
				gomega.ContainSubstring("these get quota at once: "+g.namespace+"/")))
			b.accessible()
			b.do(chromedp.Click("#view [hx-post] button", chromedp.ByQuery),
				chromedp.WaitVisible("#view .said", chromedp.ByQuery))
			gomega.Expect(b.text()).To(gomega.ContainSubstring("is stopping"))
			b.opens(path)
			gomega.Eventually(b.text, "20s").Should(gomega.ContainSubstring("Resume"))
			b.opens(path + "/resume")
			b.do(chromedp.WaitVisible("#view [hx-post] button", chromedp.ByQuery),
				chromedp.Click("#view [hx-post] button", chromedp.ByQuery),
				chromedp.WaitVisible("#view .said", chromedp.ByQuery))
			gomega.Eventually(func() string {
				return get(ctx, g.trainJob("runs", "torch", 1)).Annotations[api.StopAnnotation]
			}).Should(gomega.BeEmpty())
			gomega.Expect(b.found()).To(gomega.BeEmpty(), "errors in the browser")
		},
	)
}

// showsNow holds that the first view has top's quota and list's places.
func (g *ground) showsNow(ctx context.Context, b *browser, who string) {
	ginkgo.GinkgoHelper()
	b.opens("/")
	var top struct {
		Quota []map[string]string `json:"quota"`
	}
	g.asked(ctx, who, &top, "top")
	in := fmt.Sprintf("article[data-queue=%q] ", g.queue)
	var want [][]string
	for _, q := range top.Quota {
		if q["clusterQueue"] == g.queue {
			want = append(want, []string{q["flavor"], q["resource"], q["nominal"], q["used"], q["borrowed"], q["waiting"]})
		}
	}
	shown := func() (rows [][]string) {
		for _, r := range b.rows(in + ".quotas") {
			rows = append(rows, r[:6])
		}
		return rows
	}
	gomega.Eventually(shown).Should(gomega.Equal(want))
	bar := fmt.Sprintf("[...document.querySelectorAll(%q)].map(a => a.getAttribute('aria-label'))",
		in+"tr[data-resource='nvidia.com/gpu'] .bar a")
	gomega.Expect(evaluated[[]string](b, bar)).To(gomega.Equal([]string{g.namespace + "/runs: 8 nvidia.com/gpu"}))
	waiting := b.rows(in + ".waiting")
	gomega.Expect(waiting).To(gomega.HaveLen(2))
	gomega.Expect(waiting[0][:2]).To(gomega.Equal([]string{"1", g.namespace + "/waits"}))
	gomega.Expect(waiting[1][:2]).To(gomega.Equal([]string{"2", g.namespace + "/small"}))
	gomega.Expect(waiting[0][4]).To(gomega.Equal("QuotaUsed"))
	gomega.Eventually(func() string { return b.rows(in + ".waiting")[0][5] },
		"30s").ShouldNot(gomega.Equal("not known"))
	b.accessible()
}

// showsJobs holds that TrainJobs are listed as list prints them.
func (g *ground) showsJobs(ctx context.Context, b *browser, who string) {
	ginkgo.GinkgoHelper()
	var rows []struct{ Namespace, Name, State, Queue, Flavor, Cause string }
	g.asked(ctx, who, &rows, "list")
	b.opens("/trainjobs?in=" + g.namespace)
	shown := map[string][]string{}
	for _, r := range b.rows(".jobs") {
		shown[r[0]] = r
	}
	gomega.Expect(shown).To(gomega.HaveLen(len(rows)))
	for _, r := range rows {
		cells := shown[r.Namespace+"/"+r.Name]
		gomega.Expect([]string{cells[1], cells[2], cells[6], cells[7]}).
			To(gomega.Equal([]string{r.State, r.Queue, r.Flavor, r.Cause}), r.Name)
	}
	b.accessible()
}

// showsJob holds that a TrainJob is explained as explain does, and that its pods are those that run.
func (g *ground) showsJob(ctx context.Context, b *browser, who string) {
	ginkgo.GinkgoHelper()
	var e explain.Explanation
	g.asked(ctx, who, &e, "explain", "waits")
	b.opens("/trainjobs/" + g.namespace + "/waits")
	text := b.text()
	for _, want := range append([]string{e.State, string(e.Cause.Code), e.Cause.Text, "place 1 of 2",
		e.Flavors[0].Needed.String()}, e.Cause.Do...) {
		gomega.Expect(text).To(gomega.ContainSubstring(want))
	}
	b.accessible()
	b.opens("/trainjobs/" + g.namespace + "/runs")
	pods := podsOf(ctx, g.trainJob("runs", "torch", 1))
	gomega.Expect(pods).NotTo(gomega.BeEmpty())
	for _, p := range pods {
		gomega.Expect(b.text()).To(gomega.And(gomega.ContainSubstring(p.Name), gomega.ContainSubstring(p.Spec.NodeName)))
	}
	b.accessible()
}

// showsWhatIf holds that a form answers as simulate does.
func (g *ground) showsWhatIf(ctx context.Context, b *browser, who string) {
	ginkgo.GinkgoHelper()
	var simulated struct {
		Verdict string
		Changes []struct{ Set string }
	}
	g.asked(ctx, who, &simulated, "simulate", "waits")
	b.opens("/whatif")
	b.accessible()
	ask := func(name, nodes string) string {
		b.do(chromedp.SetValue("#name", name, chromedp.ByQuery), chromedp.SetValue("#nodes", nodes, chromedp.ByQuery),
			chromedp.Click("form.whatif button", chromedp.ByQuery))
		gomega.Eventually(func() bool {
			return evaluated[bool](b, "!!document.querySelector('[data-verdict], .warning')")
		}).Should(gomega.BeTrue())
		return evaluated[string](b, "(document.querySelector('[data-verdict]') || {dataset: {}}).dataset.verdict || ''")
	}
	gomega.Expect(ask(g.namespace+"/waits", "")).To(gomega.Equal(simulated.Verdict))
	for _, c := range simulated.Changes {
		gomega.Expect(b.text()).To(gomega.ContainSubstring(c.Set))
	}
	b.accessible()
	b.opens("/whatif")
	gomega.Expect(ask(g.namespace+"/waits", "2")).To(gomega.Equal("Never"))
	gomega.Expect(
		evaluated[string](b, "document.getElementById('copy').value"),
	).To(gomega.ContainSubstring("numNodes: 2"))
	b.opens("/whatif")
	gomega.Expect(ask("nobody", "")).To(gomega.BeEmpty())
	gomega.Expect(b.text()).To(gomega.ContainSubstring("such as vision/resnet"))
}

// showsNodes holds that each node shows what its pods hold, and that those that are avoided are the plugin's.
func (g *ground) showsNodes(ctx context.Context, b *browser, who string) {
	ginkgo.GinkgoHelper()
	b.opens("/nodes")
	as := map[string]client.Client{"user": user, "": admin}[who]
	if apierrors.IsForbidden(as.List(ctx, &corev1.NodeList{})) {
		gomega.Expect(b.text()).To(gomega.ContainSubstring("list nodes"))
		b.accessible()
		return
	}
	for _, p := range podsOf(ctx, g.trainJob("runs", "torch", 1)) {
		on := fmt.Sprintf("[...document.querySelectorAll(%q)].map(a => a.getAttribute('aria-label'))",
			fmt.Sprintf("[data-node=%q] a", p.Spec.NodeName))
		gomega.Expect(evaluated[[]string](b, on)).To(gomega.ContainElement(gomega.HavePrefix(g.namespace + "/runs: ")))
	}
	var avoided struct{ Nodes []struct{ Node string } }
	g.asked(ctx, who, &avoided, "nodes")
	gomega.Expect(
		evaluated[[]string](b, "[...document.querySelectorAll('[data-avoided]')].map(r => r.dataset.avoided)"),
	).
		To(gomega.HaveLen(len(avoided.Nodes)))
	b.accessible()
}

// showsTimeline holds that what runs, and what is expected to, have their lanes.
func (g *ground) showsTimeline(b *browser) {
	ginkgo.GinkgoHelper()
	b.opens("/timeline?hours=48")
	lane := func(name string) func() string {
		script := fmt.Sprintf(`[...document.querySelectorAll(%q)].map(r => r.getAttribute('class')).join(' ')`,
			fmt.Sprintf("[data-lane=%q] svg g rect", g.namespace+"/"+name))
		return func() string { return evaluated[string](b, script) }
	}
	gomega.Eventually(lane("runs"), "30s").Should(gomega.Equal("runs will"))
	gomega.Eventually(lane("waits"), "30s").Should(gomega.ContainSubstring("will"))
	b.accessible()
}

// showsTeams holds that the ledger, or why there is none, is as usage prints it.
func (g *ground) showsTeams(ctx context.Context, b *browser, who string) {
	ginkgo.GinkgoHelper()
	answer := g.plugin(ctx, who, "usage", "-A")
	if strings.Contains(answer.err, "of all namespaces") {
		answer = g.plugin(ctx, who, "usage") // as the page does for those who may not see all
	}
	b.opens("/teams")
	if answer.code != 0 {
		gomega.Expect(b.text()).To(gomega.ContainSubstring(strings.TrimSpace(strings.TrimPrefix(answer.err, "Error: "))))
	} else {
		gomega.Expect(len(b.rows(".teams"))).To(gomega.BeNumerically(">=", 1))
	}
	b.accessible()
}
