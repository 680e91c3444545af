package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReleasesArePinned(t *testing.T) {
	pinned := map[string][]pinned{"sigs.k8s.io/kueue": kueueReleases, "sigs.k8s.io/jobset": jobsetReleases}
	for _, k := range kubernetesReleases {
		pinned["k8s.io/kubernetes"] = append(pinned["k8s.io/kubernetes"], k.pinned)
	}
	for module, releases := range pinned {
		for _, r := range releases {
			content, err := os.ReadFile(filepath.Join("components", r.module, "go.mod"))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(content), module+" "+r.version) {
				t.Errorf("components/%s does not pin %s %s", r.module, module, r.version)
			}
		}
	}
}

func TestReleasesAreAskedFor(t *testing.T) {
	cases := map[string]struct {
		asked asked
		want  string // the flags, or what the error says
	}{
		"none": {asked{}, "--kubernetes=1.36 --kueue=0.19 --jobset=0.12"},
		"some": {asked{kubernetes: "1.37", kueue: "0.18"}, "--kubernetes=1.37 --kueue=0.18 --jobset=0.12"},
		"next": {asked{next: "1.37"}, "--kubernetes=1.36 --kueue=0.19 --jobset=0.12 --next-kubernetes=1.37"},
		"gates": {asked{gates: "A=true,B=false", apis: "a/v1=true"},
			"--kubernetes=1.36 --kueue=0.19 --jobset=0.12 --gates=A=true,B=false --apis=a/v1=true"},
		"unknown": {asked{kubernetes: "1.38"}, `no release "1.38" of Kubernetes; there are 1.34, 1.35, 1.36, 1.37`},
		"no next": {asked{next: "v1.37"}, `no release "v1.37" of Kubernetes`},
		"Kueue":   {asked{kueue: "0.20"}, `no release "0.20" of Kueue; there are 0.17, 0.18, 0.19`},
		"JobSet":  {asked{jobset: "0.13"}, `no release "0.13" of JobSet; there are 0.10, 0.11, 0.12`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v, err := c.asked.versions()
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
				return
			}
			if got := strings.Join(v.arguments(), " "); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// A component stops at a gate that it doesn't know.
func TestPodGroupFlags(t *testing.T) {
	cases := map[string]string{
		"1.35": "",
		"1.36": "--feature-gates=GenericWorkload=true,GangScheduling=true --runtime-config=scheduling.k8s.io/v1alpha2=true",
		"1.37": "--feature-gates=GenericWorkload=true --runtime-config=scheduling.k8s.io/v1beta1=true",
	}
	for name, want := range cases {
		k, err := kubernetesNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(k.flags("kube-apiserver"), " "); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		k.moreGates, k.moreAPIs = "A=true", "a/v1=true"
		more := strings.Join(k.flags("kube-apiserver"), " ")
		if !strings.Contains(more, "A=true") || !strings.Contains(more, "a/v1=true") {
			t.Errorf("%s: got %s, without what was asked for", name, more)
		}
		if strings.Contains(strings.Join(k.flags("kube-scheduler"), " "), "runtime-config") {
			t.Errorf("%s: only the API server has a runtime configuration", name)
		}
	}
}

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
