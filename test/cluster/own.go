package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/signalbox-dev/signalbox/hack/image"
)

// signalboxImages are the manager's: one to install, one of the same program to upgrade to.
var signalboxImages = []string{"signalbox.test/signalbox:1", "signalbox.test/signalbox:2"}

// ownProgram is a program of this repository that real nodes run as an image.
type ownProgram struct {
	name string // of the binary
	dir  string // of its module, below the repository
	pkg  string
	path string // in the image
	// images are the names under which it is there.
	images []string
}

var ownPrograms = []ownProgram{
	{name: "pause", dir: "test/cluster", pkg: "./pause", path: "/pause", images: []string{sandboxImage}},
	{name: "peer", dir: ".", pkg: "./test/node/peer", path: "/peer", images: []string{peerImage}},
	{name: "signalbox-image", dir: ".", pkg: "./cmd/signalbox", path: "/signalbox", images: signalboxImages},
	{name: "dashboard-image", dir: ".", pkg: "./cmd/kubectl-signalbox", path: "/kubectl-signalbox",
		images: []string{"signalbox.test/dashboard:1"}},
}

// buildOwn builds this repository's programs for real nodes, stripped as make image does.
func buildOwn(ctx context.Context, l layout, binaries map[string]string) error {
	for _, p := range ownPrograms {
		b := build{label: p.name, dir: filepath.Join(l.repo, p.dir), out: filepath.Join(l.repo, "bin", p.name)}
		if err := b.run(ctx, "-trimpath", "-ldflags", "-s -w", p.pkg); err != nil {
			return err
		}
		binaries[p.name] = b.out
	}
	return nil
}

// ownImages makes the images of this repository's programs as files.
func (x *plan) ownImages() ([]string, error) {
	if err := os.MkdirAll(filepath.Dir(x.layout.image("")), 0o755); err != nil {
		return nil, err
	}
	var files []string
	for _, p := range ownPrograms {
		for _, name := range p.images {
			file := x.layout.image(name)
			if err := archive(file, name, image.Program{File: x.binaries[p.name], Path: p.path,
				Labels: map[string]string{"org.opencontainers.image.title": name}}); err != nil {
				return nil, err
			}
			files = append(files, file)
		}
	}
	return files, nil
}
