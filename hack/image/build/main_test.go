package main

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/signalbox-dev/signalbox/hack/image"
)

// programs builds this very module's command for two architectures, as make image does Signalbox's.
func programs(t *testing.T) string {
	dist := t.TempDir()
	for _, architecture := range []string{"amd64", "arm64"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false",
			"-o", filepath.Join(dist, "signalbox-linux-"+architecture), "./testdata/program")
		build.Dir = ".."
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dist
}

func args(dist string, more ...string) []string {
	return append([]string{"--dist", dist, "--version", "v1.2.3", "--revision", "c0ffee",
		"--date", "2026-11-24T00:00:00Z"}, more...)
}

func TestPushedImageIsPulledBack(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	defer server.Close()
	place := strings.TrimPrefix(server.URL, "http://") + "/team/signalbox"
	if err := run(t.Context(), args(programs(t), "--push", place)); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(place + ":v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		img, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(img); err != nil {
			t.Errorf("%s: %v", architecture, err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != architecture || config.Config.User != "65532:65532" ||
			config.Config.Labels["org.opencontainers.image.revision"] != "c0ffee" {
			t.Errorf("%s: the configuration is %+v", architecture, config)
		}
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		referrers, err := remote.Referrers(tag.Digest(digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		attached, err := referrers.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(attached.Manifests) != 1 || attached.Manifests[0].ArtifactType != string(image.MaterialsType) {
			t.Errorf("%s: attached are %+v, want one bill of materials", architecture, attached.Manifests)
		}
	}
}

func TestSameProgramsGiveTheSameDigest(t *testing.T) {
	digest := func(dist string) v1.Hash {
		if err := run(t.Context(), args(dist)); err != nil {
			t.Fatal(err)
		}
		index, err := layout.ImageIndexFromPath(filepath.Join(dist, "image"))
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(manifest.Manifests) != 3 {
			t.Fatalf("the layout has %d entries, want the index and two bills of materials", len(manifest.Manifests))
		}
		built, err := index.ImageIndex(manifest.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(built); err != nil {
			t.Error(err)
		}
		return manifest.Manifests[0].Digest
	}
	if a, b := digest(programs(t)), digest(programs(t)); a != b {
		t.Errorf("two builds have the digests %s and %s", a, b)
	}
}

func TestWrongPlaceIsNamed(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{args(programs(t), "--push", "NO PLACE"), "PUSH=NO PLACE names no place for an image, such as REGISTRY/NAME"},
		{args(t.TempDir()), "there is no signalbox-linux-ARCHITECTURE in"},
		{[]string{"--date", "today"}, `--date "today"`},
	} {
		if err := run(t.Context(), test.args); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: the error is %v, want %q", test.args, err, test.want)
		}
	}
}
