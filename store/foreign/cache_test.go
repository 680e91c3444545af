package foreign

import (
	"errors"
	"fmt"
	"io"
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
		w.Header().Set("Content-Type", "application/json")
		end := strings.Replace(bookmarkLine, `"kind":"X","metadata":{`, `"apiVersion":"jobset.x-k8s.io/v1alpha2",`+
			`"kind":"JobSet","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},`, 1)
		_, _ = io.WriteString(w, existing+end+happens)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc(path+"namespaces/ns/jobsets/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"jobset.x-k8s.io/v1alpha2","kind":"JobSet","metadata":{"namespace":"ns","name":%q,
			"labels":{"from":"live"}}}`, r.PathValue("name"))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.CloseClientConnections)
	return &rest.Config{Host: server.URL}
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

func clientOf(t *testing.T, config *rest.Config) *http.Client {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
