package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/signalbox-dev/signalbox/hack/image"
	"github.com/signalbox-dev/signalbox/test/cluster/machine"
)

// Names of the images on real nodes. No registry serves them: they lie in every node's containerd.
const (
	sandboxImage  = "signalbox.test/pause:1"
	kueueImage    = "signalbox.test/kueue:1"
	jobsetImage   = "signalbox.test/jobset:1"
	trainerImage  = "signalbox.test/trainer:1"
	peerImage     = "signalbox.test/peer:1"
	trainingImage = "signalbox.test/training:1"
)

// The training image: Debian with PyTorch, and what MPI needs.
const (
	trainingSuite    = "bookworm"
	trainingPackages = "python3-torch,python3-numpy,openmpi-bin,openssh-server,openssh-client"
)

// trainingUser is whom MPI's pods run as, with an SSH server that needs no root, as in Trainer's images for MPI.
const trainingUser = `chroot "$1" useradd --uid 1000 --create-home mpiuser &&
printf 'Port 2222\nPidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nUsePAM no\n` +
	`AuthorizedKeysFile /home/mpiuser/.ssh/authorized_keys\n' > "$1/home/mpiuser/.sshd_config" &&
printf 'Host *\n  Port 2222\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n' ` +
	`> "$1/etc/ssh/ssh_config" && mkdir -p "$1/run/sshd" && rm -f "$1"/etc/ssh/ssh_host_*`

// trainingArgs make the training image's files; what no program reads is left out.
var trainingArgs = []string{
	"--variant=minbase", "--include=" + trainingPackages,
	"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
	"--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/lib/*.a",
	"--customize-hook=" + trainingUser, trainingSuite,
}

// store is the folder of a containerd that has the images which change seldom. Each node starts with a copy of it, made
// of links.
type store struct {
	layout layout
	path   string
	// programs are those of images of one program, by the image's name.
	programs map[string]part
}

func newStore(l layout) (store, error) {
	s := store{layout: l, programs: map[string]part{
		kueueImage: kueueReleased, jobsetImage: jobsetReleased, trainerImage: trainer}}
	h := sha256.New()
	fmt.Fprintln(h, trainingArgs, runtime.GOARCH)
	for _, name := range []string{kueueImage, jobsetImage, trainerImage} {
		binary, err := s.programs[name].binary(l)
		if err != nil {
			return s, err
		}
		fmt.Fprintln(h, name, filepath.Base(filepath.Dir(binary)))
	}
	runner, err := containerd.binary(l)
	if err != nil {
		return s, err
	}
	fmt.Fprintln(h, filepath.Base(filepath.Dir(runner)))
	s.path = filepath.Join(l.cache, "images-"+hex.EncodeToString(h.Sum(nil))[:12])
	return s, nil
}

func (s store) filled() bool {
	_, err := os.Stat(s.path)
	return err == nil
}

// fill makes the store, unless there is one.
func (s store) fill(ctx context.Context, binaries map[string]string) error {
	const label = "images, PyTorch among them"
	return once(label, s.path, func() error { return s.make(ctx, label, binaries) })
}

// make makes the store in a machine of its own, because it mounts what it unpacks.
func (s store) make(ctx context.Context, label string, binaries map[string]string) (err error) {
	work := s.path + ".work"
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	done := showProgress(os.Stderr, label)
	defer func() { done(err) }()
	archives, err := s.archives(ctx, work)
	if err != nil {
		return err
	}
	order := filling{Root: filepath.Join(work, "root"), Archives: archives, Binaries: binaries,
		Config: filepath.Join(work, "containerd.toml"), Log: filepath.Join(work, "log")}
	if err := os.MkdirAll(order.Root, 0o711); err != nil {
		return err
	}
	data, err := json.Marshal(order)
	if err != nil {
		return err
	}
	if err := machine.Contain(ctx, s.layout.group()+"-fill", "fill", string(data)); err != nil {
		return fmt.Errorf("filling the store of images: %w\n%s", err, lastLines(order.Log, 15))
	}
	return os.Rename(order.Root, s.path)
}

