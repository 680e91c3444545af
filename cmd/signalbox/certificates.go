package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/review"
)

// rotateCertificates lets the leader keep the certificates of the webhooks.
func rotateCertificates(mgr ctrl.Manager, config *configapi.Webhook) error {
	c := config.Certificates
	if c.Secret.Name == "" {
		return nil
	}
	var webhooks []rotator.WebhookInfo
	for _, name := range c.WebhookConfigurations {
		webhooks = append(webhooks, rotator.WebhookInfo{Name: name, Type: rotator.Mutating},
			rotator.WebhookInfo{Name: name, Type: rotator.Validating})
	}
	err := rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey: types.NamespacedName{Namespace: c.Secret.Namespace, Name: c.Secret.Name}, CertDir: config.CertDir,
		CAName: "signalbox-ca", CAOrganization: "signalbox", DNSName: c.DNSNames[0], ExtraDNSNames: c.DNSNames[1:],
		Webhooks: webhooks, IsReady: make(chan struct{}), RequireLeaderElection: true, FieldOwner: "signalbox-certificates",
	})
	if err != nil {
		return fmt.Errorf("keeping certificates: %w", err)
	}
	return nil
}

// whenMounted serves webhooks as soon as their certificate is there: a new installation's comes when a first leader has
// made it, and a moment later where it is mounted.
type whenMounted struct {
	webhook.Server // registers them
	address        string
	certDir        string
	// clients has the CAs of clients' certificates; nil if anybody may send requests.
	clients *x509.CertPool
	// leaving is set when the process is asked to end, and serving when it answers.
	leaving, serving atomic.Bool
	guard            *review.Guard
}

// newWebhookServer returns the server of the webhooks.
func newWebhookServer(config *configapi.Webhook) webhook.Server {
	s := &whenMounted{
		Server: webhook.NewServer(webhook.Options{}), certDir: config.CertDir, guard: review.NewGuard(),
		address: net.JoinHostPort(config.Host, strconv.Itoa(config.Port)),
	}
	if config.ClientCABundle != "" {
		s.clients = x509.NewCertPool()
		s.clients.AppendCertsFromPEM([]byte(config.ClientCABundle)) // the configuration is validated
	}
	return s
}

// leaveTime is for how long webhooks are served after the process was asked to end. The API server keeps connections
// open between its requests, and one that is closed while a request is written to it fails that request. Within this
// time each answer ends its connection, and the API server goes on to another replica.
const leaveTime = 2 * time.Second

// Register implements webhook.Server.
func (s *whenMounted) Register(path string, hook http.Handler) {
	guarded := s.guard.Wrap(hook)
	s.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		guarded.ServeHTTP(w, r)
	}))
}

// Start implements manager.Runnable.
func (s *whenMounted) Start(ctx context.Context) error {
	if err := awaitCertificates(ctx, s.certDir); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil // asked to end before there was one
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		s.leaving.Store(true)
		time.AfterFunc(leaveTime, stop)
	})
	certificates, err := certwatcher.New(filepath.Join(s.certDir, "tls.crt"), filepath.Join(s.certDir, "tls.key"))
	if err != nil {
		return fmt.Errorf("the certificate of the webhooks: %w", err)
	}
	config := &tls.Config{
		NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12, GetCertificate: certificates.GetCertificate,
	}
	if s.clients != nil {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, s.clients
	}
	port, err := newPort("webhooks", s.address, config, s.WebhookMux())
	if err != nil {
		return err
	}
	s.serving.Store(true)
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error { return certificates.Start(serving) })
	group.Go(func() error { return port.Start(serving) })
	return group.Wait()
}

// StartedChecker implements webhook.Server. It asks nothing of the port: those who keep others from it would then keep
// the Service from sending anybody here.
func (s *whenMounted) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if !s.serving.Load() {
			return errors.New("the webhooks aren't served yet")
		}
		return nil
	}
}

// awaitCertificates waits until a certificate and its key are in the folder, or the process ends.
func awaitCertificates(ctx context.Context, dir string) error {
	logged := sync.OnceFunc(func() {
		ctrl.LoggerFrom(ctx).Info("Waiting for the certificate of the webhooks", "folder", dir)
	})
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		for _, name := range []string{"tls.crt", "tls.key"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
				logged()
				return false, nil
			} else if err != nil {
				return false, fmt.Errorf("the certificate of the webhooks: %w", err)
			}
		}
		return true, nil
	})
	if wait.Interrupted(err) {
		return nil
	}
	return err
}
