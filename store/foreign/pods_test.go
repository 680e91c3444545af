package foreign

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/store"
)

// podOfSet is pod ns/NAME that names JobSet SET and its UID.
func podOfSet(name, set string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"a": "b", jobset.JobSetNameKey: set, jobset.JobSetUIDKey: "uid-" + set}},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "a"}}},
	}
}

// frameOf is a frame of a watch in protobuf.
func frameOf(t *testing.T, event string, o runtime.Object) string {
	t.Helper()
	var object bytes.Buffer
	scheme := runtime.NewScheme()
	if err := protobuf.NewSerializer(scheme, scheme).Encode(o, &object); err != nil {
		t.Fatal(err)
	}
	data, err := (&metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: object.Bytes()}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(data)))) + string(data)
}

func TestPodsDrops(t *testing.T) {
	frame := func(event, name, set string) string { return frameOf(t, event, podOfSet(name, set)) }
	bookmark := frameOf(t, "BOOKMARK", &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}})
	failed := frameOf(t, "ERROR", &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: 410})
	deletedSet, ownedSet := lineOf("DELETED", "foreign", ""), lineOf("MODIFIED", "foreign", "TrainJob")
	cases := map[string]struct {
		reason  string
		frames  []string
		jobSets string // a line about JobSets before the last frame
		passed  []int  // which of the frames
	}{
		"of a TrainJob": {
			reason: "it is passed from its creation to its deletion",
			frames: []string{frame("ADDED", "a", "own"), frame("MODIFIED", "a", "own"), frame("DELETED", "a", "own")},
			passed: []int{0, 1, 2},
		},
		"of a foreign JobSet": {
			reason: "nothing of it is decoded",
			frames: []string{frame("ADDED", "a", "foreign"), frame("MODIFIED", "a", "foreign"),
				frame("DELETED", "a", "foreign")},
		},
		"of a JobSet that isn't known": {
			reason: "the watch of JobSets may be behind",
			frames: []string{frame("ADDED", "a", "unknown"), frame("MODIFIED", "a", "unknown")},
			passed: []int{0, 1},
		},
		"of a foreign JobSet that is gone": {
			reason: "pods end after their JobSet",
			frames: []string{frame("ADDED", "a", "foreign"), frame("DELETED", "a", "foreign")}, jobSets: deletedSet,
		},
		"of a JobSet that a TrainJob has taken over": {
			reason: "its pods are the TrainJob's from then on",
			frames: []string{frame("ADDED", "a", "foreign"), frame("MODIFIED", "a", "foreign")}, jobSets: ownedSet,
			passed: []int{1},
		},
		"with another's label": {
			reason: "the cache has it, and must not have it for ever",
			frames: []string{frame("ADDED", "a", "own"), frame("MODIFIED", "a", "foreign"), frame("DELETED", "a", "foreign"),
				frame("ADDED", "a", "foreign")},
			passed: []int{0, 1, 2},
		},
		"of the watch itself": {
			reason: "a watch ends by an error, and continues after a bookmark",
			frames: []string{bookmark, failed},
			passed: []int{0, 1},
		},
		"not as expected": {
			reason: "what isn't understood is the decoder's to reject",
			frames: []string{"\x00\x00\x00\x00", "\x00\x00\x00\x02\xff\xff", "\x00\x00\x00\x04\x12\x02\x0a\x7f", "\x00\x00"},
			passed: []int{0, 1, 2, 3},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			objects := New()
			objects.pods.watch(true)
			objects.jobSets.watch(true)
			objects.jobSets.drops([]byte(lineOf("ADDED", "own", "TrainJob")))
			objects.jobSets.drops([]byte(lineOf("ADDED", "foreign", "")))
			sent, want := make([]io.Reader, len(c.frames)), ""
			for i, f := range c.frames {
				sent[i] = iotest.OneByteReader(bytes.NewReader([]byte(f)))
			}
			for _, i := range c.passed {
				want += c.frames[i]
			}
			last := len(sent) - 1
			got, err := io.ReadAll(keptOf(io.NopCloser(io.MultiReader(sent[:last]...)), &objects.pods))
			if c.jobSets != "" {
				objects.jobSets.drops([]byte(c.jobSets))
			}
			rest, lastErr := io.ReadAll(keptOf(io.NopCloser(sent[last]), &objects.pods))
			if got := string(got) + string(rest); err != nil || lastErr != nil || got != want {
				t.Errorf("%s: passed %q, want %q (%v, %v)", c.reason, got, want, err, lastErr)
			}
			if objects.pods.cached.Len() > 1 {
				t.Errorf("%s: %d pods are known", c.reason, objects.pods.cached.Len())
			}
		})
	}
}

