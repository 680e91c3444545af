package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

type file struct{ name, text string }

func read(path string, in io.Reader) ([]file, error) {
	if path == "-" {
		text, err := io.ReadAll(in)
		return []file{{"standard input", string(text)}}, err
	}
	var files []file
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		manifest := name == path || slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
		if err != nil || entry.IsDir() || !manifest {
			return err
		}
		text, err := os.ReadFile(name)
		files = append(files, file{name, string(text)})
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no *.yaml, *.yml or *.json; name a directory of manifests, or a file", path)
	}
	return files, err
}

// runtimes are those among the files, by kind, namespace and name.
type runtimes map[string]*trainerapi.TrainingRuntimeSpec

func (r runtimes) collect(f file) error {
	objects, err := f.objects()
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GroupVersionKind().Group != trainerapi.GroupVersion.Group || !strings.HasSuffix(o.GetKind(), "TrainingRuntime") {
			continue
		}
		rt := &api.ClusterTrainingRuntime{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, rt); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		r[o.GetKind()+"/"+o.GetNamespace()+"/"+o.GetName()] = &rt.Spec
	}
	return nil
}

// objects returns the objects of a file, each of a list by itself.
func (f file) objects() (all []unstructured.Unstructured, err error) {
	for _, doc := range documents(f.text) {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			return nil, err
		}
		switch {
		case u.IsList():
			list, err := u.ToList()
			if err != nil {
				return nil, err
			}
			all = append(all, list.Items...)
		case u.Object != nil:
			all = append(all, *u)
		}
	}
	return all, nil
}

func (r runtimes) of(job *api.TrainJob) *trainerapi.TrainingRuntimeSpec {
	if kind := job.Spec.RuntimeRef.Kind; kind != nil && *kind == trainerapi.TrainingRuntimeKind {
		return r[*kind+"/"+job.Namespace+"/"+job.Spec.RuntimeRef.Name]
	}
	return r[trainerapi.ClusterTrainingRuntimeKind+"//"+job.Spec.RuntimeRef.Name]
}

// documents splits a file of YAML at its separators. A "---" stays with the document that follows it, as do comments
// and directives before it; a "..." stays with the one that it ends.
func documents(text string) []string {
	var docs []string
	var doc strings.Builder
	content := false
	next := func() {
		docs = append(docs, doc.String())
		doc.Reset()
		content = false
	}
	for line := range strings.Lines(text) {
		bare := strings.TrimRight(line, " \t\r\n")
		begins := bare == "---" || strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "---\t")
		if begins && content {
			next()
		}
		doc.WriteString(line)
		content = content || begins || bare != "" && !strings.HasPrefix(bare, "#") && !strings.HasPrefix(bare, "%")
		if bare == "..." {
			next()
		}
	}
	if doc.Len() > 0 {
		docs = append(docs, doc.String())
	}
	return docs
}
