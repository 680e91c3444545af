package watched

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pods is an API server with pods, which a user may watch in namespace "team", and nodes, which the user may not.
type pods struct {
	lists, watches atomic.Int32
	// add is a pod that is created later, and remove one that is deleted; gone closes all watches.
	add, remove chan corev1.Pod
	gone        chan struct{}
}

func pod(name string) corev1.Pod {
	return corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, ResourceVersion: "7",
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "SECRET", Value: "x"}}}}},
	}
}

// ServeHTTP implements http.Handler.
func (p *pods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	send := func(o any) { _ = json.NewEncoder(w).Encode(o) }
	switch {
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		var review authorizationv1.SelfSubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		of := review.Spec.ResourceAttributes
		review.Status.Allowed = of.Resource == "pods" && of.Namespace == "team"
		send(review)
	case r.URL.Path != "/api/v1/namespaces/team/pods" || r.URL.Query().Get("sendInitialEvents") == "true":
		w.WriteHeader(http.StatusUnprocessableEntity) // an older API server lists first
		send(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	case r.URL.Query().Get("watch") == "true":
		p.watches.Add(1)
		out := http.NewResponseController(w)
		_ = out.Flush()
		for {
			select {
			case added := <-p.add:
				send(map[string]any{"type": "ADDED", "object": added})
				_ = out.Flush()
			case removed := <-p.remove:
				send(map[string]any{"type": "DELETED", "object": removed})
				_ = out.Flush()
			case <-p.gone:
				return
			case <-r.Context().Done():
				return
			}
		}
	default:
		p.lists.Add(1)
		send(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Pod{pod("a")}})
	}
}

// TestOpen holds that what a user may watch is read by one list and one watch, without what nobody is shown, and that a
// change is told.
func TestOpen(t *testing.T) {
	p := &pods{add: make(chan corev1.Pod), remove: make(chan corev1.Pod), gone: make(chan struct{})}
	server := httptest.NewServer(p)
	defer server.Close()
	defer close(p.gone)
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), apimeta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PodList"), apimeta.RESTScopeNamespace) // as by discovery
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), apimeta.RESTScopeRoot)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), apimeta.RESTScopeRoot)
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	c, err := client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := make(chan string, 10)
	w, err := Open(ctx, config, c, Options{
		Kinds: []client.Object{&corev1.Pod{}, &corev1.Node{}, &nodev1.RuntimeClass{}}, Namespace: "team",
		Changed: func(old, now any) {
			if o, is := now.(*corev1.Pod); is && old == nil {
				changed <- o.Name
			}
			if o, is := old.(*corev1.Pod); is && now == nil {
				changed <- "without " + o.Name
			}
		},
		Failed: func(err error) { t.Log(err) },
	})
	if err != nil || !w.Synced(ctx) || !w.Narrow() {
		t.Fatal(err, w)
	}
	if name := <-changed; name != "a" {
		t.Error(name)
	}
	p.add <- pod("b")
	if name := <-changed; name != "b" {
		t.Error(name)
	}
	for range 5 {
		var list corev1.PodList
		if err := w.List(ctx, &list, client.InNamespace("team")); err != nil || len(list.Items) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, shown := range list.Items {
			if shown.ManagedFields != nil || shown.Spec.Containers[0].Env != nil || shown.Spec.Containers[0].Name != "c" {
				t.Errorf("%+v", shown)
			}
		}
	}
	p.remove <- pod("b")
	if name := <-changed; name != "without b" {
		t.Error(name)
	}
	if p.lists.Load() != 1 || p.watches.Load() != 1 {
		t.Errorf("%d lists, %d watches", p.lists.Load(), p.watches.Load())
	}
	if _, watched := w.kinds[schema.GroupVersionKind{Group: "node.k8s.io", Version: "v1", Kind: "RuntimeClass"}]; watched {
		t.Error("a kind that the cluster doesn't have is watched")
	}
	if is := Remembering(c); is.Narrow() {
		t.Error("it watches nothing")
	}
}

// TestOpenRefused holds that an API server that doesn't answer is an error, and that no right is none.
func TestOpenRefused(t *testing.T) {
	status := http.StatusForbidden
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: int32(status)})
	}))
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), apimeta.RESTScopeRoot)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), apimeta.RESTScopeRoot)
	config := &rest.Config{Host: server.URL}
	c, err := client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Kinds: []client.Object{&corev1.Node{}}, Changed: func(any, any) {}, Failed: func(error) {}}
	w, err := Open(t.Context(), config, c, options)
	if err != nil || w.Narrow() {
		t.Fatal(err)
	}
	if err := w.List(t.Context(), &corev1.NodeList{}); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
	server.Close()
	_, err = Open(t.Context(), config, c, options)
	if err == nil || !strings.Contains(err.Error(), "asking for your rights") {
		t.Error(err)
	}
}
