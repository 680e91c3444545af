package serve

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/watched"
)

// Request is what a browser asks for.
type Request struct {
	// Path is the path's segments.
	Path []string
	// Values are those of the query or of a form.
	Values url.Values
	// Acts is set if something is to be done.
	Acts bool
}

// Answer is a view, or a file if it has a type.
type Answer struct {
	page.Content
	Status int
	File   File
}

// File is what a browser saves.
type File struct {
	Type string
	Data []byte
}

// Viewer shows a cluster as one user sees it.
type Viewer interface {
	// Answer answers a request.
	Answer(ctx context.Context, r Request) Answer
	// Changes tells when a view may have changed.
	Changes() *watched.Changes
	// Alive returns ErrExpired if the user's credentials are no longer valid.
	Alive(ctx context.Context) error
	// Narrow reports whether only one namespace is seen.
	Narrow() bool
}

// ErrExpired is for credentials that are no longer valid.
var ErrExpired = errors.New("your credentials are no longer valid; sign in again")

// ErrRights is for rights that have changed: what was read with them is dropped.
var ErrRights = errors.New("your rights have changed; load the page again")

// Guard finds out whose a request is.
type Guard interface {
	// Source returns an error for a request that another site has sent.
	Source(r *http.Request) error
	// Admit returns who may see what a request asks for, or an error for one that may not be answered. data is false for
	// what shows nothing of the cluster.
	Admit(r *http.Request, data bool) (User, error)
	// Enter lets a browser in that has a secret.
	Enter(w http.ResponseWriter, r *http.Request)
}

// User is who asks, and for which namespace. Its Token is "" for the kubeconfig's user.
type User struct{ Token, Namespace string }

// errEnter is for a browser that has not entered.
var errEnter = errors.New("open the link that kubectl signalbox dashboard has printed; it works once, in one browser")
