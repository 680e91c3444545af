package e2e

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

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
