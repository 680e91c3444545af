package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// apiServer answers what the manager asks when it starts: discovery, objects by their paths, and empty lists and
// watches of all other kinds. It stores nothing.
type apiServer struct {
	t *testing.T
	// without is a group version that it doesn't serve.
	without string
	// nobody makes it answer no question about who asks.
	nobody bool
	// stale makes lists empty, and watches not: what watches show is gone.
	stale bool

	mu      sync.Mutex
	objects map[string]string   // JSON by path
	lists   map[string][]string // JSON of the elements by path
}

// clusterScoped are the kinds without a namespace among those that the manager deals with.
var clusterScoped = map[string]bool{
	"ClusterTrainingRuntime": true, "ClusterQueue": true, "ResourceFlavor": true, "WorkloadPriorityClass": true,
	"AdmissionCheck": true, "Namespace": true, "Node": true, "CustomResourceDefinition": true, "PriorityClass": true,
	"MutatingWebhookConfiguration": true, "ValidatingWebhookConfiguration": true, "SelfSubjectReview": true,
}

// crdPath is where CRDs are, and crdOf one as JSON: its name, a version and the fields of its spec, an earlier version.
const (
	crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
	crdOf   = `{"metadata":{"name":%q},"spec":{"versions":[{"name":%q,"served":true,"schema":{"openAPIV3Schema":` +
		`{"properties":{"spec":{"properties":{%s}}}}}},{"name":%q,"served":true}]}}`
)

// crdOfWorkloads returns the CRD of a Kueue whose Workloads hold so many PodSets.
func crdOfWorkloads(maxPodSets int) string {
	fields := fmt.Sprintf(`"preemptionGates":{},"podSets":{"maxItems":%d}`, maxPodSets)
	return fmt.Sprintf(crdOf, "workloads.kueue.x-k8s.io", "v1beta2", fields, "v1beta1")
}

// serve makes the server answer with another object at a path.
func (s *apiServer) serve(path, object string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path] = object
}

// newServer returns a server with the CRDs of this repository, for which KUBECONFIG is set.
func newServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{t: t, objects: map[string]string{}, lists: map[string][]string{}}
	crds, err := filepath.Glob("../../config/crd/trainer*.yaml")
	if err != nil || len(crds) != 3 {
		t.Fatalf("the CRDs: %v, %v", crds, err)
	}
	for _, path := range crds {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := yaml.YAMLToJSON(content)
		if err != nil {
			t.Fatal(err)
		}
		group, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".yaml"), "_")
		s.objects[crdPath+plural+"."+group] = string(data)
	}
	s.objects["/version"] = `{"gitVersion":"v1.36.3"}`
	s.objects[crdPath+"workloads.kueue.x-k8s.io"] = crdOfWorkloads(18)
	s.objects[crdPath+"jobsets.jobset.x-k8s.io"] = fmt.Sprintf(crdOf, "jobsets.jobset.x-k8s.io", "v1alpha2",
		`"failurePolicy":{"properties":{"rules":{"items":{"properties":{"onJobFailureMessagePatterns":{}}}}}}`, "v1alpha1")
	server := httptest.NewServer(s)
	t.Cleanup(server.CloseClientConnections)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: %q}}],
		contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: t}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	return s
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	s.mu.Lock()
	object, found := s.objects[path]
	elements := s.lists[path]
	s.mu.Unlock()
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(path, "/selfsubjectreviews") && !s.nobody:
		answer(w, http.StatusCreated, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1",
			"status":{"userInfo":{"username":"system:serviceaccount:signalbox-system:signalbox"}}}`)
	case r.Method != http.MethodGet:
		answer(w, http.StatusForbidden,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
	case found:
		answer(w, http.StatusOK, object)
	case path == "/api" || path == "/apis":
		s.groups(w, path)
	case parts[0] == "api" && len(parts) == 2, parts[0] == "apis" && len(parts) == 3:
		s.resources(w, strings.Join(parts[1:], "/"))
	default:
		s.listOrGet(w, r, parts, elements)
	}
}

func answer(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body)) // a client that is gone needs no answer
}

func (s *apiServer) encode(w http.ResponseWriter, content any) {
	data, err := json.Marshal(content)
	if err != nil {
		s.t.Error(err)
	}
	answer(w, http.StatusOK, string(data))
}

// kinds returns the kinds of the manager's scheme, by group version.
func (s *apiServer) kinds() map[schema.GroupVersion][]string {
	scheme, err := newScheme(api.AddToScheme)
	if err != nil {
		s.t.Fatal(err)
	}
	kinds := map[schema.GroupVersion][]string{}
	for gvk := range scheme.AllKnownTypes() {
		known := gvk.Version != runtime.APIVersionInternal && gvk.GroupVersion().String() != s.without
		if known && !strings.HasSuffix(gvk.Kind, "List") && !strings.HasSuffix(gvk.Kind, "Options") {
			kinds[gvk.GroupVersion()] = append(kinds[gvk.GroupVersion()], gvk.Kind)
		}
	}
	return kinds
}

func (s *apiServer) groups(w http.ResponseWriter, path string) {
	if path == "/api" {
		s.encode(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	}
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for gv := range s.kinds() {
		if gv.Group == "" {
			continue
		}
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		list.Groups = append(list.Groups, metav1.APIGroup{
			Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
		})
	}
	s.encode(w, list)
}

func (s *apiServer) resources(w http.ResponseWriter, groupVersion string) {
	gv, err := schema.ParseGroupVersion(groupVersion)
	kinds := s.kinds()[gv]
	if err != nil || len(kinds) == 0 {
		notFound(w)
		return
	}
	list := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion,
	}
	for _, kind := range kinds {
		plural, _ := apimeta.UnsafeGuessKindToResource(gv.WithKind(kind))
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: plural.Resource, Kind: kind, Namespaced: !clusterScoped[kind],
			Verbs: metav1.Verbs{"get", "list", "watch", "create", "update", "patch", "delete"},
		})
	}
	s.encode(w, list)
}

func notFound(w http.ResponseWriter) {
	answer(w, http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
}

// listOrGet answers a list or a watch of a kind; an object that is asked for by its name doesn't exist.
func (s *apiServer) listOrGet(w http.ResponseWriter, r *http.Request, parts []string, elements []string) {
	version, rest := parts[1], parts[2:]
	if parts[0] == "apis" && len(parts) > 3 {
		version, rest = parts[1]+"/"+parts[2], parts[3:]
	}
	gv, err := schema.ParseGroupVersion(version)
	if err != nil || len(rest) != 1 {
		notFound(w)
		return
	}
	for _, kind := range s.kinds()[gv] {
		if plural, _ := apimeta.UnsafeGuessKindToResource(gv.WithKind(kind)); plural.Resource != rest[0] {
			continue
		}
		if r.URL.Query().Get("watch") == "" {
			if s.stale {
				elements = nil
			}
			const list = `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[%s]}`
			answer(w, http.StatusOK, fmt.Sprintf(list, kind, version, strings.Join(elements, ",")))
			return
		}
		s.watch(w, r, gv.WithKind(kind), elements)
		return
	}
	notFound(w)
}

// watch sends the elements, a bookmark that ends the initial events, and nothing more.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, gvk schema.GroupVersionKind, elements []string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, e := range elements {
			_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", e)
		}
		_, _ = fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", gvk.Kind, gvk.GroupVersion())
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}
