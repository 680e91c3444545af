package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// layout says where everything is: the repository, what a control plane leaves, and the build cache.
type layout struct {
	repo  string // the Signalbox repository
	state string // .cluster, or SIGNALBOX_STATE: kubeconfigs, logs, data; recreated by every start
	cache string // built components; survives everything but the user
}

func newLayout(repo string) (layout, error) {
	if _, err := os.Stat(filepath.Join(repo, "test", "cluster", "components")); err != nil {
		return layout{}, fmt.Errorf("%s is not the root of the Signalbox repository: %w; give it by --root", repo, err)
	}
	cache := os.Getenv("SIGNALBOX_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return layout{}, fmt.Errorf("finding a place for the build cache: %w; name one in SIGNALBOX_CACHE", err)
		}
		cache = filepath.Join(user, "signalbox")
	}
	state := os.Getenv("SIGNALBOX_STATE")
	if state == "" {
		state = filepath.Join(repo, ".cluster")
	}
	return layout{repo: repo, state: state, cache: cache}, nil
}

func (l layout) node(name string) string { return filepath.Join(l.state, "nodes", name) }
func (l layout) volumes() string         { return filepath.Join(l.state, "volumes") }

// image is the file of an image of this repository's programs.
func (l layout) image(name string) string {
	return filepath.Join(l.state, "images", strings.NewReplacer("/", "-", ":", "-").Replace(name)+".tar")
}

// group is the control group of the machine that real nodes run in; a name of this repository's folder alone.
func (l layout) group() string {
	return fmt.Sprintf("signalbox-%x", sha256.Sum256([]byte(l.state)))[:22]
}

func (l layout) components() string { return filepath.Join(l.repo, "test", "cluster", "components") }
func (l layout) pid() string        { return filepath.Join(l.state, "cluster.pid") }
func (l layout) ready() string      { return filepath.Join(l.state, "ready") }
func (l layout) socket() string     { return filepath.Join(l.state, "control.sock") }
func (l layout) logs() string       { return filepath.Join(l.state, "log") }
func (l layout) audit() string      { return filepath.Join(l.logs(), "audit.log") }
func (l layout) config(name string) string {
	return filepath.Join(l.state, "config", name)
}
func (l layout) pki(name string) string { return filepath.Join(l.state, "pki", name) }
func (l layout) log(component string) string {
	return filepath.Join(l.logs(), component+".log")
}

// kubeconfig is the file by which a client reaches the API server under its own name; "" is the administrator.
func (l layout) kubeconfig(client string) string {
	if client == "" {
		return filepath.Join(l.state, "kubeconfig")
	}
	return filepath.Join(l.state, client+".kubeconfig")
}

// fresh empties what an earlier control plane left and makes the folders of the next.
func (l layout) fresh() error {
	if err := os.RemoveAll(l.state); err != nil {
		return err
	}
	for _, dir := range []string{l.logs(), l.config(""), l.pki(""), filepath.Join(l.state, "data"), l.volumes()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
