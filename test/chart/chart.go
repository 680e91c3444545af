// Package chart renders the Helm chart, as Helm does, for those who generate from it and those who test it.
package chart

import (
	"fmt"
	"path/filepath"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

// Render returns the manifests of the chart with the values (YAML over the chart's own), as an installation of release
// "signalbox" in namespace "signalbox-system" has them. A cluster is not asked.
func Render(repository, values string) (string, error) {
	c, err := Load(repository)
	if err != nil {
		return "", err
	}
	return RenderChart(c, values)
}

// Load reads the chart.
func Load(repository string) (*chart.Chart, error) {
	return loader.Load(filepath.Join(repository, "charts", "signalbox"))
}

// Plain returns what Render does, and the namespace, for those who install without Helm.
func Plain(c *chart.Chart, values string) (string, error) {
	text, err := RenderChart(c, values)
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: signalbox-system\n  labels:\n" +
		"    pod-security.kubernetes.io/enforce: restricted\n"
	return namespace + strings.ReplaceAll(text, "app.kubernetes.io/managed-by: Helm",
		"app.kubernetes.io/managed-by: kustomize"), err
}

// RenderChart is Render for a chart that was read.
func RenderChart(c *chart.Chart, values string) (string, error) {
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return "", fmt.Errorf("values: %w", err)
	}
	release := chartutil.ReleaseOptions{Name: "signalbox", Namespace: "signalbox-system", IsInstall: true, Revision: 1}
	all, err := chartutil.ToRenderValues(c, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	paths := make([]string, 0, len(files))
	for path := range files {
		if strings.HasSuffix(path, ".yaml") {
			paths = append(paths, path)
		}
	}
	sort.Strings(paths)
	var out strings.Builder
	for _, path := range paths {
		split := releaseutil.SplitManifests(files[path])
		keys := make([]string, 0, len(split))
		for key := range split {
			keys = append(keys, key)
		}
		sort.Sort(releaseutil.BySplitManifestsOrder(keys))
		for _, key := range keys {
			if text := strings.TrimSpace(split[key]); text != "" {
				out.WriteString("---\n" + text + "\n")
			}
		}
	}
	return out.String(), nil
}
