package foreign

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// Wrap returns a transport that drops what isn't to be cached from the watches that fill the manager's caches.
func (o *Objects) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{o, next} }

type transport struct {
	objects *Objects
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil || request.Method != http.MethodGet || response.StatusCode != http.StatusOK ||
		!strings.HasPrefix(response.Header.Get("Content-Type"), runtime.ContentTypeJSON) {
		return response, err
	}
	for _, k := range []*kind{&t.objects.workloads, &t.objects.jobSets} {
		if !strings.HasSuffix(request.URL.Path, k.path) {
			continue // caches are filled by requests for all namespaces
		}
		query := request.URL.Query()
		if query.Get("watch") != "true" {
			k.list()
		} else if k.watch(query.Get("sendInitialEvents") == "true") {
			response.Body = linesOf(response.Body, k)
		}
	}
	return response, nil
}

// lines are those of a watch that aren't dropped.
type lines struct {
	io.Closer
	from  *bufio.Reader
	drops func(line []byte) bool
	// line is the present one, left is what of it wasn't read yet, and err what follows it.
	line, left []byte
	err        error
}

func linesOf(body io.ReadCloser, k *kind) *lines {
	return &lines{Closer: body, from: bufio.NewReaderSize(body, 64<<10), drops: k.drops}
}

// Read implements io.Reader.
func (l *lines) Read(into []byte) (int, error) {
	for len(l.left) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		if l.advance(); l.err == nil && l.drops(l.line) {
			l.left = nil
		}
	}
	n := copy(into, l.left)
	l.left = l.left[n:]
	return n, nil
}

// advance reads the next line.
func (l *lines) advance() {
	l.line, l.err = l.line[:0], bufio.ErrBufferFull
	for errors.Is(l.err, bufio.ErrBufferFull) {
		var part []byte
		part, l.err = l.from.ReadSlice('\n')
		l.line = append(l.line, part...)
	}
	l.left = l.line
}
