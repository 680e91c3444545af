package review

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
)

// served answers a review by the guard, and reports whether the webhook was asked.
func served(t *testing.T, body string) (answer *admissionv1.AdmissionResponse, code int, asked bool) {
	t.Helper()
	hook := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		passed, err := io.ReadAll(r.Body)
		if _, limited := r.Context().Deadline(); err != nil || string(passed) != body || !limited {
			t.Errorf("the request is passed on as it is, with a deadline: got %v", err)
		}
		asked = true
	})
	w := httptest.NewRecorder()
	NewGuard().Wrap(hook).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
	if w.Code == http.StatusOK && !asked {
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || review.Kind != "AdmissionReview" {
			t.Fatalf("got %v, %s", err, w.Body)
		}
		answer = review.Response
	}
	return answer, w.Code, asked
}

func reviewOf(object, user string) string {
	return fmt.Sprintf(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1","object":%s,`+
		`"oldObject":null,"userInfo":%s}}`, object, user)
}

// TestGuard holds that what would cost more than its bytes is answered before it is decoded, and how.
func TestGuard(t *testing.T) {
	many := "[" + strings.TrimSuffix(strings.Repeat(`"",`, 3000), ",") + "]"
	if _, _, asked := served(t, reviewOf(`{"spec":{"volumes":`+many+`}}`, `{"username":"a"}`)); !asked {
		t.Error("the elements of an object are for those to judge who know its kind")
	}
	for name, c := range map[string]struct{ body, want string }{
		"groups":       {reviewOf(`{}`, `{"groups":`+many+`}`), "3000 list elements beside its objects"},
		"too large":    {reviewOf(`{"a":"`+strings.Repeat("x", 4<<20)+`"}`, `{}`), "more than"},
		"not JSON":     {`{"request":{"uid":"u-1",`, "not JSON"},
		"nested":       {reviewOf(strings.Repeat("[", 500)+strings.Repeat("]", 500), `{}`), "nested too deeply"},
		"two requests": {`{"request":{"uid":"u-1"},"request":{"userInfo":{"groups":` + many + `}}}`, "beside its objects"},
	} {
		answer, code, asked := served(t, c.body)
		if asked || code != http.StatusOK || answer.Allowed || !strings.Contains(answer.Result.Message, c.want) {
			t.Errorf("%s: asked %t, code %d, got %+v", name, asked, code, answer)
		}
		if answer != nil && answer.UID != "u-1" {
			t.Errorf("%s: the API server reads only an answer with its UID: got %q", name, answer.UID)
		}
	}
}

// holds takes room for a request of an address as a webhook does.
func (g *Guard) holds(ctx context.Context, address string, of room, size int64) (func(), error) {
	from, err := g.enter(address)
	if err != nil {
		return nil, err
	}
	release, err := g.hold(ctx, from, of, size)
	if err != nil {
		g.leave(from)
		return nil, err
	}
	return func() { release(); g.leave(from) }, nil
}

// TestGuardShares holds that one address can't hold all, that what costs little waits for nothing that costs much, and
// that what was held is given back.
func TestGuardShares(t *testing.T) {
	for _, r := range []struct{ of, other room }{
		{roomToRead(1000), roomToRead(1 << 20)}, {roomToDecide(1000), roomToDecide(4 << 20)},
		{roomToRead(1 << 20), roomToRead(1000)}, {roomToDecide(4 << 20), roomToDecide(1000)},
	} {
		g := NewGuard()
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		var releases []func()
		for i := range r.of.all / r.of.share { // each has its own
			release, err := g.holds(t.Context(), fmt.Sprint(i), r.of, r.of.share)
			if err != nil {
				t.Fatalf("%v: %d: got %v", r, i, err)
			}
			releases = append(releases, release)
			if _, err := g.holds(short, fmt.Sprint(i), r.of, 1); err == nil {
				t.Errorf("%v: an address has its share only", r)
			}
		}
		if _, err := g.holds(short, "another", r.of, 1); err == nil {
			t.Errorf("%v: all together hold no more than there is", r)
		}
		other, err := g.holds(t.Context(), "0", r.other, 100<<20)
		if err != nil {
			t.Errorf("%v: those that cost much and those that cost little don't wait for each other: got %v", r, err)
		}
		waiting := make(chan error, 1)
		go func() {
			release, err := g.holds(t.Context(), "another", r.of, 1)
			if err == nil {
				release()
			}
			waiting <- err
		}()
		for _, release := range releases {
			release()
		}
		if err := <-waiting; err != nil {
			t.Errorf("%v: who waits gets what is given back: got %v", r, err)
		}
		other()
		if len(g.sources) != 0 || g.requests != 0 {
			t.Errorf("%v: nothing is kept of those that have gone: got %d, %v", r, g.requests, g.sources)
		}
	}
}

// TestGuardCounts holds that requests that wait are counted, too.
func TestGuardCounts(t *testing.T) {
	g := NewGuard()
	var all []*source
	for address := range maxAllRequests / maxRequests {
		for range maxRequests {
			from, err := g.enter(fmt.Sprint(address))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, from)
		}
		if _, err := g.enter(fmt.Sprint(address)); err == nil {
			t.Fatal("an address may send so many only")
		}
	}
	if _, err := g.enter("one more"); err == nil || len(g.sources) != maxAllRequests/maxRequests {
		t.Errorf("all together may: got %v, %d", err, len(g.sources))
	}
	g.leave(all[0])
	if _, err := g.enter("one more"); err != nil {
		t.Errorf("got %v", err)
	}
}

// TestGuardIsFull holds that a request for which there is no room in time is rejected.
func TestGuardIsFull(t *testing.T) {
	body := `{"request":{}}`
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for _, full := range []room{roomToRead(1), roomToDecide(1)} {
		g := NewGuard()
		if _, err := g.holds(t.Context(), "192.0.2.1", full, full.share); err != nil { // httptest's address
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		g.Wrap(http.NotFoundHandler()).ServeHTTP(w,
			httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body)))
		if w.Code != http.StatusTooManyRequests {
			t.Errorf("%v: got %d", full, w.Code)
		}
	}
	g := NewGuard()
	for range maxRequests {
		if _, err := g.enter("192.0.2.1"); err != nil {
			t.Fatal(err)
		}
	}
	w := httptest.NewRecorder()
	g.Wrap(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("too many: got %d", w.Code)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestGuardReadsNothing(t *testing.T) {
	w := httptest.NewRecorder()
	NewGuard().Wrap(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", broken{}))
	if w.Code != http.StatusBadRequest {
		t.Errorf("got %d", w.Code)
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	if r.RemoteAddr = "pipe"; sourceOf(r) != "pipe" {
		t.Errorf("an address without a port is one, too: got %q", sourceOf(r))
	}
}
