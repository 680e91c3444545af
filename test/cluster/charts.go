package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// release is an installation by Helm, of the chart that the project itself has released.
type release struct {
	name, namespace, chart string
	values                 map[string]any
}

// install runs helm as a user would, and returns when all of it is ready.
func (x *plan) install(ctx context.Context, r release) error {
	data, err := yaml.Marshal(r.values)
	if err != nil {
		return err
	}
	values := x.layout.config(r.name + "-values.yaml")
	if err := os.WriteFile(values, data, 0o644); err != nil {
		return err
	}
	return x.helm(ctx, "install", r.name, r.chart, "--namespace", r.namespace, "--create-namespace",
		"--values", values, "--wait", "--timeout", "3m")
}

func (x *plan) helm(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, x.binaries[helm.name], args...)
	home := filepath.Join(x.layout.state, "data", "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+x.layout.kubeconfig(""), "HELM_CACHE_HOME="+home,
		"HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// namespaces are where managers run; they meet Pod Security's level restricted.
var namespaces = []string{"kueue-system", "jobset-system", "kubeflow-system", "signalbox-system"}

func (g real) prepareNamespaces(ctx context.Context) error {
	text, err := render("nodes.yaml", map[string]any{"Namespaces": namespaces})
	if err != nil {
		return err
	}
	objects, err := decode(text)
	if err != nil {
		return err
	}
	base, err := readAsset("base.yaml")
	if err != nil {
		return err
	}
	// Of the base, what is no namespace: the ordinary user and the user's rights.
	base = slices.DeleteFunc(base, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Namespace" })
	return g.applier.apply(ctx, append(objects, base...)...)
}

// installCharts installs Kueue, JobSet, Trainer and Signalbox, in the order in which their webhooks need each other.
func (g real) installCharts(ctx context.Context) error {
	dirs, err := g.modules(ctx)
	if err != nil {
		return err
	}
	if err := g.installKueue(ctx, filepath.Join(dirs.kueue, "charts", "kueue")); err != nil {
		return err
	}
	jobsetRepository, jobsetTag := nameAndTag(jobsetImage)
	if err := g.install(ctx, release{name: "jobset", namespace: "jobset-system",
		chart: filepath.Join(dirs.jobset, "charts", "jobset"),
		values: map[string]any{
			"image": map[string]any{"repository": jobsetRepository, "tag": jobsetTag, "pullPolicy": "Never"}}}); err != nil {
		return err
	}
	if g.profile.trainer != nil {
		if err := g.installTrainer(ctx, dirs.trainer); err != nil {
			return err
		}
	}
	if g.profile.signalbox {
		if err := g.installSignalbox(ctx); err != nil {
			return err
		}
	}
	g.applier.mapper.Reset() // charts have brought CRDs
	if g.profile.trainer == nil && !g.profile.signalbox {
		return nil // nobody knows runtimes yet
	}
	return g.installRuntimes(ctx, dirs.trainer)
}

func (g real) installKueue(ctx context.Context, chart string) error {
	repository, tag := nameAndTag(kueueImage)
	values := map[string]any{"controllerManager": map[string]any{"manager": map[string]any{"image": map[string]any{
		"repository": repository, "tag": tag, "pullPolicy": "Never"}}}}
	if g.profile.signalbox {
		config, err := kueueConfig(filepath.Join(chart, "values.yaml"))
		if err != nil {
			return err
		}
		values["managerConfig"] = map[string]any{"controllerManagerConfigYaml": config}
	}
	return g.install(ctx, release{name: "kueue", namespace: "kueue-system", chart: chart, values: values})
}

func (g real) installSignalbox(ctx context.Context) error {
	further := map[string]any{}
	if g.profile.bundled() { // for those who report their checkpoints, and for those who ask to grow
		further["preemption"] = map[string]any{"checkpointWithin": "30s"}
		further["grow"] = map[string]any{"enabled": true, "every": "20s"}
	}
	repository, tag := nameAndTag(signalboxImages[0])
	return g.install(ctx, release{name: "signalbox", namespace: "signalbox-system",
		chart: filepath.Join(g.layout.repo, "charts", "signalbox"),
		values: map[string]any{
			"image": map[string]any{"repository": repository, "tag": tag, "pullPolicy": "Never"},
			"trainer": map[string]any{"enabled": g.profile.bundled(),
				"progress": map[string]any{"enabled": g.profile.bundled()}},
			"config": further,
		}})
}

// installRuntimes applies Trainer's runtimes, which pass through the webhooks of whoever is the Trainer.
func (x *plan) installRuntimes(ctx context.Context, trainer string) error {
	runtimes, err := readManifests(filepath.Join(trainer, "manifests/base/runtimes/*_distributed.yaml"))
	if err != nil {
		return err
	}
	return x.applier.apply(ctx, runtimes...)
}

// installTrainer installs Kubeflow Trainer's chart. It names two charts to fetch that are not installed by it here; a
// copy goes without them.
func (g real) installTrainer(ctx context.Context, dir string) error {
	chart := filepath.Join(g.layout.state, "charts", "kubeflow-trainer")
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(dir, "charts", "kubeflow-trainer"))); err != nil {
		return err
	}
	if err := edit(filepath.Join(chart, "Chart.yaml"), func(c map[string]any) error {
		delete(c, "dependencies")
		return nil
	}); err != nil {
		return err
	}
	repository, tag := nameAndTag(trainerImage)
	registry, repository, _ := strings.Cut(repository, "/")
	return g.install(ctx, release{name: "trainer", namespace: "kubeflow-system", chart: chart, values: map[string]any{
		"image":  map[string]any{"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"},
		"jobset": map[string]any{"install": false},
	}})
}

// kueueConfig is the configuration that Kueue's chart has, with TrainJobs left to Signalbox as docs/install.md says.
func kueueConfig(values string) (string, error) {
	content, err := os.ReadFile(values)
	if err != nil {
		return "", err
	}
	var chart struct {
		ManagerConfig struct {
			Text string `json:"controllerManagerConfigYaml"`
		} `json:"managerConfig"`
	}
	if err := yaml.Unmarshal(content, &chart); err != nil {
		return "", err
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(chart.ManagerConfig.Text), &config); err != nil {
		return "", err
	}
	integrations, ok := config["integrations"].(map[string]any)
	if !ok {
		return "", errors.New("Kueue's chart has no integrations in its configuration: another version? mend charts.go")
	}
	frameworks, _ := integrations["frameworks"].([]any)
	integrations["frameworks"] = slices.DeleteFunc(frameworks, func(f any) bool {
		return f == "trainer.kubeflow.org/trainjob"
	})
	integrations["externalFrameworks"] = []string{"TrainJob.v1alpha1.trainer.kubeflow.org"}
	text, err := yaml.Marshal(config)
	return string(text), err
}

// edit changes a YAML file.
func edit(path string, change func(map[string]any) error) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var object map[string]any
	if err := yaml.Unmarshal(content, &object); err != nil {
		return err
	}
	if err := change(object); err != nil {
		return err
	}
	if content, err = yaml.Marshal(object); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, content, 0o644))
}

func nameAndTag(image string) (name, tag string) {
	at := strings.LastIndex(image, ":")
	return image[:at], image[at+1:]
}
