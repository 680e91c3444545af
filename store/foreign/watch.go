package foreign

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Objects are the Workloads and JobSets of a cluster that no TrainJob owns, and the pods of these JobSets.
type Objects struct {
	workloads, jobSets kind
	pods               pods
}

// New returns Objects. They are known once the caches that NewCache returns have synced. owners are kinds that may own
// TrainJobs, as Kind.version.group: jobframework lists their Workloads.
func New(owners ...string) *Objects {
	var names [][]byte
	for _, owner := range owners {
		name, _, _ := strings.Cut(owner, ".")
		names = append(names, []byte(strconv.Quote(name)))
	}
	o := &Objects{
		workloads: kind{path: "/apis/" + kueue.SchemeGroupVersion.String() + "/workloads", owners: names},
		jobSets:   kind{path: "/apis/" + jobset.SchemeGroupVersion.String() + "/jobsets"},
	}
	o.workloads.encoding, o.jobSets.encoding = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	o.pods = pods{kind: kind{path: "/api/v1/pods", encoding: runtime.ContentTypeProtobuf}, jobSets: &o.jobSets}
	return o
}

// kindOf returns the kind of an object; nil if the caches have all objects of its kind.
func (o *Objects) kindOf(object client.Object) *kind {
	switch object.(type) {
	case *kueue.Workload:
		return &o.workloads
	case *jobset.JobSet:
		return &o.jobSets
	}
	return nil
}

// Wrap returns a transport that drops what isn't to be cached from the watches that fill the manager's caches.
func (o *Objects) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{o, next} }

type transport struct {
	objects *Objects
	next    http.RoundTripper
}

// watched is a kind of objects of whose watch some are dropped.
type watched interface {
	// at reports whether a response is about all objects of the kind, in the encoding that next reads.
	at(path, contentType string) bool
	// list and watch record a request for all objects; watch reports whether events may be dropped.
	list()
	watch(initial bool) bool
	// next appends the next event of a watch to a slice, or what of it was sent before an error.
	next(from *bufio.Reader, into []byte) ([]byte, error)
	drops(event []byte) bool
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil || request.Method != http.MethodGet || response.StatusCode != http.StatusOK {
		return response, err
	}
	for _, k := range []watched{&t.objects.workloads, &t.objects.jobSets, &t.objects.pods} {
		if !k.at(request.URL.Path, response.Header.Get("Content-Type")) {
			continue
		}
		query := request.URL.Query()
		if query.Get("watch") != "true" {
			k.list()
		} else if k.watch(query.Get("sendInitialEvents") == "true") {
			response.Body = keptOf(response.Body, k)
		}
	}
	return response, nil
}

// at implements watched: caches are filled by requests for all namespaces.
func (k *kind) at(path, contentType string) bool {
	return strings.HasSuffix(path, k.path) && strings.HasPrefix(contentType, k.encoding)
}

// next reads a line.
func (*kind) next(from *bufio.Reader, into []byte) ([]byte, error) {
	for {
		part, err := from.ReadSlice('\n')
		into = append(into, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return into, err
		}
	}
}

// kept are the events of a watch that aren't dropped.
type kept struct {
	io.Closer
	from *bufio.Reader
	of   watched
	// event is the present one, left is what of it wasn't read yet, and err what follows it.
	event, left []byte
	err         error
}

func keptOf(body io.ReadCloser, k watched) *kept {
	return &kept{Closer: body, from: bufio.NewReaderSize(body, 64<<10), of: k}
}

// Read implements io.Reader.
func (r *kept) Read(into []byte) (int, error) {
	for len(r.left) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.event, r.err = r.of.next(r.from, r.event[:0])
		if r.left = r.event; r.err == nil && r.of.drops(r.event) {
			r.left = nil
		}
	}
	n := copy(into, r.left)
	r.left = r.left[n:]
	return n, nil
}
