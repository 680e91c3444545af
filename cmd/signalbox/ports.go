package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	certutil "k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

// Any pod of the cluster can connect to the manager's ports. What a connection costs is bounded, and so is the number
// of them: an API server has one connection, or a few.
const (
	// maxConnections is how many connections a port has at a time, and maxConnectionsBy how many of one address.
	maxConnections, maxConnectionsBy = 96, 32
	// headerBytes bounds the header of a request, and headerTime the time for it and for a TLS handshake.
	headerBytes = 16 << 10
	headerTime  = 5 * time.Second
	idleTime    = 90 * time.Second // as clients of Go and controller-runtime have it
	// streams is how many requests of HTTP/2 a connection has at a time, and streamBytes how much of the body of one is
	// kept that nobody reads: a client sends 65,535 before it knows. A connection keeps that of all, so that those that
	// wait for room keep up none beside them.
	streams     = 32
	streamBytes = 64 << 10
)

// newPort returns a server of a handler at an address that it listens on from now on. config is nil for HTTP.
func newPort(name, address string, config *tls.Config, handler http.Handler) (*manager.Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for %s: %w", name, err)
	}
	listener = &limited{Listener: listener, of: map[string]int{}}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	shutdown := time.Minute
	return &manager.Server{Name: name, Listener: listener, ShutdownTimeout: &shutdown, Server: &http.Server{
		Handler: handler, MaxHeaderBytes: headerBytes, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streams, MaxReceiveBufferPerStream: streamBytes,
			MaxReceiveBufferPerConnection: streams * streamBytes,
		},
	}}, nil
}

// limited is a listener that closes the connections that are too many.
type limited struct {
	net.Listener
	mu  sync.Mutex
	all int
	of  map[string]int // by address
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err == nil && l.enter(address) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.leave(address) })}, nil
		}
		_ = conn.Close() // there is nobody to tell
	}
}

func (l *limited) enter(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= maxConnections || l.of[address] >= maxConnectionsBy {
		return false
	}
	l.all++
	l.of[address]++
	return true
}

func (l *limited) leave(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[address]--; l.of[address] == 0 {
		delete(l.of, address)
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

// probed is a manager that serves what kubelets ask.
type probed struct {
	ctrl.Manager
	live, ready healthz.Handler
}

// newProbed serves the checks of a manager at an address; "0" for none. It does so before the caches are filled.
func newProbed(mgr ctrl.Manager, address string) (*probed, error) {
	p := &probed{Manager: mgr, live: healthz.Handler{Checks: map[string]healthz.Checker{}},
		ready: healthz.Handler{Checks: map[string]healthz.Checker{}}}
	if address == "0" {
		return p, nil
	}
	mux := http.NewServeMux()
	for path, handler := range map[string]*healthz.Handler{"/healthz": &p.live, "/readyz": &p.ready} {
		mux.Handle(path, http.StripPrefix(path, handler))
		mux.Handle(path+"/", http.StripPrefix(path, handler))
	}
	port, err := newPort("health", address, nil, mux)
	if err != nil {
		return nil, err
	}
	return p, mgr.Add(port)
}

// AddHealthzCheck implements manager.Manager. It is called before the manager is started.
func (p *probed) AddHealthzCheck(name string, check healthz.Checker) error {
	p.live.Checks[name] = check
	return nil
}

// AddReadyzCheck implements manager.Manager. It is called before the manager is started.
func (p *probed) AddReadyzCheck(name string, check healthz.Checker) error {
	p.ready.Checks[name] = check
	return nil
}

// serveMetrics serves metrics: over TLS to clients that the API server authorizes, or over HTTP to everybody. The
// certificate is generated, as controller-runtime's and kube-controller-manager's are: it only has to encrypt.
func serveMetrics(mgr ctrl.Manager, config configapi.Metrics) error {
	if config.BindAddress == "0" {
		return nil
	}
	handler := promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	var encrypted *tls.Config
	if config.Secure {
		authorized, err := filters.WithAuthenticationAndAuthorization(mgr.GetConfig(), mgr.GetHTTPClient())
		if err != nil {
			return fmt.Errorf("serving metrics: %w", err)
		}
		if handler, err = authorized(mgr.GetLogger().WithName("metrics"), handler); err != nil {
			return fmt.Errorf("serving metrics: %w", err)
		}
		certificate, key, err := certutil.GenerateSelfSignedCertKey("localhost", []net.IP{{127, 0, 0, 1}}, nil)
		if err != nil {
			return fmt.Errorf("creating the certificate of metrics: %w", err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return fmt.Errorf("creating the certificate of metrics: %w", err)
		}
		encrypted = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	port, err := newPort("metrics", config.BindAddress, encrypted, mux)
	if err != nil {
		return err
	}
	return mgr.Add(port)
}
