package serve

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Local guards the page of one user on this machine. Other users of the machine reach its port, too, and so do web
// sites that the browser shows. The browser enters once by a secret. After that, a cookie shows the frame; it is sent
// to every port of the address though, so that another user's server could collect it. What the cluster has is shown
// to those alone who send the key besides, which scripts of this address and port can read, and no others.
type Local struct {
	hosts  []string
	cookie string
	values secrets
	// Namespace is shown unless another is chosen.
	namespace string

	mu     sync.Mutex
	secret string // "" when it has been used
}

// secrets are what a browser that has entered sends.
type secrets struct{ cookie, key string }

// keyHeader has the key.
const keyHeader = "X-Signalbox-Key"

var (
	errHost   = errors.New("the page is served at another address")
	errOrigin = errors.New("the request comes from another site")
)

// NewLocal returns a guard for an address, such as 127.0.0.1:8427.
func NewLocal(address, namespace string) *Local {
	_, port, _ := net.SplitHostPort(address)
	return &Local{
		hosts: []string{"127.0.0.1:" + port}, cookie: "signalbox-" + port, namespace: namespace,
		values: secrets{rand.Text(), rand.Text()}, secret: rand.Text(),
	}
}

// Link is the address by which a browser enters. The secret is in the fragment, which browsers don't send.
func (l *Local) Link() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("http://%s/#enter=%s", l.hosts[0], l.secret)
}

// Source implements Guard: other sites send requests by a name that leads here, or by a form or script there.
func (l *Local) Source(r *http.Request) error {
	host := ""
	for _, known := range l.hosts {
		if r.Host == known {
			host = known
		}
	}
	switch origin := r.Header.Get("Origin"); {
	case host == "":
		return errHost
	case origin != "" && origin != "http://"+host:
		return errOrigin
	case !sameSite(r):
		return errOrigin
	}
	return nil
}

// sameSite reports whether a browser says that a request comes from this site, or that a user has opened it.
func sameSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return true
	}
	// A link of another site may open the page, which shows nothing without the cookie.
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document"
}

// Admit implements Guard.
func (l *Local) Admit(r *http.Request, data bool) (User, error) {
	entered := slices.ContainsFunc(
		r.CookiesNamed(l.cookie),
		func(c *http.Cookie) bool { // others may have set more of them
			return same(c.Value, l.values.cookie)
		},
	)
	if !entered || data && !same(r.Header.Get(keyHeader), l.values.key) {
		return User{}, errEnter
	}
	namespace := chosen(r)
	if namespace == "" {
		namespace = l.namespace
	}
	return User{Namespace: namespace}, nil
}

// Enter implements Guard. The secret is taken once.
func (l *Local) Enter(w http.ResponseWriter, r *http.Request) {
	sent, err := io.ReadAll(io.LimitReader(r.Body, 256))
	if err == nil && !l.take(strings.TrimSpace(string(sent))) {
		err = errEnter
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: l.cookie, Value: l.values.cookie, Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
	_, _ = io.WriteString(w, l.values.key)
}

// take reports whether a secret is the one that has not been used, and uses it.
func (l *Local) take(sent string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.secret == "" || !same(sent, l.secret) {
		return false
	}
	l.secret = ""
	return true
}

// same compares secrets in constant time.
func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
