package main

import (
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// health is whether the API server answers, and the user's credentials are valid.
type health struct {
	mu      sync.Mutex
	since   *time.Time // the first error that no answer has followed
	asked   time.Time
	refused bool
	revoked bool // a right to watch
}

// How often the API server is asked whether it answers, and takes the user's credentials: a watch that can't be resumed
// is tried again without a word.
const (
	askAgain = 15 * time.Second
	askLost  = 3 * time.Second
)

// failed notes that a watch has ended with an error, and reports whether the API server is lost by it.
func (h *health) failed(err error) (lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = h.refused || apierrors.IsUnauthorized(err)
	h.revoked = h.revoked || apierrors.IsForbidden(err)
	if h.since == nil && !answered(err) {
		now := time.Now()
		h.since = &now
		return true
	}
	return false
}

// answered reports whether an error is an answer of the API server.
func answered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err)
}

// due reports whether the API server is to be asked again.
func (h *health) due(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	is := h.since != nil && now.Sub(h.asked) >= askLost || now.Sub(h.asked) >= askAgain
	if is {
		h.asked = now
	}
	return is
}

// heard notes an answer, and reports whether the API server is lost or back by it.
func (h *health) heard(err error, now time.Time) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.since
	switch {
	case apierrors.IsUnauthorized(err):
		h.refused = true
	case err == nil || answered(err):
		h.since = nil
	case h.since == nil:
		h.since = &now
	}
	return (before == nil) != (h.since == nil)
}

// lost returns since when the API server doesn't answer; nil if it does.
func (h *health) lost() *time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since
}

// expired returns an error if the user's credentials are no longer valid.
func (h *health) expired() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.refused:
		return serve.ErrExpired
	case h.revoked:
		return serve.ErrRights
	}
	return nil
}