// Frames of pods are read of a watch in protobuf of all namespaces alone.
func TestWrapPods(t *testing.T) {
	sent := frameOf(t, "ADDED", podOfSet("a", "foreign")) + frameOf(t, "ADDED", podOfSet("b", "own"))
	content := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", content)
		_, _ = io.WriteString(w, sent)
	}))
	defer server.Close()
	objects := New()
	objects.jobSets.watch(true)
	objects.jobSets.drops([]byte(lineOf("ADDED", "foreign", "")))
	c := &http.Client{Transport: objects.Wrap(http.DefaultTransport)}
	const proto, text = "application/vnd.kubernetes.protobuf;stream=watch", "application/json"
	for _, step := range []struct {
		reason, path, content string
		all                   bool
	}{
		{"the cache's watch", "/api/v1/pods?watch=true&sendInitialEvents=true", proto, false},
		{"it continues", "/api/v1/pods?watch=true&resourceVersion=5", proto, false},
		{"another encoding", "/api/v1/pods?watch=true&resourceVersion=5", text, true},
		{"a namespace's", "/api/v1/namespaces/ns/pods?watch=true", proto, true},
		{"another group's", "/apis/metrics.k8s.io/v1/pods?watch=true", proto, true},
		{"a list fills the cache", "/api/v1/pods", "application/vnd.kubernetes.protobuf", true},
		{"and all that follows concerns it", "/api/v1/pods?watch=true&resourceVersion=5", proto, true},
	} {
		content = step.content
		response, err := c.Get(server.URL + step.path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		want := sent
		if !step.all {
			want = frameOf(t, "ADDED", podOfSet("b", "own"))
		}
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", step.reason, got, err, want)
		}
	}
}

// The pods of a JobSet that was foreign, and may be a TrainJob's by now, are read from the API server.
func TestListOfPods(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	reader := func(pods ...client.Object) client.Reader {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(pods...).
			WithIndex(&corev1.Pod{}, store.PodIndex, store.PodIndexOf).Build()
	}
	c := &completed{
		Cache: cached{client: reader(podOfSet("a", "own"))}, objects: New(),
		live: reader(podOfSet("a", "own"), podOfSet("b", "own"), podOfSet("c", "foreign"), podOfSet("d", "other")),
	}
	c.objects.jobSets.watch(true)
	c.objects.jobSets.drops([]byte(lineOf("ADDED", "own", "TrainJob")))
	c.objects.jobSets.drops([]byte(lineOf("ADDED", "foreign", "")))
	for _, taken := range []bool{false, true} {
		if taken {
			c.objects.jobSets.drops([]byte(lineOf("MODIFIED", "foreign", "TrainJob")))
		}
		for set, want := range map[string]string{"own": "a", "foreign": "c", "unknown": ""} {
			var list corev1.PodList
			err := c.List(t.Context(), &list, client.InNamespace("ns"), client.MatchingFields{store.PodIndex: set},
				client.UnsafeDisableDeepCopy)
			got := ""
			for _, pod := range list.Items {
				got += pod.Name
			}
			if err != nil || got != want {
				t.Errorf("%s: got pods %q, %v, want %q", set, got, err, want)
			}
		}
	}
	c.objects.jobSets.watch(true)
	c.objects.jobSets.drops([]byte(lineOf("ADDED", "foreign", "TrainJob")))
	c.objects.jobSets.drops([]byte(bookmarkLine))
	of := []client.ListOption{client.InNamespace("ns"), client.MatchingFields{store.PodIndex: "foreign"}}
	var list corev1.PodList
	if err := c.List(t.Context(), &list, of...); err != nil || len(list.Items) != 1 {
		t.Errorf("a watch that begins anew sends no pods again: got %v, %v", list.Items, err)
	}
	c.objects.jobSets.drops([]byte(lineOf("DELETED", "foreign", "TrainJob")))
	if err := c.List(t.Context(), &list, of...); err != nil || len(list.Items) > 0 {
		t.Errorf("it is known for ever that a TrainJob took it: got %v, %v", list.Items, err)
	}
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != 1 {
		t.Errorf("without the index the cache is asked: got %v, %v", list.Items, err)
	}
}

// Of the JobSets that come and go, some UIDs are forgotten: their pods are cached for nothing.
func TestDroppedIsBounded(t *testing.T) {
	k := &kind{}
	k.watch(true)
	for i := range maxDropped + 10 {
		name := fmt.Sprint("set-", i)
		k.drops([]byte(lineOf("ADDED", name, "")))
		k.drops([]byte(lineOf("DELETED", name, "")))
	}
	if n := k.dropped.Len(); n != 10 || !k.isDropped(fmt.Sprint("uid-set-", maxDropped+9)) {
		t.Errorf("got %d UIDs, want the last 10", n)
	}
	if k.list(); k.dropped.Len() > 0 {
		t.Error("after a list nothing shows what TrainJobs take over")
	}
}
