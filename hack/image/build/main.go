// Command build makes an image of one of the programs that `make image` has built, one for each architecture: an OCI
// layout, an archive for docker load of each, and, where a registry is named, the same there. The same programs give
// the same digest.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/signalbox-dev/signalbox/hack/image"
)

const source = "https://github.com/signalbox-dev/signalbox"

type options struct {
	dist, version, revision, reference, push string
	// program is the manager's, or the plugin's for the page.
	program string
	date    time.Time
	texts   []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	var o options
	flags.StringVar(&o.dist, "dist", "dist", "folder with PROGRAM-linux-ARCHITECTURE, which the image is written to")
	flags.StringVar(&o.program, "program", "signalbox", "the program, which is the image's entrypoint")
	flags.StringVar(&o.version, "version", "", "version that the image is tagged with")
	flags.StringVar(&o.revision, "revision", "", "commit")
	flags.StringVar(&o.reference, "name", "signalbox-dev/signalbox", "name of the image in the archives")
	flags.StringVar(&o.push, "push", "", "REGISTRY/NAME to push to as well")
	flags.Func("text", "file for /licenses in the image; may be repeated", func(path string) error {
		o.texts = append(o.texts, path)
		return nil
	})
	date := flags.String("date", "", "time of the commit, as 2006-01-02T15:04:05Z")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if o.date, err = time.Parse(time.RFC3339, *date); err != nil {
		return fmt.Errorf("--date %q: %w", *date, err)
	}
	made, err := makeImages(o)
	if err != nil {
		return err
	}
	if err := made.write(o); err != nil {
		return err
	}
	if o.push == "" {
		return nil
	}
	return made.push(ctx, o)
}

// images are what is written and pushed.
type images struct {
	index     v1.ImageIndex
	platforms map[string]v1.Image // by architecture
	materials []v1.Image          // a bill of materials of each
}

func makeImages(o options) (*images, error) {
	programs, err := filepath.Glob(filepath.Join(o.dist, o.program+"-linux-*"))
	if err != nil {
		return nil, err
	}
	labels := o.labels()
	made := &images{platforms: map[string]v1.Image{}}
	var all []v1.Image
	for _, program := range programs {
		if filepath.Ext(program) != "" {
			continue // a bill of materials that make release has left
		}
		architecture := program[strings.LastIndex(program, "-")+1:]
		img, err := image.Program{
			File: program, Path: "/" + o.program, Architecture: architecture, Labels: labels, Created: o.date, Texts: o.texts,
		}.Build()
		if err != nil {
			return nil, err
		}
		bill, err := image.Materials(program, o.version, o.date)
		if err != nil {
			return nil, err
		}
		attached, err := image.Attach(bill, img)
		if err != nil {
			return nil, err
		}
		made.platforms[architecture] = img
		made.materials = append(made.materials, attached)
		all = append(all, img)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no %s-linux-ARCHITECTURE in %s; make image builds them", o.program, o.dist)
	}
	made.index, err = image.Index(all, labels)
	return made, err
}

// labels are those of https://github.com/opencontainers/image-spec/blob/main/annotations.md.
func (o options) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":         path.Base(o.reference),
		prefix + "description":   "Starts Kubeflow TrainJobs on Kueue's quota, exactly once",
		prefix + "version":       o.version,
		prefix + "revision":      o.revision,
		prefix + "created":       o.date.UTC().Format(time.RFC3339),
		prefix + "source":        source,
		prefix + "documentation": source + "/tree/main/docs",
		prefix + "licenses":      "Apache-2.0",
	}
}

func (i *images) write(o options) error {
	folder := filepath.Join(o.dist, strings.Replace(path.Base(o.reference), "signalbox", "image", 1))
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	written, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	if err := written.AppendIndex(i.index, layout.WithAnnotations(
		map[string]string{"org.opencontainers.image.ref.name": o.version})); err != nil {
		return err
	}
	for _, m := range i.materials {
		if err := written.AppendImage(m); err != nil {
			return err
		}
	}
	for architecture, img := range i.platforms {
		file := filepath.Join(o.dist, path.Base(o.reference)+"-image-"+architecture+".tar")
		if err := image.WriteArchive(file, o.reference+":"+o.version, img); err != nil {
			return err
		}
		size, err := compressed(img)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %.1f MB compressed, for docker load\n", file, float64(size)/1e6)
	}
	digest, err := i.index.Digest()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.dist, path.Base(o.reference)+".digest"),
		[]byte(digest.String()+"\n"), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %s:%s@%s\n", folder, o.reference, o.version, digest)
	return nil
}

// compressed is how much of an image is pulled, in bytes.
func compressed(img v1.Image) (int64, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	size := manifest.Config.Size
	for _, l := range manifest.Layers {
		size += l.Size
	}
	return size, nil
}

func (i *images) push(ctx context.Context, o options) error {
	tag, err := name.NewTag(o.push + ":" + o.version)
	if err != nil {
		return fmt.Errorf("PUSH=%s names no place for an image, such as REGISTRY/NAME: %w", o.push, err)
	}
	access := []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithContext(ctx)}
	if err := remote.WriteIndex(tag, i.index, access...); err != nil {
		return fmt.Errorf("pushing %s: %w", tag, err)
	}
	for _, m := range i.materials {
		digest, err := m.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(tag.Digest(digest.String()), m, access...); err != nil {
			return fmt.Errorf("pushing the bill of materials to %s: %w", tag.Repository, err)
		}
	}
	fmt.Printf("pushed %s, with its bills of materials\n", tag)
	return nil
}
