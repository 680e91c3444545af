package serve

import (
	"errors"
	"net/http"
	"strings"
)

// Tokens guards the page in a cluster: each request has the user's token, which a proxy before it adds, such as
// oauth2-proxy. The page has no rights of its own.
type Tokens struct {
	// Namespace is shown unless another is chosen, to those who may not see all.
	Namespace string
}

var errToken = errors.New(
	"the request has no bearer token; the page is to be opened through a proxy that signs in users, " +
		"and passes their tokens on",
)

// Source implements Guard. The proxy knows users by cookies, which other sites' forms have sent along.
func (t Tokens) Source(r *http.Request) error {
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		return errOrigin
	}
	return nil
}

// Admit implements Guard.
func (t Tokens) Admit(r *http.Request, _ bool) (User, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || strings.TrimSpace(token) == "" {
		return User{}, errToken
	}
	namespace := chosen(r)
	if namespace == "" {
		namespace = t.Namespace
	}
	return User{Token: strings.TrimSpace(token), Namespace: namespace}, nil
}

// Enter implements Guard. There is no other way in than by a token.
func (t Tokens) Enter(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }
