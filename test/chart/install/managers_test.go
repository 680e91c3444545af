package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// manager is a process that does what a pod of the Deployment would: with the chart's ServiceAccount, configuration and
// Secret.
type manager struct {
	name                  string
	webhook               int    // port
	health, metrics, base string // HTTP
	config, certs         string
	process               *exec.Cmd
	ended                 chan error
	log                   string
	killed                bool
}

// run starts a manager of this commit, does the kubelet's part for it, and returns when it is ready.
func (s *stand) run(name string) *manager {
	s.Helper()
	return s.runFrom(repository, name)
}

// runFrom is run for a manager that was built in another tree.
func (s *stand) runFrom(tree, name string) *manager {
	s.Helper()
	ctx, dir := s.Context(), s.TempDir()
	account := clientcmdapi.NewConfig()
	account.Clusters["c"] = &clientcmdapi.Cluster{
		Server: s.config.Host, CertificateAuthority: s.config.CAFile, CertificateAuthorityData: s.config.CAData,
	}
	account.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: s.tokenOf(namespace, "signalbox")}
	account.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	account.CurrentContext = "x"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	s.must(clientcmd.WriteToFile(*account, kubeconfig))

	m := &manager{
		name: name, webhook: freePort(s.T),
		health: fmt.Sprintf("127.0.0.1:%d", freePort(s.T)), metrics: fmt.Sprintf("127.0.0.1:%d", freePort(s.T)),
		config: filepath.Join(dir, "config.yaml"), certs: filepath.Join(dir, "certs"),
		ended: make(chan error, 1), log: filepath.Join(s.dir, "log", "signalbox-"+name+".log"),
	}
	s.must(os.Mkdir(m.certs, 0o700))
	settings, err := s.clients.CoreV1().ConfigMaps(namespace).Get(ctx, "signalbox", metav1.GetOptions{})
	s.must(err)
	// Where a container has paths and ports of its own, a process beside others has not.
	m.base = strings.NewReplacer("/etc/signalbox/certs", m.certs, "bindAddress: :8081", "bindAddress: "+m.health,
		"bindAddress: :8080", "bindAddress: "+m.metrics,
		"port: 9443", fmt.Sprintf("port: %d", m.webhook)).Replace(settings.Data["config.yaml"])
	s.must(os.WriteFile(m.config, []byte(m.base), 0o600))

	log, err := os.Create(m.log)
	s.must(err)
	m.process = exec.Command(filepath.Join(tree, "bin", "signalbox"), "--config", m.config, "--reload")
	m.process.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	m.process.Stdout, m.process.Stderr = log, log
	s.must(m.process.Start())
	go func() { m.ended <- m.process.Wait(); close(m.ended) }()
	mounting, stop := context.WithCancel(ctx)
	s.Cleanup(func() {
		stop()
		if !m.killed {
			if err := m.process.Process.Signal(syscall.SIGTERM); err != nil {
				s.Errorf("manager %s had ended: %v", name, err)
			}
		}
		<-m.ended
		log.Close()
	})
	go s.mount(mounting, m.certs)
	s.ready(m)
	s.service.add(m)
	return m
}

func (s *stand) ready(m *manager) {
	s.Helper()
	s.eventually("manager "+m.name+" is ready", func() (string, bool) {
		select {
		case err := <-m.ended:
			text, _ := os.ReadFile(m.log)
			s.Fatalf("manager %s has ended: %v\n%s", m.name, err, text)
		default:
		}
		response, err := http.Get("http://" + m.health + "/readyz")
		if err != nil {
			return err.Error(), false
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return string(text), response.StatusCode == http.StatusOK
	})
	s.eventually("the certificate is trusted", func() (string, bool) {
		secret, err := s.clients.CoreV1().Secrets(namespace).Get(s.Context(), "signalbox-webhook-cert", metav1.GetOptions{})
		s.must(err)
		return s.trusted(m, secret)
	})
}

// kill ends a manager as a node does that is lost.
func (s *stand) kill(m *manager) {
	s.Helper()
	m.killed = true
	s.must(m.process.Process.Kill())
	s.service.remove(m)
}

// drain ends a manager as a Deployment does that replaces its pod.
func (s *stand) drain(m *manager) {
	s.Helper()
	m.killed = true
	s.service.remove(m)
	s.must(m.process.Process.Signal(syscall.SIGTERM))
	if err := <-m.ended; err != nil {
		s.Errorf("manager %s was asked to end: %v", m.name, err)
	}
}

// uninstalled ends the managers, as the Deployment's pods end with it. Their rights went before them: a leader that was
// left without its lease for too long has ended by itself.
func (s *stand) uninstalled() {
	s.Helper()
	for _, m := range s.service.all() {
		m.killed = true
		s.service.remove(m)
		if err := m.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.Fatal(err)
		}
		if err := <-m.ended; err != nil {
			text, _ := os.ReadFile(m.log)
			if !strings.Contains(string(text), "leader election lost") {
				s.Errorf("manager %s ended after the uninstallation: %v\n%s", m.name, err, text)
			}
		}
	}
}

