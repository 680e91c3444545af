package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// part is a program that is built from a pinned Go module.
type part struct {
	name string // of the binary
	// module is the folder under components/ whose go.mod pins the program.
	module string
	pkg    string
	// cgo and tags are of what needs a C compiler.
	cgo  bool
	tags string
	// stamp is the version that is linked into a program of Kubernetes: Kueue refuses an API server that doesn't say its
	// own.
	stamp string
	// replace are textual changes to a main package that is one main.go; the build takes the changed copy of it.
	replace []replacement
}

type replacement struct{ from, to string }

// kueueCertificates lets Kueue's metrics certificate lie elsewhere than in /etc, which only root can write.
var kueueCertificates = replacement{
	from: `metricsCertPath := "/etc/kueue/metrics/certs"`,
	to:   `metricsCertPath := os.Getenv("KUEUE_METRICS_CERTS")`,
}

// trainerCertificates lets Trainer v2.0 do without its certificate rotation, which later versions have a switch for,
// and listen on loopback alone. It reads its certificate from where later versions do.
var trainerCertificates = []replacement{
	{from: "cert.ManageCerts(mgr, cert.Config{", to: "given(cert.Config{"},
	{from: "func setupControllers(",
		to: "func given(_ cert.Config, ready chan struct{}) error { close(ready); return nil }\n\nfunc setupControllers("},
	{from: "Port:    webhookServerPort,", to: `Host: "127.0.0.1", Port: webhookServerPort,`},
}

const trainerManager = "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"

