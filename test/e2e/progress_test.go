package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/statusserver"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func progressSpecs() {
	ginkgo.It("lets a training process report its progress, and nobody else", func(ctx context.Context) {
		const namespace, secret = "kubeflow-system", "signalbox-webhook-cert" // of a manager that runs in no cluster
		gomega.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(
			gomega.Succeed())
		ca, err := os.ReadFile(filepath.Join(cluster.dir, "pki", "ca.crt"))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(admin.Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret},
				Data: map[string][]byte{"ca.crt": ca}})).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(
				gomega.Succeed())
		})
		port := freePort()
		cluster.configure(func(map[string]any) {}, func(c map[string]any) {
			c["trainer"] = map[string]any{"enabled": true, "progress": map[string]any{"enabled": true, "port": port}}
		})
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("reports", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		env := podsOf(ctx, tj)[0].Spec.Containers[0].Env
		gomega.Expect(env).To(gomega.ContainElement(corev1.EnvVar{Name: "KUBEFLOW_TRAINER_SERVER_URL",
			Value: fmt.Sprintf("https://signalbox-webhook.%s.svc:%d%s", namespace, port,
				statusserver.StatusUrl(tj.Namespace, tj.Name))}))
		report := func(audience string) int {
			ginkgo.GinkgoHelper()
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
			account := get(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "default"}})
			gomega.Expect(admin.SubResource("token").Create(ctx, account, request)).To(gomega.Succeed())
			body, err := json.Marshal(trainerapi.UpdateTrainJobStatusRequest{
				TrainerStatus: &trainerapi.TrainerStatus{ProgressPercentage: ptr.To[int32](42), LastUpdatedTime: metav1.Now()}})
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			post, err := http.NewRequestWithContext(ctx, http.MethodPost,
				fmt.Sprintf("https://127.0.0.1:%d%s", port, statusserver.StatusUrl(tj.Namespace, tj.Name)), bytes.NewReader(body))
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			post.Header.Set("Authorization", "Bearer "+request.Status.Token)
			transport := http.DefaultTransport.(*http.Transport).Clone()
			transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // it is on loopback
			response, err := (&http.Client{Transport: transport}).Do(post)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(response.Body.Close()).To(gomega.Succeed())
			return response.StatusCode
		}
		gomega.Expect(report("somebody-else")).To(gomega.Equal(http.StatusForbidden))
		gomega.Expect(report(statusserver.TokenAudience(tj.Namespace, tj.Name))).To(gomega.Equal(http.StatusOK))
		progress := func() *int32 {
			if s := get(ctx, tj).Status.TrainerStatus; s != nil {
				return s.ProgressPercentage
			}
			return nil
		}
		gomega.Eventually(progress).Should(gomega.HaveValue(gomega.BeEquivalentTo(42)))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(progress()).To(gomega.HaveValue(gomega.BeEquivalentTo(42)), "the status that we write leaves it")
	})
}

// through has the manager of a cluster reach the API server by a proxy for the running spec, and starts it again.
// handler is the proxy's, which it may change or wrap.
func through(of plane, handler func(*httputil.ReverseProxy) http.Handler) {
	ginkgo.GinkgoHelper()
	path := of.kubeconfig("signalbox")
	before, err := os.ReadFile(path)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	real := config(path)
	transport, err := rest.TransportFor(real)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	target, err := url.Parse(real.Host)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	server := &http.Server{Handler: handler(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	})}
	go server.Serve(listener) //nolint:errcheck // it ends with the spec
	proxied := clientcmdapi.NewConfig()
	proxied.Clusters["proxy"] = &clientcmdapi.Cluster{Server: "http://" + listener.Addr().String()}
	proxied.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy"}
	proxied.CurrentContext = "proxy"
	gomega.Expect(clientcmd.WriteToFile(*proxied, path)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func() {
		gomega.Expect(os.WriteFile(path, before, 0o600)).To(gomega.Succeed())
		if of.act("stop", "signalbox") != nil {
			ginkgo.GinkgoLogr.Info("the manager was dead at the end of the spec")
		}
		of.mustAct("start", "signalbox")
		gomega.Expect(server.Close()).To(gomega.Succeed())
	})
	of.mustAct("restart", "signalbox")
}
