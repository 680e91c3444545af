package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var _ = ginkgo.Describe("An installation by Helm", ginkgo.Label("trainers"), func() {
	ginkgo.It("runs two managers apart from each other, under Pod Security's level restricted", func(ctx context.Context) {
		// Other specs, which may run before, kill managers and nodes.
		scale := func(replicas string) {
			kubectl("-n", "signalbox-system", "scale", "deployment", "signalbox", "--replicas="+replicas)
		}
		scale("0")
		gomega.Eventually(func() []corev1.Pod {
			return pods(ctx, client.InNamespace("signalbox-system"),
				client.MatchingLabels{"app.kubernetes.io/name": "signalbox"})
		}, "1m").Should(gomega.BeEmpty(), "those that are ending still keep others off their nodes")
		scale("2")
		awaitManagers()
		both := managers(ctx)
		gomega.Expect(both).To(gomega.HaveLen(2))
		gomega.Expect(both[0].Spec.NodeName).NotTo(gomega.Equal(both[1].Spec.NodeName))
		for _, p := range both {
			gomega.Expect(p.Status.ContainerStatuses).To(gomega.HaveEach(gomega.HaveField("RestartCount", gomega.BeZero())),
				"%s serves without a restart", p.Name)
		}
		careless := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "signalbox-system", Name: "careless"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "careless", Image: peerImage}}}}
		gomega.Expect(admin.Create(ctx, careless)).To(gomega.MatchError(gomega.ContainSubstring("PodSecurity")))
	})

	ginkgo.It("has what keeps it up and others out", func(ctx context.Context) {
		for _, list := range []client.ObjectList{&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}} {
			gomega.Expect(admin.List(ctx, list, client.InNamespace("signalbox-system"))).To(gomega.Succeed())
			gomega.Expect(list).To(gomega.HaveField("Items", gomega.HaveLen(1)))
		}
		gomega.Expect(leader(managers(ctx))).NotTo(gomega.BeEmpty())
	})

	ginkgo.It("has simulated nodes beside the real ones, where more are needed", func(ctx context.Context) {
		capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("96"), gpu: resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110")}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "simulated-1", Labels: map[string]string{"gpu": "played"},
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}},
			Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
		}
		gomega.Expect(admin.Create(ctx, node)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, node)).To(gomega.Succeed()) })
		awaitNode(ctx, node.Name, corev1.ConditionTrue)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "played"},
			Spec: corev1.PodSpec{NodeSelector: node.Labels, Containers: []corev1.Container{{Name: "plays", Image: "none",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse("8")}}}}}}
		gomega.Expect(admin.Create(ctx, pod)).To(gomega.Succeed())
		phase := func() corev1.PodPhase { return get(ctx, pod).Status.Phase }
		gomega.Eventually(phase).Should(gomega.Equal(corev1.PodRunning))
		// Longer than a node that sends no heartbeats is taken for alive.
		gomega.Consistently(func() bool { return isReady(get(ctx, node)) }, "20s").Should(gomega.BeTrue())
		gomega.Expect(admin.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(gomega.Succeed())
	})

	ginkgo.It("serves its webhooks by the Service: a TrainJob that can't be is refused with its path",
		func(ctx context.Context) {
			g := newGround(ctx, 4)
			g.runtime(ctx, "peer", peerImage)
			tj := g.submit(ctx, "fine", "peer", 1, 1, peer())
			gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
			tj = get(ctx, tj)
			tj.Spec.Trainer.NumNodes = ptr.To[int32](3)
			gomega.Expect(user.Update(ctx, tj)).To(gomega.MatchError(gomega.ContainSubstring("spec.trainer")))
		})
})

var _ = ginkgo.Describe("docs/dashboard.md", func() {
	if !bundled() {
		return
	}

	ginkgo.It("serves the page in the cluster to each user with that user's token, and nobody without one",
		func(ctx context.Context) {
			g := newGround(ctx, 4)
			g.runtime(ctx, "peer", peerImage)
			tj := g.submit(ctx, "shown", "peer", 1, 1, peer("--steps", "400"))
			gomega.Eventually(running(ctx, tj)).Should(gomega.Equal(1))
			upgrade := func(args ...string) {
				_, err := command("helm", append([]string{"upgrade", "signalbox", "charts/signalbox", "--namespace",
					"signalbox-system", "--reuse-values", "--wait", "--timeout", "2m"}, args...)...)
				gomega.Expect(err).NotTo(gomega.HaveOccurred())
			}
			upgrade("--set", "dashboard.enabled=true", "--set", "dashboard.image.repository=signalbox.test/dashboard",
				"--set-string", "dashboard.image.tag=1", "--set", "dashboard.namespace="+g.namespace)
			ginkgo.DeferCleanup(func() { upgrade("--set", "dashboard.enabled=false") })
			pages := pods(ctx, client.InNamespace("signalbox-system"),
				client.MatchingLabels{"app.kubernetes.io/name": "signalbox-dashboard"})
			gomega.Expect(pages).To(gomega.HaveLen(1))
			gomega.Expect(pages[0].Spec.Volumes).NotTo(gomega.ContainElement(gomega.HaveField("Projected",
				gomega.Not(gomega.BeNil()))), "it has no token of its own")
			for _, name := range []string{"member", "stranger"} {
				kubectl("-n", g.namespace, "create", "serviceaccount", name)
			}
			kubectl("-n", g.namespace, "create", "rolebinding", "member", "--clusterrole=edit",
				"--serviceaccount="+g.namespace+":member")
			view := func(who string) func() string {
				token := ""
				if who != "" {
					token = strings.TrimSpace(kubectl("-n", g.namespace, "create", "token", who))
				}
				return func() string {
					return shown(ctx, "http://"+pages[0].Status.PodIP+":8427/trainjobs/"+g.namespace+"/shown", token)
				}
			}
			gomega.Eventually(view("member")).Should(gomega.And(gomega.HavePrefix("200 "), gomega.ContainSubstring("Running")))
			gomega.Expect(view("stranger")()).To(gomega.ContainSubstring(
				"you may not list and watch trainjobs.trainer.kubeflow.org"))
			gomega.Expect(view("")()).To(gomega.And(gomega.HavePrefix("401 "), gomega.ContainSubstring("no bearer token")))
		})
})

// shown is the status and the text of a view, as its script asks for it with a user's token.
func shown(ctx context.Context, url, token string) string {
	ginkgo.GinkgoHelper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	request.Header.Set("HX-Request", "true")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return fmt.Sprintf("%d %s", response.StatusCode, text)
}

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
