package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

//go:embed assets
var assets embed.FS

// plan is what every step of a start needs to know.
type plan struct {
	layout   layout
	profile  profile
	binaries map[string]string
	s        *supervisor
	ca       *authority
	ports    map[string]int
	config   *rest.Config
	applier  *applier
	relays   map[string]*relay // by component; nil where there are none
	ground   ground
}

// ground is where pods run: on simulated nodes or on real ones.
type ground interface {
	// flags are what a component of Kubernetes is started with.
	flags(component string) []string
	// steps start all, the API server among them, in their order.
	steps() []func(context.Context) error
}

// flags are what a component of Kubernetes is started with besides what it always needs.
func (x *plan) flags(component string) []string {
	return append(x.profile.versions.kubernetes.flags(component), x.ground.flags(component)...)
}

// startAll starts the control plane and returns when all of it is ready.
func startAll(
	ctx context.Context, l layout, p profile, built *prepared, s *supervisor,
) (*plan, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	// Users reach the API server from outside the machine of real nodes at the same port as in there.
	ports, err := freePorts(map[string]int{"kube-apiserver": built.Port},
		"etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "coredns", "kueue",
		"kueue-webhook", "kueue-metrics", "kueue-pprof", "jobset", "jobset-webhook", "jobset-metrics",
		"trainer", "trainer-webhook", "trainer-metrics", "signalbox", "signalbox-webhook", "signalbox-metrics",
		"signalbox-pprof")
	if err != nil {
		return nil, err
	}
	ca.addresses = p.addresses()
	x := &plan{layout: l, profile: p, binaries: built.Binaries, s: s, ca: ca, ports: ports}
	x.ground = simulated{x}
	if p.nodes > 0 {
		x.ground = real{x}
	}
	server, err := x.startRelays(ctx, hostPort(ports["kube-apiserver"]))
	if err != nil {
		return nil, err
	}
	if err := writePKI(l, ca, p.clients(), server); err != nil {
		return nil, err
	}
	if x.config, err = clientcmd.BuildConfigFromFlags("", l.kubeconfig("")); err != nil {
		return nil, err
	}
	x.config.QPS, x.config.Burst = 500, 500
	for _, step := range x.ground.steps() {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// simulated are nodes that KWOK plays, with all managers beside the API server.
type simulated struct{ *plan }

func (g simulated) steps() []func(context.Context) error {
	return []func(context.Context) error{
		g.startEtcd, g.startAPIServer, g.installEarly, g.startManagers, g.installLate,
	}
}

func (simulated) flags(component string) []string {
	return map[string][]string{
		"kube-apiserver": {"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
			"--endpoint-reconciler-type", "none", "--authorization-mode", "RBAC"},
		// Simulated nodes send no heartbeats. Without this they are taken for dead every 50 seconds, and the pods on them
		// are marked as not ready, which KWOK never takes back.
		"kube-controller-manager": {"--node-monitor-grace-period", "1h"},
		"kwok":                    {"--manage-all-nodes"},
	}[component]
}

func (x *plan) startEtcd(ctx context.Context) error {
	client := "http://" + hostPort(x.ports["etcd"])
	peer := "http://" + hostPort(x.ports["etcd-peer"])
	return x.s.add(ctx, component{
		name: "etcd", binary: x.binaries["etcd"],
		args: []string{
			"--data-dir", filepath.Join(x.layout.state, "data", "etcd"), "--unsafe-no-fsync",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
			"--quota-backend-bytes", strconv.Itoa(8 << 30), "--log-level", "warn",
		},
		ready: answers(client + "/health"),
	})
}

func (x *plan) startAPIServer(ctx context.Context) error {
	if err := x.asset("audit-policy.yaml", nil); err != nil {
		return err
	}
	certs, err := x.ca.serving(x.layout, "kube-apiserver")
	if err != nil {
		return err
	}
	if err := x.configureAdmission(); err != nil {
		return err
	}
	saKey := x.layout.pki("service-account.key")
	client, err := rest.HTTPClientFor(x.config)
	if err != nil {
		return err
	}
	if x.applier, err = newApplier(x.config); err != nil {
		return err
	}
	return x.s.add(ctx, component{
		name: "kube-apiserver", binary: x.binaries["kube-apiserver"],
		args: append([]string{
			"--etcd-servers", "http://" + hostPort(x.ports["etcd"]),
			"--secure-port", strconv.Itoa(x.ports["kube-apiserver"]),
			"--tls-cert-file", filepath.Join(certs, "tls.crt"), "--tls-private-key-file", filepath.Join(certs, "tls.key"),
			"--cert-dir", certs, "--client-ca-file", x.layout.pki("ca.crt"),
			"--service-account-issuer", "https://kubernetes.default.svc",
			"--service-account-signing-key-file", saKey, "--service-account-key-file", saKey,
			"--service-cluster-ip-range", "10.0.0.0/16",
			"--admission-control-config-file", x.layout.config("admission.yaml"),
			"--audit-policy-file", x.layout.config("audit-policy.yaml"), "--audit-log-path", x.layout.audit(),
			"--audit-log-maxsize", "4000",
		}, x.flags("kube-apiserver")...),
		// Everything waits for it while it collects garbage: with a GiB in its caches that is 3 s of every 10 on two cores.
		// Near its limit it does so more often still; it takes 3 GiB with 10,000 TrainJobs, and more than 8 with 50,000.
		env:   []string{"GOGC=400", fmt.Sprintf("GOMEMLIMIT=%d", max(8<<30, memoryOfMachine()/2))},
		ready: func(ctx context.Context) error { return get(ctx, client, x.config.Host+"/readyz") },
	})
}

// configureAdmission has the API server show a certificate to webhooks. They may ask for it.
func (x *plan) configureAdmission() error {
	certs, err := x.ca.serving(x.layout, "webhook-client")
	if err != nil {
		return err
	}
	if err := x.asset("admission-kubeconfig.yaml", map[string]any{"Certs": certs}); err != nil {
		return err
	}
	return x.asset("admission.yaml", map[string]any{
		"Kubeconfig": x.layout.config("admission-kubeconfig.yaml"),
		"Plugins":    []string{"MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"},
	})
}

// startManagers starts everything that talks to the API server, all at once.
func (x *plan) startManagers(ctx context.Context) error {
	starts := []func(context.Context) error{
		x.startControllerManager, x.startScheduler, x.startKWOK, x.startKueue, x.startJobSet}
	if x.profile.trainer != nil {
		starts = append(starts, x.startTrainer)
	}
	if x.profile.signalbox {
		starts = append(starts, x.startSignalbox)
	}
	return together(ctx, starts...)
}

// together takes steps all at once; one that fails ends the others.
func together(ctx context.Context, steps ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, step := range steps {
		wg.Go(func() {
			if errs[i] = step(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (x *plan) startControllerManager(ctx context.Context) error {
	certs, err := x.ca.serving(x.layout, "kube-controller-manager")
	if err != nil {
		return err
	}
	return x.s.add(ctx, component{
		name: "kube-controller-manager", binary: x.binaries["kube-controller-manager"],
		args: append([]string{
			"--kubeconfig", x.layout.kubeconfig("kube-controller-manager"), "--bind-address", "127.0.0.1",
			"--secure-port", strconv.Itoa(x.ports["kube-controller-manager"]), "--cert-dir", certs,
			"--use-service-account-credentials", "--service-account-private-key-file", x.layout.pki("service-account.key"),
			"--root-ca-file", x.layout.pki("ca.crt"), "--leader-elect=false",
			"--kube-api-qps", "300", "--kube-api-burst", "500",
		}, x.flags("kube-controller-manager")...),
		ready: answers("https://" + hostPort(x.ports["kube-controller-manager"]) + "/healthz"),
	})
}

func (x *plan) startScheduler(ctx context.Context) error {
	certs, err := x.ca.serving(x.layout, "kube-scheduler")
	if err != nil {
		return err
	}
	if err := x.asset("kube-scheduler.yaml",
		map[string]any{"Kubeconfig": x.layout.kubeconfig("kube-scheduler")}); err != nil {
		return err
	}
	return x.s.add(ctx, component{
		name: "kube-scheduler", binary: x.binaries["kube-scheduler"],
		args: append([]string{
			"--config", x.layout.config("kube-scheduler.yaml"), "--bind-address", "127.0.0.1",
			"--secure-port", strconv.Itoa(x.ports["kube-scheduler"]), "--cert-dir", certs,
		}, x.flags("kube-scheduler")...),
		ready: answers("https://" + hostPort(x.ports["kube-scheduler"]) + "/healthz"),
	})
}

func (x *plan) startKWOK(ctx context.Context) error {
	if err := x.asset("kwok-stages.yaml", nil); err != nil {
		return err
	}
	return x.s.add(ctx, component{
		name: "kwok", binary: x.binaries["kwok"],
		args: append([]string{
			"--kubeconfig", x.layout.kubeconfig("kwok"), "--config", x.layout.config("kwok-stages.yaml"),
			"--node-ip", "127.0.0.1", "--server-address", hostPort(x.ports["kwok"]),
		}, x.ground.flags("kwok")...),
		env:   []string{"HOME=" + x.layout.state},
		ready: answers("http://" + hostPort(x.ports["kwok"]) + "/healthz"),
	})
}

// asset writes an embedded file, as a template of the values, to the configuration folder.
func (x *plan) asset(name string, values map[string]any) error {
	return x.assetAs(name, name, values)
}

func (x *plan) assetAs(name, as string, values map[string]any) error {
	content, err := render(name, values)
	if err != nil {
		return err
	}
	return os.WriteFile(x.layout.config(as), content, 0o644)
}

// render returns an embedded file, as a template where there are values.
func render(name string, values map[string]any) ([]byte, error) {
	if values == nil {
		return assets.ReadFile("assets/" + name)
	}
	t, err := template.New(name).Option("missingkey=error").ParseFS(assets, "assets/"+name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, values)
	return out.Bytes(), err
}

func readAsset(name string) ([]*unstructured.Unstructured, error) {
	content, err := assets.ReadFile("assets/" + name)
	if err != nil {
		return nil, err
	}
	return decode(content)
}

// answers returns a readiness check: the address answers 200. It is on loopback and the check carries no secret, so the
// server's own self-signed certificate will do.
func answers(address string) func(context.Context) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	return func(ctx context.Context) error { return get(ctx, client, address) }
}

func get(ctx context.Context, client *http.Client, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, response.Status)
	}
	return nil
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts finds a free loopback port for each name: the given one, or where that is 0, any. All are held open until
// the last is found, so they differ.
func freePorts(given map[string]int, names ...string) (map[string]int, error) {
	ports := make(map[string]int, len(names))
	// Those with a given port first, or another might take it.
	slices.SortStableFunc(names, func(a, b string) int { return given[b] - given[a] })
	for _, name := range names {
		listener, err := net.Listen("tcp", hostPort(given[name]))
		if err != nil {
			return nil, fmt.Errorf("finding a free port for %s: %w", name, err)
		}
		defer listener.Close()
		ports[name] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
