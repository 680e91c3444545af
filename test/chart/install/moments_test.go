package install

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// moments follows a TrainJob by what its user sees: its state and conditions, the events of its Workload, and the
// metrics.
func (s *stand) moments(m *manager) {
	s.Helper()
	s.submit("holds", "forever", 16)
	s.state("holds", "Running")
	s.submit("follows", "1s", 1)
	s.state("follows", "Queued")
	s.condition("follows", "QuotaReserved", "False", "insufficient unused quota")
	s.counts(m, `signalbox_trainjobs{state="Queued"} 1`, `signalbox_trainjobs{state="Running"} 1`, `signalbox_admission_to_start_seconds_count 2`, `signalbox_start_to_pods_ready_seconds_count 2`)
	s.must(s.trainJobs().Delete(s.Context(), "holds", metav1.DeleteOptions{}))
	s.state("follows", "Complete")
	s.condition("follows", "Complete", "True", "")
	s.counts(m, `signalbox_trainjobs{state="Queued"} 0`, `signalbox_trainjobs{state="Complete"} 2`,
		`signalbox_trainjob_starts_total{field="runtimePatches",result="started",way="one-write"} 3`, `signalbox_runtime_pins_total 3`)
	s.condition("follows", "Suspended", "False", "resumed")
	s.eventually("the events of its Workload say that it was admitted", func() (string, bool) {
		events, err := s.clients.EventsV1().Events("team").List(s.Context(),
			metav1.ListOptions{FieldSelector: "regarding.kind=Workload"})
		s.must(err)
		var reasons []string
		for _, e := range events.Items {
			reasons = append(reasons, e.Regarding.Name+": "+e.Reason)
		}
		return strings.Join(reasons, "\n"), slices.ContainsFunc(reasons, func(r string) bool {
			return strings.HasPrefix(r, "trainjob-follows-") && strings.HasSuffix(r, ": Admitted")
		})
	})
}

func (s *stand) condition(name, kind, status, message string) {
	s.Helper()
	s.eventually(fmt.Sprintf("TrainJob %s has condition %s=%s", name, kind, status), func() (string, bool) {
		tj, err := s.trainJobs().Get(s.Context(), name, metav1.GetOptions{})
		s.must(err)
		conditions, _, err := unstructured.NestedSlice(tj.Object, "status", "conditions")
		s.must(err)
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == kind {
				return fmt.Sprint(c), c["status"] == status && strings.Contains(fmt.Sprint(c["message"]), message)
			}
		}
		return fmt.Sprint(conditions), false
	})
}

func (s *stand) counts(m *manager, lines ...string) {
	s.Helper()
	s.eventually("the metrics say so", func() (string, bool) {
		text := s.scrape(m)
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				name, _, _ := strings.Cut(line, "{")
				name, _, _ = strings.Cut(name, " ")
				var has []string
				for _, l := range strings.Split(text, "\n") {
					if strings.HasPrefix(l, name) {
						has = append(has, l)
					}
				}
				return "want " + line + " among\n" + strings.Join(has, "\n"), false
			}
		}
		return "", true
	})
}

// observed holds that the dashboard and the alerts name no metric that a manager doesn't serve.
func (s *stand) observed(m *manager) {
	s.Helper()
	served := s.scrape(m)
	for _, file := range []string{"dashboard.json", "alerts.yaml"} {
		content, err := os.ReadFile(filepath.Join(repository, "charts", "signalbox", "files", file))
		s.must(err)
		names := regexp.MustCompile(`\b(?:signalbox|controller_runtime|workqueue|rest_client|leader_election|process)_[a-z_]+`).FindAllString(string(content), -1)
		if len(names) == 0 {
			s.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			if name == "signalbox_resource_seconds_total" { // only a manager that records usage serves it
				continue
			}
			if !strings.Contains(served, "\n"+name+"{") && !strings.Contains(served, "\n"+name+" ") {
				s.Errorf("%s names metric %s, which is not served", file, name)
			}
		}
	}
}

