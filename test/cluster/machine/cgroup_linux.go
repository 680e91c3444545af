// Package machine makes machines of namespaces: one that a whole control plane with its nodes runs in, and in there one
// for each node. Each has its own processes, mounts and network, so that the kernel removes all of them with the
// machine's first process, however that ends. What the kernel leaves, control groups, a janitor removes.
//
// It needs root and Linux. Nothing of the host's network is touched, and no program but this one is needed.
package machine

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hierarchy is a mounted hierarchy of control groups. Linux has one of version 2, or one for each controller of
// version 1, or both.
type hierarchy struct {
	path    string
	unified bool // version 2
}

func hierarchies() ([]hierarchy, error) {
	file, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []hierarchy
	for lines := bufio.NewScanner(file); lines.Scan(); {
		switch f := strings.Fields(lines.Text()); f[2] {
		case "cgroup":
			all = append(all, hierarchy{path: f[1]})
		case "cgroup2":
			all = append(all, hierarchy{path: f[1], unified: true})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no control groups are mounted here (/sys/fs/cgroup)")
	}
	return all, nil
}

// MakeGroup makes a control group, such as "signalbox-1/node-1", in every hierarchy, ready for a kubelet to make its
// own below it.
func MakeGroup(group string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := h.make(group); err != nil {
			return fmt.Errorf("control group %s: %w", group, err)
		}
	}
	return nil
}

// make makes a group of the hierarchy. Version 1 wants the CPUs of a cpuset copied from above, version 2 the
// controllers let through, down to the group's own children.
func (h hierarchy) make(group string) error {
	at := h.path
	for _, part := range strings.Split(group, "/") {
		above := at
		at = filepath.Join(at, part)
		if h.unified {
			if err := delegate(above); err != nil {
				return err
			}
		}
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := inheritCPUs(above, at); err != nil {
			return err
		}
	}
	if h.unified {
		return delegate(at)
	}
	return nil
}

// delegate lets every controller of a group of version 2 through to those below. Beside hierarchies of version 1, which
// have most of them, it may have none.
func delegate(group string) error {
	available, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return err
	}
	control := filepath.Join(group, "cgroup.subtree_control")
	enabled, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	var some []string
	for _, c := range strings.Fields(string(available)) {
		if !slices.Contains(strings.Fields(string(enabled)), c) {
			some = append(some, "+"+c)
		}
	}
	if len(some) == 0 {
		return nil
	}
	if err := os.WriteFile(control, []byte(strings.Join(some, " ")), 0); err != nil {
		return fmt.Errorf("letting controllers through %s: %w", group, err)
	}
	return nil
}

func inheritCPUs(from, to string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(to, name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(own)) != "" {
			continue // not a cpuset, or it has them
		}
		above, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // version 2's root has none, and those below need none
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(above)) == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(to, name), above, 0); err != nil {
			return err
		}
	}
	return nil
}

// RemoveGroup kills what is left in a control group and removes it from every hierarchy.
func RemoveGroup(group string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var errs []error
		for _, h := range all {
			errs = append(errs, removeTree(filepath.Join(h.path, group)))
		}
		if err := errors.Join(errs...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func removeTree(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(group, e.Name())); err != nil {
				return err
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, line := range strings.Fields(string(content)) {
		if pid, err := strconv.Atoi(line); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself; rmdir tells
		}
	}
	if err := os.Remove(group); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
