package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

// freeAddress returns an address on loopback that nobody listens on.
func freeAddress(t *testing.T) (address string, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String(), l.Addr().(*net.TCPAddr).Port
}

// certificates writes a key and a certificate of it into a folder.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "EC PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// configured returns a configuration with which the manager runs in a test, and the address of its health checks.
func configured(t *testing.T) (*configapi.Configuration, string) {
	t.Helper()
	config := configapi.Default()
	config.Metrics.BindAddress = "0"
	health, _ := freeAddress(t)
	config.Health.BindAddress = health
	config.LeaderElection.Enabled = ptr.To(false)
	_, config.Webhook.Port = freeAddress(t)
	config.Webhook.Host, config.Webhook.CertDir = "127.0.0.1", certificates(t)
	return config, health
}

// TestRun runs the whole manager: it becomes ready, serves profiles, and ends without an error when it is asked to.
func TestRun(t *testing.T) {
	newServer(t)
	config, health := configured(t)
	config.Trainer.Progress.Enabled = true
	var port int
	_, port = freeAddress(t)
	config.Trainer.Progress.Port = int32(port)
	config.Pprof.BindAddress, _ = freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, config) }()
	serves := func(url string) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) {
			select {
			case err := <-ended:
				return false, fmt.Errorf("it has ended: %w", err)
			default:
			}
			response, err := http.Get(url)
			if err != nil {
				return false, nil
			}
			return response.StatusCode == http.StatusOK, response.Body.Close()
		}
	}
	for _, url := range []string{
		"http://" + health + "/readyz", "http://" + config.Pprof.BindAddress + "/debug/pprof/cmdline",
	} {
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, serves(url))
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("asked to end: got %v", err)
	}
}

