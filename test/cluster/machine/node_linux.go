package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Node is a machine within the machine. Its first process makes it and is started with NodeArgs.
type Node struct {
	Name string
	// Dir is the node's folder: lib is its /var/lib, log its /var/log. The file "up" in it appears when the node is made.
	Dir string
	// Visible are folders of the host that the node has at the same paths, beside those of the system.
	Visible []string
	// Address is the node's, with the length of the network's prefix.
	Address string
	// DNS is the address that it asks for names.
	DNS string
	// Gateway is the machine's address in that network.
	Gateway string
	// Routes are the addresses of other nodes by the networks of their pods.
	Routes map[string]string
}

// A network namespace is a thread's, and others join the one of a process's first thread, which runs this.
func init() {
	if len(os.Args) > 1 && os.Args[1] == nodeCommand {
		runtime.LockOSThread()
	}
}

// NodeArgs are the arguments that this program makes a node with, and the attributes its process needs.
func NodeArgs(n Node) ([]string, *syscall.SysProcAttr, error) {
	data, err := json.Marshal(n)
	if err != nil {
		return nil, nil, err
	}
	return []string{nodeCommand, string(data)}, &syscall.SysProcAttr{
		Setpgid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}, nil
}

// Up is the file that appears when the node is made. Who starts a node again removes it before.
func (n Node) Up() string { return filepath.Join(n.Dir, "up") }

// initNode is the node's first process. It ends when it is killed, and the kernel then ends everything else there.
func initNode(data string) error {
	var n Node
	if err := json.Unmarshal([]byte(data), &n); err != nil {
		return err
	}
	if err := os.MkdirAll(n.Dir, 0o755); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.Name)); err != nil {
		return err
	}
	if err := ownProc(); err != nil { // by which a thread finds its own network
		return err
	}
	if err := n.connect(); err != nil {
		return fmt.Errorf("network of %s: %w", n.Name, err)
	}
	ready, err := os.OpenFile(n.Dir, os.O_RDONLY, 0) // the path means something else once the node has its own mounts
	if err != nil {
		return err
	}
	defer ready.Close()
	if err := n.mount(); err != nil {
		return fmt.Errorf("mounts of %s: %w", n.Name, err)
	}
	if err := forward(); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, unix.SIGCHLD)
	file, err := unix.Openat(int(ready.Fd()), "up", unix.O_CREAT|unix.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := unix.Close(file); err != nil {
		return err
	}
	for range orphans {
		collect()
	}
	return nil
}

// collect collects all processes that have lost their parents and ended.
func collect() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
	}
}

// mount gives the node a root of its own: the host's folders of programs, devices and control groups, its own /proc,
// /run and /tmp, and what it keeps in /var on the disk.
func (n Node) mount() error {
	root := filepath.Join(n.Dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := n.show(root, e); err != nil {
			return fmt.Errorf("/%s: %w", e.Name(), err)
		}
	}
	for inner, outer := range map[string]string{"/var/lib": "lib", "/var/log": "log"} {
		if err := bind(filepath.Join(n.Dir, outer), filepath.Join(root, inner)); err != nil {
			return err
		}
	}
	if err := os.Symlink("../run", filepath.Join(root, "var/run")); err != nil {
		return err
	}
	for _, path := range n.Visible {
		if err := bind(path, filepath.Join(root, path)); err != nil {
			return err
		}
	}
	if err := n.resolve(root); err != nil {
		return err
	}
	old := filepath.Join(root, "old")
	if err := os.Mkdir(old, 0o755); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := mountProc(); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return err
	}
	// kubelet and containerd show each other what they mount.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// resolve gives the node an /etc/resolv.conf of its own. The host's may be a link to what the node doesn't have.
func (n Node) resolve(root string) error {
	own := filepath.Join(n.Dir, "resolv.conf")
	if err := os.WriteFile(own, []byte("nameserver "+n.DNS+"\n"), 0o644); err != nil {
		return err
	}
	at := "/etc/resolv.conf"
	if target, err := os.Readlink(at); err == nil {
		if at = target; !filepath.IsAbs(target) {
			at = filepath.Join("/etc", target)
		}
	}
	at = filepath.Join(root, at)
	if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, nil, 0o644); err != nil {
			return err
		}
	}
	return unix.Mount(own, at, "", unix.MS_BIND, "")
}

// show puts an entry of the host's root folder into the node's.
func (n Node) show(root string, e fs.DirEntry) error {
	at := filepath.Join(root, e.Name())
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink("/" + e.Name())
		if err != nil {
			return err
		}
		return os.Symlink(target, at)
	case !e.IsDir():
		return nil
	}
	switch e.Name() {
	case "proc", "var", "run", "old":
		return os.Mkdir(at, 0o755)
	case "tmp":
		return errors.Join(os.Mkdir(at, 0o777), os.Chmod(at, 0o1777))
	}
	return bind("/"+e.Name(), at)
}

// bind shows a folder, with what is mounted below it, at another place. Both are made where they are missing.
func bind(from, to string) error {
	for _, path := range []string{from, to} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("showing %s: %w", from, err)
	}
	return nil
}
