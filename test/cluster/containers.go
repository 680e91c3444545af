package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/signalbox-dev/signalbox/test/cluster/gpus"
)

func (g real) startContainerd(ctx context.Context, w worker) error {
	network := g.layout.config(w.of("network"))
	if err := os.MkdirAll(network, 0o755); err != nil {
		return err
	}
	if err := g.assetAs("pods.conflist", filepath.Join(w.of("network"), "10-pods.conflist"),
		map[string]any{"Pods": w.pods}); err != nil {
		return err
	}
	config := w.of("containerd") + ".toml"
	may, err := mayLowerScores()
	if err != nil {
		return err
	}
	if err := g.assetAs("containerd.toml", config, map[string]any{
		"Root": "/var/lib/containerd", "Sandbox": sandboxImage, "RestrictScore": !may,
		"Plugins": filepath.Join(g.layout.state, "plugins"), "Network": network, "Runc": g.binaries["runc"],
		"Registries": g.layout.config("registries"),
	}); err != nil {
		return err
	}
	path := []string{filepath.Dir(g.binaries["containerd-shim-runc-v2"]), filepath.Dir(g.binaries["runc"]),
		os.Getenv("PATH"), "/usr/sbin", "/sbin"}
	return g.s.add(ctx, component{name: w.of("containerd"), on: w.name, binary: g.binaries["containerd"],
		args: []string{"--config", g.layout.config(config)}, env: []string{"PATH=" + strings.Join(path, ":")},
		ready: func(ctx context.Context) error {
			return g.s.run(ctx, w.name, g.binaries["ctr"], "--address", containerdSocket, "version")
		}})
}

const containerdSocket = "/run/containerd/containerd.sock"

// mayLowerScores reports whether root has CAP_SYS_RESOURCE here.
func mayLowerScores() (bool, error) {
	const capability = 24 // CAP_SYS_RESOURCE
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return false, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if hex, found := strings.CutPrefix(lines.Text(), "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return set&(1<<capability) != 0, err
		}
	}
	return false, nil
}

// importer gives the images that change with this repository to a node.
func (g real) importer(archives []string) func(context.Context, worker) error {
	return func(ctx context.Context, w worker) error {
		for _, a := range archives {
			if err := g.s.run(ctx, w.name, g.binaries["ctr"], importArgs(a)...); err != nil {
				return fmt.Errorf("importing %s on %s: %w", a, w.name, err)
			}
		}
		return nil
	}
}

// damage breaks or repairs a part of a real node: gpus-1 is the device plugin of node-1, which then rejects every pod,
// and images-1 is peerImage in its containerd.
func (x *plan) damage(ctx context.Context, part string, broken bool) error {
	for _, w := range x.profile.workers() {
		switch part {
		case w.of("gpus"):
			// The node's /var/lib is this folder.
			file := filepath.Join(x.layout.node(w.name), strings.TrimPrefix(gpus.Broken, "/var/"))
			if broken {
				return os.WriteFile(file, nil, 0o644)
			}
			return removeIfThere(file)
		case w.of("images"):
			args := importArgs(x.layout.image(peerImage))
			if broken {
				args = []string{"--address", containerdSocket, "--namespace", "k8s.io", "images", "remove", "--sync", peerImage}
			}
			return x.s.run(ctx, w.name, x.binaries["ctr"], args...)
		}
	}
	return fmt.Errorf("no part %q of a real node; there are gpus and images of each, such as gpus-1", part)
}
