package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
)

// relay is a TCP proxy between one component and the API server. It can close connections, and stall them: watch events
// and responses are delayed, so the component's caches are stale. Components use HTTP/1.1 through it (DISABLE_HTTP2),
// so each watch has its own connection and some stall while others don't.
type relay struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	pipes map[*pipe]struct{}
}

// pipe is a pair of connections.
type pipe struct {
	client, server net.Conn
	mu             sync.Mutex
	flows          *sync.Cond
	stalled        bool
}

// newRelay serves on a free port until the context ends.
func newRelay(ctx context.Context, target string) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: listener, target: target, pipes: map[*pipe]struct{}{}}
	context.AfterFunc(ctx, func() {
		listener.Close()
		r.cut()
	})
	go r.serve()
	return r, nil
}

func (r *relay) port() int { return r.listener.Addr().(*net.TCPAddr).Port }

func (r *relay) serve() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", r.target)
		if err != nil {
			client.Close() // like a refused connection
			continue
		}
		p := &pipe{client: client, server: server}
		p.flows = sync.NewCond(&p.mu)
		r.mu.Lock()
		r.pipes[p] = struct{}{}
		r.mu.Unlock()
		var both sync.WaitGroup
		both.Go(func() { copyAll(server, client, func() {}) })
		both.Go(func() { copyAll(client, server, p.await) })
		go func() {
			both.Wait()
			r.mu.Lock()
			delete(r.pipes, p)
			r.mu.Unlock()
		}()
	}
}

// copyAll copies until one end is closed, and closes both. It calls before ahead of each write.
func copyAll(to, from net.Conn, before func()) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			before()
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await blocks while the connection is stalled.
func (p *pipe) await() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.stalled {
		p.flows.Wait()
	}
}

func (p *pipe) stall(stalled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stalled
	p.flows.Broadcast()
}

func (r *relay) all() []*pipe {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*pipe
	for p := range r.pipes {
		all = append(all, p)
	}
	return all
}

// cut closes every connection.
func (r *relay) cut() {
	for _, p := range r.all() {
		p.stall(false)
		p.client.Close()
		p.server.Close()
	}
}

// stall delays what the API server sends on about half of the connections, until flow is called.
func (r *relay) stall() {
	for _, p := range r.all() {
		if rand.IntN(2) == 0 {
			p.stall(true)
		}
	}
}

func (r *relay) flow() {
	for _, p := range r.all() {
		p.stall(false)
	}
}

// relayActions are the actions on a component's connections.
var relayActions = map[string]func(*relay){"cut": (*relay).cut, "stall": (*relay).stall, "flow": (*relay).flow}

// startRelays starts a relay for every component with a kubeconfig, and returns each identity's address of the API
// server.
func (x *plan) startRelays(ctx context.Context, server string) (func(identity) string, error) {
	direct := func(id identity) string {
		if id.remote {
			_, port, _ := net.SplitHostPort(server) // it is of hostPort
			return "https://" + net.JoinHostPort(planeAddress, port)
		}
		return "https://" + server
	}
	if !x.profile.relayed {
		return direct, nil
	}
	x.relays = map[string]*relay{}
	for _, id := range identities {
		if slices.Contains([]string{"", "user"}, id.file) {
			continue
		}
		r, err := newRelay(ctx, server)
		if err != nil {
			return nil, fmt.Errorf("relay of %s: %w", id.file, err)
		}
		x.relays[id.file] = r
	}
	return func(id identity) string {
		if r := x.relays[id.file]; r != nil {
			return "https://" + hostPort(r.port())
		}
		return direct(id)
	}, nil
}

// relayed runs an action on the connections of a component.
func (x *plan) relayed(action, component string) error {
	if x.relays == nil {
		return errors.New("the components are connected directly; start the control plane with --relayed")
	}
	r := x.relays[component]
	if r == nil {
		return fmt.Errorf("%s has no connections to %s", component, action)
	}
	relayActions[action](r)
	return nil
}
