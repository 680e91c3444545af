package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// browser is a Chromium that has entered the page.
type browser struct {
	ctx context.Context
	// origin is the address of the page, such as http://127.0.0.1:8427.
	origin string

	mu     sync.Mutex
	faults []string // of scripts, and of what the Content-Security-Policy has refused
}

// dashboard serves the page as a user until the spec ends, and returns its process and the link.
func dashboard(kubeconfig string, args ...string) (*exec.Cmd, string) {
	ginkgo.GinkgoHelper()
	cmd := exec.Command(filepath.Join(cluster.dir, "..", "bin", "kubectl-signalbox"),
		append([]string{"dashboard", "--no-browser"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, err := cmd.StdoutPipe()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	cmd.Stderr = ginkgo.GinkgoWriter
	gomega.Expect(cmd.Start()).To(gomega.Succeed())
	ginkgo.DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return cmd, strings.TrimSpace(strings.TrimPrefix(line, "The page is at "))
}

// chromium starts a browser, of the size of a phone if that is asked for.
func chromium(ctx context.Context, phone bool) *browser {
	ginkgo.GinkgoHelper()
	path, err := exec.LookPath("chromium")
	gomega.Expect(
		err,
	).NotTo(gomega.HaveOccurred(), "the page is tried in Chromium; on Debian: apt-get install chromium")
	width, height := 1280, 900
	if phone {
		width, height = 360, 740
	}
	allocated, end := chromedp.NewExecAllocator(
		context.WithoutCancel(ctx),
		append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(width, height))...)
	tab, endTab := chromedp.NewContext(allocated)
	ginkgo.DeferCleanup(func() {
		endTab()
		end()
	})
	gomega.Expect(chromedp.Run(tab)).To(gomega.Succeed()) // it lives as long as the context of its first action
	b := &browser{ctx: tab}
	chromedp.ListenTarget(tab, func(event any) {
		switch e := event.(type) {
		case *cdpruntime.EventExceptionThrown:
			b.fault(e.ExceptionDetails.Error())
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.LevelError && !strings.Contains(e.Entry.Text, "status of 4") {
				b.fault(e.Entry.Text)
			}
		}
	})
	return b
}

// enters opens the page by its link.
func enters(ctx context.Context, link string) *browser {
	ginkgo.GinkgoHelper()
	b := chromium(ctx, false)
	b.origin, _, _ = strings.Cut(link, "/#")
	b.do(chromedp.Navigate(link))
	gomega.Eventually(b.title).Should(gomega.HaveSuffix(" · Signalbox"))
	return b
}

// page serves the page as a user, and opens it.
func (g *ground) page(ctx context.Context, who string, args ...string) *browser {
	ginkgo.GinkgoHelper()
	_, link := dashboard(cluster.kubeconfig(who), append(args, "--namespace", g.namespace)...)
	return enters(ctx, link)
}

// page serves the page of the manager cluster to such a user, and opens it.
func (f fleet) page(ctx context.Context, g *ground, who string) *browser {
	ginkgo.GinkgoHelper()
	_, link := dashboard(f.kubeconfig(who), "--context", "manager", "--namespace", g.namespace)
	return enters(ctx, link)
}

func (b *browser) fault(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, text)
}

// found returns what has gone wrong in the browser.
func (b *browser) found() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults
}

// do runs actions.
func (b *browser) do(actions ...chromedp.Action) {
	ginkgo.GinkgoHelper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	gomega.Expect(chromedp.Run(ctx, actions...)).To(gomega.Succeed())
}

// opens shows a view, and waits until it is there.
func (b *browser) opens(path string) {
	ginkgo.GinkgoHelper()
	b.do(chromedp.Navigate(b.origin+path), chromedp.WaitVisible("#view h1", chromedp.ByQuery))
}

// evaluated returns what a script is in the page.
func evaluated[T any](b *browser, script string) (value T) {
	ginkgo.GinkgoHelper()
	b.do(chromedp.Evaluate(script, &value))
	return value
}

func (b *browser) title() string { return evaluated[string](b, "document.title") }

// text returns what the view shows.
func (b *browser) text() string {
	return evaluated[string](b, "document.getElementById('view').innerText")
}

// rows returns the cells of a table's rows.
func (b *browser) rows(selector string) [][]string {
	script := fmt.Sprintf(`[...document.querySelectorAll(%q)].map(r => [...r.cells].map(c => c.innerText.trim()))`,
		selector+" tbody tr")
	return evaluated[[][]string](b, script)
}

// finding is what axe finds.
type finding struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML string `json:"html"`
	} `json:"nodes"`
}

// axe is the script that finds what keeps people from a page.
var axe = sync.OnceValues(func() (string, error) {
	root := filepath.Join(cluster.dir, "..", "hack", "page")
	install := exec.Command("npm", "ci", "--silent", "--prefix", root)
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci of hack/page: %w\n%s", err, bytes.TrimSpace(out))
	}
	text, err := os.ReadFile(filepath.Join(root, "node_modules", "axe-core", "axe.min.js"))
	return string(text), err
})

// accessible holds that axe finds nothing in what is shown, light and dark.
func (b *browser) accessible() {
	ginkgo.GinkgoHelper()
	script, err := axe()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for _, scheme := range []string{"light", "dark"} {
		var result string
		b.do(
			emulation.SetEmulatedMedia().WithFeatures(
				[]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			),
			chromedp.Evaluate(script+";0", nil),
			chromedp.Evaluate(`axe.run().then(r => JSON.stringify(r.violations))`, &result,
				func(p *cdpruntime.EvaluateParams) *cdpruntime.EvaluateParams { return p.WithAwaitPromise(true) }),
		)
		var found []finding
		gomega.Expect(json.Unmarshal([]byte(result), &found)).To(gomega.Succeed())
		gomega.Expect(found).To(gomega.BeEmpty(), "axe, "+scheme+": "+b.title())
	}
}
