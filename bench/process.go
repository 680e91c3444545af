package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

// usage is what a component has used: seconds of CPU, and bytes of memory at its peak.
type usage struct {
	CPU  float64 `json:"cpuSeconds"`
	Peak int64   `json:"peakBytes"`
}

// ticks is what Linux counts CPU time in, per second, on every architecture that Go runs on.
const ticks = 100

// usages reads, from /proc, what each component of the control plane has used since it was started.
func usages(cluster string) (map[string]usage, error) {
	all := map[string]usage{}
	return all, processes(cluster, func(name, pid string, _ []string) error {
		u, err := usageOf(pid)
		all[name] = u
		return err
	})
}

// usageOf reads what a process has used since it was started.
func usageOf(pid string) (u usage, err error) {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return u, err
	}
	status, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	if err != nil {
		return u, err
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after) // from the third field of proc(5) on
	if len(fields) < 13 {
		return u, fmt.Errorf("/proc/%s/stat: %q", pid, stat)
	}
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return u, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	if err != nil {
		return u, err
	}
	u.CPU = (user + system) / ticks
	if m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status); m != nil {
		kib, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			return u, err
		}
		u.Peak = kib << 10
	}
	return u, nil
}

var suffix = regexp.MustCompile(`-(cover|upgraded|[0-9a-f]{12})$`)

// processes finds the processes of the control plane.
func processes(cluster string, visit func(name, pid string, args []string) error) error {
	dir, err := filepath.Abs(cluster)
	if err != nil {
		return err
	}
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	found := false
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(content, []byte(dir+"/")) {
			continue // gone, or another's
		}
		args := strings.Split(strings.TrimRight(string(content), "\x00"), "\x00")
		name := suffix.ReplaceAllString(filepath.Base(args[0]), "") // what is built is named by what it is built of
		if name == "bench" || name == "cluster" {
			continue
		}
		found = true
		if err := visit(name, filepath.Base(filepath.Dir(path)), args); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("no process of the control plane under %s; this needs Linux", dir)
	}
	return nil
}

// stored is what etcd keeps.
type stored struct {
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// storedIn asks etcd for all that it keeps of a namespace.
func storedIn(cluster, namespace string) (s stored, err error) {
	endpoint := ""
	err = processes(cluster, func(name, _ string, args []string) error {
		for i, arg := range args {
			if arg == "--listen-client-urls" {
				endpoint = args[i+1]
			}
		}
		return nil
	})
	if err != nil || endpoint == "" {
		return s, fmt.Errorf("looking for etcd: %w", err)
	}
	encode := func(key string) string { return base64.StdEncoding.EncodeToString([]byte(key)) }
	body, err := json.Marshal(map[string]any{"key": encode("/registry/"), "range_end": encode("/registry0")})
	if err != nil {
		return s, err
	}
	response, err := http.Post(endpoint+"/v3/kv/range", "application/json", bytes.NewReader(body))
	if err != nil {
		return s, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return s, err
	}
	var answer struct {
		Kvs []struct{ Key, Value []byte }
	}
	if err := json.Unmarshal(content, &answer); err != nil {
		return s, fmt.Errorf("etcd: %w", err)
	}
	for _, kv := range answer.Kvs {
		if bytes.Contains(kv.Key, []byte("/"+namespace+"/")) && !bytes.HasPrefix(kv.Key, []byte("/registry/events/")) {
			s.Objects++
			s.Bytes += int64(len(kv.Key) + len(kv.Value))
		}
	}
	return s, nil
}

// act stops or starts a component of the control plane, and returns when that is done.
func act(cluster, action, component string) error {
	socket := filepath.Join(cluster, "control.sock")
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	response, err := c.Post("http://cluster/"+action+"/"+component, "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, err := io.ReadAll(response.Body)
		return errors.Join(fmt.Errorf("%s %s: %s", action, component, bytes.TrimSpace(message)), err)
	}
	return nil
}

// managerMetrics is where Signalbox serves its metrics.
type managerMetrics string

// metricsOf reads the address in the manager's configuration.
func metricsOf(cluster string) (managerMetrics, error) {
	path := filepath.Join(cluster, "config", "signalbox.yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var config struct{ Metrics struct{ BindAddress string } }
	if err := yaml.Unmarshal(content, &config); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return managerMetrics("http://" + config.Metrics.BindAddress + "/metrics"), nil
}

// families reads the manager's metrics.
func (m managerMetrics) families(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, string(m), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("the manager's metrics: %w", err)
	}
	return families, nil
}

// queue returns how often the manager has looked at a TrainJob since it was started, and how many are left to be
// looked at.
func (m managerMetrics) queue(ctx context.Context) (reconciled, left int, err error) {
	families, err := m.families(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, metric := range families["controller_runtime_reconcile_total"].GetMetric() {
		reconciled += int(metric.GetCounter().GetValue())
	}
	for _, metric := range families["workqueue_depth"].GetMetric() {
		left += int(metric.GetGauge().GetValue())
	}
	return reconciled, left, nil
}
