package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The commands that this package starts the program with again; Main takes them.
const (
	initCommand    = "machine-init"
	nodeCommand    = "node-init"
	janitorCommand = "machine-janitor"
)

// inside is set in the environment of what runs in a machine.
const inside = "SIGNALBOX_MACHINE"

// Inside reports whether this process runs in a machine that Contain has made.
func Inside() bool { return os.Getenv(inside) != "" }

// Main runs the command that this package has started the program with; done is false where it is none of them.
func Main(args []string) (done bool, err error) {
	if len(args) < 2 {
		return false, nil
	}
	switch args[0] {
	case initCommand:
		err = initMachine(args[1:])
	case nodeCommand:
		err = initNode(args[1])
	case janitorCommand:
		err = clean(args[1])
	default:
		return false, nil
	}
	return true, err
}

// Contain runs a command of this program in a machine of its own and returns as it ends: with its *exec.ExitError where
// it fails. When it returns, and when this process is killed, nothing of the machine is left: no process, no mount, no
// network, no control group of that name. When ctx is done, the command is told to end by SIGTERM.
func Contain(ctx context.Context, group string, args ...string) error {
	if err := RemoveGroup(group); err != nil {
		return fmt.Errorf("removing what an earlier machine left: %w", err)
	}
	if err := MakeGroup(group); err != nil {
		return err
	}
	sweep, err := startJanitor(group)
	if err != nil {
		return err
	}
	// The machine ends with the thread that starts it, so this one waits for it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", append([]string{initCommand}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("making a machine of namespaces: %w", err), sweep())
	}
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	})
	defer stop()
	return errors.Join(cmd.Wait(), sweep())
}

// startJanitor starts the process that outlives the machine and removes its control group. It waits for the end of a
// pipe that only this process holds, so it works however this process ends. Its name is not this program's, so that who
// kills all of those leaves it.
func startJanitor(group string) (sweep func() error, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd := exec.Command("/proc/self/exe", janitorCommand, group)
	cmd.Stdin, cmd.Stderr, cmd.Dir = read, os.Stderr, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	return func() error { return errors.Join(write.Close(), cmd.Wait()) }, nil
}

func clean(group string) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return RemoveGroup(group)
}

// initMachine is the machine's first process: it makes the machine's mounts and loopback network, runs the command, and
// ends as it does. The kernel then ends everything else in the machine.
func initMachine(args []string) error {
	if err := ownProc(); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mounting /run: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	if err := forward(); err != nil {
		return err
	}
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for s := range asked {
			_ = cmd.Process.Signal(s) // it may have ended by itself
		}
	}()
	os.Exit(reap(cmd.Process.Pid))
	return nil
}

// ownProc keeps mounts from the host, and lets /proc show this machine's processes.
func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts to ourselves: %w", err)
	}
	return mountProc()
}

func mountProc() error {
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// reap collects the processes that lose their parents, until the one of that id ends, and returns its exit code.
func reap(until int) int {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1 // there is no child, so that one has ended long ago
		case pid == until && status.Exited():
			return status.ExitStatus()
		case pid == until:
			return 128 + int(status.Signal())
		}
	}
}

// forward lets the network namespace pass on what is for others.
func forward() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}
