package main

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/review"
)

// start runs a part of a manager until the test ends.
func start(t *testing.T, part manager.Runnable) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- part.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("asked to end: got %v", err)
		}
	})
}

// TestPortIsShared holds that one address can't take all connections of a port, nor all addresses more than there are,
// and that a connection that ends makes room.
func TestPortIsShared(t *testing.T) {
	l := &limited{of: map[string]int{}}
	for address := range maxConnections / maxConnectionsBy {
		for range maxConnectionsBy {
			if !l.enter(strconv.Itoa(address)) {
				t.Fatalf("%d: there is room", address)
			}
		}
		if l.enter(strconv.Itoa(address)) {
			t.Fatalf("%d: an address has its share", address)
		}
	}
	if l.enter("one more") {
		t.Error("all together have no more than there are")
	}
	l.leave("0")
	if !l.enter("one more") {
		t.Error("one has gone")
	}
	for range maxConnectionsBy - 1 {
		l.leave("0")
	}
	if _, kept := l.of["0"]; kept {
		t.Error("nothing is kept of those that have gone")
	}
}

// TestPort holds what connections cost at most: those above an address's share are closed, and so is one with a header
// without an end.
func TestPort(t *testing.T) {
	port, err := newPort("test", "127.0.0.1:0", nil, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	address := port.Listener.Addr().String()
	start(t, port)
	// ask sends text, and returns the first line of the answer; "" if the connection is closed without one.
	ask := func(conn net.Conn, text string) string {
		t.Helper()
		if _, err := io.WriteString(conn, text); err != nil {
			return ""
		}
		answer, _ := io.ReadAll(io.LimitReader(conn, int64(len("HTTP/1.1 404")))) // a reset is no answer
		return string(answer)
	}
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the server may have
		return conn
	}
	const request = "GET / HTTP/1.1\r\nHost: a\r\n"
	var idle []net.Conn
	for range maxConnectionsBy {
		conn := dial()
		if got := ask(conn, request+"\r\n"); got != "HTTP/1.1 404" {
			t.Fatalf("got %q", got)
		}
		idle = append(idle, conn)
	}
	if got := ask(dial(), request+"\r\n"); got != "" {
		t.Errorf("one too many: got %q", got)
	}
	if err := idle[0].Close(); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return ask(dial(), request+"\r\n") == "HTTP/1.1 404", nil })
	if err != nil {
		t.Error("one has gone, and there is no room")
	}
	if err := idle[1].Close(); err != nil {
		t.Fatal(err)
	}
	long := request + "X: " + strings.Repeat("x", 2*headerBytes)
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return ask(dial(), long) == "HTTP/1.1 431", nil })
	if err != nil {
		t.Error("a header without an end is read on")
	}
	if _, err := newPort("test", address, nil, nil); err == nil {
		t.Error("two listen on one port")
	}
}

// TestLargeBodies holds that many large requests at a time over one connection of HTTP/2 are all answered.
func TestLargeBodies(t *testing.T) {
	dir := certificates(t)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	hook := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 1<<20 {
			t.Errorf("got %d bytes, %v", n, err)
		}
	})
	port, err := newPort("test", "127.0.0.1:0", &tls.Config{
		NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair},
	}, review.NewGuard().Wrap(hook))
	if err != nil {
		t.Fatal(err)
	}
	start(t, port)
	client := &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		MaxConnsPerHost: 1, // it would dial for each request, and a port takes few connections of one address
	}}
	body := `{"request":{"object":"` + strings.Repeat("x", 1<<20) + `"}}`
	var all sync.WaitGroup
	for range 2 * streams {
		all.Go(func() {
			response, err := client.Post("https://"+port.Listener.Addr().String(), "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
				t.Errorf("got %s by %s", response.Status, response.Proto)
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestClientCertificates holds who may send reviews where the API server shows a certificate, and that the manager is
// ready when they are served.
func TestClientCertificates(t *testing.T) {
	config, _ := configured(t)
	theirs := certificates(t)
	bundle, err := os.ReadFile(filepath.Join(theirs, "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	config.Webhook.ClientCABundle = string(bundle)
	s := newWebhookServer(&config.Webhook)
	s.Register("/a", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	if s.StartedChecker()(nil) == nil {
		t.Error("ready before they are served")
	}
	start(t, s)
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return s.StartedChecker()(nil) == nil, nil })
	if err != nil {
		t.Fatal("not ready when they are served")
	}
	url := "https://" + net.JoinHostPort(config.Webhook.Host, strconv.Itoa(config.Webhook.Port)) + "/a"
	ask := func(folder string) error {
		t.Helper()
		tlsConfig := &tls.Config{InsecureSkipVerify: true}
		if folder != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
			if err != nil {
				t.Fatal(err)
			}
			tlsConfig.Certificates = []tls.Certificate{pair}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig}}
		defer client.CloseIdleConnections()
		response, err := client.Post(url, "application/json", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	if err := ask(theirs); err != nil {
		t.Errorf("the API server's: got %v", err)
	}
	for name, folder := range map[string]string{"none": "", "another's": certificates(t)} {
		if err := ask(folder); err == nil {
			t.Errorf("%s: got an answer", name)
		}
	}
}

// added is a manager that keeps what is added to it.
type added struct {
	ctrl.Manager
	parts []manager.Runnable
}

func (a *added) Add(part manager.Runnable) error {
	a.parts = append(a.parts, part)
	return nil
}

// TestMetricsAreSecure holds that metrics are served over TLS by default, and to those alone whom the API server lets;
// and over HTTP where the configuration says so.
func TestMetricsAreSecure(t *testing.T) {
	newServer(t)
	config, _ := configured(t)
	cluster, err := connect(config.ClientConnection)
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := newManager(cluster.config, config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config configapi.Metrics
		scheme string
		want   int
	}{
		{configapi.Default().Metrics, "https", http.StatusUnauthorized},
		{configapi.Metrics{}, "http", http.StatusOK},
	} {
		c.config.BindAddress = "127.0.0.1:0"
		a := &added{Manager: mgr}
		if err := serveMetrics(a, c.config); err != nil {
			t.Fatal(err)
		}
		port := a.parts[0].(*manager.Server)
		start(t, port)
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		response, err := client.Get(c.scheme + "://" + port.Listener.Addr().String() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != c.want {
			t.Errorf("%+v: got %s", c.config, response.Status)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := serveMetrics(mgr, configapi.Metrics{BindAddress: "nowhere:nothing"}); err == nil {
		t.Error("nobody can listen there")
	}
}