// unqueued is a suspended TrainJob in no queue.
func unqueued(name, runtime string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"suspend": true, "runtimeRef": map[string]any{"kind": "TrainingRuntime", "name": runtime}},
	}}
}

// forged gives a TrainJob that nobody queues what is the integration's; the narrow rules of the webhooks see it.
func (s *stand) forged() {
	s.Helper()
	tj, err := s.trainJobs().Create(s.Context(), unqueued("forged", "first"), metav1.CreateOptions{})
	s.must(err)
	if suspended, _, _ := unstructured.NestedBool(tj.Object, "spec", "suspend"); !suspended {
		s.Error("a suspended TrainJob was started")
	}
	tj, err = s.trainJobs().Patch(s.Context(), "forged", types.MergePatchType, []byte(`{"metadata":{"annotations":{"signalbox.dev/runtime":"forged","mine":"yes"}}}`), metav1.PatchOptions{})
	s.must(err)
	if has := tj.GetAnnotations(); has["signalbox.dev/runtime"] != "" || has["mine"] != "yes" {
		s.Errorf("got annotations %v, want the pin taken back and no other", has)
	}
	s.must(s.trainJobs().Delete(s.Context(), "forged", metav1.DeleteOptions{}))
}

// reload changes the configuration of a running manager: first to an invalid one, which the manager reports and
// ignores, then to a valid one, with which it restarts in the same process.
func (s *stand) reload(m *manager) {
	s.Helper()
	write := func(content string) {
		s.must(os.WriteFile(m.config+".new", []byte(content), 0o600))
		s.must(os.Rename(m.config+".new", m.config))
	}
	said := func(what string, times int) {
		s.Helper()
		s.eventually("the log says "+what, func() (string, bool) {
			text, err := os.ReadFile(m.log)
			s.must(err)
			return string(text), strings.Count(string(text), what) == times
		})
	}
	write(strings.Replace(m.base, "kind: Configuration", "kind: Configuration\nconcurrency: 0", 1))
	said("concurrency: Invalid value: 0: must be 1 or more", 1)
	s.counts(m, "signalbox_config_valid 0")
	s.train("invalid", "Complete")
	write(strings.Replace(m.base, "manageJobsWithoutQueueName: false", "manageJobsWithoutQueueName: true", 1))
	said("this cluster is not ready for Signalbox", 1)
	m.base = strings.Replace(m.base, "kind: Configuration", "kind: Configuration\nconcurrency: 7", 1)
	write(m.base)
	said(`"worker count":7`, 1)
	s.ready(m)
	s.counts(m, "signalbox_config_valid 1")
	s.train("reloaded", "Complete")
}

// exampleNodes are what the flavors of examples/batch-admin select, and one for the managers.
var exampleNodes = func() string {
	var text strings.Builder
	text.WriteString(`
apiVersion: v1
kind: Node
metadata: {name: system-0}
status: {capacity: {cpu: 16, memory: 64Gi, pods: 100}, allocatable: {cpu: 16, memory: 64Gi, pods: 100}}
`)
	for _, kind := range []string{"a100-80gb", "h100-80gb"} {
		for i := range 8 {
			fmt.Fprintf(&text, `
---
apiVersion: v1
kind: Node
metadata:
  name: %[1]s-%[2]d
  labels: {example.com/gpu: %[1]s, example.com/block: b%[3]d, example.com/rack: r%[4]d, kubernetes.io/hostname: %[1]s-%[2]d}
spec: {taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]}
status: {capacity: {cpu: 128, memory: 1Ti, pods: 100, nvidia.com/gpu: 8}, allocatable: {cpu: 128, memory: 1Ti, pods: 100, nvidia.com/gpu: 8}}
`, kind, i, i/4, i/2)
		}
	}
	return text.String()
}()
