package watched

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// newClient returns a client for which pods are watched in namespace "team" alone, nodes not at all, namespaces
// everywhere; and how often the API server was asked.
func newClient(t *testing.T) (*Client, *int) {
	t.Helper()
	object := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	cached := fake.NewClientBuilder().WithObjects(
		&corev1.Pod{ObjectMeta: object("team", "a")}, &corev1.Pod{ObjectMeta: object("other", "b")},
		&corev1.Namespace{ObjectMeta: object("", "team")}, &corev1.Node{ObjectMeta: object("", "n")}).Build()
	asked := 0
	live := fake.NewClientBuilder().WithObjects(
		&corev1.ConfigMap{ObjectMeta: object("team", "c")},
	).WithInterceptorFuncs(
		interceptor.Funcs{
			Get: func(
				ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption,
			) error {
				asked++
				return c.Get(ctx, key, o, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				asked++
				return c.List(ctx, list, opts...)
			},
			Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
				asked++
				review, is := o.(*authorizationv1.SelfSubjectAccessReview)
				if !is {
					return errors.New("it isn't asked for that")
				}
				review.Status.Allowed = review.Spec.ResourceAttributes.Namespace == "team"
				return nil
			},
		},
	).Build()
	of := func(kind string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(kind) }
	return &Client{
		WithWatch: live, reader: cached, namespace: "team", memory: newMemory(),
		kinds: map[schema.GroupVersionKind]kind{
			of("Pod"):       {own, true, schema.GroupResource{Resource: "pods"}},
			of("Node"):      {none, false, schema.GroupResource{Resource: "nodes"}},
			of("Namespace"): {all, false, schema.GroupResource{Resource: "namespaces"}},
		},
	}, &asked
}

// TestScopes holds that a user reads what may be watched, and is refused the rest as by the API server.
func TestScopes(t *testing.T) {
	c, asked := newClient(t)
	list := func(of client.ObjectList, opts ...client.ListOption) string {
		switch err := c.List(t.Context(), of, opts...); {
		case apierrors.IsForbidden(err):
			return "forbidden"
		case err != nil:
			return err.Error()
		}
		return ""
	}
	var pods corev1.PodList
	if got := list(&pods, client.InNamespace("team"), client.Limit(1)); got != "" || len(pods.Items) != 1 ||
		pods.Continue != "" {
		t.Errorf("%s, %+v", got, pods)
	}
	if got := list(&corev1.NamespaceList{}); got != "" {
		t.Error(got)
	}
	for _, got := range []string{list(&pods), list(&pods, client.InNamespace("other")), list(&corev1.NodeList{})} {
		if got != "forbidden" {
			t.Errorf("%q", got)
		}
	}
	for key, want := range map[client.ObjectKey]bool{
		{Namespace: "team", Name: "a"}: true, {Namespace: "other", Name: "b"}: false,
	} {
		if err := c.Get(t.Context(), key, &corev1.Pod{}); (err == nil) != want || !want && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if *asked != 0 || !c.Narrow() {
		t.Errorf("the API server was asked %d times; narrow: %t", *asked, c.Narrow())
	}
	pod := corev1.SchemeGroupVersion.WithKind("Pod")
	c.kinds[pod] = kind{all, true, c.kinds[pod].resource}
	if c.Narrow() {
		t.Error("nodes are of no namespace")
	}
}

// TestRemembered holds that what isn't watched is asked for once in a time, errors too.
func TestRemembered(t *testing.T) {
	c, asked := newClient(t)
	now := time.Now()
	c.memory.now = func() time.Time { return now }
	for range 3 {
		var cm corev1.ConfigMap
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "c"}, &cm); err != nil || cm.Name != "c" {
			t.Errorf("%+v, %v", cm, err)
		}
		cm.Data = map[string]string{"changed": "by the caller"}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "none"}, &cm); !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		var maps corev1.ConfigMapList
		if err := c.List(t.Context(), &maps, client.InNamespace("team")); err != nil || len(maps.Items) != 1 {
			t.Errorf("%+v, %v", maps, err)
		}
		for namespace, want := range map[string]bool{"team": true, "other": false} {
			if may, err := c.May(t.Context(),
				authorizationv1.ResourceAttributes{Verb: "patch", Namespace: namespace}); err != nil ||
				may != want {
				t.Errorf("%s: %t, %v", namespace, may, err)
			}
		}
	}
	if *asked != 5 {
		t.Errorf("the API server was asked %d times", *asked)
	}
	now = now.Add(Remembered)
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "c"}, &corev1.ConfigMap{}); err != nil ||
		*asked != 6 {
		t.Errorf("%v, asked %d times", err, *asked)
	}
	for i := range 2 * mostRemembered {
		key := client.ObjectKey{Namespace: "team", Name: string(rune('a' + i))}
		_ = c.Get(t.Context(), key, &corev1.ConfigMap{}) // there is none
	}
	if len(c.memory.of) > mostRemembered {
		t.Errorf("%d answers are kept", len(c.memory.of))
	}
}

