package main

import (
	"context"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// modules are the folders of the module cache that manifests are read from.
type modules struct{ kueue, jobset, trainer string }

func (x *plan) modules(ctx context.Context) (m modules, err error) {
	if m.kueue, err = moduleDir(ctx, x.layout, kueue, "sigs.k8s.io/kueue"); err != nil {
		return m, err
	}
	if m.jobset, err = moduleDir(ctx, x.layout, jobset, "sigs.k8s.io/jobset"); err != nil {
		return m, err
	}
	m.trainer, err = moduleDir(ctx, x.layout, trainer, "github.com/kubeflow/trainer/v2")
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
	if x.profile.trainer {
		patterns = append(patterns, filepath.Join(dirs.trainer, "manifests/base/crds/trainer*.yaml"))
	}
	for _, pattern := range patterns {
		read, err := readManifests(pattern)
		if err != nil {
			return err
		}
		crds = append(crds, ofKind(read, "CustomResourceDefinition")...)
	}
	for _, crd := range crds {
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil {
			return err
		}
		if len(versions) > 1 { // only Kueue's
			if err := convertOnLoopback(crd, x.ports["kueue-webhook"], x.ca.pem); err != nil {
				return err
			}
		}
	}
	base, err := readAsset("base.yaml")
	if err != nil {
		return err
	}
	if err := x.applier.apply(ctx, base...); err != nil {
		return err
	}
	if x.profile.signalbox {
		if err := x.grantSignalbox(ctx); err != nil {
			return err
		}
	}
	return x.applier.establish(ctx, crds...)
}

// grantSignalbox gives the client "signalbox" the role that Signalbox ships, and no more.
func (x *plan) grantSignalbox(ctx context.Context) error {
	roles, err := readManifests(filepath.Join(x.layout.repo, "config/rbac/role.yaml"))
	if err != nil {
		return err
	}
	binding, err := readAsset("signalbox-binding.yaml")
	if err != nil {
		return err
	}
	return x.applier.apply(ctx, append(roles, binding...)...)
}

// installLate makes what needs the managers: their webhooks, and Trainer's runtimes, which pass through them.
func (x *plan) installLate(ctx context.Context) error {
	dirs, err := x.modules(ctx)
	if err != nil {
		return err
	}
	webhooks := map[string]string{
		"kueue":  filepath.Join(dirs.kueue, "config/components/webhook/manifests.yaml"),
		"jobset": filepath.Join(dirs.jobset, "config/components/webhook/manifests.yaml"),
	}
	var runtimes []*unstructured.Unstructured
	if x.profile.trainer {
		webhooks["trainer"] = filepath.Join(dirs.trainer, "manifests/base/webhook/manifests.yaml")
		if runtimes, err = readManifests(filepath.Join(dirs.trainer, "manifests/base/runtimes/*_distributed.yaml")); err != nil {
			return err
		}
	}
	if x.profile.signalbox {
		webhooks["signalbox"] = filepath.Join(x.layout.repo, "config/webhook/manifests.yaml")
	}
	for name, file := range webhooks {
		objects, err := readManifests(file)
		if err != nil {
			return err
		}
		configurations := ofKind(objects, "WebhookConfiguration")
		if err := toLoopback(configurations, name, x.ports[name+"-webhook"], x.ca.pem); err != nil {
			return err
		}
		if err := x.applier.apply(ctx, configurations...); err != nil {
			return err
		}
	}
	return x.applier.apply(ctx, runtimes...)
}
