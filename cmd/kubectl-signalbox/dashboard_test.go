package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
)

// emptyCluster is an API server with no kinds but reviews. Token "bad" is refused.
func emptyCluster(t *testing.T) *rest.Config {
	t.Helper()
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, name := range []string{"apps", "authentication.k8s.io", "authorization.k8s.io"} {
		version := metav1.GroupVersionForDiscovery{GroupVersion: name + "/v1", Version: "v1"}
		groups.Groups = append(groups.Groups, metav1.APIGroup{Name: name, PreferredVersion: version,
			Versions: []metav1.GroupVersionForDiscovery{version}})
	}
	resources := func(version string, names ...string) metav1.APIResourceList {
		list := metav1.APIResourceList{GroupVersion: version}
		list.Kind, list.APIVersion = "APIResourceList", "v1"
		for _, name := range names {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: strings.ToLower(name) + "s",
				SingularName: strings.ToLower(name), Kind: name, Namespaced: !strings.HasSuffix(name, "Review")})
		}
		return list
	}
	answers := map[string]any{
		"/api":                           map[string]any{"kind": "APIVersions", "versions": []string{"v1"}},
		"/apis":                          groups,
		"/api/v1":                        resources("v1", "ConfigMap"),
		"/apis/apps/v1":                  resources("apps/v1", "Deployment"),
		"/apis/authentication.k8s.io/v1": resources("authentication.k8s.io/v1", "SelfSubjectReview"),
		"/apis/authorization.k8s.io/v1":  resources("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
		"/apis/authentication.k8s.io/v1/selfsubjectreviews": map[string]string{
			"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, code := answers[r.URL.Path], http.StatusOK
		if answer == nil {
			code = http.StatusNotFound
		}
		if r.Header.Get("Authorization") == "Bearer bad" {
			answer, code = nil, http.StatusUnauthorized
		}
		if answer == nil {
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Code: int32(code), Reason: map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound,
					http.StatusUnauthorized: metav1.StatusReasonUnauthorized}[code]}
		}
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// served runs a function that serves the page of an empty cluster, and returns the first line that it prints.
func served(t *testing.T, run func(context.Context, *session, *rest.Config) error) string {
	t.Helper()
	config := emptyCluster(t)
	reader, writer := io.Pipe()
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: writer, ErrOut: io.Discard}
	s, err := sessionWith(rest.CopyConfig(config), "team", defaultKueueNamespace, streams)
	if err != nil {
		t.Fatal(err)
	}
	s.open = func(string) (*session, error) { return s, nil }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, s, config) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewReader(reader)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return strings.TrimSpace(strings.TrimPrefix(line, "The page is at "))
}

// fetch requests a page with headers, such as "HX-Request: true".
func fetch(t *testing.T, method, url, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

// TestServeLocal holds that the page is served while the browser is still being opened, by a link in a file that its
// owner alone can read.
func TestServeLocal(t *testing.T) {
	bin := t.TempDir()
	opened := filepath.Join(bin, "opened")
	script := "#!/bin/sh\nstat -c %a \"${1#file://}\" > " + opened + ".part\ncat \"${1#file://}\" >> " + opened +
		".part\nmv " + opened + ".part " + opened + "\nwhile [ -e " + opened + " ]; do sleep 0.1; done\n" // as a browser does
	for _, name := range []string{"xdg-open", "x-www-browser", "www-browser", "open"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	link := served(t, func(ctx context.Context, s *session, config *rest.Config) error {
		return serveLocal(ctx, s, config, "test", dashboardOptions{port: freePort(t)})
	})
	origin, secret, _ := strings.Cut(link, "/#enter=")
	if status, text, _ := fetch(t, "GET", origin+"/", ""); status != 401 || !strings.Contains(text, "it works once") {
		t.Errorf("%d %s", status, text)
	}
	status, key, header := fetch(t, "POST", origin+"/enter", secret)
	if status != 200 {
		t.Fatalf("%d %s", status, key)
	}
	cookie := "Cookie: " + strings.Split(header.Get("Set-Cookie"), ";")[0]
	status, text, _ := fetch(t, "GET", origin+"/trainjobs", "", cookie, "X-Signalbox-Key: "+key, "HX-Request: true")
	if status != 200 || !strings.Contains(text, "0 TrainJobs") {
		t.Errorf("%d %s", status, text)
	}
	if status, _, _ := fetch(t, "GET", origin+"/healthz", ""); status != 200 {
		t.Errorf("%d", status)
	}
	var written []byte
	for written == nil { // by the script
		written, _ = os.ReadFile(opened)
	}
	if err := os.Remove(opened); err != nil { // the browser is closed
		t.Error(err)
	}
	if text := string(written); !strings.HasPrefix(text, "600\n") || !strings.Contains(text, secret) {
		t.Errorf("the browser was opened by %q", text)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := listenLocally(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := listenLocally(portOf(l)); err == nil {
		t.Error("a port that is taken is listened on")
	}
	return portOf(l)
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// TestServeTokens holds that a request has its token's rights, and that one that isn't valid is refused.
func TestServeTokens(t *testing.T) {
	address := served(t, func(ctx context.Context, s *session, config *rest.Config) error {
		return serveTokens(ctx, s, config, dashboardOptions{inCluster: inCluster{listen: "127.0.0.1:0"}})
	})
	view := func(token string) (int, string) {
		status, text, _ := fetch(t, "GET", address+"/trainjobs", "", "HX-Request: true", "Authorization: Bearer "+token)
		return status, text
	}
	if status, text := view("good"); status != 200 || !strings.Contains(text, "0 TrainJobs") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := view("bad"); status != 401 || !strings.Contains(text, "sign in again") {
		t.Errorf("%d %s", status, text)
	}
	err := serveTokens(t.Context(), &session{}, &rest.Config{}, dashboardOptions{inCluster: inCluster{
		listen: "127.0.0.1:0", cert: filepath.Join(t.TempDir(), "none"), key: "none"}})
	if err == nil || !strings.Contains(err.Error(), "reading the certificate") {
		t.Error(err)
	}
}

// TestContextName holds what the page calls the cluster.
func TestContextName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\ncurrent-context: lab\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &path
	if got := contextName(flags); got != "lab" {
		t.Error(got)
	}
	named := "other"
	flags.Context = &named
	if got := contextName(flags); got != "other" {
		t.Error(got)
	}
}
