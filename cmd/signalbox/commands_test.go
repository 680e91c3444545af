package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
	"github.com/signalbox-dev/signalbox/overrides"
)

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	good := file("good.yaml", head+"concurrency: 7\n")
	cases := map[string]struct {
		reason, args, out, err string
	}{
		"version":     {"what runs can be named", "version", "commit ", ""},
		"a good one":  {"it is printed with what it leaves to the defaults", "config check " + good, "concurrency: 7\n", ""},
		"defaults":    {"all of them", "config check " + good, "gangScheduling:\n    mode: \"off\"\n    policy: gang\n", ""},
		"a slip":      {"the field is named", "config check " + file("slip.yaml", head+"concurency: 7\n"), "", `slip.yaml: unknown field "concurency"`},
		"no file":     {"it is named", "config check /nowhere.yaml", "", "/nowhere.yaml"},
		"no argument": {"one is needed", "config check", "", "accepts 1 arg"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command()
			cmd.SetArgs(strings.Fields(c.args))
			cmd.SetOut(&out)
			err := cmd.Execute()
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("%s: got %q, want %q in it", c.reason, out.String(), c.out)
			}
		})
	}
	// What is printed is a configuration that says the same.
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs([]string{"config", "check", good})
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if c, err := configapi.Parse(out.Bytes()); err != nil || c.Concurrency != 7 {
		t.Errorf("got %+v, %v", c, err)
	}
	// Kueue's gates are known by name. They are the process's, so that nothing can be checked after a wrong one.
	cmd = command()
	cmd.SetArgs([]string{"config", "check", file("gate.yaml", head+"kueue: {featureGates: {Nothing: true}}\n")})
	const unknown = "kueue.featureGates: unrecognized feature gate: Nothing"
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), unknown) {
		t.Errorf("got %v", err)
	}
}

func TestAwaitCertificates(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := awaitCertificates(t.Context(), dir); err != nil {
		t.Errorf("both are there: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := awaitCertificates(t.Context(), filepath.Join(dir, "file"))
	if err == nil || !strings.Contains(err.Error(), "the certificate of the webhooks") {
		t.Errorf("what can't be read is said: got %v", err)
	}
}

// Of a cached TrainJob only what nobody reads is missing; the mark of a missed deletion passes as it is.
func TestWithoutManifests(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "mine": "1"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
	got, err := withoutManifests(job.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	want := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"mine": "1"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	missed := cache.DeletedFinalStateUnknown{Key: "ns/a"}
	if got, err := withoutManifests(missed); err != nil || !reflect.DeepEqual(got, missed) {
		t.Errorf("got %+v and %v, want what was given", got, err)
	}
}

func TestLimitsOf(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	for content, want := range map[string]overrides.Limits{
		"": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, GracePeriodSeconds: 3600},
		"limits: {pods: 1, specBytes: 2, elements: 3, terminationGracePeriodSeconds: 4}\n": {
			Pods: 1, SpecBytes: 2, Elements: 3, GracePeriodSeconds: 4},
		"limits: {hostPaths: true, secrets: false}\n": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000,
			GracePeriodSeconds: 3600, HostPaths: true, NoSecrets: true},
		"trainer: {enabled: false}\n": {Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, GracePeriodSeconds: 3600,
			PodsReplaced: true},
	} {
		config, err := configapi.Parse([]byte(head + content))
		if err != nil {
			t.Fatal(err)
		}
		if got := limitsOf(config); got != want {
			t.Errorf("%s: got %+v, want %+v", content, got, want)
		}
	}
}

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
