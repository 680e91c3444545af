package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/prometheus/procfs"
)

// longPage reports what the page of a user costs with many TrainJobs, with one tab and with five. That is how long a
// browser waits for the first view and for an event, how much memory is used, and what the API server is asked.
func (g *ground) longPage(ctx context.Context, name string) {
	ginkgo.GinkgoHelper()
	who := both[name]
	from := cluster.auditEnd()
	began := time.Now()
	process, link := dashboard(cluster.kubeconfig(who), "--namespace", g.namespace)
	b := enters(ctx, link)
	first := time.Since(began)
	requests := func() map[string]int {
		count := map[string]int{}
		for _, r := range cluster.requests(from, func(r request) bool {
			return r.User.Username == cmp.Or(who, "admin") && (r.Verb == "list" || r.Verb == "watch")
		}) {
			count[r.Verb+" "+r.ObjectRef.Resource]++
		}
		return count
	}
	var paints []float64
	for range 9 {
		start := time.Now()
		b.opens("/")
		paints = append(paints, time.Since(start).Seconds())
	}
	before := requests()
	for range 4 {
		tab, end := chromedp.NewContext(b.ctx) // in the same browser, which has entered
		ginkgo.DeferCleanup(end)
		gomega.Expect(
			chromedp.Run(tab, chromedp.Navigate(b.origin+"/"), chromedp.WaitVisible("#view h1", chromedp.ByQuery)),
		).
			To(gomega.Succeed())
	}
	b.opens("/trainjobs?search=event-")
	var events []float64
	for i := range 9 {
		tj := g.trainJob("event-"+cmp.Or(who, "admin")+"-"+strconv.Itoa(i), "torch", 1)
		start := time.Now()
		g.submit(ctx, tj)
		gomega.Eventually(func() string { return b.text() }, "30s", "20ms").Should(gomega.ContainSubstring(tj.Name))
		events = append(events, time.Since(start).Seconds())
	}
	proc, err := procfs.NewProc(process.Process.Pid)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	status, err := proc.NewStatus()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	slices.Sort(paints)
	slices.Sort(events)
	of := func(times []float64) string { return fmt.Sprintf("%.2f s (%.2f–%.2f)", times[4], times[0], times[8]) }
	ginkgo.AddReportEntry(fmt.Sprintf("page of %s: entered after %.1f s; the first view painted in %s, an event shown "+
		"after %s, with five tabs; memory %d MiB, at most %d", name, first.Seconds(), of(paints), of(events),
		status.VmRSS>>20, status.VmHWM>>20))
	after := requests()
	gomega.Expect(process.Process.Kill()).To(gomega.Succeed()) // the next is measured alone
	for _, what := range slices.Sorted(maps.Keys(after)) {
		ginkgo.AddReportEntry(fmt.Sprintf("page of %s: %s: %d, and before the events %d", name, what, after[what],
			before[what]))
	}
	for what, count := range after {
		if strings.HasPrefix(what, "list ") && !strings.HasSuffix(what, " events") {
			gomega.Expect(count).To(gomega.BeNumerically("<=", 2), what+": more than a watch begins with")
		}
	}
}
