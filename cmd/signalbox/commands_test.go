package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	good := file("good.yaml", head+"concurrency: 7\n")
	cases := map[string]struct {
		reason, args, out, err string
	}{
		"version":     {"what runs can be named", "version", "commit ", ""},
		"a good one":  {"it is printed with what it leaves to the defaults", "config check " + good, "concurrency: 7\n", ""},
		"defaults":    {"all of them", "config check " + good, "gangScheduling:\n    mode: \"off\"\n    policy: gang\n", ""},
		"a slip":      {"the field is named", "config check " + file("slip.yaml", head+"concurency: 7\n"), "", `slip.yaml: unknown field "concurency"`},
		"no file":     {"it is named", "config check /nowhere.yaml", "", "/nowhere.yaml"},
		"no argument": {"one is needed", "config check", "", "accepts 1 arg"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command()
			cmd.SetArgs(strings.Fields(c.args))
			cmd.SetOut(&out)
			err := cmd.Execute()
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("%s: got %q, want %q in it", c.reason, out.String(), c.out)
			}
		})
	}
	// What is printed is a configuration that says the same.
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs([]string{"config", "check", good})
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if c, err := configapi.Parse(out.Bytes()); err != nil || c.Concurrency != 7 {
		t.Errorf("got %+v, %v", c, err)
	}
	// Kueue's gates are known by name. They are the process's, so that nothing can be checked after a wrong one.
	cmd = command()
	cmd.SetArgs([]string{"config", "check", file("gate.yaml", head+"kueue: {featureGates: {Nothing: true}}\n")})
	const unknown = "kueue.featureGates: unrecognized feature gate: Nothing"
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), unknown) {
		t.Errorf("got %v", err)
	}
}

func TestAwaitCertificates(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := awaitCertificates(t.Context(), dir); err != nil {
		t.Errorf("both are there: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := awaitCertificates(t.Context(), filepath.Join(dir, "file"))
	if err == nil || !strings.Contains(err.Error(), "the certificate of the webhooks") {
		t.Errorf("what can't be read is said: got %v", err)
	}
}

// Of a cached TrainJob only what nobody reads is missing; the mark of a missed deletion passes as it is.
func TestWithoutManifests(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "mine": "1"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
	got, err := withoutManifests(job.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	want := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"mine": "1"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	missed := cache.DeletedFinalStateUnknown{Key: "ns/a"}
	if got, err := withoutManifests(missed); err != nil || !reflect.DeepEqual(got, missed) {
		t.Errorf("got %+v and %v, want what was given", got, err)
	}
}

func TestLimitsOf(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	for content, want := range map[string]overrides.Limits{
		"": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, GracePeriodSeconds: 3600},
		"limits: {pods: 1, specBytes: 2, elements: 3, terminationGracePeriodSeconds: 4}\n": {
			Pods: 1, SpecBytes: 2, Elements: 3, GracePeriodSeconds: 4},
		"limits: {hostPaths: true, secrets: false}\n": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000,
			GracePeriodSeconds: 3600, HostPaths: true, NoSecrets: true},
		"trainer: {enabled: false}\n": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, GracePeriodSeconds: 3600,
			PodsReplaced: true},
	} {
		config, err := configapi.Parse([]byte(head + content))
		if err != nil {
			t.Fatal(err)
		}
		if got := limitsOf(config); got != want {
			t.Errorf("%s: got %+v, want %+v", content, got, want)
		}
	}
}
