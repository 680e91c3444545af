package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// downloads is where the files of a version are published.
const downloads = "https://github.com/signalbox-dev/signalbox/releases/download/"

// manifest is the plugin's manifest for krew's index (krew.googlecontainertools.github.com/v1alpha2).
type manifest struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       manifestSpec      `json:"spec"`
}

type manifestSpec struct {
	Version          string     `json:"version"`
	Homepage         string     `json:"homepage"`
	ShortDescription string     `json:"shortDescription"`
	Description      string     `json:"description"`
	Platforms        []platform `json:"platforms"`
}

// platform is an archive of the plugin.
type platform struct {
	Selector selector `json:"selector"`
	URI      string   `json:"uri"`
	SHA256   string   `json:"sha256"`
	Bin      string   `json:"bin"`
}

type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// plugin writes an archive of the plugin for each platform of which dist has the program, and the manifest for krew.
func plugin(repository, dist, version string, at time.Time) error {
	var texts []file
	for _, path := range []string{filepath.Join(repository, "LICENSE"), filepath.Join(repository, "NOTICE"),
		filepath.Join(dist, "LICENSES.txt")} {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		texts = append(texts, file{name: filepath.Base(path), mode: 0o644, content: content})
	}
	programs, err := filepath.Glob(filepath.Join(dist, "kubectl-signalbox-*"))
	if err != nil {
		return err
	}
	m := manifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin",
		Metadata: map[string]string{"name": "signalbox"},
		Spec: manifestSpec{
			Version:          version,
			Homepage:         "https://github.com/signalbox-dev/signalbox",
			ShortDescription: "Explain and predict queued TrainJobs",
			Description: "Lists Kubeflow TrainJobs on Kueue's quota, explains why they wait, predicts when they start, prints " +
				"the logs of all ranks, stops, resumes and restarts them, and checks an installation of Signalbox.\n",
		},
	}
	for _, path := range programs {
		name := filepath.Base(path)
		if strings.HasSuffix(name, ".json") {
			continue // a bill of materials
		}
		p, err := m.add(path, version, at, texts)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.Spec.Platforms = append(m.Spec.Platforms, p)
	}
	content, err := yaml.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dist, "krew-signalbox.yaml"), content, 0o644)
}

// add packs the program of one platform, kubectl-signalbox-OS-ARCHITECTURE with .exe on Windows.
func (m *manifest) add(path, version string, at time.Time, texts []file) (platform, error) {
	program, err := os.ReadFile(path)
	if err != nil {
		return platform{}, err
	}
	bare := strings.TrimSuffix(path, ".exe")
	of := strings.Split(strings.TrimPrefix(filepath.Base(bare), "kubectl-signalbox-"), "-")
	if len(of) != 2 {
		return platform{}, fmt.Errorf("want a name that ends in -OS-ARCHITECTURE")
	}
	bin := "kubectl-signalbox" + strings.TrimPrefix(path, bare)
	err = pack(bare+".tar.gz", at, append([]file{{name: bin, mode: 0o755, content: program}}, texts...)...)
	if err != nil {
		return platform{}, err
	}
	packed, err := os.ReadFile(bare + ".tar.gz")
	if err != nil {
		return platform{}, err
	}
	return platform{
		Selector: selector{MatchLabels: map[string]string{"os": of[0], "arch": of[1]}},
		URI:      downloads + version + "/" + filepath.Base(bare) + ".tar.gz",
		SHA256:   fmt.Sprintf("%x", sha256.Sum256(packed)),
		Bin:      bin,
	}, nil
}