// TestChanges holds that one who waits hears of the next change.
func TestChanges(t *testing.T) {
	var c Changes
	c.Add()
	count, next := c.Since()
	if count != 1 {
		t.Error(count)
	}
	c.Add()
	<-next
	if count, _ := c.Since(); count != 2 {
		t.Error(count)
	}
}

// TestAskedOnce holds that many who ask at once have the API server asked once, and that one who goes takes nobody
// along.
func TestAskedOnce(t *testing.T) {
	c, asked := newClient(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.memory.get("x", &corev1.ConfigMap{}, gone.Err); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			var cm corev1.ConfigMap
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "c"}, &cm); err != nil || cm.Name != "c" {
				t.Errorf("%+v, %v", cm, err)
			}
		})
	}
	all.Wait()
	if *asked != 1 {
		t.Errorf("it was asked %d times", *asked)
	}
	if err := c.memory.get("x", &corev1.ConfigMap{}, func() error { return nil }); err != nil {
		t.Errorf("what another one's going has left: %v", err)
	}
}

// TestLastAnswer holds that the last answer is taken if the API server has none, and that a refusal isn't overlooked.
func TestLastAnswer(t *testing.T) {
	now := time.Now()
	m := newMemory()
	m.now = func() time.Time { return now }
	ask := func(err error) (string, error) {
		var cm corev1.ConfigMap
		err = m.get("x", &cm, func() error {
			cm.Name = "answered"
			return err
		})
		return cm.Name, err
	}
	lost := errors.New("connection refused")
	if _, err := ask(lost); !errors.Is(err, lost) {
		t.Error(err)
	}
	if name, err := ask(nil); err != nil || name != "answered" {
		t.Error(name, err)
	}
	now = now.Add(Remembered)
	if name, err := ask(lost); err != nil || name != "answered" {
		t.Error(name, err)
	}
	if _, err := ask(apierrors.NewUnauthorized("expired")); !apierrors.IsUnauthorized(err) {
		t.Error(err)
	}
	now = now.Add(outdated)
	if _, err := ask(nil); err != nil || len(m.of) != 1 {
		t.Error(err, m.of)
	}
}

// TestSlim holds that a Workload keeps what is counted, and a label selects of what is watched.
func TestSlim(t *testing.T) {
	wl := &kueue.Workload{Spec: kueue.WorkloadSpec{PodSets: []kueue.PodSet{{Count: 2}}}}
	template := &wl.Spec.PodSets[0].Template.Spec
	template.Containers = []corev1.Container{{Name: "c", Args: []string{"--token=x"}, Image: "i"}}
	if _, err := slim(wl); err != nil || template.Containers[0].Args != nil || template.Containers[0].Image != "i" ||
		wl.Spec.PodSets[0].Count != 2 {
		t.Errorf("%+v, %v", wl, err)
	}
	if other, err := slim("no object"); err != nil || other != "no object" {
		t.Error(other, err)
	}
	c, _ := newClient(t)
	var list corev1.PodList
	if err := c.List(t.Context(), &list, client.InNamespace("team"), client.MatchingLabels{"a": "b"}); err != nil ||
		len(list.Items) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