// leader waits until one of the managers leads.
func (s *stand) leader(managers ...*manager) (leads *manager) {
	s.Helper()
	s.eventually("a manager leads", func() (string, bool) {
		for _, m := range managers {
			if strings.Contains(s.scrape(m), `leader_election_master_status{name="signalbox.signalbox.dev"} 1`) {
				leads = m
			}
		}
		return "none", leads != nil
	})
	return leads
}

// service does the part of the Service: connections go to the managers in turn.
type service struct {
	port     int
	mu       sync.Mutex
	managers []*manager
	next     int
}

func newService(t *testing.T) *service {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{port: l.Addr().(*net.TCPAddr).Port}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			go s.forward(c)
		}
	}()
	return s
}

func (s *service) add(m *manager) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.managers = append(s.managers, m)
}

func (s *service) all() []*manager {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.managers)
}

func (s *service) remove(m *manager) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.managers = slices.DeleteFunc(s.managers, func(other *manager) bool { return other == m })
}

func (s *service) forward(from net.Conn) {
	defer from.Close()
	s.mu.Lock()
	port := 0
	if len(s.managers) > 0 {
		s.next++
		port = s.managers[s.next%len(s.managers)].webhook
	}
	s.mu.Unlock()
	to, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return // as a Service without an endpoint that answers
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, from) // either side may close
		to.Close()
	}()
	_, _ = io.Copy(from, to) // either side may close
}

// trusted reports whether what is served is the Secret's certificate, and every webhook is told its CA.
func (s *stand) trusted(m *manager, secret *corev1.Secret) (string, bool) {
	c, err := tls.Dial("tcp", fmt.Sprintf("localhost:%d", m.webhook),
		&tls.Config{InsecureSkipVerify: true}) // it is compared
	if err != nil {
		return err.Error(), false
	}
	defer c.Close()
	served := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.ConnectionState().PeerCertificates[0].Raw})
	if !bytes.Equal(bytes.TrimSpace(served), bytes.TrimSpace(secret.Data["tls.crt"])) {
		return "another certificate is served", false
	}
	mutating, err := s.clients.AdmissionregistrationV1().MutatingWebhookConfigurations().List(s.Context(), ours)
	s.must(err)
	validating, err := s.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(s.Context(), ours)
	s.must(err)
	var told [][]byte
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			told = append(told, w.ClientConfig.CABundle)
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			told = append(told, w.ClientConfig.CABundle)
		}
	}
	for _, ca := range told {
		if !bytes.Equal(ca, secret.Data["ca.crt"]) {
			return "a webhook is told another CA", false
		}
	}
	return "no webhook is there", len(told) > 0
}

var ours = metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=signalbox"}

// mount brings the Secret into the folder whenever it changes, as a kubelet does.
func (s *stand) mount(ctx context.Context, folder string) {
	for ctx.Err() == nil {
		events, err := s.clients.CoreV1().Secrets(namespace).Watch(ctx,
			metav1.ListOptions{FieldSelector: "metadata.name=signalbox-webhook-cert"})
		if err != nil {
			continue
		}
		for e := range events.ResultChan() {
			secret, ok := e.Object.(*corev1.Secret)
			if !ok {
				continue
			}
			for name, content := range secret.Data {
				path := filepath.Join(folder, name)
				if os.WriteFile(path+".new", content, 0o600) != nil || os.Rename(path+".new", path) != nil {
					return // the test has ended
				}
			}
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
