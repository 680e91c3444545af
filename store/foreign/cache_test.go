package foreign

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// jobSetLine is a line of a watch about a JobSet.
func jobSetLine(event, name, owner string) string {
	return strings.Replace(lineOf(event, name, owner),
		`"kind":"X"`, `"apiVersion":"jobset.x-k8s.io/v1alpha2","kind":"JobSet"`, 1)
}

// jobSets is an API server of JobSets: what exists, and then what happens.
func jobSets(t *testing.T, existing, happens string) *rest.Config {
	const path = "/apis/jobset.x-k8s.io/v1alpha2/"
	mux := http.NewServeMux()
	mux.HandleFunc(path+"jobsets", func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("a watch has a connection of its own: got %s", r.Proto)
		}
		w.Header().Set("Content-Type", "application/json")
		end := strings.Replace(bookmarkLine, `"kind":"X","metadata":{`, `"apiVersion":"jobset.x-k8s.io/v1alpha2",`+
			`"kind":"JobSet","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},`, 1)
		_, _ = io.WriteString(w, existing+end+happens)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc(path+"namespaces/ns/jobsets/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("reads share a connection: got %s", r.Proto)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"jobset.x-k8s.io/v1alpha2","kind":"JobSet","metadata":{"namespace":"ns","name":%q,
			"labels":{"from":"live"}}}`, r.PathValue("name"))
	})
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.CloseClientConnections)
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}
}

// A cache of controller-runtime has what TrainJobs own, and finds what they don't.
func TestNewCache(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(jobset.AddToScheme(scheme), kueue.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(jobset.SchemeGroupVersion.WithKind("JobSet"), meta.RESTScopeNamespace)
	objects := New()
	existing := jobSetLine("ADDED", "own", "TrainJob") + jobSetLine("ADDED", "other", "") +
		jobSetLine("ADDED", "gone", "X")
	config := jobSets(t, existing,
		jobSetLine("DELETED", "gone", "X")+jobSetLine("MODIFIED", "other", "")+jobSetLine("ADDED", "last", "TrainJob"))
	config.Wrap(objects.Wrap)
	c, err := objects.NewCache(config, cache.Options{Scheme: scheme, Mapper: mapper, HTTPClient: clientOf(t, config)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetInformer(t.Context(), &jobset.JobSet{}, cache.BlockUntilSynced(false)); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Start(t.Context()) }()
	if !c.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache isn't filled")
	}
	var list jobset.JobSetList
	for len(list.Items) < 2 { // own, and then last
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
	}
	for name, live := range map[string]bool{"own": false, "last": false, "other": true} {
		var js jobset.JobSet
		if err := c.Get(t.Context(), keyOf(name), &js); err != nil || (js.Labels["from"] == "live") != live {
			t.Errorf("%s: got %+v, %v; want it from the API server: %v", name, js.ObjectMeta, err, live)
		}
	}
	if err := c.Get(t.Context(), keyOf("gone"), &jobset.JobSet{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was deleted isn't asked for: got %v", err)
	}
}

// An API server that only the configuration's own dialer reaches is watched by that.
func TestWatchesByDialer(t *testing.T) {
	config := jobSets(t, "", "")
	address := strings.TrimPrefix(config.Host, "https://")
	config.Host, config.ServerName = "https://api.invalid", "example.com" // httptest's certificate is for that
	config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	watching := clientOf(t, watchingConfig(config))
	response, err := watching.Get(config.Host + "/apis/jobset.x-k8s.io/v1alpha2/jobsets?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
}

func clientOf(t *testing.T, config *rest.Config) *http.Client {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reading is a cache that is empty, or behind, before an API server that has JobSets a and b.
func reading(t *testing.T) (*completed, func(name string)) {
	scheme := runtime.NewScheme()
	if err := jobset.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	at := func(name string) client.Object {
		js := &jobset.JobSet{}
		js.Namespace, js.Name = "ns", name
		return js
	}
	build := func(objects ...client.Object) client.Reader {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	}
	c := &completed{Cache: cached{client: build()}, live: build(at("a"), at("b")), objects: New()}
	c.objects.jobSets.watch(true)
	return c, func(name string) {
		t.Helper()
		if err := c.Get(t.Context(), keyOf(name), &jobset.JobSet{}); err != nil {
			t.Errorf("%s exists all the time: got %v", name, err)
		}
	}
}

// An object that a TrainJob has taken over is found before the cache has its line, too.
func TestTakenOverIsFoundAtOnce(t *testing.T) {
	c, found := reading(t)
	c.objects.jobSets.drops([]byte(lineOf("ADDED", "a", "")))
	found("a")
	c.objects.jobSets.drops([]byte(lineOf("MODIFIED", "a", "TrainJob")))
	found("a") // the line isn't decoded yet
	c.objects.jobSets.drops([]byte(lineOf("DELETED", "a", "TrainJob")))
	if c.objects.jobSets.isForeign(keyOf("a")) {
		t.Error("its key is kept for ever")
	}
}

// While a list is on its way, or after it was cut short, what was foreign is found.
func TestFoundWhileListed(t *testing.T) {
	c, found := reading(t)
	c.objects.jobSets.drops([]byte(lineOf("ADDED", "a", "")))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"items":[`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	h := &http.Client{Transport: c.objects.Wrap(http.DefaultTransport)}
	response, err := h.Get(server.URL + c.objects.jobSets.path + "?resourceVersion=5")
	if err != nil {
		t.Fatal(err)
	}
	found("a")
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Fatal("the list wasn't cut short")
	}
	_ = response.Body.Close()
	found("a")
	c.objects.jobSets.watch(true)
	found("a")
	c.objects.jobSets.drops([]byte(lineOf("ADDED", "b", "")))
	c.objects.jobSets.drops([]byte(bookmarkLine))
	if got := keysOf(&c.objects.jobSets); got != "b" {
		t.Errorf("got %q, want b", got)
	}
}

