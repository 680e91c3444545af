package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const trainerModule = "github.com/kubeflow/trainer/v2"

// modules are the folders of the module cache that manifests are read from.
type modules struct{ kueue, jobset, trainer string }

func (x *plan) modules(ctx context.Context) (m modules, err error) {
	if m.kueue, err = moduleDir(ctx, x.layout, x.profile.versions.kueuePart(), "sigs.k8s.io/kueue"); err != nil {
		return m, err
	}
	if m.jobset, err = moduleDir(ctx, x.layout, x.profile.versions.jobsetPart(), "sigs.k8s.io/jobset"); err != nil {
		return m, err
	}
	installed := trainer // its runtimes are there without it too
	if x.profile.trainer != nil {
		installed = *x.profile.trainer
	}
	m.trainer, err = moduleDir(ctx, x.layout, installed, trainerModule)
	return m, err
}

// installEarly makes everything that the managers need to find when they start.
func (x *plan) installEarly(ctx context.Context) error {
	dirs, err := x.modules(ctx)
	if err != nil {
		return err
	}
	var crds []*unstructured.Unstructured
	patterns := []string{
		filepath.Join(dirs.kueue, "config/components/crd/bases/*.yaml"),
		filepath.Join(dirs.jobset, "config/components/crd/bases/*.yaml"),
	}
	if x.profile.trainer != nil {
		patterns = append(patterns, filepath.Join(dirs.trainer, "manifests/base/crds/trainer*.yaml"))
	}
	if x.profile.bundled() {
		patterns = append(patterns, filepath.Join(x.layout.repo, "config/crd/*.dev_*.yaml"),
			filepath.Join(x.layout.repo, "config/crd/trainer*.yaml"))
	}
	for _, pattern := range patterns {
		read, err := readManifests(pattern)
		if err != nil {
			return err
		}
		crds = append(crds, ofKind(read, "CustomResourceDefinition")...)
	}
	convert, err := conversions(filepath.Join(dirs.kueue, "config/components/crd"))
	if err != nil {
		return err
	}
	for _, crd := range crds {
		path, converts := convert[crd.GetName()]
		if !converts {
			continue
		}
		if err := convertOnLoopback(crd, path, x.ports["kueue-webhook"], x.ca.pem); err != nil {
			return err
		}
	}
	base, err := readAsset("base.yaml")
	if err != nil {
		return err
	}
	if err := x.applier.apply(ctx, base...); err != nil {
		return err
	}
	if err := x.configureKueue(ctx); err != nil {
		return err
	}
	if x.profile.signalbox {
		if err := x.grantSignalbox(ctx); err != nil {
			return err
		}
	}
	return x.applier.establish(ctx, crds...)
}

// grantSignalbox gives the client "signalbox" the roles that Signalbox ships for what it does here, and no more.
func (x *plan) grantSignalbox(ctx context.Context) error {
	grants := map[string]string{"config/rbac/role.yaml": "signalbox-binding.yaml"}
	if x.profile.bundled() {
		grants["config/rbac/trainer/role.yaml"] = "signalbox-trainer-binding.yaml"
	}
	for role, binding := range grants {
		objects, err := readManifests(filepath.Join(x.layout.repo, role))
		if err != nil {
			return err
		}
		bindings, err := readAsset(binding)
		if err != nil {
			return err
		}
		if err := x.applier.apply(ctx, append(objects, bindings...)...); err != nil {
			return err
		}
	}
	return nil
}

// webhooks are configurations of webhooks, and the component that serves them.
type webhooks struct{ component, file string }

// installLate makes what needs the managers: their webhooks, and Trainer's runtimes, which pass through them.
func (x *plan) installLate(ctx context.Context) error {
	dirs, err := x.modules(ctx)
	if err != nil {
		return err
	}
	all := map[string]webhooks{
		"kueue":  {"kueue", filepath.Join(dirs.kueue, "config/components/webhook/manifests.yaml")},
		"jobset": {"jobset", filepath.Join(dirs.jobset, "config/components/webhook/manifests.yaml")},
	}
	if x.profile.trainer != nil {
		all["trainer"] = webhooks{"trainer", filepath.Join(dirs.trainer, "manifests/base/webhook/manifests.yaml")}
	}
	for name, w := range all {
		if err := x.installWebhooks(ctx, name, w); err != nil {
			return err
		}
	}
	if x.profile.signalbox {
		if err := x.installSignalboxWebhooks(ctx); err != nil {
			return err
		}
	}
	if x.profile.trainer == nil && !x.profile.bundled() {
		return nil // there are no runtimes of anybody
	}
	runtimes, err := readManifests(filepath.Join(dirs.trainer, "manifests/base/runtimes/*_distributed.yaml"))
	if err != nil {
		return err
	}
	return x.applier.apply(ctx, runtimes...)
}

