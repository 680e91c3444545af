package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// manager starts a controller manager with a configuration file made from the asset of its name.
func (x *plan) manager(ctx context.Context, name string, values map[string]any, env ...string) error {
	all, err := x.managerValues(name, values)
	if err != nil {
		return err
	}
	if err := x.asset(name+".yaml", all); err != nil {
		return err
	}
	return x.s.add(ctx, component{
		name: name, binary: x.binaries[name],
		args:  []string{"--config", x.layout.config(name + ".yaml")},
		env:   append([]string{"KUBECONFIG=" + x.layout.kubeconfig(name), "POD_NAMESPACE=" + name + "-system"}, env...),
		ready: answers("http://" + hostPort(x.ports[name]) + "/readyz"),
	})
}

// managerValues are those that a manager's configuration file is made with.
func (x *plan) managerValues(name string, own map[string]any) (map[string]any, error) {
	certs, err := x.ca.serving(x.layout, name)
	if err != nil {
		return nil, err
	}
	all := map[string]any{
		"Health": hostPort(x.ports[name]), "Metrics": hostPort(x.ports[name+"-metrics"]),
		"WebhookPort": x.ports[name+"-webhook"], "CertDir": certs,
	}
	maps.Copy(all, own)
	return all, nil
}

func (x *plan) startKueue(ctx context.Context) error {
	return x.manager(ctx, "kueue", x.kueueValues(), "KUEUE_METRICS_CERTS="+x.layout.pki("kueue"))
}

func (x *plan) kueueValues() map[string]any {
	return map[string]any{
		"Builtin": x.profile.builtin, "Signalbox": x.profile.signalbox, "Pprof": hostPort(x.ports["kueue-pprof"]),
	}
}

// configureKueue makes the ConfigMap that an installed Kueue has its configuration in, where Signalbox reads it.
func (x *plan) configureKueue(ctx context.Context) error {
	values, err := x.managerValues("kueue", x.kueueValues())
	if err != nil {
		return err
	}
	config, err := render("kueue.yaml", values)
	if err != nil {
		return err
	}
	return x.applier.apply(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"namespace": "kueue-system", "name": "kueue-manager-config"},
		"data":     map[string]any{"controller_manager_config.yaml": string(config)},
	}})
}

func (x *plan) startJobSet(ctx context.Context) error { return x.manager(ctx, "jobset", nil) }

func (x *plan) startTrainer(ctx context.Context) error {
	// Trainer reads its certificate at a fixed place under the folder for temporary files.
	tmp := filepath.Join(x.layout.state, "data", "trainer-tmp")
	if err := os.MkdirAll(filepath.Join(tmp, "k8s-webhook-server"), 0o755); err != nil {
		return err
	}
	certs := filepath.Join(tmp, "k8s-webhook-server", "serving-certs")
	if err := os.Symlink(x.layout.pki("trainer"), certs); err != nil && !os.IsExist(err) {
		return err
	}
	if x.profile.trainer.module == trainer20.module { // which has flags and no configuration file
		if _, err := x.ca.serving(x.layout, "trainer"); err != nil {
			return err
		}
		return x.s.add(ctx, component{
			name: "trainer", binary: x.binaries["trainer"],
			args: []string{"--health-probe-bind-address", hostPort(x.ports["trainer"]),
				"--webhook-server-port", strconv.Itoa(x.ports["trainer-webhook"])},
			env:   []string{"KUBECONFIG=" + x.layout.kubeconfig("trainer"), "POD_NAMESPACE=trainer-system", "TMPDIR=" + tmp},
			ready: answers("http://" + hostPort(x.ports["trainer"]) + "/readyz"),
		})
	}
	return x.manager(ctx, "trainer", nil, "TMPDIR="+tmp)
}

// withMemory returns the manager's environment for another memory limit than that of the manifest, "" for no other. The
// chart computes it likewise.
func withMemory(env []string, limit string) ([]string, error) {
	if limit == "" {
		return env, nil
	}
	q, err := resource.ParseQuantity(limit)
	if err != nil {
		return nil, fmt.Errorf("SIGNALBOX_MEMORY is %q: %w; write a memory limit such as 1Gi", limit, err)
	}
	return append(env, fmt.Sprintf("GOMEMLIMIT=%d", q.Value()*8/10)), nil // the last one counts
}

func (x *plan) startSignalbox(ctx context.Context) error {
	env, err := installedEnv(x.signalboxManifest())
	if err != nil {
		return err
	}
	if env, err = withMemory(env, os.Getenv("SIGNALBOX_MEMORY")); err != nil {
		return err
	}
	values := map[string]any{"Bundled": x.profile.bundled(), "Pprof": hostPort(x.ports["signalbox-pprof"])}
	return x.manager(ctx, "signalbox", values, append(env, "GOCOVERDIR="+coverage())...)
}
