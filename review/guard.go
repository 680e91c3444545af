package review

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What the webhooks take at a time. The API server accepts 3 MiB of a client, and etcd stores 1.5 MiB; a TrainJob has
// kilobytes. Without a client certificate anybody who reaches the port may send requests, so that what they cost is
// bounded by their bytes, and what one address holds by its share: the bytes are held while a request is answered.
const (
	// maxReview is the largest review, in bytes: an object of 1.5 MiB, and what it was before.
	maxReview = 3<<20 + 64<<10
	// maxSmall is the size, in bytes, up to which a review has room of its own, so that it waits for no large one of
	// another user: both come from the API server's address.
	maxSmall = 128 << 10
	// maxRequests is how many requests of one address are answered or wait, and maxAllRequests how many of all.
	maxRequests, maxAllRequests = 512, 2048
	// maxAround is how many list elements a review may have beside its objects: groups of a user, mostly.
	maxAround = 2000
	// readTime is for how long the body of a request may take, and answerTime for how long its answer. The API server
	// waits for ten seconds (webhook.timeoutSeconds of the chart).
	readTime   = 2 * time.Second
	answerTime = 9 * time.Second
)

// room is how many bytes of reviews are held at a time, of all and of one address.
type room struct{ all, share int64 }

// roomFor returns the room that reviews of a size share.
func roomFor(size int64) room {
	if size <= maxSmall {
		return room{all: 8 << 20, share: 4 << 20}
	}
	return room{all: 24 << 20, share: 12 << 20}
}

// Guard bounds what requests to the webhooks cost, whoever sends them.
type Guard struct {
	mu       sync.Mutex
	requests int
	held     map[room]*semaphore.Weighted
	sources  map[string]*source
}

// source is an address from which requests come.
type source struct {
	requests int
	held     map[room]*semaphore.Weighted
}

// NewGuard returns a Guard that holds nothing.
func NewGuard() *Guard {
	return &Guard{held: map[room]*semaphore.Weighted{}, sources: map[string]*source{}}
}

// Wrap returns a handler that passes requests on to hook. A review that is too large, or that has too many list
// elements beside its objects, is rejected unread. Others wait until there is room for them, and have a deadline.
func (g *Guard) Wrap(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		size := r.ContentLength
		if size < 0 || size > maxReview {
			size = maxReview
		}
		release, err := g.hold(ctx, sourceOf(r), size)
		if err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		defer release()
		body, err := bodyOf(w, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := checkReview(body); err != nil {
			refuse(w, body, err)
			return
		}
		passed := r.WithContext(ctx)
		passed.Body = io.NopCloser(bytes.NewReader(body))
		hook.ServeHTTP(w, passed)
	})
}

// bodyOf returns the body of a request; that of one that is too large is cut.
func bodyOf(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// A server that has no deadlines, as one of a test, is not slow either.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime))
	body := bytes.NewBuffer(make([]byte, 0, max(min(r.ContentLength, maxReview), 0)+bytes.MinRead))
	if _, err := body.ReadFrom(io.LimitReader(r.Body, maxReview+1)); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	return body.Bytes(), nil
}

// checkReview rejects a review that would cost more than its bytes allow.
func checkReview(body []byte) error {
	if len(body) > maxReview {
		return fmt.Errorf("the object, with what it was before, has more than %d bytes; make it smaller", maxReview)
	}
	all, err := Elements(body)
	if err != nil {
		return err
	}
	request := Member(body, "request")
	for _, name := range []string{"object", "oldObject"} {
		if n, err := Elements(Member(request, name)); err == nil {
			all -= n
		}
	}
	if all > maxAround {
		return fmt.Errorf("the request has %d list elements beside its objects; at most %d are read", all, maxAround)
	}
	return nil
}

// refuse answers a review that isn't passed on.
func refuse(w http.ResponseWriter, body []byte, reason error) {
	answer := admissionv1.AdmissionReview{Response: &admissionv1.AdmissionResponse{
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusRequestEntityTooLarge,
			Reason: metav1.StatusReasonRequestEntityTooLarge, Message: reason.Error(),
		},
	}}
	answer.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	answer.Response.UID = uidOf(body)
	w.Header().Set("Content-Type", "application/json")
	// Whoever doesn't read the answer has none.
	_ = json.NewEncoder(w).Encode(answer)
}

// uidOf returns the UID of a review, of which the end may be missing; "" if it isn't at its beginning, where the API
// server writes it.
func uidOf(body []byte) types.UID {
	decoder := json.NewDecoder(bytes.NewReader(body))
	for last := json.Token(nil); decoder.InputOffset() < 4<<10; {
		token, err := decoder.Token()
		if err != nil {
			return ""
		}
		if uid, ok := token.(string); ok && last == "uid" {
			return types.UID(uid)
		}
		last = token
	}
	return ""
}

// errTooMany is the answer when an address, or all together, send more requests than are answered.
var errTooMany = errors.New("the webhook answers too many other requests")

// hold takes room for a request of an address, and returns what gives it back. It waits, for as long as the context
// lasts, while the address or all together hold too much.
func (g *Guard) hold(ctx context.Context, address string, size int64) (release func(), err error) {
	of, all, err := g.enter(address, roomFor(size))
	if err != nil {
		return nil, err
	}
	if err := of.Acquire(ctx, size); err != nil {
		g.leave(address)
		return nil, errTooMany
	}
	if err := all.Acquire(ctx, size); err != nil {
		of.Release(size)
		g.leave(address)
		return nil, errTooMany
	}
	return func() {
		all.Release(size)
		of.Release(size)
		g.leave(address)
	}, nil
}

// enter counts a request of an address, and returns what its room is taken of.
func (g *Guard) enter(address string, size room) (of, all *semaphore.Weighted, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	from := g.sources[address]
	if from == nil {
		from = &source{held: map[room]*semaphore.Weighted{}}
		g.sources[address] = from
	}
	if from.requests >= maxRequests || g.requests >= maxAllRequests {
		if from.requests == 0 {
			delete(g.sources, address)
		}
		return nil, nil, errTooMany
	}
	from.requests++
	g.requests++
	return heldOf(from.held, size, size.share), heldOf(g.held, size, size.all), nil
}

func heldOf(held map[room]*semaphore.Weighted, of room, most int64) *semaphore.Weighted {
	if held[of] == nil {
		held[of] = semaphore.NewWeighted(most)
	}
	return held[of]
}

func (g *Guard) leave(address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests--
	from := g.sources[address]
	from.requests--
	if from.requests == 0 {
		delete(g.sources, address)
	}
}

// sourceOf returns the address that a request comes from, without its port.
func sourceOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
