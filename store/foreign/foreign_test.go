package foreign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/iotest"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// lineOf is a line of a watch about an object of namespace ns. owner is the kind of its owner; "" for none.
func lineOf(event, name, owner string) string {
	owners := ""
	if owner != "" {
		owners = fmt.Sprintf(`"ownerReferences":[{"controller":true,"kind":%q,"uid":"of-%s"}],`, owner, name)
	}
	return fmt.Sprintf(
		`{"type":%q,"object":{"kind":"X","metadata":{"labels":{"name":"a"},"name":%q,"namespace":"ns",%s"uid":%q},"spec":{}}}`,
		event, name, owners, "uid-"+name) + "\n"
}

const (
	bookmarkLine = `{"type":"BOOKMARK","object":{"kind":"X","metadata":{"resourceVersion":"7"}}}` + "\n"
	errorLine    = `{"type":"ERROR","object":{"kind":"Status","code":410}}` + "\n"
)

func keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

func TestDrops(t *testing.T) {
	cases := map[string]struct {
		reason  string
		lines   []string
		passed  []int  // which of the lines
		foreign string // the keys of foreign objects afterwards
	}{
		"owned by a TrainJob": {
			reason: "it is a TrainJob's from its creation to its deletion",
			lines: []string{lineOf("ADDED", "a", "TrainJob"), lineOf("MODIFIED", "a", "TrainJob"),
				lineOf("DELETED", "a", "TrainJob")},
			passed: []int{0, 1, 2},
		},
		"foreign": {
			reason:  "nothing of it is decoded, and its key is known until it is deleted",
			lines:   []string{lineOf("ADDED", "a", "Job"), lineOf("MODIFIED", "a", "Job"), lineOf("ADDED", "b", "")},
			foreign: "a b",
		},
		"foreign, deleted": {
			reason: "its key is forgotten",
			lines:  []string{lineOf("ADDED", "a", "Job"), lineOf("MODIFIED", "a", "Job"), lineOf("DELETED", "a", "Job")},
		},
		"taken over": {
			reason: "a TrainJob becomes the owner of a Workload that MultiKueue has created: it is in the cache from then on",
			lines: []string{lineOf("ADDED", "a", ""), lineOf("MODIFIED", "a", "TrainJob"),
				lineOf("MODIFIED", "a", "TrainJob")},
			passed:  []int{1, 2},
			foreign: "a", // until the cache has decoded it
		},
		"orphaned": {
			reason: "the cache has it, and must not have an outdated version of it",
			lines: []string{lineOf("ADDED", "a", "TrainJob"), lineOf("MODIFIED", "a", ""), lineOf("MODIFIED", "a", "Job"),
				lineOf("DELETED", "a", "Job"), lineOf("ADDED", "a", "Job")},
			passed:  []int{0, 1, 2, 3},
			foreign: "a",
		},
		"created again": {
			reason: "an object of the same name is another one",
			lines: []string{lineOf("ADDED", "a", "Job"), lineOf("DELETED", "a", "Job"), lineOf("ADDED", "a", "TrainJob"),
				lineOf("DELETED", "a", "TrainJob"), lineOf("ADDED", "a", "Job")},
			passed:  []int{2, 3},
			foreign: "a",
		},
		"of the watch itself": {
			reason: "a watch ends by an error, and continues after a bookmark",
			lines:  []string{bookmarkLine, errorLine},
			passed: []int{0, 1},
		},
		"not as expected": {
			reason: "what isn't understood is the decoder's to reject",
			lines:  []string{"{\n", `{"type":"ADDED","object":{}}` + "\n", `{ "type": "ADDED", "object": {} }` + "\n", "\n"},
			passed: []int{0, 1, 2, 3},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			k := &kind{}
			k.watch(true)
			want := ""
			for _, i := range c.passed {
				want += c.lines[i]
			}
			sent := iotest.OneByteReader(strings.NewReader(strings.Join(c.lines, "")))
			got, err := io.ReadAll(keptOf(io.NopCloser(sent), k))
			if err != nil || string(got) != want {
				t.Errorf("%s: passed\n%swant\n%s(%v)", c.reason, got, want, err)
			}
			if got := keysOf(k); got != c.foreign {
				t.Errorf("%s: the keys are %q, want %q", c.reason, got, c.foreign)
			}
		})
	}
}

