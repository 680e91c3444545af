package review

import (
	"bytes"
	"context"
	"encoding/json"
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
	// maxHeld is how many bytes of reviews are held at a time, and maxHeldBy how many of them of one address.
	maxHeld   = 24 << 20
	maxHeldBy = 12 << 20
	// maxAround is how many list elements a review may have beside its objects: groups of a user, mostly.
	maxAround = 2000
	// readTime is for how long the body of a request may take, and answerTime for how long its answer. The API server
	// waits for ten seconds (webhook.timeoutSeconds of the chart).
	readTime   = 2 * time.Second
	answerTime = 9 * time.Second
)

// Guard bounds what requests to the webhooks cost, whoever sends them.
type Guard struct {
	held *semaphore.Weighted

	mu      sync.Mutex
	sources map[string]*source
}

// source is an address from which requests come.
type source struct {
	held  *semaphore.Weighted
	users int
}

// NewGuard returns a Guard that holds nothing.
func NewGuard() *Guard {
	return &Guard{held: semaphore.NewWeighted(maxHeld), sources: map[string]*source{}}
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
			http.Error(w, "the webhook answers too many other requests", http.StatusTooManyRequests)
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

// hold takes room for a request of an address, and returns what gives it back. It waits, for as long as the context
// lasts, while the address or all together hold too much.
func (g *Guard) hold(ctx context.Context, address string, size int64) (release func(), err error) {
	from := g.source(address)
	if err := from.held.Acquire(ctx, size); err != nil {
		g.leave(address)
		return nil, err
	}
	if err := g.held.Acquire(ctx, size); err != nil {
		from.held.Release(size)
		g.leave(address)
		return nil, err
	}
	return func() {
		g.held.Release(size)
		from.held.Release(size)
		g.leave(address)
	}, nil
}

func (g *Guard) source(address string) *source {
	g.mu.Lock()
	defer g.mu.Unlock()
	from := g.sources[address]
	if from == nil {
		from = &source{held: semaphore.NewWeighted(maxHeldBy)}
		g.sources[address] = from
	}
	from.users++
	return from
}

func (g *Guard) leave(address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if from := g.sources[address]; from.users > 1 {
		from.users--
	} else {
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
