package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/watched"
)

// shown is a viewer that says whose it is.
type shown struct {
	user    User
	changes watched.Changes
	expired bool
}

func (s *shown) Answer(_ context.Context, r Request) Answer {
	text := "namespace " + s.user.Namespace + ", of " + s.user.Token + ", path " + strings.Join(r.Path, "|")
	if r.Path != nil && r.Path[0] == "teams.csv" {
		return Answer{File: File{Type: "text/csv", Data: []byte(text)}}
	}
	if r.Acts {
		text = "acted"
	}
	return Answer{Content: page.Content{Title: "secret of the cluster", View: page.Problem{Text: text}}}
}

func (s *shown) Changes() *watched.Changes { return &s.changes }
func (s *shown) Narrow() bool              { return true }
func (s *shown) Alive(context.Context) error {
	if s.expired {
		return ErrExpired
	}
	return nil
}

// server serves with a guard, at 127.0.0.1:8427.
func server(t *testing.T, guard Guard) (http.Handler, map[string]*shown) {
	t.Helper()
	opened := map[string]*shown{}
	pool := NewPool(t.Context(), 2, time.Minute, func(_ context.Context, u User) (Viewer, error) {
		if u.Token == "broken" {
			return nil, errors.New("no such cluster")
		}
		opened[u.Token] = &shown{user: u}
		return opened[u.Token], nil
	})
	return (&Server{Guard: guard, Pool: pool}).Handler(), opened
}

// ask sends a request with headers, such as "Host: x".
func ask(t *testing.T, h http.Handler, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:8427"+path, strings.NewReader(body))
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Header().Get("Cache-Control") != "no-store" ||
		!strings.Contains(w.Header().Get("Content-Security-Policy"), "script-src 'self';") {
		t.Errorf("%s %s lacks headers: %v", method, path, w.Header())
	}
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if set := w.Header().Get("Set-Cookie"); set != "" {
		text = append(text, " cookie "+set...)
	}
	return w.Code, string(text)
}