// keysOf returns the names of the foreign objects among a, b and c.
func keysOf(k *kind) string {
	var names []string
	for _, name := range []string{"a", "b", "c"} {
		if k.isForeign(keyOf(name)) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// An interrupted watch, a line that is longer than the buffer, and the end of a line without a newline.
func TestLines(t *testing.T) {
	k := &kind{}
	k.watch(true)
	long := strings.Replace(lineOf("ADDED", "a", "TrainJob"), `"spec":{}`, `"spec":"`+strings.Repeat("x", 200<<10)+`"`, 1)
	sent := lineOf("ADDED", "b", "Job") + long + `{"type":"ADD`
	got, err := io.ReadAll(keptOf(io.NopCloser(strings.NewReader(sent)), k))
	if err != nil || string(got) != long+`{"type":"ADD` {
		t.Errorf("the long line and the unfinished one are passed: got %d bytes, %v", len(got), err)
	}
	broken := io.MultiReader(strings.NewReader(bookmarkLine), iotest.ErrReader(io.ErrUnexpectedEOF))
	got, err = io.ReadAll(keptOf(io.NopCloser(broken), k))
	if !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != bookmarkLine {
		t.Errorf("the error follows what was sent before: got %q, %v", got, err)
	}
}

// While a watch sends what exists, what was known before is still known.
func TestWatchAnew(t *testing.T) {
	k := &kind{}
	k.watch(true)
	k.drops([]byte(lineOf("ADDED", "a", "Job")))
	k.drops([]byte(lineOf("ADDED", "b", "Job")))
	k.drops([]byte(bookmarkLine))
	if !k.watch(false) {
		t.Error("a watch that continues another drops lines, too")
	}
	k.watch(true)
	k.drops([]byte(lineOf("ADDED", "c", "Job")))
	k.watch(true) // that one was interrupted
	k.drops([]byte(lineOf("ADDED", "b", "Job")))
	if got := keysOf(k); got != "a b c" {
		t.Errorf("before it has sent all: got %q, want a b c", got)
	}
	k.drops([]byte(bookmarkLine))
	if got := keysOf(k); got != "b" {
		t.Errorf("when it has sent all: got %q, want b", got)
	}
}

func TestWrap(t *testing.T) {
	const jobSets = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
	sent := lineOf("ADDED", "a", "") + lineOf("ADDED", "b", "TrainJob")
	status, content := http.StatusOK, "application/json"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", content)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, sent)
	}))
	defer server.Close()
	objects := New()
	c := &http.Client{Transport: objects.Wrap(http.DefaultTransport)}
	const owned, all = "owned", "all"
	for _, step := range []struct {
		reason, url, want string
		prepare           func()
	}{
		{"the cache's first watch", jobSets + "?watch=true&sendInitialEvents=true", owned, nil},
		{"it continues", jobSets + "?watch=true&resourceVersion=5", owned, nil},
		{"behind a proxy", "/k8s/clusters/a" + jobSets + "?watch=true", owned, nil},
		{"Workloads", "/apis/kueue.x-k8s.io/v1beta2/workloads?watch=true&sendInitialEvents=true", owned, nil},
		{"another group's Workloads", "/apis/scheduling.k8s.io/v1alpha2/workloads?watch=true", all, nil},
		{"a namespace's", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets?watch=true", all, nil},
		{"a list fills the cache, and all that follows concerns it", jobSets, all, nil},
		{"after a list", jobSets + "?watch=true&resourceVersion=5", all, nil},
		{"anew", jobSets + "?watch=true&sendInitialEvents=true", owned, nil},
		{"another encoding", jobSets + "?watch=true", all, func() { content = "application/cbor" }},
		{"refused", jobSets + "?watch=true", all, func() { status = http.StatusForbidden }},
	} {
		status, content = http.StatusOK, "application/json"
		if step.prepare != nil {
			step.prepare()
		}
		response, err := c.Get(server.URL + step.url)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		want := map[string]string{owned: lineOf("ADDED", "b", "TrainJob"), all: sent}[step.want]
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v, want %s of\n%s", step.reason, got, err, step.want, sent)
		}
	}
	server.Close()
	if response, err := c.Get(server.URL); err == nil {
		_ = response.Body.Close()
		t.Error("that nobody answers is passed on")
	}
}

