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
// bounded, of all and of each address.
const (
	// maxReview is the largest review, in bytes: an object of 1.5 MiB, and what it was before.
	maxReview = 3<<20 + 64<<10
	// maxRequests is how many requests of one address are answered or wait, and maxAllRequests how many of all.
	maxRequests, maxAllRequests = 512, 2048
	// maxAround is how many list elements a review may have beside its objects: groups of a user, mostly.
	maxAround = 2000
	// readTime is for how long the body of a request may take, and answerTime for how long its answer. The API server
	// waits for ten seconds (webhook.timeoutSeconds of the chart).
	readTime   = 5 * time.Second
	answerTime = 9 * time.Second
	// elementCost is what decoding a list element takes at most, in bytes. A ReplicatedJob has 1,216, and a list grows
	// in leaps. byteCost is what decoding takes for each byte of text. An entry of a map has a few of them.
	elementCost = 2 << 10
	byteCost    = 16
)

// room is how many bytes of memory requests take at a time, of all and of one address. Those that cost little have room
// of their own, so that they wait for none that cost much: both come from the API server's address.
type room struct{ all, share int64 }

// roomToRead returns the room for the text of a request of a size, and roomToDecide that for its answer.
func roomToRead(size int64) room {
	if size <= 128<<10 {
		return room{all: 16 << 20, share: 4 << 20}
	}
	return room{all: 48 << 20, share: 12 << 20}
}

func roomToDecide(cost int64) room {
	if cost <= 2<<20 {
		return room{all: 32 << 20, share: 16 << 20}
	}
	return room{all: 64 << 20, share: 32 << 20}
}

// Guard bounds what requests to the webhooks cost, whoever sends them.
type Guard struct {
	mu       sync.Mutex
	requests int
	held     rooms
	sources  map[string]*source
}

type source struct {
	address  string
	requests int
	held     rooms
}

// rooms are what is held of each room.
type rooms map[room]*semaphore.Weighted

func (r rooms) of(wanted room, most int64) *semaphore.Weighted {
	if r[wanted] == nil {
		r[wanted] = semaphore.NewWeighted(most)
	}
	return r[wanted]
}

// NewGuard returns a Guard that holds nothing.
func NewGuard() *Guard { return &Guard{held: rooms{}, sources: map[string]*source{}} }

// Wrap returns a handler that passes requests on to hook. A review that is too large, or that has too many list
// elements beside its objects, is rejected unread. Others wait until there is room for them, and have a deadline.
func (g *Guard) Wrap(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := g.enter(sourceOf(r))
		if err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		defer g.leave(from)
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		size := r.ContentLength
		if size < 0 || size > maxReview {
			size = maxReview
		}
		release, err := g.hold(ctx, from, roomToRead(size), size)
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
		elements, err := checkReview(body)
		if err != nil {
			refuse(w, body, err)
			return
		}
		cost := int64(len(body)*byteCost + elements*elementCost)
		decided, err := g.hold(ctx, from, roomToDecide(cost), cost)
		if err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		defer decided()
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

// checkReview returns how many list elements a review has. It rejects one that is too large, or that has too many
// beside its objects.
func checkReview(body []byte) (elements int, err error) {
	if len(body) > maxReview {
		return 0, fmt.Errorf("the object, with what it was before, has more than %d bytes; make it smaller", maxReview)
	}
	n, err := measure(body) // once: each request of a burst waits for it
	if err != nil {
		return 0, err
	}
	if around := n.elements - n.objects; around > maxAround {
		return 0, fmt.Errorf("the request has %d list elements beside its objects; at most %d are read", around, maxAround)
	}
	return n.elements, nil
}

// refuse answers a review that isn't passed on.
func refuse(w http.ResponseWriter, body []byte, reason error) {
	answer := admissionv1.AdmissionReview{Response: &admissionv1.AdmissionResponse{
		UID: uidOf(body),
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusRequestEntityTooLarge,
			Reason: metav1.StatusReasonRequestEntityTooLarge, Message: reason.Error(),
		},
	}}
	answer.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
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

// enter counts a request of an address. leave has to follow.
func (g *Guard) enter(address string) (*source, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	from := g.sources[address]
	if from == nil {
		from = &source{address: address, held: rooms{}}
	}
	if from.requests >= maxRequests || g.requests >= maxAllRequests {
		return nil, errTooMany
	}
	from.requests++
	g.requests++
	g.sources[address] = from
	return from, nil
}

func (g *Guard) leave(from *source) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests--
	if from.requests--; from.requests == 0 {
		delete(g.sources, from.address)
	}
}

// hold takes room for a request of a source, at most its share, and returns what gives it back. It waits, for as long
// as the context lasts, while the source or all together hold too much.
func (g *Guard) hold(ctx context.Context, from *source, wanted room, size int64) (release func(), err error) {
	size = min(size, wanted.share)
	g.mu.Lock()
	share, all := from.held.of(wanted, wanted.share), g.held.of(wanted, wanted.all)
	g.mu.Unlock()
	if err := share.Acquire(ctx, size); err != nil {
		return nil, errTooMany
	}
	if err := all.Acquire(ctx, size); err != nil {
		share.Release(size)
		return nil, errTooMany
	}
	return func() {
		all.Release(size)
		share.Release(size)
	}, nil
}

// sourceOf returns the address that a request comes from, without its port.
func sourceOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
