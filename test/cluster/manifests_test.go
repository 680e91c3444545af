package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestConversionsAreThoseOfTheKustomization(t *testing.T) {
	folder := t.TempDir()
	patch := func(name string) string {
		return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: " + name + "}\n" +
			"spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {service: {path: /convert}}}}}\n"
	}
	for name, content := range map[string]string{
		"kustomization.yaml": "patches:\n- path: patches/queues.yaml\n- path: patches/labels.yaml\n" +
			"# - path: patches/flavors.yaml\n",
		"patches/queues.yaml":  patch("queues.example.com"),
		"patches/flavors.yaml": patch("flavors.example.com"), // which the kustomization leaves out
		"patches/labels.yaml": "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n" +
			"metadata: {name: others.example.com}\n",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := conversions(folder)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"queues.example.com": "/convert"}; !maps.Equal(got, want) {
		t.Errorf("conversions are %v, want %v", got, want)
	}
}