// naming is a line with a UID in it that isn't the object's own: the value of label "uid".
func naming(line, uid string) string {
	return strings.Replace(line, `"labels":{"name":"a"}`, fmt.Sprintf(`"labels":{"uid":%q}`, uid), 1)
}

// The deletion of an object that names another's UID, by a label or as its owner's, doesn't make that one foreign.
func TestOthersUIDs(t *testing.T) {
	for name, other := range map[string]func(event string) string{
		"label": func(event string) string { return naming(lineOf(event, "b", "TrainJob"), "uid-a") },
		"owner": func(event string) string { // a variant of Kueue's ConcurrentAdmission: its owner is Workload a
			return strings.Replace(lineOf(event, "b", "Workload"), `"uid":"of-b"`, `"uid":"uid-a"`, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kind{}
			k.watch(true)
			lines := []string{lineOf("ADDED", "a", "TrainJob"), other("ADDED"), other("DELETED"),
				lineOf("MODIFIED", "a", ""), lineOf("DELETED", "a", "")}
			for i, line := range lines {
				if k.drops([]byte(line)) {
					t.Errorf("line %d is dropped, and the cache has a for ever as a TrainJob's: %s", i, line)
				}
			}
		})
	}
}

// A label that changes with each line, and keys of objects that are passed at their deletion only.
func TestNothingIsLeft(t *testing.T) {
	k := &kind{}
	k.watch(true)
	k.drops([]byte(lineOf("ADDED", "b", "TrainJob")))
	for i := range 1000 {
		k.drops([]byte(naming(lineOf("MODIFIED", "b", "TrainJob"), fmt.Sprint(i))))
	}
	k.drops([]byte(lineOf("DELETED", "b", "TrainJob")))
	if n := k.cached.Len(); n > 0 {
		t.Errorf("of an object that is gone, %d hashes are kept", n)
	}
	k.drops([]byte(naming(lineOf("ADDED", "a", ""), "uid-c")))
	k.drops([]byte(lineOf("ADDED", "c", "TrainJob")))
	k.drops([]byte(naming(lineOf("DELETED", "a", ""), "uid-c")))
	if got := keysOf(k); got != "" {
		t.Errorf("the keys of what is gone are kept: %s", got)
	}
}

// A list by another reader of this process doesn't make the watch that is open fail.
func TestListBesidesWatch(t *testing.T) {
	for name, begin := range map[string]func(k *kind) bool{
		"listed":         func(k *kind) bool { filtered := k.watch(true); k.list(); return filtered },
		"nothing before": func(k *kind) bool { return k.watch(false) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if r := recover(); r != nil {
					t.Error(r)
				}
			}()
			k := &kind{}
			if begin(k) { // else no line of it is asked about
				k.drops([]byte(lineOf("ADDED", "a", "")))
				k.drops([]byte(lineOf("ADDED", "b", "TrainJob")))
			}
		})
	}
}