// TestRunRefuses holds what keeps the manager from running, with what to do.
func TestRunRefuses(t *testing.T) {
	const crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainjobs.trainer.kubeflow.org"
	const list = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	cases := map[string]struct {
		reason string
		change func(*apiServer, *configapi.Configuration)
		want   string
	}{
		"no cluster": {"nothing can be done", func(*apiServer, *configapi.Configuration) {
			t.Setenv("KUBECONFIG", "/nowhere")
		}, "finding the cluster"},
		"a gate": {"it doesn't exist", func(_ *apiServer, c *configapi.Configuration) {
			c.Kueue.FeatureGates = map[string]bool{"Nothing": true}
		}, "configuration: kueue.featureGates"},
		"no Kueue": {"it is needed", func(s *apiServer, _ *configapi.Configuration) {
			s.without = "kueue.x-k8s.io/v1beta2"
		}, "install Kueue"},
		"an old Kubernetes": {"nobody has tried it", func(s *apiServer, _ *configapi.Configuration) {
			s.objects["/version"] = `{"gitVersion":"v1.33.1"}`
		}, "upgrade it to 1.34 or later"},
		"no CRD": {"they come with the release", func(s *apiServer, _ *configapi.Configuration) {
			delete(s.objects, crd)
		}, "apply config/crd of this release"},
		"another Trainer": {"two would fight", func(s *apiServer, _ *configapi.Configuration) {
			s.lists[list] = []string{`{"metadata":{"name":"trainer"},"webhooks":[{"name":"v.trainer.kubeflow.org"}]}`}
		}, "another Trainer serves TrainJobs here"},
		"a boost that Kueue ignores": {"it would protect nobody", func(_ *apiServer, c *configapi.Configuration) {
			c.Preemption.MinimumRuntime.Default.Duration = time.Minute
		}, "preemption.minimumRuntime needs Kueue's feature gate PriorityBoost"},
		"no Trainer": {"one has to be installed", func(s *apiServer, c *configapi.Configuration) {
			delete(s.objects, crd)
			c.Trainer.Enabled = ptr.To(false)
		}, "install Kubeflow Trainer"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			config, _ := configured(t)
			if name == "no cluster" {
				t.Setenv("KUBECONFIG", "/nowhere")
			} else {
				c.change(s, config)
			}
			err := run(t.Context(), config)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
			if c.want == "configuration: kueue.featureGates" {
				return // that of a changed file is checked when it is read
			}
			if err := checkCandidate(t.Context(), config); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, changed to that: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
}

// TestRunWith holds that the command runs with its file, and says what is wrong with it.
func TestRunWith(t *testing.T) {
	s := newServer(t)
	s.without = "kueue.x-k8s.io/v1beta2"
	path := filepath.Join(t.TempDir(), "config.yaml")
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	if err := os.WriteFile(path, []byte(head), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                            "install Kueue",
		"--config " + path:            "install Kueue",
		"--reload --config " + path:   "install Kueue",
		"--config /nowhere.yaml":      "/nowhere.yaml",
		"--config " + path + " extra": "unknown command",
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
}

// TestManager holds how the manager is made: with certificates that it keeps itself.
func TestManager(t *testing.T) {
	newServer(t)
	config, _ := configured(t)
	config.Webhook.Certificates.Secret = configapi.NamespacedName{Namespace: "ns", Name: "certs"}
	config.Webhook.Certificates.DNSNames = []string{"a", "b"}
	config.Webhook.Certificates.WebhookConfigurations = []string{"w"}
	config.Health.BindAddress, config.Metrics.BindAddress = "0", "0" // nothing listens
	cluster, err := connect(config.ClientConnection)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newManager(cluster.config, config); err != nil {
		t.Error(err)
	}
	_, err = newManager(cluster.config, config)
	if err == nil || !strings.Contains(err.Error(), "keeping certificates") {
		t.Errorf("one process has one keeper of certificates: got %v", err)
	}
}

// TestRunFails holds that what goes wrong while the manager is assembled is returned.
func TestRunFails(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*apiServer, *configapi.Configuration)
		want   string
	}{
		"an address": {"nobody can listen on it", func(_ *apiServer, c *configapi.Configuration) {
			c.Health.BindAddress = "nowhere:nothing"
		}, "nothing"},
		"nobody": {"who writes must be known", func(s *apiServer, _ *configapi.Configuration) {
			s.nobody = true
		}, "asking who we are"},
		"an owner": {"beside the bundled Trainer", func(_ *apiServer, c *configapi.Configuration) {
			c.Kueue.ManagedJobsNamespaceSelector.MatchLabels = map[string]string{"a b": "c"}
		}, "configuration: kueue.managedJobsNamespaceSelector"},
		"an owner, Kubeflow Trainer": {"beside Kubeflow Trainer", func(_ *apiServer, c *configapi.Configuration) {
			c.Trainer.Enabled = ptr.To(false)
			c.Kueue.ManagedJobsNamespaceSelector.MatchLabels = map[string]string{"a b": "c"}
		}, "configuration: kueue.managedJobsNamespaceSelector"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			config, _ := configured(t)
			c.change(s, config)
			if err := run(t.Context(), config); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
	t.Run("kinds that come no more", func(t *testing.T) {
		s := newServer(t)
		s.without = "trainer.kubeflow.org/v1alpha1"
		config, _ := configured(t)
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer stop()
		if err := run(ctx, config); err == nil || !strings.Contains(err.Error(), "not ready for Signalbox") {
			t.Errorf("got %v", err)
		}
	})
}

// TestWebhooksAreLeft holds that webhooks are served for a while after the process was asked to end, and that each
// answer then ends its connection.
func TestWebhooksAreLeft(t *testing.T) {
	config, _ := configured(t)
	address := net.JoinHostPort(config.Webhook.Host, strconv.Itoa(config.Webhook.Port))
	s := newWebhookServer(&config.Webhook)
	s.Register("/a", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	ask := func(context.Context) (closes bool, err error) {
		response, err := client.Post("https://"+address+"/a", "application/json", strings.NewReader("{}"))
		if err != nil {
			return false, err
		}
		return response.Close, response.Body.Close()
	}
	served := func(closes bool) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
			func(ctx context.Context) (bool, error) {
				got, err := ask(ctx)
				return err == nil && got == closes, nil
			})
		if err != nil {
			t.Fatalf("no answer that ends its connection: %t", closes)
		}
	}
	served(false)
	stop()
	served(true)
	if err := <-ended; err != nil {
		t.Errorf("asked to end: got %v", err)
	}
	if _, err := ask(t.Context()); err == nil {
		t.Error("it is served after its end")
	}
}

// TestCertificatesComeLate holds that webhooks are served once there is a certificate, and not after the end.
func TestCertificatesComeLate(t *testing.T) {
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- awaitCertificates(ctx, dir) }()
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("they have come: got %v", err)
	}
	stop()
	if err := (&whenMounted{certDir: t.TempDir()}).Start(ctx); err != nil {
		t.Errorf("asked to end before there was one: got %v", err)
	}
	file := filepath.Join(dir, "tls.crt")
	if err := (&whenMounted{certDir: file}).Start(t.Context()); err == nil {
		t.Error("no folder")
	}
}