// TestLocal holds what another user of the machine and another site get: nothing.
func TestLocal(t *testing.T) {
	guard := NewLocal("127.0.0.1:8427", "team")
	h, _ := server(t, guard)
	cookie, key := "Cookie: signalbox-8427="+guard.values.cookie, keyHeader+": "+guard.values.key
	cases := map[string]struct {
		method, path string
		headers      []string
		status       int
		shows        bool
	}{
		"the frame": {"GET", "/", []string{cookie}, 200, false},
		"a view":    {"GET", "/nodes", []string{cookie, key, "HX-Request: true"}, 200, true},
		"an export": {"GET", "/teams.csv", []string{cookie, key}, 200, true},
		"an action": {
			"POST",
			"/trainjobs/a/b/stop",
			[]string{cookie, key, "Origin: http://127.0.0.1:8427"},
			200,
			true,
		},
		"another user":               {"GET", "/nodes", []string{"HX-Request: true"}, 401, false},
		"another user's frame":       {"GET", "/", nil, 401, false},
		"another user's stream":      {"GET", "/changes", nil, 401, false},
		"a collected cookie":         {"GET", "/nodes", []string{cookie, "HX-Request: true"}, 401, false},
		"a collected cookie, export": {"GET", "/teams.csv", []string{cookie}, 401, false},
		"a collected cookie, action": {"POST", "/trainjobs/a/b/stop", []string{cookie}, 401, false},
		"a key alone":                {"GET", "/nodes", []string{key, "HX-Request: true"}, 401, false},
		"a name that leads here": {
			"GET",
			"/nodes",
			[]string{cookie, key, "HX-Request: true", "Host: evil.example:8427"},
			403,
			false,
		},
		"assets by such a name": {"GET", "/assets/page.js", []string{"Host: evil.example:8427"}, 403, false},
		"another port": {
			"GET",
			"/nodes",
			[]string{cookie, key, "HX-Request: true", "Host: 127.0.0.1:9999"},
			403,
			false,
		},
		"another site's script": {
			"GET",
			"/nodes",
			[]string{cookie, key, "HX-Request: true", "Origin: https://evil.example"},
			403,
			false,
		},
		"another site's form": {"POST", "/trainjobs/a/b/stop", []string{cookie, key, "Origin: null"}, 403, false},
		"another site's form, old": {
			"POST",
			"/trainjobs/a/b/stop",
			[]string{cookie, key, "Sec-Fetch-Site: cross-site"},
			403,
			false,
		},
		"another site's picture": {
			"GET",
			"/",
			[]string{cookie, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: image"},
			403,
			false,
		},
		"another site's frame": {
			"GET",
			"/",
			[]string{cookie, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"},
			403,
			false,
		},
		"a link of another site": {
			"GET",
			"/",
			[]string{cookie, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"},
			200,
			false,
		},
		"another port of the address": {
			"GET",
			"/nodes",
			[]string{cookie, key, "HX-Request: true", "Sec-Fetch-Site: same-site"},
			403,
			false,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			status, text := ask(t, h, c.method, c.path, "", c.headers...)
			if shows := strings.Contains(text, "namespace team") ||
				strings.Contains(text, "acted"); status != c.status ||
				shows != c.shows {
				t.Errorf("%d, %s", status, text)
			}
		})
	}
}

// TestEnter holds that the link works once, and only from here.
func TestEnter(t *testing.T) {
	guard := NewLocal("127.0.0.1:8427", "team")
	h, _ := server(t, guard)
	_, secret, _ := strings.Cut(guard.Link(), "#enter=")
	if status, _ := ask(t, h, "POST", "/enter", secret, "Origin: https://evil.example"); status != 403 {
		t.Errorf("another site: %d", status)
	}
	if status, _ := ask(t, h, "POST", "/enter", "guessed"); status != 403 {
		t.Errorf("guessed: %d", status)
	}
	status, text := ask(t, h, "POST", "/enter", secret)
	if status != 200 || !strings.HasPrefix(text, guard.values.key) ||
		!strings.Contains(text, "HttpOnly; SameSite=Strict") {
		t.Errorf("%d, %s", status, text)
	}
	for _, again := range []string{secret, ""} {
		if status, text := ask(t, h, "POST", "/enter", again); status != 403 || strings.Contains(text, "cookie") {
			t.Errorf("again: %d, %s", status, text)
		}
	}
}

// TestTokens holds that each user has a viewer of the own token, and that an expired one is forgotten.
func TestTokens(t *testing.T) {
	h, opened := server(t, Tokens{Namespace: "default"})
	view := func(token string, more ...string) (int, string) {
		return ask(t, h, "GET", "/", "", append(more, "HX-Request: true", "Authorization: Bearer "+token)...)
	}
	if status, text := view("alice"); status != 200 || !strings.Contains(text, "of alice") {
		t.Errorf("%d, %s", status, text)
	}
	if status, text := view("bob", "Cookie: signalbox-namespace-8427=lab"); status != 200 ||
		!strings.Contains(text, "namespace lab, of bob") {
		t.Errorf("%d, %s", status, text)
	}
	if status, text := view("carol"); status != 200 || !strings.Contains(text, "of carol") { // there is room for two
		t.Errorf("%d, %s", status, text)
	}
	if status, text := view("broken"); status != 503 || !strings.Contains(text, "no such cluster") {
		t.Errorf("%d, %s", status, text)
	}
	if status, text := ask(t, h, "GET", "/", "", "HX-Request: true"); status != 401 ||
		!strings.Contains(text, "no bearer token") {
		t.Errorf("%d, %s", status, text)
	}
	status, _ := ask(t, h, "POST", "/trainjobs/a/b/stop", "", "Authorization: Bearer carol",
		"Origin: https://evil.example")
	if status != 403 {
		t.Errorf("another site's form: %d", status)
	}
	opened["carol"].expired = true
	before := opened["carol"]
	if status, text := view("carol"); status != 401 || !strings.Contains(text, "sign in again") ||
		strings.Contains(text, "secret") {
		t.Errorf("%d, %s", status, text)
	}
	if status, _ := view("carol"); status != 200 || opened["carol"] == before {
		t.Errorf("what was read by an expired token is kept: %d", status)
	}
}

// TestChanges holds that the browser hears of a change, and nothing else.
func TestChanges(t *testing.T) {
	guard := NewLocal("127.0.0.1:8427", "team")
	h, opened := server(t, guard)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, "GET", "http://127.0.0.1:8427/changes", nil)
	r.AddCookie(&http.Cookie{Name: "signalbox-8427", Value: guard.values.cookie})
	if status, _ := ask(t, h, "GET", "/changes", "", "Cookie: signalbox-8427="+guard.values.cookie); status != 401 {
		t.Errorf("a cookie alone has opened a viewer: %d", status)
	}
	ask(t, h, "GET", "/", "", "HX-Request: true", "Cookie: signalbox-8427="+guard.values.cookie,
		keyHeader+": "+guard.values.key)
	w := &stream{ResponseRecorder: httptest.NewRecorder(), sent: make(chan string, 10)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ServeHTTP(w, r)
	}()
	if first := <-w.sent; first != ": \n\n" {
		t.Errorf("%q", first)
	}
	opened[""].changes.Add()
	opened[""].changes.Add()
	if next := <-w.sent; next != "event: changed\ndata: 2\n\n" {
		t.Errorf("%q", next)
	}
	cancel()
	<-done
}

// stream passes on what is written.
type stream struct {
	*httptest.ResponseRecorder
	sent chan string
}

// Write implements io.Writer.
func (s *stream) Write(text []byte) (int, error) {
	s.sent <- string(text)
	return len(text), nil
}

// TestChoose holds that a namespace is chosen by those who have entered, and that there is no other way in by a token.
func TestChoose(t *testing.T) {
	guard := NewLocal("127.0.0.1:8427", "team")
	h, _ := server(t, guard)
	cookie := "Cookie: signalbox-8427=" + guard.values.cookie
	form := "Content-Type: application/x-www-form-urlencoded"
	status, text := ask(t, h, "POST", "/namespace", "namespace=lab", form)
	if status != 401 || strings.Contains(text, "cookie") {
		t.Errorf("%d %s", status, text)
	}
	status, text = ask(t, h, "POST", "/namespace", "namespace=a%3Bb", form, cookie)
	if status != 303 || !strings.Contains(text, "signalbox-namespace-8427=a%3Bb; Path=/; HttpOnly; SameSite=Strict") {
		t.Errorf("%d %s", status, text)
	}
	_, text = ask(t, h, "GET", "/", "", "HX-Request: true", keyHeader+": "+guard.values.key,
		cookie+"; signalbox-namespace-8427=lab; signalbox-namespace-9999=other")
	if !strings.Contains(text, "namespace lab, of") {
		t.Error(text)
	}
	inCluster, _ := server(t, Tokens{})
	if status, _ := ask(t, inCluster, "POST", "/enter", "x"); status != 404 {
		t.Errorf("%d", status)
	}
}
