//go:build machine

package machine

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const testGroup = "signalbox-machine-test"

// The test's own program is what runs in the machine: it is started again as the machine's first process, as a node's,
// and as what fills them.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	if done, err := Main(args); done {
		exit(err)
	}
	if len(args) == 2 && args[0] == "outside" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		exit(Contain(ctx, testGroup, "inside", args[1]))
	}
	if len(args) == 2 && args[0] == "inside" {
		exit(inhabit(args[1]))
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// inhabit makes what real nodes make: a network, a node with mounts, and processes in a control group. Then it says so
// and stays.
func inhabit(dir string) error {
	if err := Bridge("10.200.0.1/24"); err != nil {
		return err
	}
	n := Node{Name: "node-1", Dir: filepath.Join(dir, "node-1"), Address: "10.200.0.11/24", Gateway: "10.200.0.1",
		DNS: "10.200.0.1"}
	args, attributes, err := NodeArgs(n)
	if err != nil {
		return err
	}
	thread := NewThread()
	node := exec.Command("/proc/self/exe", args...)
	node.SysProcAttr, node.Stderr = attributes, os.Stderr
	if err := thread.Do(node.Start); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(n.Up()); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	there, err := Join(node.Process.Pid)
	if err != nil {
		return err
	}
	sleeper := exec.Command("sleep", "600")
	if err := there.Do(sleeper.Start); err != nil {
		return err
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if err := MakeGroup(testGroup + "/pods"); err != nil {
		return err
	}
	for _, h := range all {
		at := filepath.Join(h.path, testGroup, "pods")
		if h.unified { // where a group that lets controllers through has no processes of its own
			if at = filepath.Join(at, "pod"); os.Mkdir(at, 0o755) != nil {
				return fmt.Errorf("no control group %s", at)
			}
		}
		if err := os.WriteFile(filepath.Join(at, "cgroup.procs"), fmt.Append(nil, sleeper.Process.Pid), 0); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "inhabited"), nil, 0o644); err != nil {
		return err
	}
	return sleeper.Wait()
}

// host is what the host has of mounts, network interfaces, and control groups of the test.
func host(t *testing.T) []string {
	var all []string
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		all = append(all, "mount "+lines.Text())
	}
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, "interface "+e.Name())
	}
	groups, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range groups {
		if _, err := os.Stat(filepath.Join(h.path, testGroup)); err == nil {
			all = append(all, "control group in "+h.path)
		}
	}
	out, err := exec.Command("ps", "-eo", "args").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "sleep 600") || strings.Contains(line, nodeCommand) ||
			strings.Contains(line, initCommand) {
			all = append(all, "process "+line)
		}
	}
	return all
}

func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"told to end": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			before := host(t)
			dir := t.TempDir()
			outside := exec.Command(os.Args[0], "outside", dir)
			outside.Stderr = os.Stderr
			if err := outside.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = outside.Process.Kill() }) // it has ended, unless the test fails
			await(t, "the machine is inhabited", func() bool {
				_, err := os.Stat(filepath.Join(dir, "inhabited"))
				return err == nil
			})
			if during := host(t); !slices.ContainsFunc(during, func(s string) bool {
				return strings.HasPrefix(s, "control group")
			}) {
				t.Error("the machine has no control group while it runs")
			}
			if err := outside.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			_ = outside.Wait() // it was ended by us
			await(t, "the host is as it was", func() bool { return slices.Equal(host(t), before) })
		})
	}
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it takes too long until %s; there is\n%s", what, strings.Join(host(t), "\n"))
		}
	}
}
