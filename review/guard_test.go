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

// TestGuardShares holds that one address can't hold all, that a small request waits for no large one, and that what was
// held is given back.
func TestGuardShares(t *testing.T) {
	for _, size := range []int64{maxSmall, maxSmall + 1} {
		g := NewGuard()
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		of := roomFor(size)
		var releases []func()
		take := func(address string, bytes int64) {
			t.Helper()
			for ; bytes >= size; bytes -= size {
				release, err := g.hold(t.Context(), address, size)
				if err != nil {
					t.Fatalf("%s: got %v", address, err)
				}
				releases = append(releases, release)
			}
		}
		take("a", of.share)
		if _, err := g.hold(short, "a", size); err == nil {
			t.Error("an address has its share only")
		}
		take("b", of.share) // another has its own
		if _, err := g.hold(short, "c", size); err == nil {
			t.Error("all together hold no more than there is")
		}
		other, err := g.hold(t.Context(), "a", maxSmall+maxSmall+1-size)
		if err != nil {
			t.Errorf("large ones and small ones don't wait for each other: got %v", err)
		}
		waiting := make(chan error, 1)
		go func() {
			release, err := g.hold(t.Context(), "c", size)
			if err == nil {
				release()
			}
			waiting <- err
		}()
		for _, release := range releases {
			release()
		}
		if err := <-waiting; err != nil {
			t.Errorf("who waits gets what is given back: got %v", err)
		}
		other()
		if len(g.sources) != 0 || g.requests != 0 {
			t.Errorf("nothing is kept of those that have gone: got %d, %v", g.requests, g.sources)
		}
	}
}

// TestGuardCounts holds that requests that wait are counted, too.
func TestGuardCounts(t *testing.T) {
	g := NewGuard()
	var releases []func()
	for address := range maxAllRequests / maxRequests {
		for range maxRequests {
			release, err := g.hold(t.Context(), fmt.Sprint(address), 1)
			if err != nil {
				t.Fatal(err)
			}
			releases = append(releases, release)
		}
		if _, err := g.hold(t.Context(), fmt.Sprint(address), 1); err == nil {
			t.Fatal("an address may send so many only")
		}
	}
	if _, err := g.hold(t.Context(), "one more", 1); err == nil || len(g.sources) != maxAllRequests/maxRequests {
		t.Errorf("all together may: got %v, %d", err, len(g.sources))
	}
	releases[0]()
	if _, err := g.hold(t.Context(), "one more", 1); err != nil {
		t.Errorf("got %v", err)
	}
}

// TestGuardIsFull holds that a request for which there is no room in time is rejected.
func TestGuardIsFull(t *testing.T) {
	g := NewGuard()
	address := "192.0.2.1" // httptest's
	for range roomFor(1).share / maxSmall {
		if _, err := g.hold(t.Context(), address, maxSmall); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	g.Wrap(http.NotFoundHandler()).ServeHTTP(w,
		httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("{}")))
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("got %d", w.Code)
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
