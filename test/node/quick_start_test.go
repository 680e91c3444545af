package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var _ = ginkgo.Describe("docs/quick-start.md", func() {
	if !bundled() {
		return
	}

	ginkgo.It("trains as it says on one machine", func(ctx context.Context) {
		page, err := os.ReadFile("docs/quick-start.md")
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		// The demo, which the page starts with, has submitted the example. The flavor is here under the same name.
		gomega.Expect(admin.Delete(ctx, newFlavor())).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) {
			kubectl("delete", "-k", "examples/training", "--timeout=60s")
			gomega.Eventually(func() error { return admin.Create(ctx, newFlavor()) }).Should(gomega.Succeed())
		})
		kubectl("apply", "-k", "examples/training")
		first := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: "regression"}}
		gomega.Eventually(is(ctx, first, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		blocks := 0
		var out []byte
		for _, block := range strings.Split(string(page), "\n```sh node\n")[1:] {
			commands, _, _ := strings.Cut(block, "```\n")
			limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			shell := exec.CommandContext(limit, "bash", "-euc", commands)
			bin, err := filepath.Abs("bin")
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			shell.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
				"KUBECONFIG="+filepath.Join(dir, "kubeconfig"))
			out, err = shell.CombinedOutput()
			gomega.Expect(err).NotTo(gomega.HaveOccurred(), "%s\n%s", commands, out)
			blocks++
		}
		gomega.Expect(blocks).To(gomega.Equal(2))
		gomega.Expect(string(out)).To(gomega.ContainSubstring("rank 1 done"))
		gomega.Expect(losses(kubectl("-n", "research", "logs", rank(ctx, first, 0).Name))).NotTo(gomega.BeEmpty())
	})
})
