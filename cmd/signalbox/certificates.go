package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
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
	webhook.Server
	certDir string
	// leaving is set when the process is asked to end.
	leaving *atomic.Bool
	guard   *review.Guard
}

// newWebhookServer returns the server of the webhooks.
func newWebhookServer(config *configapi.Webhook) (webhook.Server, error) {
	options := webhook.Options{Host: config.Host, Port: config.Port, CertDir: config.CertDir}
	if config.ClientCAFile != "" {
		pem, err := os.ReadFile(config.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("webhook.clientCAFile: %w", err)
		}
		clients := x509.NewCertPool()
		if !clients.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("webhook.clientCAFile: %s has no certificate in PEM", config.ClientCAFile)
		}
		options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, clients
		})
	}
	return whenMounted{
		Server: webhook.NewServer(options), certDir: config.CertDir, leaving: new(atomic.Bool), guard: review.NewGuard(),
	}, nil
}

// leaveTime is for how long webhooks are served after the process was asked to end. The API server keeps connections
// open between its requests, and one that is closed while a request is written to it fails that request. Within this
// time each answer ends its connection, and the API server goes on to another replica.
const leaveTime = 2 * time.Second

// Register implements webhook.Server.
func (s whenMounted) Register(path string, hook http.Handler) {
	guarded := s.guard.Wrap(hook)
	s.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		guarded.ServeHTTP(w, r)
	}))
}

// Start implements manager.Runnable.
func (s whenMounted) Start(ctx context.Context) error {
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
	return s.Server.Start(serving)
}

// awaitCertificates waits until a certificate and its key are in the folder, or the process ends.
func awaitCertificates(ctx context.Context, dir string) error {
	logged := false
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		for _, name := range []string{"tls.crt", "tls.key"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
				if !logged {
					ctrl.LoggerFrom(ctx).Info("Waiting for the certificate of the webhooks", "folder", dir)
					logged = true
				}
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