var (
	etcd = part{name: "etcd", module: "etcd", pkg: "go.etcd.io/etcd/server/v3"}
	kwok = part{name: "kwok", module: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok"}
	// What pods run is as released.
	kueueReleased  = part{name: "kueue", module: defaultModule, pkg: "sigs.k8s.io/kueue/cmd/kueue"}
	jobsetReleased = part{name: "jobset", module: defaultModule, pkg: "sigs.k8s.io/jobset"}
	trainer        = part{name: "trainer", module: defaultModule, pkg: trainerManager}
	// Earlier Trainers, each with the dependencies that it was released with.
	trainer20  = part{name: "trainer", module: "trainer-2.0", pkg: trainerManager, replace: trainerCertificates}
	trainer21  = part{name: "trainer", module: "trainer-2.1", pkg: trainerManager}
	trainer220 = part{name: "trainer", module: "trainer-2.2.0", pkg: trainerManager}
	trainer221 = part{name: "trainer", module: "trainer-2.2.1", pkg: trainerManager}
)

// What real nodes are made of.
var (
	coredns = part{name: "coredns", module: "coredns", pkg: "github.com/coredns/coredns"}
	runc    = part{name: "runc", module: "runc", pkg: "github.com/opencontainers/runc", cgo: true,
		tags: "seccomp netgo osusergo"}
	containerd = part{name: "containerd", module: "containerd",
		pkg: "github.com/containerd/containerd/v2/cmd/containerd"}
	shim = part{name: "containerd-shim-runc-v2", module: "containerd",
		pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"}
	ctr       = part{name: "ctr", module: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/ctr"}
	bridge    = part{name: "bridge", module: "cni", pkg: "github.com/containernetworking/plugins/plugins/main/bridge"}
	hostLocal = part{name: "host-local", module: "cni",
		pkg: "github.com/containernetworking/plugins/plugins/ipam/host-local"}
	loopbackPlugin = part{name: "loopback", module: "cni",
		pkg: "github.com/containernetworking/plugins/plugins/main/loopback"}
	portmap = part{name: "portmap", module: "cni", pkg: "github.com/containernetworking/plugins/plugins/meta/portmap"}
	// helm is the one that the chart's tests use; its module is beside this one.
	helm = part{name: "helm", module: "../../chart", pkg: "helm.sh/helm/v3/cmd/helm"}
)

// plugins are those that connect pods, found by their names in one folder.
var plugins = []part{bridge, hostLocal, loopbackPlugin, portmap}

// upgraded is the name, among the binaries, of what an upgrade brings.
func upgraded(name string) string { return name + "-upgraded" }

// controlPlane are the programs of Kubernetes' control plane.
var controlPlane = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// kueuePart is Kueue as a process beside the API server.
func (v versions) kueuePart() part {
	k := kueueReleased
	k.module, k.replace = v.kueue.module, []replacement{kueueCertificates}
	return k
}

func (v versions) jobsetPart() part {
	j := jobsetReleased
	j.module = v.jobset.module
	return j
}

func (p profile) parts() []part {
	k := p.versions.kubernetes
	parts := []part{etcd}
	for _, name := range controlPlane {
		parts = append(parts, k.part(name))
		if next := p.versions.next; next != nil {
			parts = append(parts, next.part(name).as(upgraded(name)))
		}
	}
	parts = append(parts, kwok)
	if p.nodes > 0 { // all images are in one store, Trainer's too
		parts = append(parts, kueueReleased, jobsetReleased, trainer, k.part("kubelet"), k.part("kube-proxy"),
			coredns, runc, containerd, shim, ctr, helm)
		return append(parts, plugins...)
	}
	parts = append(parts, p.versions.kueuePart(), p.versions.jobsetPart())
	if p.trainer != nil {
		parts = append(parts, *p.trainer)
	}
	if p.upgrade != nil {
		parts = append(parts, p.upgrade.as(upgraded(p.upgrade.name)))
	}
	return parts
}

// as is the program under another name among the binaries.
func (p part) as(name string) part {
	p.name = name
	return p
}

// buildAll builds what the profile runs and returns the path of every binary by its name. What is in the cache is not
// built again; a part's key covers its pinned modules, its flags and the Go version.
func buildAll(ctx context.Context, l layout, p profile) (map[string]string, error) {
	parts := p.parts()
	total := len(parts)
	asProcess := p.signalbox && p.nodes == 0
	if asProcess {
		total++
	}
	if err := p.require(l); err != nil {
		return nil, err
	}
	binaries := make(map[string]string, total)
	for i, part := range parts {
		path, err := buildPart(ctx, l, part, fmt.Sprintf("[%d/%d]", i+1, total))
		if err != nil {
			return nil, err
		}
		binaries[part.name] = path
	}
	if p.nodes > 0 {
		if err := buildOwn(ctx, l, binaries); err != nil {
			return nil, err
		}
		s, err := newStore(l)
		if err != nil {
			return nil, err
		}
		return binaries, s.fill(ctx, binaries)
	}
	if asProcess {
		out := filepath.Join(l.repo, "bin", "signalbox")
		b := build{label: fmt.Sprintf("[%d/%d] signalbox", total, total), dir: l.repo}
		var args []string
		if coverage() != "" {
			out += "-cover"
			args = []string{"-cover", "-coverpkg", "github.com/signalbox-dev/signalbox/..."}
		}
		b.out = out
		if err := b.run(ctx, append(args, "./cmd/signalbox")...); err != nil {
			return nil, err
		}
		binaries["signalbox"] = out
	}
	return binaries, nil
}

// coverage is the folder for the coverage data of Signalbox, "" where none is asked for.
func coverage() string { return os.Getenv("SIGNALBOX_COVER") }

func buildPart(ctx context.Context, l layout, p part, position string) (string, error) {
	dir := filepath.Join(l.components(), p.module)
	out, err := p.binary(l)
	if err != nil {
		return "", err
	}
	label := position + " " + p.name
	return out, once(label, out, func() error { return p.build(ctx, label, dir, out) })
}

// build leaves the binary under its name only when it is complete: an interrupted build leaves nothing that looks
// built.
func (p part) build(ctx context.Context, label, dir, out string) (err error) {
	source := p.pkg
	if len(p.replace) > 0 {
		if source, err = p.changedMain(ctx, dir, filepath.Dir(out)); err != nil {
			return err
		}
	}
	b := build{label: label, dir: dir, out: out + ".part", cgo: p.cgo}
	if err := b.run(ctx, "-tags", p.tags, "-ldflags", p.ldflags(), source); err != nil {
		return err
	}
	return os.Rename(out+".part", out)
}

// key changes when anything changes that the binary is made of.
func (p part) key(dir string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH, p.pkg, p.ldflags(), p.replace, p.tags, p.cgo)
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// binary is where the program lies in the cache, once it is built.
func (p part) binary(l layout) (string, error) {
	key, err := p.key(filepath.Join(l.components(), p.module))
	if err != nil {
		return "", err
	}
	return filepath.Join(l.cache, "bin", p.name+"-"+key, p.name), nil
}

func (p part) ldflags() string {
	flags := []string{"-s", "-w"}
	if p.stamp != "" {
		major, minor, _ := strings.Cut(strings.TrimPrefix(p.stamp, "v"), ".")
		minor, _, _ = strings.Cut(minor, ".")
		for _, kv := range [][2]string{
			{"gitVersion", p.stamp}, {"gitMajor", major}, {"gitMinor", minor},
			{"gitCommit", strings.Repeat("0", 40)}, {"gitTreeState", "clean"}, {"buildDate", "1970-01-01T00:00:00Z"},
		} {
			flags = append(flags, "-X", "k8s.io/component-base/version."+kv[0]+"="+kv[1])
		}
	}
	return strings.Join(flags, " ")
}

// changedMain writes the changed main.go into dir and returns its path.
func (p part) changedMain(ctx context.Context, moduleDir, dir string) (string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", p.pkg)
	list.Dir = moduleDir
	list.Stderr = os.Stderr
	folder, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", p.pkg, err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(folder)), "main.go"))
	if err != nil {
		return "", err
	}
	for _, r := range p.replace {
		if bytes.Count(source, []byte(r.from)) != 1 {
			return "", fmt.Errorf("%s does not hold %q exactly once: another version? mend the replacement in build.go", p.pkg,
				r.from)
		}
		source = bytes.Replace(source, []byte(r.from), []byte(r.to), 1)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	changed := filepath.Join(dir, "main.go")
	return changed, os.WriteFile(changed, source, 0o644)
}

// build is one call of go build.
type build struct {
	label, dir, out string
	cgo             bool
}

// run builds one package and shows for how long it has been at it.
func (b build) run(ctx context.Context, args ...string) error {
	if err := os.MkdirAll(filepath.Dir(b.out), 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", b.out}, args...)...)
	cmd.Dir = b.dir
	enabled := "0"
	if b.cgo {
		enabled = "1"
	}
	// Flags of the environment stay: what is compiled with others is compiled twice.
	flags := os.Getenv("GOFLAGS") + " -mod=readonly -buildvcs=false"
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+enabled, "GOFLAGS="+flags)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	done := showProgress(os.Stderr, b.label)
	err := cmd.Run()
	done(err)
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", b.label, err, output.String())
	}
	return nil
}

// moduleDir returns the folder of a module in the module cache, as the part's go.mod pins it.
func moduleDir(ctx context.Context, l layout, p part, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = filepath.Join(l.components(), p.module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("finding module %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}