// archives makes every image of the store as a file.
func (s store) archives(ctx context.Context, work string) ([]string, error) {
	var files []string
	for name, part := range s.programs {
		binary, err := part.binary(s.layout)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(work, part.name+".tar")
		if err := archive(file, name, image.Program{File: binary, Path: "/manager"}); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	tree := filepath.Join(work, "training.layer.tar")
	bootstrap := exec.CommandContext(ctx, "mmdebstrap", append(slices.Clone(trainingArgs), tree)...)
	bootstrap.Env = append(os.Environ(), "TMPDIR="+work)
	if out, err := bootstrap.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mmdebstrap, which makes the training image of Debian's packages: %w\n%s", err, out)
	}
	training := filepath.Join(work, "training.tar")
	if err := image.WriteTree(training, trainingImage, tree, runtime.GOARCH); err != nil {
		return nil, err
	}
	return append(files, training), os.Remove(tree)
}

// archive makes the image of one program as a file.
func archive(file, name string, program image.Program) error {
	program.Architecture, program.Created = runtime.GOARCH, time.Unix(0, 0)
	img, err := program.Build()
	if err != nil {
		return err
	}
	return image.WriteArchive(file, name, img)
}

// filling is what the command "fill" does: it starts a containerd with that root and imports the archives into it.
type filling struct {
	Root, Config, Log string
	Archives          []string
	Binaries          map[string]string
}

func fill(ctx context.Context, data string) error {
	var order filling
	if err := json.Unmarshal([]byte(data), &order); err != nil {
		return err
	}
	config, err := render("containerd.toml", map[string]any{
		"Root": order.Root, "Sandbox": sandboxImage, "RestrictScore": true, "Plugins": "/", "Network": "/", "Registries": "/",
		"Runc": order.Binaries["runc"],
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(order.Config, config, 0o644); err != nil {
		return err
	}
	log, err := os.Create(order.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	daemon := exec.Command(order.Binaries["containerd"], "--config", order.Config)
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		return err
	}
	for _, a := range order.Archives {
		if err := awaitImport(ctx, order.Binaries["ctr"], a, log); err != nil {
			return err
		}
	}
	// What was unpacked is all that a node needs. Without this, a collection of garbage some time later removes the rest.
	prune := exec.CommandContext(ctx, order.Binaries["ctr"], "--address", containerdSocket, "--namespace", "k8s.io",
		"content", "prune", "references")
	if out, err := prune.CombinedOutput(); err != nil {
		return fmt.Errorf("removing the layers of unpacked images: %w\n%s", err, out)
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return daemon.Wait()
}

// awaitImport imports an archive as soon as containerd answers.
func awaitImport(ctx context.Context, ctr, archive string, log *os.File) error {
	var out []byte
	var err error
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if out, err = exec.CommandContext(ctx, ctr, importArgs(archive)...).CombinedOutput(); err == nil {
			return nil
		}
		fmt.Fprintf(log, "%s", out)
		if ctx.Err() != nil || time.Now().After(deadline) || !strings.Contains(string(out), "containerd.sock") {
			return fmt.Errorf("importing %s: %w\n%s", archive, err, out)
		}
	}
}

// importArgs are those by which ctr unpacks an image, and keeps nothing of it but that.
func importArgs(archive string) []string {
	return []string{"--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "--local",
		"--discard-unpacked-layers", archive}
}

// copyTo gives a node its own store. Files of images are never written, so links will do; databases are copied.
func (s store) copyTo(ctx context.Context, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-al", s.path, to).CombinedOutput(); err != nil {
		// Across file systems there are no links.
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if again, err := exec.CommandContext(ctx, "cp", "-a", s.path, to).CombinedOutput(); err != nil {
			return fmt.Errorf("copying the store of images: %w\n%s%s", err, out, again)
		}
		return nil
	}
	return filepath.WalkDir(to, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "snapshots" || e.Name() == "blobs"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".db":
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return errors.Join(os.Remove(path), os.WriteFile(path, content, 0o600))
	})
}