func (x *plan) installWebhooks(ctx context.Context, name string, w webhooks) error {
	objects, err := readManifests(w.file)
	if err != nil {
		return err
	}
	configurations := ofKind(objects, "WebhookConfiguration")
	if err := toLoopback(configurations, name, x.ports[w.component+"-webhook"], x.ca.pem); err != nil {
		return err
	}
	return x.applier.apply(ctx, configurations...)
}

// installedAs is whom the plain manifests, which are made of the chart, run the manager as.
const installedAs = "system:serviceaccount:signalbox-system:signalbox"

// signalboxManifest is the plain manifest of what the profile runs of Signalbox.
func (x *plan) signalboxManifest() string {
	kind := "integration"
	if x.profile.bundled() {
		kind = "default"
	}
	return filepath.Join(x.layout.repo, "config", kind, "signalbox.yaml")
}

// installedEnv is the environment of the manager of a manifest.
func installedEnv(manifest string) ([]string, error) {
	objects, err := readManifests(manifest)
	if err != nil {
		return nil, err
	}
	var env []string
	for _, o := range ofKind(objects, "Deployment") {
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return nil, err
		}
		for _, c := range containers {
			vars, _, err := unstructured.NestedSlice(c.(map[string]any), "env")
			if err != nil {
				return nil, err
			}
			for _, v := range vars {
				if name, value := v.(map[string]any)["name"], v.(map[string]any)["value"]; value != nil {
					env = append(env, fmt.Sprintf("%s=%s", name, value))
				}
			}
		}
	}
	return env, nil
}

// installSignalboxWebhooks makes Signalbox's own as they are installed, with all that they are called for and not.
func (x *plan) installSignalboxWebhooks(ctx context.Context) error {
	objects, err := readManifests(x.signalboxManifest())
	if err != nil {
		return err
	}
	for _, o := range ofKind(objects, "WebhookConfiguration") {
		if err := runAs(o, "signalbox"); err != nil {
			return err
		}
		if err := toLoopback([]*unstructured.Unstructured{o}, strings.TrimSuffix(o.GetName(), "-integration"),
			x.ports["signalbox-webhook"], x.ca.pem); err != nil {
			return err
		}
		if err := x.applier.apply(ctx, o); err != nil {
			return err
		}
	}
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		for _, o := range ofKind(objects, kind) {
			if err := runAs(o, "signalbox"); err != nil {
				return err
			}
			if err := x.applier.apply(ctx, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// upgradeTrainer puts the profile's next Trainer in the place of the one that runs, as its administrator would:
// its CRDs, its manager, its webhooks.
func (x *plan) upgradeTrainer(ctx context.Context) error {
	if x.profile.upgrade == nil {
		return fmt.Errorf("profile %s has no Trainer to upgrade to", x.profile.name)
	}
	dir, err := moduleDir(ctx, x.layout, *x.profile.upgrade, trainerModule)
	if err != nil {
		return err
	}
	crds, err := readManifests(filepath.Join(dir, "manifests/base/crds/trainer*.yaml"))
	if err != nil {
		return err
	}
	if err := x.s.stop("trainer", syscall.SIGTERM); err != nil {
		return err
	}
	if err := x.applier.establish(ctx, ofKind(crds, "CustomResourceDefinition")...); err != nil {
		return err
	}
	x.binaries["trainer"], x.profile.trainer = x.binaries[upgraded("trainer")], x.profile.upgrade
	if err := x.startTrainer(ctx); err != nil {
		return err
	}
	return x.installWebhooks(ctx, "trainer",
		webhooks{"trainer", filepath.Join(dir, "manifests/base/webhook/manifests.yaml")})
}