// cached is a cache that reads from a client.
type cached struct {
	cache.Cache
	client client.Reader
}

func (c cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.client.List(ctx, list, opts...)
}

func (c cached) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.client.Get(ctx, key, o, opts...)
}

func TestGet(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := jobset.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := kueue.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	at := func(name string, value string) *jobset.JobSet {
		js := &jobset.JobSet{}
		js.Namespace, js.Name, js.Labels = "ns", name, map[string]string{"from": value}
		return js
	}
	reader := func(objects ...client.Object) client.Reader {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	}
	c := &completed{
		Cache: cached{client: reader(at("a", "cache"))}, live: reader(at("a", "live"), at("b", "live"), at("c", "live")),
		objects: New(),
	}
	c.objects.jobSets.watch(true)
	for _, name := range []string{"a", "b", "gone"} {
		c.objects.jobSets.drops([]byte(lineOf("ADDED", name, "")))
	}
	for name, want := range map[string]string{"a": "cache", "b": "live", "c": "", "gone": ""} {
		var js jobset.JobSet
		err := c.Get(t.Context(), keyOf(name), &js)
		if client.IgnoreNotFound(err) != nil || js.Labels["from"] != want {
			t.Errorf("%s is from %q, want %q: %v", name, js.Labels["from"], want, err)
		}
	}
	if err := c.Get(t.Context(), keyOf("a"), &kueue.Workload{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("there is no such Workload: got %v", err)
	}
	if err := c.Get(t.Context(), keyOf("a"), &kueue.LocalQueue{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("of other kinds the cache has all: got %v", err)
	}
}

// Of 10,000 foreign Workloads and as many JobSets, keys of less than 5 MB are kept.
func TestKeysAreSmall(t *testing.T) {
	heap := func() int64 {
		goruntime.GC()
		var stats goruntime.MemStats
		goruntime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	objects := New()
	before := heap()
	for _, k := range []*kind{&objects.workloads, &objects.jobSets} {
		k.watch(true)
		for i := range 10_000 {
			k.drops([]byte(lineOf("ADDED", fmt.Sprintf("jobset-team-a-experiment-%05d-6f7e1", i), "JobSet")))
		}
	}
	if grown := heap() - before; grown > 5<<20 {
		t.Errorf("20,000 keys take %d bytes, want at most 5 MiB", grown)
	} else {
		t.Logf("20,000 keys take %d bytes", grown)
	}
	goruntime.KeepAlive(objects)
}

// The Workload of an AppWrapper that owns TrainJobs is cached: jobframework lists it.
func TestOwnersOfTrainJobs(t *testing.T) {
	objects := New("AppWrapper.v1beta2.workload.codeflare.dev")
	for _, c := range []struct {
		kind  *kind
		owner string
		drops bool
	}{
		{&objects.workloads, "AppWrapper", false}, {&objects.workloads, "TrainJob", false}, {&objects.workloads, "Job", true},
		{&objects.jobSets, "AppWrapper", true}, {&objects.jobSets, "TrainJob", false},
	} {
		c.kind.watch(true)
		if got := c.kind.drops([]byte(lineOf("ADDED", "a", c.owner))); got != c.drops {
			t.Errorf("%s of %s: dropped %t", c.kind.path, c.owner, got)
		}
	}
}
