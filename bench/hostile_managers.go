package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// signalboxNamespace is where the managers run.
const signalboxNamespace = "signalbox-system"

// ofSignalbox are the labels of the chart's objects.
var ofSignalbox = client.MatchingLabels{"app.kubernetes.io/name": "signalbox"}

// managers are the pods of Signalbox.
type managers struct {
	client client.Client
	// uids are those of the pods, and urls the paths of the webhooks at each.
	uids, urls []string
	// limit is the memory limit of each.
	limit int64
}

// managerUse is what the managers used during a measurement.
type managerUse struct {
	// Peak is the most resident memory of one process, CPU that of all, in seconds.
	Peak int64   `json:"peakBytes"`
	CPU  float64 `json:"cpuSeconds"`
	// Restarts are containers that were started again, and pods that were replaced.
	Restarts int `json:"restarts"`
}

// findManagers returns the managers that run, which serve webhooks at the paths.
func findManagers(ctx context.Context, c client.Client, paths []string) (*managers, error) {
	m := &managers{client: c}
	all, err := m.list(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		container := p.Spec.Containers[0]
		m.limit = container.Resources.Limits.Memory().Value()
		m.uids = append(m.uids, string(p.UID))
		for _, port := range container.Ports {
			for _, path := range paths {
				if port.Name == "webhook" {
					m.urls = append(m.urls, "https://"+net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))+path)
				}
			}
		}
	}
	if len(m.urls) == 0 || m.limit == 0 {
		return nil, fmt.Errorf("%d managers with a memory limit of %d and %d URLs of webhooks; is this profile node?",
			len(all), m.limit, len(m.urls))
	}
	return m, nil
}

func (m *managers) list(ctx context.Context) ([]corev1.Pod, error) {
	var all corev1.PodList
	err := m.client.List(ctx, &all, client.InNamespace(signalboxNamespace), ofSignalbox)
	return all.Items, err
}

// watch begins to measure what the managers use, until its result is called.
func (m *managers) watch(ctx context.Context) (func() (managerUse, error), error) {
	before, err := m.restarts(ctx)
	if err != nil {
		return nil, err
	}
	// The peak is counted from here on (proc(5), clear_refs).
	began, err := m.processes(func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "clear_refs"), []byte("5"), 0)
	})
	if err != nil {
		return nil, err
	}
	return func() (use managerUse, err error) {
		after, err := m.restarts(ctx)
		if err != nil {
			return use, err
		}
		use.Restarts = after - before
		ended, err := m.processes(nil)
		use.CPU, use.Peak = ended.CPU-began.CPU, ended.Peak
		return use, err
	}, nil
}

// restarts returns how often containers were started again, and counts pods that aren't those of the beginning.
func (m *managers) restarts(ctx context.Context) (n int, err error) {
	all, err := m.list(ctx)
	for _, p := range all {
		if !slices.Contains(m.uids, string(p.UID)) {
			n++
		}
		for _, s := range p.Status.ContainerStatuses {
			n += int(s.RestartCount)
		}
	}
	return n, err
}

// processes returns what the managers' processes have used, with the highest peak among them, after do was called with
// the folder of each below /proc. They are found by their control groups, which name their pods.
func (m *managers) processes(do func(dir string) error) (all usage, err error) {
	found := 0
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return all, err
	}
	for _, dir := range dirs {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		line, err2 := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || err2 != nil || !strings.HasPrefix(string(line), "/signalbox\x00") ||
			!slices.ContainsFunc(m.uids, func(uid string) bool { return strings.Contains(string(groups), uid) }) {
			continue // gone, or another's
		}
		found++
		if do != nil {
			if err := do(dir); err != nil {
				return all, err
			}
		}
		one, err := usageOf(filepath.Base(dir))
		if err != nil {
			return all, err
		}
		all.CPU, all.Peak = all.CPU+one.CPU, max(all.Peak, one.Peak)
	}
	if found != len(m.uids) {
		return all, fmt.Errorf("%d of %d managers' processes are under /proc; the benchmark must run in the machine of "+
			"the real nodes, as make bench WHAT=hostile runs it", found, len(m.uids))
	}
	return all, nil
}
