// Command release writes what a release has beside its binaries, which are there already: the charts' archives, plain
// manifests, the plugin's archives with its manifest for krew, a software bill of materials for each program. Then it
// writes the provenance, and the checksums of all. `make release` runs it. The same commit gives the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/hack/image"
	"github.com/signalbox-dev/signalbox/test/chart"
)

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "release: want REPOSITORY DIST VERSION COMMIT DATE, the last as 2006-01-02T15:04:05Z")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(repository, dist, version, commit, date string) error {
	at, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dist)
	if err != nil {
		return err
	}
	var programs []string
	for _, e := range entries {
		if extension := filepath.Ext(e.Name()); extension != ".md" && extension != ".txt" {
			programs = append(programs, filepath.Join(dist, e.Name()))
		}
	}
	for _, program := range programs {
		bill, err := image.Materials(program, version, at)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		if err := os.WriteFile(strings.TrimSuffix(program, ".exe")+".cdx.json", bill, 0o644); err != nil {
			return err
		}
	}
	if err := provenance(dist, version, commit); err != nil {
		return err
	}
	if err := plugin(repository, dist, version, at); err != nil {
		return err
	}
	for _, name := range []string{"signalbox", "signalbox-runtimes"} {
		c, err := loader.Load(filepath.Join(repository, "charts", name))
		if err != nil {
			return err
		}
		c.Metadata.Version = strings.TrimPrefix(version, "v")
		if name == "signalbox" { // the other's version is Kubeflow Trainer's
			c.Metadata.AppVersion = version
			if err := errors.Join(locate(c), annotate(c, dist, version)); err != nil {
				return err
			}
		}
		if err := c.Validate(); err != nil {
			return err
		}
		if err := archive(c, filepath.Join(dist, name+"-"+c.Metadata.Version+".tgz"), at); err != nil {
			return err
		}
		if name == "signalbox" {
			if err := manifests(c, repository, dist); err != nil {
				return err
			}
		}
	}
	return checksums(dist)
}

// archive writes a chart as helm package does, but with the commit's time for every file.
func archive(c *helmchart.Chart, path string, at time.Time) error {
	metadata, err := yaml.Marshal(c.Metadata)
	if err != nil {
		return err
	}
	var files []file
	for _, f := range c.Raw {
		content := f.Data
		if f.Name == "Chart.yaml" {
			content = metadata
		}
		files = append(files, file{name: c.Name() + "/" + f.Name, mode: 0o644, content: content})
	}
	return pack(path, at, files...)
}

// file is a file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// pack writes a tar.gz; at is the time of all of its files.
func pack(path string, at time.Time, files ...file) error {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, f := range files {
		header := &tar.Header{
			Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: at.UTC(), Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

func manifests(c *helmchart.Chart, repository, dist string) error {
	var crds strings.Builder
	paths, err := filepath.Glob(filepath.Join(repository, "config", "crd", "trainer.kubeflow.org_*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		crds.Write(content)
		crds.WriteString("\n---\n")
	}
	for name, m := range map[string]struct{ before, values string }{
		"signalbox.yaml":             {crds.String(), "crds: {install: false}"},
		"signalbox-integration.yaml": {"", "trainer: {enabled: false}"},
	} {
		text, err := chart.Plain(c, m.values)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dist, name), []byte(m.before+text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func checksums(dist string) error {
	entries, err := os.ReadDir(dist)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		if e.Name() == "SHA256SUMS" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dist, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(content), e.Name()))
	}
	slices.Sort(lines)
	return os.WriteFile(filepath.Join(dist, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
