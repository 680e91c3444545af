// Package serve answers a browser's requests for the views of a cluster. Every request is untrusted: whose it is, its
// Host and where it comes from are checked before anything is shown.
package serve

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
)

// Server serves the page.
type Server struct {
	Guard Guard
	Pool  *Pool
	// Frame is what surrounds the views.
	Frame page.Frame
}

// policy is the Content-Security-Policy: all is from here, and nothing is inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// mostSent bounds a request: manifests are small.
const mostSent = 1 << 20

// Handler returns what answers requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	files := http.StripPrefix("/assets/", http.FileServerFS(page.Assets()))
	mux.Handle("GET /assets/", files)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /enter", s.Guard.Enter)
	mux.HandleFunc("POST /namespace", s.choose)
	mux.HandleFunc("GET /changes", s.changes)
	mux.HandleFunc("GET /", s.view)
	mux.HandleFunc("POST /", s.view)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if err := s.Guard.Source(r); err != nil {
			s.refuse(w, err, http.StatusForbidden)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, mostSent)
		mux.ServeHTTP(w, r)
	})
}

// view answers with the frame, or with a view for it.
func (s *Server) view(w http.ResponseWriter, r *http.Request) {
	data := r.Method == http.MethodPost || r.Header.Get("HX-Request") != "" || strings.HasSuffix(r.URL.Path, ".csv")
	user, err := s.Guard.Admit(r, data)
	switch {
	case err != nil && data:
		s.refuse(w, err, http.StatusUnauthorized)
		return
	case err != nil:
		w.WriteHeader(http.StatusUnauthorized)
		_ = page.Frame{Problem: err.Error()}.Write(w)
		return
	}
	if !data {
		_ = s.Frame.Write(w) // the browser is gone if that fails
		return
	}
	viewer, err := s.Pool.Of(r.Context(), user)
	if apierrors.IsUnauthorized(err) {
		s.refuse(w, ErrExpired, http.StatusUnauthorized)
		return
	}
	if err != nil {
		s.refuse(w, err, http.StatusServiceUnavailable)
		return
	}
	if err := viewer.Alive(r.Context()); err != nil {
		s.Pool.Drop(user, viewer)
		s.refuse(w, err, http.StatusUnauthorized)
		return
	}
	if err := r.ParseForm(); err != nil {
		s.refuse(w, err, http.StatusBadRequest)
		return
	}
	answer := viewer.Answer(r.Context(),
		Request{Path: segments(r.URL), Values: r.Form, Acts: r.Method == http.MethodPost})
	if viewer.Narrow() {
		answer.Namespace = user.Namespace
	}
	if answer.File.Type != "" {
		w.Header().Set("Content-Type", answer.File.Type)
		w.Header().Set("Content-Disposition", "attachment")
		_, _ = w.Write(answer.File.Data)
		return
	}
	s.write(w, answer)
}

// segments returns the segments of a path, each without its escapes.
func segments(u *url.URL) []string {
	var all []string
	for part := range strings.SplitSeq(strings.Trim(u.EscapedPath(), "/"), "/") {
		if text, err := url.PathUnescape(part); err == nil && text != "" {
			all = append(all, text)
		}
	}
	return all
}

func (s *Server) write(w http.ResponseWriter, a Answer) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if a.Status != 0 {
		w.WriteHeader(a.Status)
	}
	if err := a.Write(w); err != nil {
		_ = page.Content{Title: "Signalbox", View: page.Problem{Text: err.Error()}}.Write(w)
	}
}

func (s *Server) refuse(w http.ResponseWriter, err error, status int) {
	s.write(w, Answer{Status: status, Content: page.Content{Title: "Signalbox", View: page.Problem{Text: err.Error()}}})
}

// namespaceCookie returns the name of the cookie that has the namespace that a user has chosen. It is no secret; but
// the browser sends it to every port of the host.
func namespaceCookie(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return strings.TrimSuffix("signalbox-namespace-"+port, "-")
}

// choose remembers the namespace that a user wants to see.
func (s *Server) choose(w http.ResponseWriter, r *http.Request) {
	if _, err := s.Guard.Admit(r, false); err != nil {
		s.refuse(w, err, http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: namespaceCookie(r), Value: url.QueryEscape(r.FormValue("namespace")), Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// chosen returns the namespace that a user has chosen; "" for none.
func chosen(r *http.Request) string {
	cookie, err := r.Cookie(namespaceCookie(r))
	if err != nil {
		return ""
	}
	name, _ := url.QueryUnescape(cookie.Value)
	return name
}

// Of a stream of changes: for how long changes are gathered, and how often the browser hears that there is nothing.
const (
	gather = 250 * time.Millisecond
	beat   = 5 * time.Second
	// renewed is how often a view is shown again though nothing has changed: some of what it says depends on the time.
	renewed = time.Minute
)

// changes tells the browser when something has changed, until it goes.
func (s *Server) changes(w http.ResponseWriter, r *http.Request) {
	user, err := s.Guard.Admit(r, false)
	if err != nil {
		s.refuse(w, err, http.StatusUnauthorized)
		return
	}
	viewer, release := s.Pool.Hold(user)
	if viewer == nil {
		s.refuse(w, errEnter, http.StatusUnauthorized) // only a view, which needs the key, opens one
		return
	}
	defer release()
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(text string) bool {
		_, err := w.Write([]byte(text))
		return err == nil && out.Flush() == nil
	}
	_, next := viewer.Changes().Since()
	for last := time.Now(); send(": \n\n"); {
		changed := time.Since(last) > renewed
		select {
		case <-r.Context().Done():
			return
		case <-next:
			changed = true
			pause(r.Context(), gather)
		case <-time.After(beat):
		}
		if err := viewer.Alive(r.Context()); err != nil {
			s.Pool.Drop(user, viewer)
			return
		}
		var count uint64
		count, next = viewer.Changes().Since()
		if changed {
			last = time.Now()
			if !send("event: changed\ndata: " + strconv.FormatUint(count, 10) + "\n\n") {
				return
			}
		}
	}
}
