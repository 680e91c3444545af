package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// managers are the pods of Signalbox.
type managers struct {
	client client.Client
	pods   kubernetes.Interface
	names  []string
	// limit is the memory limit of each, port that of its webhooks.
	limit int64
	port  int32
	nodes []string
	at    []string // their addresses
	uids  []string
}

// managerUse is what the managers used during a measurement.
type managerUse struct {
	// WorkingSet is the most memory of one manager by its kubelet's statistics, which are up to ten seconds old, and
	// Resident the peak of one process by its kernel.
	WorkingSet int64 `json:"workingSetBytes"`
	Resident   int64 `json:"residentBytes"`
	// CPU is of all managers, in seconds.
	CPU float64 `json:"cpuSeconds"`
	// Restarts are containers that were started again, and pods that were replaced.
	Restarts int `json:"restarts"`
}

// findManagers returns the managers that run.
func findManagers(ctx context.Context, c client.Client, pods kubernetes.Interface) (*managers, error) {
	m := &managers{client: c, pods: pods}
	all, err := m.list(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		container := p.Spec.Containers[0]
		m.limit = container.Resources.Limits.Memory().Value()
		for _, port := range container.Ports {
			if port.Name == "webhook" {
				m.port = port.ContainerPort
			}
		}
		m.names, m.at = append(m.names, p.Name), append(m.at, p.Status.PodIP)
		m.nodes, m.uids = append(m.nodes, p.Spec.NodeName), append(m.uids, string(p.UID))
	}
	if len(all) == 0 || m.limit == 0 || m.port == 0 {
		return nil, fmt.Errorf("%d managers with a memory limit of %d and port %d: is this profile node?",
			len(all), m.limit, m.port)
	}
	slices.Sort(m.nodes)
	m.nodes = slices.Compact(m.nodes)
	return m, nil
}

func (m *managers) list(ctx context.Context) ([]corev1.Pod, error) {
	var all corev1.PodList
	err := m.client.List(ctx, &all, client.InNamespace(signalboxNamespace), ofSignalbox)
	return all.Items, err
}

// urls returns each path of the webhooks at each manager.
func (m *managers) urls(ctx context.Context) ([]string, error) {
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	if err := errors.Join(m.client.List(ctx, &mutating, ofSignalbox), m.client.List(ctx, &validating, ofSignalbox)); err != nil {
		return nil, err
	}
	var paths []string
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			paths = append(paths, *w.ClientConfig.Service.Path)
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			paths = append(paths, *w.ClientConfig.Service.Path)
		}
	}
	var urls []string
	for _, path := range paths {
		for _, at := range m.at {
			urls = append(urls, "https://"+net.JoinHostPort(at, strconv.Itoa(int(m.port)))+path)
		}
	}
	return urls, nil
}

// watch begins to measure what the managers use, until its result is called.
func (m *managers) watch(ctx context.Context) (func() (managerUse, error), error) {
	var use managerUse
	before, err := m.restarts(ctx)
	if err != nil {
		return nil, err
	}
	began, err := m.processes(func(dir string) error { return os.WriteFile(filepath.Join(dir, "clear_refs"), []byte("5"), 0) })
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	var polls sync.WaitGroup
	var failed error
	polls.Go(func() {
		for ticks := time.NewTicker(time.Second); ctx.Err() == nil; <-ticks.C {
			set, err := m.workingSet(ctx)
			if err != nil && ctx.Err() == nil {
				failed = err
			}
			use.WorkingSet = max(use.WorkingSet, set)
		}
	})
	return func() (managerUse, error) {
		stop()
		polls.Wait()
		after, err := m.restarts(context.WithoutCancel(ctx))
		if err != nil {
			return use, err
		}
		ended, err := m.processes(nil)
		use.Restarts = after - before
		use.CPU, use.Resident = ended.CPU-began.CPU, ended.Peak
		return use, errors.Join(err, failed)
	}, nil
}

// restarts returns how often containers were started again, and counts pods that aren't those of the beginning.
func (m *managers) restarts(ctx context.Context) (n int, err error) {
	all, err := m.list(ctx)
	for _, p := range all {
		if !slices.Contains(m.names, p.Name) {
			n++
		}
		for _, s := range p.Status.ContainerStatuses {
			n += int(s.RestartCount)
		}
	}
	return n, err
}

// workingSet returns the most memory that a manager uses, by the statistics of the kubelets.
func (m *managers) workingSet(ctx context.Context) (most int64, err error) {
	for _, node := range m.nodes {
		data, err := m.pods.CoreV1().RESTClient().Get().
			AbsPath("/api/v1/nodes", node, "proxy/stats/summary").DoRaw(ctx)
		if err != nil {
			return most, fmt.Errorf("statistics of %s: %w", node, err)
		}
		var summary struct {
			Pods []struct {
				PodRef     struct{ Namespace, Name string }
				Containers []struct {
					Memory struct{ WorkingSetBytes int64 }
				}
			}
		}
		if err := json.Unmarshal(data, &summary); err != nil {
			return most, err
		}
		for _, p := range summary.Pods {
			if p.PodRef.Namespace == signalboxNamespace {
				for _, c := range p.Containers {
					most = max(most, c.Memory.WorkingSetBytes)
				}
			}
		}
	}
	return most, nil
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
			"the real nodes, as make bench-hostile runs it", found, len(m.uids))
	}
	return all, nil
}
