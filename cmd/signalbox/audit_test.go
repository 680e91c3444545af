package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
)

// TestAudit holds that the audit ends with an error where it finds something, and without one where it doesn't.
func TestAudit(t *testing.T) {
	const trainJob = `{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"ns","name":"job",
		"uid":"tj","labels":{"kueue.x-k8s.io/queue-name":"q"}}}`
	const jobSet = `{"apiVersion":"jobset.x-k8s.io/v1alpha2","kind":"JobSet","metadata":{"namespace":"ns","name":"job","uid":"js",
		"ownerReferences":[{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","name":"job","uid":"tj",
		"controller":true}]}}`
	const job = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"namespace":"ns","name":"job-node-0","uid":"j",
		"labels":{"jobset.sigs.k8s.io/jobset-name":"job"},"ownerReferences":[{"apiVersion":"jobset.x-k8s.io/v1alpha2",
		"kind":"JobSet","name":"job","uid":"js","controller":true}]}}`
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"pod","uid":"p",
		"labels":{"jobset.sigs.k8s.io/jobset-name":"job"},"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job",
		"name":"job-node-0","uid":"j","controller":true}]},"spec":{"nodeName":"n","containers":[{"name":"c"}]},
		"status":{"phase":"Running"}}`
	var errs bytes.Buffer
	run := func(t *testing.T) (string, error) {
		var out bytes.Buffer
		errs.Reset()
		cmd := command()
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		cmd.SetArgs([]string{"audit", "--for", "0s", "--idle", "0s"})
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	t.Run("nothing", func(t *testing.T) {
		newServer(t)
		if out, err := run(t); err != nil || out != "nothing found\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("what is never confirmed", func(t *testing.T) {
		s := newServer(t)
		s.stale = true
		s.lists["/apis/trainer.kubeflow.org/v1alpha1/trainjobs"] = []string{trainJob}
		s.lists["/apis/jobset.x-k8s.io/v1alpha2/jobsets"] = []string{jobSet}
		s.lists["/apis/batch/v1/jobs"] = []string{job}
		s.lists["/api/v1/pods"] = []string{pod}
		out, err := run(t)
		if err != nil || out != "nothing found\n" ||
			!strings.Contains(errs.String(), "pending, it has not lasted yet: no-quota: Pod ns/pod: it runs") {
			t.Errorf("it ends, and says so: got %q, %q, %v", out, errs.String(), err)
		}
	})
	t.Run("a pod without quota", func(t *testing.T) {
		s := newServer(t)
		s.lists["/apis/trainer.kubeflow.org/v1alpha1/trainjobs"] = []string{trainJob}
		s.lists["/apis/jobset.x-k8s.io/v1alpha2/jobsets"] = []string{jobSet}
		s.lists["/apis/batch/v1/jobs"] = []string{job}
		s.lists["/api/v1/pods"] = []string{pod}
		out, err := run(t)
		if err == nil || !strings.Contains(err.Error(), "findings") || !strings.Contains(out, "no-quota: Pod ns/pod") {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("a pod on a node of another flavor", func(t *testing.T) {
		s := newServer(t)
		s.lists["/apis/trainer.kubeflow.org/v1alpha1/trainjobs"] = []string{trainJob}
		s.lists["/apis/jobset.x-k8s.io/v1alpha2/jobsets"] = []string{jobSet}
		s.lists["/apis/batch/v1/jobs"] = []string{job}
		s.lists["/api/v1/pods"] = []string{strings.Replace(pod, `{"jobset.sigs.k8s.io/jobset-name":"job"}`,
			`{"jobset.sigs.k8s.io/jobset-name":"job","jobset.sigs.k8s.io/replicatedjob-name":"node"}`, 1)}
		s.lists["/api/v1/nodes"] = []string{`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"gpu":"h100"}}}`}
		s.lists["/apis/kueue.x-k8s.io/v1beta2/resourceflavors"] = []string{`{"apiVersion":"kueue.x-k8s.io/v1beta2",
			"kind":"ResourceFlavor","metadata":{"name":"a100"},"spec":{"nodeLabels":{"gpu":"a100"}}}`}
		s.lists["/apis/kueue.x-k8s.io/v1beta2/workloads"] = []string{`{"apiVersion":"kueue.x-k8s.io/v1beta2",
			"kind":"Workload","metadata":{"namespace":"ns","name":"wl","ownerReferences":[
			{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","name":"job","uid":"tj","controller":true}]},
			"status":{"conditions":[{"type":"QuotaReserved","status":"True"},{"type":"Admitted","status":"True"}],
			"admission":{"podSetAssignments":[{"name":"node","count":1,"flavors":{"cpu":"a100"}}]}}}`}
		out, err := run(t)
		if err == nil || !strings.Contains(out, "other-flavor: Pod ns/pod: it runs on node n") {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("no cluster", func(t *testing.T) {
		t.Setenv("KUBECONFIG", "/nowhere")
		if _, err := run(t); err == nil || !strings.Contains(err.Error(), "finding the cluster") {
			t.Errorf("got %v", err)
		}
	})
}

// TestPending holds what the audit says of findings that have not lasted.
func TestPending(t *testing.T) {
	lasting := &audit.Lasting{Other: time.Hour}
	lasting.Next([]audit.Finding{{Rule: audit.Unquoted, Object: "Pod b", Says: "it runs"},
		{Rule: audit.Unquoted, Object: "Pod a", Says: "it runs"}}, time.Now())
	var out, err bytes.Buffer
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetErr(&err)
	printPending(cmd, lasting)
	const pending = "pending, it has not lasted yet: no-quota: Pod "
	want := pending + "a: it runs\n" + pending + "b: it runs\n"
	if out.String() != "" || err.String() != want {
		t.Errorf("got %q, %q, want nothing and %q", out.String(), err.String(), want)
	}
}

// TestPods holds what is cached of pods.
func TestPods(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Name = "a"
	pod.Spec.Containers = []corev1.Container{{Name: "c"}}
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
	kept, err := cachedPods(avoid.Policy{})(pod)
	if p, ok := kept.(*corev1.Pod); err != nil || !ok || p.Name != "a" || p.Spec.Containers != nil ||
		p.Spec.SchedulingGroup == nil {
		t.Errorf("got %+v, %v", kept, err)
	}
	if kept, err := cachedPods(avoid.Policy{})("a mark"); err != nil || kept != "a mark" {
		t.Errorf("what is no pod is passed on: got %v, %v", kept, err)
	}
}

// TestAuditEnds holds that the audit ends with its context.
func TestAuditEnds(t *testing.T) {
	newServer(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	cmd := command()
	cmd.SetArgs([]string{"audit", "--watch"})
	if err := cmd.ExecuteContext(ctx); err == nil {
		t.Error("it was ended before it could look")
	}
}

// TestSmall holds what little is left: the program itself, and what its parts refuse.
func TestSmall(t *testing.T) {
	args := os.Args
	t.Cleanup(func() { os.Args = args })
	os.Args = []string{"signalbox", "version"}
	main() // it exits with an error if there is one
	settings := []debug.BuildSetting{{Key: "vcs.revision", Value: "c"}, {Key: "vcs.time", Value: "d"}}
	if c, none := setting(settings, "vcs.revision"), setting(settings, "vcs"); c != "c" || none != "" {
		t.Errorf("got %q, %q", c, none)
	}
	if c, d := built(); c == "" || d == "" {
		t.Errorf("what isn't known is named so: got %q, %q", c, d)
	}
	commit, date = "a", "b" // of a release, by the linker
	t.Cleanup(func() { commit, date = "", "" })
	if c, d := built(); c != "a" || d != "b" {
		t.Errorf("got %q, %q", c, d)
	}
	failed := errors.New("failed")
	if _, err := newScheme(func(*runtime.Scheme) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	newServer(t)
	if _, err := connect(configapi.ClientConnection{QPS: 1}); err == nil || !strings.Contains(err.Error(), "burst") {
		t.Errorf("got %v", err)
	}
}
