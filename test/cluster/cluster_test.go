package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func testLayout(t *testing.T) layout {
	t.Helper()
	l := layout{repo: t.TempDir(), state: filepath.Join(t.TempDir(), ".cluster"), cache: t.TempDir()}
	if err := l.fresh(); err != nil {
		t.Fatal(err)
	}
	return l
}

func shell(name, script string) component {
	return component{name: name, binary: "/bin/sh", args: []string{"-c", script},
		ready: func(context.Context) error { return nil }}
}

func TestADeathIsReportedWithTheLastWords(t *testing.T) {
	s := newSupervisor(testLayout(t))
	if err := s.add(context.Background(), shell("talker", "read line; echo last words; exit 3")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.died: // its standard input is empty, so it ends at once
		if !strings.Contains(err.Error(), "component talker died: exit status 3") ||
			!strings.Contains(err.Error(), "last words") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody heard of the death")
	}
}

func TestADeathThatWasAskedForIsNone(t *testing.T) {
	s := newSupervisor(testLayout(t))
	if err := s.add(context.Background(), shell("sleeper", "exec sleep 100")); err != nil {
		t.Fatal(err)
	}
	if err := s.stop("sleeper", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.start(context.Background(), "sleeper"); err != nil {
		t.Fatal(err)
	}
	if err := s.stopAll(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.died:
		t.Errorf("got %v", err)
	default:
	}
	if err := s.stop("sleeper", syscall.SIGTERM); err == nil || err.Error() != "sleeper is not running" {
		t.Errorf("got %v", err)
	}
}

func TestAComponentThatNeverServesFailsItsStart(t *testing.T) {
	s := newSupervisor(testLayout(t))
	c := shell("broken", "echo no such file; exit 1")
	c.ready = func(context.Context) error { return errors.New("connection refused") }
	if err := s.add(context.Background(), c); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-s.died:
		t.Errorf("the starter has heard of it, nobody else needs to: %v", err)
	default:
	}
}

func TestDownIgnoresAStalePidFile(t *testing.T) {
	l := testLayout(t)
	if err := os.WriteFile(l.pid(), []byte("1"), 0o644); err != nil { // a process of another program
		t.Fatal(err)
	}
	if err := down(l); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(l.pid()); !os.IsNotExist(err) {
		t.Error("the stale file is still there")
	}
}

func TestTheKeyOfAPartFollowsWhatItIsMadeOf(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	key := func(p part) string {
		t.Helper()
		k, err := p.key(dir)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write("go.mod", "module m")
	write("go.sum", "")
	first := key(etcd)
	if key(etcd) != first {
		t.Error("the same parts give the same key")
	}
	if key(kwok) == first {
		t.Error("another program has another key")
	}
	write("go.sum", "changed")
	if key(etcd) == first {
		t.Error("another version has another key")
	}
}

func TestCertificatesIdentifyAndServe(t *testing.T) {
	l := testLayout(t)
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	if err := writePKI(l, ca, identities, func(identity) string { return "https://127.0.0.1:1" }); err != nil {
		t.Fatal(err)
	}
	for _, id := range identities {
		if _, err := os.Stat(l.kubeconfig(id.file)); err != nil {
			t.Error(err)
		}
	}
	dir, err := ca.serving(l, "manager")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestWebhooksGoToLoopback(t *testing.T) {
	objects, err := decode([]byte(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutating-webhook-configuration}
webhooks:
- name: a.example.com
  clientConfig: {service: {name: s, namespace: n, path: /mutate}}
---
apiVersion: v1
kind: Service
metadata: {name: s}
`))
	if err != nil {
		t.Fatal(err)
	}
	configurations := ofKind(objects, "WebhookConfiguration")
	if len(configurations) != 1 {
		t.Fatalf("got %d", len(configurations))
	}
	if err := toLoopback(configurations, "manager", 1234, []byte("ca")); err != nil {
		t.Fatal(err)
	}
	config := configurations[0].Object["webhooks"].([]any)[0].(map[string]any)["clientConfig"].(map[string]any)
	if config["url"] != "https://127.0.0.1:1234/mutate" || config["caBundle"] != "Y2E=" ||
		configurations[0].GetName() != "manager-mutating" {
		t.Errorf("got %s %v", configurations[0].GetName(), config)
	}
}

func TestWebhooksTakeTheUserForTheManager(t *testing.T) {
	objects, err := readManifests("../../config/default/signalbox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]int{}
	for _, o := range ofKind(objects, "WebhookConfiguration") {
		if err := runAs(o, "somebody"); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		of["manager"] += strings.Count(string(text), installedAs)
		of["somebody"] += strings.Count(string(text), "!= 'somebody'")
	}
	if of["manager"] != 0 || of["somebody"] != 4 { // the integration's three, and the Trainer's that changes TrainJobs
		t.Errorf("got %v", of)
	}
}

func TestInstalledEnv(t *testing.T) {
	env, err := installedEnv("../../config/default/signalbox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "GOMEMLIMIT=") }) {
		t.Errorf("got %q, without what the chart sets for the collector", env)
	}
}

// TestWithMemory holds that another limit replaces the collector's, as the chart computes it: 80 %.
func TestWithMemory(t *testing.T) {
	before := []string{"GOGC=300", "GOMEMLIMIT=409MiB"}
	for limit, want := range map[string][]string{
		"": before, "1Gi": append(slices.Clone(before), "GOMEMLIMIT=858993459"),
	} {
		if got, err := withMemory(slices.Clone(before), limit); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v", limit, got, err)
		}
	}
	if _, err := withMemory(before, "much"); err == nil || !strings.Contains(err.Error(), `SIGNALBOX_MEMORY is "much"`) {
		t.Errorf("got %v", err)
	}
}

func TestAnswers(t *testing.T) {
	code := http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	defer server.Close()
	ready := answers(server.URL)
	if ready(context.Background()) == nil {
		t.Error("503 is not ready")
	}
	code = http.StatusOK
	if err := ready(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestProfiles(t *testing.T) {
	if _, err := profileNamed("other"); err == nil ||
		!strings.Contains(err.Error(),
			"bundled, kubeflow, kubeflow-2.0, kubeflow-2.1, kubeflow-2.2.0, kubeflow-2.2.1, builtin") {
		t.Errorf("an unknown profile is refused with those that there are: got %v", err)
	}
	releases, err := asked{next: "1.37"}.versions()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range profiles {
		p.versions = releases
		for _, part := range p.parts() {
			if part.name == "" || part.pkg == "" || part.module == "" {
				t.Errorf("profile %s has a part without a name, package or module", p.name)
			}
		}
	}
}
