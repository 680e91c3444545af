package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"sigs.k8s.io/yaml"
)

// annotate adds to a chart what Artifact Hub shows of a version: its images, and what has changed, which release.sh has
// taken from the changelog.
func annotate(c *helmchart.Chart, dist, version string) error {
	notes, err := os.ReadFile(filepath.Join(dist, "notes.md"))
	if err != nil {
		return err
	}
	var changes []map[string]string
	for _, text := range items(string(notes)) {
		changes = append(changes, map[string]string{"kind": "changed", "description": text})
	}
	if len(changes) == 0 {
		return fmt.Errorf("the changelog has nothing of %s", version)
	}
	var images []map[string]any
	for _, name := range []string{"signalbox", "signalbox-dashboard"} {
		images = append(images, map[string]any{"name": name, "image": repositoryOf(name) + ":" + version,
			"platforms": []string{"linux/amd64", "linux/arm64"}})
	}
	c.Metadata.Annotations["artifacthub.io/prerelease"] = strconv.FormatBool(strings.Contains(version, "-"))
	for key, value := range map[string]any{"changes": changes, "images": images} {
		text, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		c.Metadata.Annotations["artifacthub.io/"+key] = string(text)
	}
	return nil
}

// repositoryOf is where an image is to be: in REGISTRY (HOST/ORGANIZATION), or where the values have it.
func repositoryOf(image string) string {
	return cmp.Or(os.Getenv("REGISTRY"), "signalbox-dev") + "/" + image
}

// locate has the values of a chart name the images where they are to be, so that users needn't.
func locate(c *helmchart.Chart) error {
	found := false
	for _, f := range c.Raw {
		if f.Name == "README.md" {
			f.Data = bytes.ReplaceAll(f.Data, []byte("signalbox-dev/signalbox`"), []byte(repositoryOf("signalbox")+"`"))
			f.Data = bytes.ReplaceAll(f.Data, []byte("signalbox-dev/signalbox-dashboard`"),
				[]byte(repositoryOf("signalbox-dashboard")+"`"))
		}
		if f.Name != "values.yaml" {
			continue
		}
		for _, name := range []string{"signalbox", "signalbox-dashboard"} {
			before := []byte("repository: signalbox-dev/" + name + "\n")
			if !bytes.Contains(f.Data, before) {
				return fmt.Errorf("values.yaml has no %s", before)
			}
			f.Data = bytes.Replace(f.Data, before, []byte("repository: "+repositoryOf(name)+"\n"), 1)
		}
		if err := yaml.Unmarshal(f.Data, &c.Values); err != nil {
			return err
		}
		found = true
	}
	if !found {
		return errors.New("the chart has no values.yaml")
	}
	return nil
}

// items returns the items of a list in Markdown, each the first sentence of it on one line.
func items(text string) (all []string) {
	for _, item := range strings.Split("\n"+text, "\n- ")[1:] {
		item, _, _ = strings.Cut(item, "\n\n")
		item = strings.Join(strings.Fields(strings.ReplaceAll(item, "`", "")), " ")
		if first, _, more := strings.Cut(item, ". "); more {
			item = first + "."
		}
		all = append(all, item)
	}
	return all
}
