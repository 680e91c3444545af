package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/test/audit"
)

// plane is the running control plane, by what it leaves under .cluster.
type plane struct{ dir string }

// bundled reports whether Signalbox is the Trainer of this control plane; else Kubeflow Trainer runs beside it. Specs
// ask it when they are declared.
func (p plane) bundled() bool {
	_, err := os.Stat(filepath.Join(p.dir, "log", "trainer.log"))
	return os.IsNotExist(err)
}

func (p plane) kubeconfig(name string) string {
	if name == "" {
		return filepath.Join(p.dir, "kubeconfig")
	}
	return filepath.Join(p.dir, name+".kubeconfig")
}

// ensure starts a component unless it runs.
func (p plane) ensure(component string) error {
	if err := p.act("start", component); err != nil && !strings.Contains(err.Error(), "runs already") {
		return err
	}
	return nil
}

// act kills, stops, starts or restarts a component and returns when that is done; a started one is ready.
func (p plane) act(action, component string) error {
	client := &http.Client{Timeout: 2 * time.Minute,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.dir, "control.sock"))
		}}}
	response, err := client.Post("http://cluster/"+action+"/"+component, "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, err := io.ReadAll(response.Body)
		return errors.Join(fmt.Errorf("%s %s: %s", action, component, strings.TrimSpace(string(message))), err)
	}
	return nil
}

func (p plane) mustAct(action string, components ...string) {
	ginkgo.GinkgoHelper()
	for _, c := range components {
		gomega.Expect(p.act(action, c)).To(gomega.Succeed())
	}
}

// change edits the configuration of a component.
type change func(map[string]any)

// configure changes the configurations of Kueue and Signalbox for the running spec and restarts both, and puts all back
// when the spec (or the container that it is called for) ends.
func (p plane) configure(ofKueue, ofSignalbox change) {
	ginkgo.GinkgoHelper()
	kueueBefore, kueueAfter := p.edited("kueue", ofKueue)
	signalboxBefore, signalboxAfter := p.edited("signalbox", ofSignalbox)
	ginkgo.DeferCleanup(func() { p.install(kueueBefore, signalboxBefore) })
	p.install(kueueAfter, signalboxAfter)
}

func (p plane) configPath(component string) string {
	return filepath.Join(p.dir, "config", component+".yaml")
}

func (p plane) edited(component string, edit change) (before, after []byte) {
	ginkgo.GinkgoHelper()
	before, err := os.ReadFile(p.configPath(component))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	var config map[string]any
	gomega.Expect(yaml.Unmarshal(before, &config)).To(gomega.Succeed())
	edit(config)
	after, err = yaml.Marshal(config)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return before, after
}

// install writes both configurations, Kueue's also where an installed Kueue has it and where Signalbox compares it.
func (p plane) install(ofKueue, ofSignalbox []byte) {
	ginkgo.GinkgoHelper()
	gomega.Expect(os.WriteFile(p.configPath("kueue"), ofKueue, 0o644)).To(gomega.Succeed())
	gomega.Expect(os.WriteFile(p.configPath("signalbox"), ofSignalbox, 0o644)).To(gomega.Succeed())
	setKueueConfig(string(ofKueue))
	p.mustAct("restart", "kueue", "signalbox")
	awaitKueue()
}

// metrics are what Signalbox serves to Prometheus.
func (p plane) metrics() (string, error) {
	content, err := os.ReadFile(p.configPath("signalbox"))
	if err != nil {
		return "", err
	}
	config, err := configapi.Parse(content)
	if err != nil {
		return "", err
	}
	response, err := http.Get("http://" + config.Metrics.BindAddress + "/metrics")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// awaitKueue waits until a restarted Kueue has its queues active again.
func awaitKueue() {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func(g gomega.Gomega) {
		var queues kueue.ClusterQueueList
		g.Expect(admin.List(context.Background(), &queues)).To(gomega.Succeed())
		for _, q := range queues.Items {
			g.Expect(apimeta.IsStatusConditionTrue(q.Status.Conditions, kueue.ClusterQueueActive)).To(gomega.BeTrue(), q.Name)
		}
	}).Should(gomega.Succeed())
}

type request = audit.Request

// requests reads the audit log from an offset to its end and returns what the filter takes.
func (p plane) requests(from int64, take func(request) bool) []request {
	ginkgo.GinkgoHelper()
	taken, err := audit.Since(audit.Log(p.dir), from, take)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return taken
}

// auditEnd is where the audit log ends now.
func (p plane) auditEnd() int64 {
	ginkgo.GinkgoHelper()
	end, err := audit.End(audit.Log(p.dir))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return end
}

// logEnd and logSince read a component's log.
func (p plane) logEnd(component string) int64 {
	info, err := os.Stat(filepath.Join(p.dir, "log", component+".log"))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return info.Size()
}

func (p plane) logSince(component string, offset int64) string {
	content, err := os.ReadFile(filepath.Join(p.dir, "log", component+".log"))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return string(content[offset:])
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

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
