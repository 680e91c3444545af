// Package image makes container images of static programs without a container engine: one layer, one file, the same
// bytes of the same program. `make image` makes Signalbox's of it, and the control plane for tests those of the
// programs that run as pods.
package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// User is whom a program runs as: the user and group "nonroot" of distroless images.
const User = "65532:65532"

// Program is one static program as an image.
type Program struct {
	// File is the program to copy.
	File string
	// Path is where it lies in the image, absolute; the image's entrypoint.
	Path string
	// Texts are files that are put into /licenses.
	Texts []string
	// Args are given to it unless whoever runs the image gives others.
	Args []string
	// Architecture is Go's name of it; the operating system is Linux.
	Architecture string
	// User is whom it runs as; User where it is empty.
	User string
	// Labels are those of the OCI image specification: org.opencontainers.image.… .
	Labels map[string]string
	// Created is the time of every file, and of the image.
	Created time.Time
}

// Build makes the image.
func (p Program) Build() (v1.Image, error) {
	layer, err := p.layer()
	if err != nil {
		return nil, fmt.Errorf("layer of %s: %w", p.File, err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{
		Layer:     layer,
		MediaType: types.OCILayer,
		History:   v1.History{Created: v1.Time{Time: p.Created}, CreatedBy: "COPY " + p.Path},
	})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", p.Architecture, v1.Time{Time: p.Created}
	config.Config = v1.Config{
		Entrypoint: []string{p.Path}, Cmd: p.Args, User: p.user(), Labels: p.Labels, WorkingDir: "/",
		Env: []string{"PATH=" + filepath.Dir(p.Path)},
	}
	return mutate.ConfigFile(img, config)
}

func (p Program) user() string {
	if p.User == "" {
		return User
	}
	return p.User
}

func (p Program) layer() (v1.Layer, error) {
	var out bytes.Buffer
	files := tar.NewWriter(&out)
	put := func(from, to string, mode int64) error {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := files.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: to, Mode: mode, Size: int64(len(content)),
			ModTime: p.Created.UTC(), Format: tar.FormatPAX,
		}); err != nil {
			return err
		}
		_, err = files.Write(content)
		return err
	}
	if err := put(p.File, p.Path[1:], 0o755); err != nil {
		return nil, err
	}
	for _, text := range p.Texts {
		if err := put(text, "licenses/"+filepath.Base(text), 0o644); err != nil {
			return nil, err
		}
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(opener(out.Bytes()), tarball.WithCompressedCaching,
		tarball.WithMediaType(types.OCILayer))
}

// Index puts the images of several architectures under one name.
func Index(images []v1.Image, annotations map[string]string) (v1.ImageIndex, error) {
	var adds []mutate.IndexAddendum
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		adds = append(adds, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), adds...)
	return mutate.Annotations(index, annotations).(v1.ImageIndex), nil
}

// WriteArchive writes an image as docker load and ctr images import take it.
func WriteArchive(file, reference string, img v1.Image) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, img)
}

// WriteTree writes an archive of an image whose only layer is a tar of a file system, for docker load. The layer isn't
// compressed: such an image goes no further than this machine.
func WriteTree(file, reference, tree, architecture string) error {
	layer, err := newTree(tree)
	if err != nil {
		return fmt.Errorf("layer of %s: %w", tree, err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	return WriteArchive(file, reference, img)
}

// tree is a layer that is a tar in a file.
type tree struct {
	file   string
	digest v1.Hash
	size   int64
}

func newTree(file string) (*tree, error) {
	content, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	t := &tree{file: file}
	t.digest, t.size, err = v1.SHA256(content)
	return t, err
}

func (t *tree) Digest() (v1.Hash, error)             { return t.digest, nil }
func (t *tree) DiffID() (v1.Hash, error)             { return t.digest, nil }
func (t *tree) Size() (int64, error)                 { return t.size, nil }
func (t *tree) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }
func (t *tree) Compressed() (io.ReadCloser, error)   { return os.Open(t.file) }
func (t *tree) Uncompressed() (io.ReadCloser, error) { return os.Open(t.file) }
