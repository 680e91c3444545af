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

// relay stands between one component and the API server, so that its connections can be cut, or stalled: what the API server
// sends then doesn't arrive, caches are late, and answers come late. A component speaks HTTP/1.1 through it (DISABLE_HTTP2), so
// that each of its watches is a connection of its own, and some of them can stall while others flow.
type relay struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	pipes map[*pipe]struct{}
}

// pipe is one connection and its other half.
type pipe struct {
	client, server net.Conn
	mu             sync.Mutex
	flows          *sync.Cond
	stalled        bool
}

// newRelay serves until the context ends, on a port of its own.
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
			return // the end
		}
		server, err := net.Dial("tcp", r.target)
		if err != nil {
			client.Close() // as if nobody listened: the API server is down
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

// copyAll copies until either end is closed, and closes both; before is called before each write.
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

// await returns when the connection isn't stalled.
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

// stall holds back what the API server sends on about half of the connections, until flow is called.
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

// relayActions are what can be done to the connections of a component.
var relayActions = map[string]func(*relay){"cut": (*relay).cut, "stall": (*relay).stall, "flow": (*relay).flow}

// startRelays puts a relay before every component that has a kubeconfig, and returns where each finds the API server.
func (x *plan) startRelays(ctx context.Context, server string) (func(identity) string, error) {
	direct := func(identity) string { return "https://" + server }
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

// relayed does something to the connections of a component.
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
