package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"
)

// Pool keeps a viewer for each user, with watches of its own: nobody sees by another's rights.
type Pool struct {
	open func(context.Context, User) (Viewer, error)
	// most is how many there are at most; idle is after how long one that nobody asks is closed, 0 for never.
	most int
	idle time.Duration
	ctx  context.Context

	mu sync.Mutex
	of map[key]*kept
}

// key stands for a user. It has no token that could be printed.
type key [sha256.Size]byte

func (u User) key() key { return sha256.Sum256([]byte(u.Token + "\x00" + u.Namespace)) }

type kept struct {
	Viewer
	err    error
	opened chan struct{}
	cancel context.CancelFunc
	used   time.Time
	held   int // by streams
	owner  key // the user, in whatever namespace
}

// mostOfOne is how many namespaces one user looks at, each with watches of its own.
const mostOfOne = 4

var (
	errFull = errors.New("too many users have the page open; try again in a minute")
	errMany = errors.New("you have too many namespaces open at once; close some tabs, and try again")
)

// NewPool returns a pool whose viewers end with the context.
func NewPool(
	ctx context.Context, most int, idle time.Duration, open func(context.Context, User) (Viewer, error),
) *Pool {
	p := &Pool{ctx: ctx, open: open, most: most, idle: idle, of: map[key]*kept{}}
	if idle > 0 {
		go p.sweep()
	}
	return p
}

// Of returns a user's viewer.
func (p *Pool) Of(ctx context.Context, u User) (Viewer, error) {
	k, made, err := p.find(u)
	if err != nil {
		return nil, err
	}
	if made {
		go func() {
			within, cancel := context.WithCancel(p.ctx)
			k.cancel = cancel
			k.Viewer, k.err = p.open(within, u)
			close(k.opened)
			if k.err != nil {
				cancel()
				p.remove(u.key(), k)
			}
		}()
	}
	select {
	case <-k.opened:
		return k.Viewer, k.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// find returns what is kept for a user, and whether it has to be opened.
func (p *Pool) find(u User) (*kept, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.of[u.key()]; k != nil {
		k.used = time.Now()
		return k, false, nil
	}
	owner := User{Token: u.Token}.key()
	own := func(k *kept) bool { return k.owner == owner }
	if p.count(own) >= mostOfOne && !p.makeRoom(own) {
		return nil, false, errMany
	}
	if len(p.of) >= p.most && !p.makeRoom(func(*kept) bool { return true }) {
		return nil, false, errFull
	}
	k := &kept{opened: make(chan struct{}), used: time.Now(), owner: owner}
	p.of[u.key()] = k
	return k, true, nil
}

// count returns how many there are of some.
func (p *Pool) count(of func(*kept) bool) (n int) {
	for _, k := range p.of {
		if of(k) {
			n++
		}
	}
	return n
}

// makeRoom closes, of some, the one that nobody has asked for the longest time, if no stream holds it.
func (p *Pool) makeRoom(of func(*kept) bool) bool {
	var oldest key
	var found *kept
	for name, k := range p.of {
		if of(k) && k.held == 0 && k.ready() && (found == nil || k.used.Before(found.used)) {
			oldest, found = name, k
		}
	}
	if found == nil {
		return false
	}
	p.close(oldest, found)
	return true
}

func (k *kept) ready() bool {
	select {
	case <-k.opened:
		return true
	default:
		return false
	}
}

// close ends a viewer. The pool is locked.
func (p *Pool) close(name key, k *kept) {
	delete(p.of, name)
	k.cancel()
}

func (p *Pool) remove(name key, k *kept) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[name] == k {
		p.close(name, k)
	}
}

// Drop closes a user's viewer, and forgets all that it has read.
func (p *Pool) Drop(u User, v Viewer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.of[u.key()]; k != nil && k.ready() && k.Viewer == v {
		p.close(u.key(), k)
	}
}

// Hold returns a user's viewer, nil if there is none, and keeps it until the function that it returns is called.
func (p *Pool) Hold(u User) (Viewer, func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.of[u.key()]
	if k == nil || !k.ready() || k.Viewer == nil {
		return nil, nil
	}
	k.held++
	return k.Viewer, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		k.held, k.used = k.held-1, time.Now()
	}
}

// sweep closes those that nobody asks any more.
func (p *Pool) sweep() {
	for p.ctx.Err() == nil {
		pause(p.ctx, p.idle/4)
		p.mu.Lock()
		for name, k := range p.of {
			if k.held == 0 && k.ready() && time.Since(k.used) > p.idle {
				p.close(name, k)
			}
		}
		p.mu.Unlock()
	}
}

// pause waits, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
