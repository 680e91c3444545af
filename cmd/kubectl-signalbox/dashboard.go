package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/browser"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// dashboardOptions are the flags of dashboard.
type dashboardOptions struct {
	port      int
	noBrowser bool
	readOnly  bool
	inCluster
}

// inCluster are the flags of the page in a cluster.
type inCluster struct {
	tokens    bool
	listen    string
	cert, key string // files
	acts      bool
}

const dashboardLong = `Serve a page on 127.0.0.1 that shows who holds which quota and who waits, what ran and will run, each TrainJob
with its pods, metrics and logs, the nodes, and who used what.

The page has your rights, those of the kubeconfig. It reads by watches, and nothing is installed in the cluster for it.
It opens in the browser by a link with a secret, which works once. Other users of this machine and other sites see
nothing.

With --tokens, it is served in a cluster (dashboard.enabled of the chart): it has no rights of its own, and takes each
user's from the bearer token that a proxy before it passes on.`

func dashboardCommand(c *cli, flags *genericclioptions.ConfigFlags) *cobra.Command {
	var o dashboardOptions
	cmd := &cobra.Command{
		Use: "dashboard", Short: "Serve a page that shows queues, TrainJobs, nodes and teams", Args: cobra.NoArgs,
		Long: dashboardLong, Example: "  kubectl signalbox dashboard",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := c.connect()
			if err != nil {
				return err
			}
			config, err := flags.ToRESTConfig()
			if err != nil {
				return fmt.Errorf("finding the cluster: %w", err)
			}
			if o.tokens {
				return serveTokens(cmd.Context(), s, config, o)
			}
			return serveLocal(cmd.Context(), s, config, cmp.Or(contextName(flags), config.Host), o)
		},
	}
	cmd.Flags().IntVar(&o.port, "port", 0, "port on 127.0.0.1; 0 for 8427, or any other if that is taken")
	cmd.Flags().BoolVar(&o.noBrowser, "no-browser", false, "open no browser")
	cmd.Flags().BoolVar(&o.readOnly, "read-only", false, "don't offer to stop, resume and restart TrainJobs")
	cmd.Flags().BoolVar(&o.tokens, "tokens", false, "serve in a cluster, with the bearer token of each request")
	cmd.Flags().StringVar(&o.listen, "listen", ":8427", "address to listen on with --tokens")
	cmd.Flags().StringVar(&o.cert, "tls-cert-file", "",
		"certificate to serve with --tokens; without one, it is served over HTTP")
	cmd.Flags().StringVar(&o.key, "tls-private-key-file", "", "its key")
	cmd.Flags().BoolVar(&o.acts, "allow-changes", false, "offer to stop, resume and restart TrainJobs with --tokens")
	return cmd
}

// contextName returns the name of the kubeconfig's context; "" for none.
func contextName(flags *genericclioptions.ConfigFlags) string {
	if flags.Context != nil && *flags.Context != "" {
		return *flags.Context
	}
	raw, err := flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return ""
	}
	return raw.CurrentContext
}

// usualPort is that of the page, so that bookmarks go on working.
const usualPort = 8427

// listenLocally listens on 127.0.0.1: on a port, or if none is named on the usual one, or else on any.
func listenLocally(port int) (net.Listener, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", cmp.Or(port, usualPort)))
	if err != nil && port == 0 {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	return l, nil
}

// serveLocal serves the page to one user of this machine.
func serveLocal(ctx context.Context, s *session, config *rest.Config, cluster string, o dashboardOptions) error {
	l, err := listenLocally(o.port)
	if err != nil {
		return err
	}
	guard := serve.NewLocal(l.Addr().String(), s.namespace)
	pool := serve.NewPool(ctx, 8, 0, func(ctx context.Context, u serve.User) (serve.Viewer, error) {
		of := *s
		of.namespace = u.Namespace
		return newViewer(ctx, &of, config, look{cluster: cluster, acts: !o.readOnly})
	})
	go func() { // the watches begin before the browser is there
		if _, err := pool.Of(ctx, serve.User{Namespace: s.namespace}); err != nil && ctx.Err() == nil {
			fmt.Fprintf(s.streams.ErrOut, "Reading the cluster: %v\n", err)
		}
	}()
	fmt.Fprintf(s.streams.Out, "The page is at %s\nThe link works once. Press Ctrl-C to end.\n", guard.Link())
	if !o.noBrowser {
		dir, err := os.MkdirTemp("", "signalbox-") // of mode 0700
		if err != nil {
			return fmt.Errorf("opening the browser: %w", err)
		}
		defer os.RemoveAll(dir)
		go func() { // some browsers go on until they are closed
			if err := openBrowser(dir, guard.Link()); err != nil {
				fmt.Fprintf(s.streams.ErrOut, "Open the link in a browser; it can't be opened here: %v\n", err)
			}
		}()
	}
	return listen(ctx, l, guard, pool)
}

// openBrowser opens a link by a file that only the user can read: arguments of programs are seen by all users of a
// machine.
func openBrowser(dir, link string) error {
	path := filepath.Join(dir, "open.html")
	text := fmt.Sprintf(`<!doctype html><meta http-equiv="refresh" content="0; url=%s">`, html.EscapeString(link))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	browser.Stdout, browser.Stderr = os.Stderr, os.Stderr
	return browser.OpenFile(path)
}

// Of the page in a cluster: how many users it has at once, and after how long the watches of one that is gone end.
const (
	mostUsers = 50
	idleUser  = 5 * time.Minute
)

// serveTokens serves the page to users whose tokens a proxy passes on.
func serveTokens(ctx context.Context, s *session, config *rest.Config, o dashboardOptions) error {
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	pool := serve.NewPool(ctx, mostUsers, idleUser, func(ctx context.Context, u serve.User) (serve.Viewer, error) {
		own := rest.AnonymousClientConfig(config) // nothing of the page's own rights
		own.BearerToken = u.Token
		of, err := sessionWith(own, u.Namespace, s.kueueNamespace, s.streams)
		if err != nil {
			return nil, err
		}
		of.open = func(string) (*session, error) {
			return nil, errors.New("the page in a cluster doesn't reach other clusters; use kubectl signalbox dashboard")
		}
		return newViewer(ctx, of, own, look{acts: o.acts})
	})
	scheme := "http"
	if o.cert != "" {
		certificates, err := certwatcher.New(o.cert, o.key)
		if err != nil {
			return fmt.Errorf("reading the certificate: %w", err)
		}
		go func() { // a renewed one is served without a restart
			if err := certificates.Start(ctx); err != nil {
				fmt.Fprintf(s.streams.ErrOut, "Watching the certificate: %v\n", err)
			}
		}()
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificates.GetCertificate})
		scheme = "https"
	}
	fmt.Fprintf(s.streams.Out, "The page is at %s://%s\n", scheme, l.Addr())
	return listen(ctx, l, serve.Tokens{Namespace: s.namespace}, pool)
}

// listen serves until the context ends.
func listen(ctx context.Context, l net.Listener, guard serve.Guard, pool *serve.Pool) error {
	server := &http.Server{
		Handler:           (&serve.Server{Guard: guard, Pool: pool, Frame: page.Frame{Release: buildVersion()}}).Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	go func() {
		<-ctx.Done()
		_ = server.Close() // streams don't end by themselves
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
