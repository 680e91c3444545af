package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
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
