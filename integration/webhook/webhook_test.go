package webhook

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store"
)

const (
	meta    = `"namespace":"team","name":"job","uid":"uid"`
	queued  = meta + `,"labels":{"kueue.x-k8s.io/queue-name":"queue"}`
	basic   = `"runtimeRef":{"apiGroup":"trainer.kubeflow.org","kind":"ClusterTrainingRuntime","name":"torch"}`
	theirs  = `{"manager":"example.com/a"}`
	ours    = `{"manager":"kueue.x-k8s.io/manager","trainingRuntimeSpec":{"template":{"spec":{}}}}`
	waiting = basic + `,"suspend":true`
	running = basic + `,"suspend":false`
)

// manifest is a TrainJob; spec "" leaves the spec out.
func manifest(metadata, spec string) string {
	object := `{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{` + metadata + `}`
	if spec != "" {
		object += `,"spec":{` + spec + `}`
	}
	return object + "}"
}

func annotated(metadata, name, value string) string {
	return metadata + `,"annotations":{"` + name + `":"` + value + `"}`
}

func TestMutate(t *testing.T) {
	entries := func(list string) string { return `,"runtimePatches":[` + list + `]` }
	pin := store.PinAnnotation
	pinPath := "/metadata/annotations/" + strings.ReplaceAll(pin, "/", "~1")
	cases := map[string]struct {
		reason, user, old, sent string
		want                    []string
	}{
		"created": {"only the integration starts it", "user", "", manifest(queued, basic),
			[]string{"add /spec/suspend true"}},
		"created, no queue": {"it is not Kueue's", "user", "", manifest(meta, basic), nil},
		"created suspended": {"it is as it should be", "user", "", manifest(queued, waiting), nil},
		"quantities": {"they are stored as the API writes them", "user", "",
			manifest(queued, waiting+`,"trainer":{"resourcesPerNode":{"requests":{"nvidia.com/gpu":8}}}`),
			[]string{`replace /spec/trainer/resourcesPerNode/requests/nvidia.com~1gpu "8"`}},
		"quantities again": {"a manifest applied again is no edit", "user",
			manifest(queued, waiting+`,"trainer":{"resourcesPerNode":{"requests":{"nvidia.com/gpu":"8"}}}`),
			manifest(queued, waiting+`,"trainer":{"resourcesPerNode":{"requests":{"nvidia.com/gpu":8}}}`),
			[]string{`add /spec/trainer {"resourcesPerNode":{"requests":{"nvidia.com/gpu":"8"}}}`}},
		"started by a user": {"only the integration starts it", "user", manifest(queued, waiting), manifest(queued, running),
			[]string{"add /spec/suspend true"}},
		"stopped by a user": {"a manifest applied again doesn't stop it", "user", manifest(queued, running),
			manifest(queued, waiting),
			[]string{"add /spec/suspend false"}},
		"started by us": {"its own writes are as they should be", self, manifest(queued, waiting), manifest(queued,
			running), nil},
		"entry removed": {"it stays as it stood", "user", manifest(queued, running+entries(ours)), manifest(queued, running),
			[]string{"add /spec/runtimePatches [" + ours + "]"}},
		"entry forged": {"nobody else makes one", "user", manifest(queued, waiting+entries(theirs)),
			manifest(queued, waiting+entries(theirs+","+ours)), []string{"add /spec/runtimePatches [" + theirs + "]"}},
		"pin removed": {"it is ours", "user", manifest(annotated(queued, pin, "x"), running), manifest(queued, running),
			[]string{`add /metadata/annotations {"` + pin + `":"x"}`}},
		"pin changed": {"it is ours", "user", manifest(annotated(queued, pin, "x"), running),
			manifest(annotated(queued, pin, "y"), running), []string{`add ` + pinPath + ` "x"`}},
		"pin forged": {"it is ours", "user", manifest(queued, waiting), manifest(annotated(queued, pin, "y"), waiting),
			[]string{"remove " + pinPath}},
		"no spec": {"the validating webhook refuses it", "user", manifest(queued, waiting), manifest(queued, ""), nil},
		"going": {"only its finalizers change", "user", manifest(queued, waiting),
			manifest(queued+`,"deletionTimestamp":"2026-01-01T00:00:00Z"`, waiting), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			answer := newHarness(t, dialect.Bundled).ask("/mutate-trainjob", c.user, c.old, c.sent)
			if got := patches(t, answer); !answer.Allowed || !slices.Equal(got, c.want) {
				t.Errorf("%s: got %q, %v", c.reason, got, answer.Result)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	owned := func(kind, version, name string) string {
		return queued + `,"ownerReferences":[{"apiVersion":"` + version + `","kind":"` + kind + `","name":"` + name +
			`","uid":"owner","controller":true}]`
	}
	cases := map[string]struct {
		reason, user, old, sent, refusal string
	}{
		"created":       {"nothing is wrong", "user", "", manifest(queued, waiting), ""},
		"no spec":       {"none of the CRD's rules would hold", "user", "", manifest(queued, ""), "spec: Required value"},
		"no spec, ours": {"nor for us", self, "", manifest(queued, ""), "spec: Required value"},
		"own entry": {"it is ours", "user", "", manifest(queued, waiting+`,"runtimePatches":[`+ours+`]`),
			"take it out of the manifest"},
		"pin": {"it is ours", "user", "", manifest(annotated(queued, store.PinAnnotation, "x"), waiting),
			"Signalbox alone writes this annotation"},
		"bad queue": {"it is no name", "user", "", manifest(strings.ReplaceAll(queued, `"queue"`, `"-"`), waiting),
			"queue-name"},
		"elastic": {"its Workload has one size", "user", "",
			manifest(annotated(queued, "kueue.x-k8s.io/elastic-job", "true"), waiting), "elastic job is not supported"},
		"unqueued": {"its quota would stay", "user", manifest(queued, waiting), manifest(meta, waiting),
			`is in queue "queue"`},
		"unqueued, ended": {"it has no quota", "user", strings.TrimSuffix(manifest(queued, waiting), "}") +
			`,"status":{"conditions":[{"type":"Complete","status":"True"}]}}`, manifest(meta, waiting), ""},
		"adopted": {"whose quota it is was decided", "user", manifest(queued, waiting),
			manifest(owned("Job", "batch/v1", "x"), waiting), "can't become the controller"},
		"let go": {"it needs quota of its own", "user", manifest(owned("Job", "batch/v1", "x"), waiting),
			manifest(queued, waiting), ""},
		"owned": {"its quota would be the owner's", "user", "", manifest(owned("JobSet", "jobset.x-k8s.io/v1alpha2",
			"x"), waiting), "runs on the owner's quota"},
		"owned, else": {"Kueue doesn't manage the kind", "user", "", manifest(owned("Thing", "example.com/v1", "x"),
			waiting), ""},
		"ours": {"it never takes the spec away", self, manifest(queued, waiting), manifest(queued, running), ""},
		"going": {"a finalizer may always go", "user", manifest(queued, waiting),
			manifest(queued+`,"deletionTimestamp":"2026-01-01T00:00:00Z"`, waiting), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, func(config *configapi.Configuration) {
				config.Kueue.OwnerKinds = []string{"JobSet.v1alpha2.jobset.x-k8s.io"}
			})
			answer := h.ask("/validate-trainjob", c.user, c.old, c.sent)
			if answer.Allowed != (c.refusal == "") || c.refusal != "" && !strings.Contains(answer.Result.Message, c.refusal) {
				t.Errorf("%s: got %v, %v", c.reason, answer.Allowed, answer.Result)
			}
		})
	}
}

func TestMalformed(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	for _, path := range []string{"/mutate-trainjob", "/validate-trainjob", "/mutate-workload"} {
		for _, pair := range [][2]string{{"", "{"}, {"{", manifest(queued, waiting)}, {manifest(queued, waiting),
			`{"spec":{"active":1}}`}, {manifest(queued, waiting), `{"spec":{"suspend":1}}`}} {
			if path == "/mutate-workload" && strings.Contains(pair[1], "suspend\":1") {
				continue // a Workload has none
			}
			if path != "/mutate-workload" && strings.Contains(pair[1], "active") {
				continue // a TrainJob has none
			}
			answer := h.ask(path, "user", pair[0], pair[1])
			if answer.Allowed || answer.Result.Code != http.StatusBadRequest {
				t.Errorf("%s of %q: got %v", path, pair, answer.Result)
			}
		}
	}
}

func TestLists(t *testing.T) {
	const list = `[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"disk":"fast"}}}]`
	for field, d := range map[string]*dialect.Dialect{
		"podTemplateOverrides": dialect.Kubeflow21, "podSpecOverrides": dialect.Kubeflow20,
	} {
		h := newHarness(t, d)
		answer := h.ask("/mutate-trainjob", "user", "", manifest(queued, waiting+`,"`+field+`":`+list))
		if got := strings.Join(patches(t, answer), " "); !strings.Contains(got, legacy.RecordAnnotation) ||
			!strings.Contains(got, "fast") {
			t.Errorf("%s: what users say is recorded: got %s", field, got)
		}
		old := manifest(annotated(queued, legacy.RecordAnnotation, "{}"), waiting)
		got := strings.Join(patches(t, h.ask("/mutate-trainjob", "user", old, manifest(queued, waiting))), " ")
		if strings.Contains(got, "/spec/"+field) {
			t.Errorf("%s: an empty Record says nothing: got %s", field, got)
		}
		forged := h.ask("/mutate-trainjob", "user", manifest(queued, waiting), manifest(annotated(queued,
			legacy.RecordAnnotation, "x"), waiting))
		if got := strings.Join(patches(t, forged), " "); !strings.HasPrefix(got, "remove /metadata/annotations/") {
			t.Errorf("%s: nobody else writes the Record: got %s", field, got)
		}
	}
}

func TestMutateWorkload(t *testing.T) {
	const owner = `"ownerReferences":[{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob",` +
		`"name":"job","uid":"uid","controller":true}]`
	const holds = `,"status":{"conditions":[{"type":"QuotaReserved","status":"True"}]}`
	of := func(metadata, active, status string) string {
		return `{"metadata":{` + metadata + `},"spec":{"active":` + active + `}` + status + `}`
	}
	cases := map[string]struct {
		reason, user, old, sent string
		want                    int
	}{
		"holds quota": {"its pods have to end first", "user", of(owner, "true", holds), of(owner, "false", holds), 2},
		"no quota":    {"nothing runs", "user", of(owner, "true", ""), of(owner, "false", ""), 0},
		"activated":   {"it is not deactivated", "user", of(owner, "false", holds), of(owner, "true", holds), 0},
		"ours":        {"its pods have ended", self, of(owner, "true", holds), of(owner, "false", holds), 0},
		"another's": {"it is no TrainJob's", "user", of(`"name":"wl"`, "true", holds), of(`"name":"wl"`, "false",
			holds), 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			answer := newHarness(t, dialect.Bundled).ask("/mutate-workload", c.user, c.old, c.sent)
			got := strings.Join(patches(t, answer), "\n")
			if !answer.Allowed || len(answer.Patches) != c.want || c.want > 0 && !strings.Contains(got,
				api.DeactivateAnnotation) {
				t.Errorf("%s: got %s", c.reason, got)
			}
		})
	}
}

func TestDefaultQueue(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.create(&kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "default"}})
	const suspend = "add /spec/suspend true"
	for sent, want := range map[string]string{
		meta:                         `add /metadata/labels {"kueue.x-k8s.io/queue-name":"default"}`,
		meta + `,"labels":{"a":"b"}`: `add /metadata/labels/kueue.x-k8s.io~1queue-name "default"`,
	} {
		answer := h.ask("/mutate-trainjob", "user", "", manifest(sent, basic))
		if got := patches(t, answer); !slices.Equal(got, []string{want, suspend}) {
			t.Errorf("a TrainJob without a queue comes into the default one: got %q", got)
		}
	}
	h.fail["get LocalQueue"] = errors.New("the API server doesn't answer")
	answer := h.ask("/mutate-trainjob", "user", "", manifest(meta, basic))
	if answer.Allowed || answer.Result.Code != http.StatusInternalServerError {
		t.Errorf("what can't be looked up is refused: got %v", answer.Result)
	}
}

func TestCheckSize(t *testing.T) {
	const least = overrides.MinParallelismAnnotation
	nodes := func(n string) string { return `,"trainer":{"numNodes":` + n + `}` }
	few := annotated(queued, overrides.MinParallelismAnnotation, "2")
	cases := map[string]struct {
		reason, old, sent string
		refused           map[string]string // by Trainer
	}{
		"resized": {"Kubeflow Trainer's CRD takes it for immutable since v2.2", manifest(queued, waiting+nodes("8")),
			manifest(queued, waiting+nodes("2")), map[string]string{
				"v2.2": "spec.trainer: Forbidden: it is immutable with Kubeflow Trainer v2.2",
				"v2.3": "spec.trainer: Forbidden: it is immutable with Kubeflow Trainer v2.3"}},
		"a minimum": {"only the bundled Trainer runs fewer nodes", "", manifest(few, waiting+nodes("8")),
			map[string]string{"v2.0": least, "v2.1": least, "v2.2": least, "v2.3": least}},
		"a minimum, not queued": {"it means nothing", "", manifest(annotated(meta, overrides.MinParallelismAnnotation, "2"),
			waiting+nodes("8")), nil},
		"a minimum that was there": {"it is blocked, and may be edited", manifest(few, waiting+nodes("8")),
			manifest(few+`,"generation":2`, waiting+nodes("8")), nil},
		"the same": {"nothing changes", manifest(queued, waiting+nodes("8")), manifest(queued, waiting+nodes("8")), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for trainer, d := range trainers {
				answer := newHarness(t, d).ask("/mutate-trainjob", "user", c.old, c.sent)
				want := c.refused[trainer]
				if answer.Allowed != (want == "") || want != "" && !strings.Contains(answer.Result.Message, want) {
					t.Errorf("%s: %s: got %t, %v", c.reason, trainer, answer.Allowed, answer.Result)
				}
			}
		})
	}
}

// TestChangedLabels holds what a user may change of a TrainJob in a queue.
func TestChangedLabels(t *testing.T) {
	prebuilt := map[string]string{constants.PrebuiltWorkloadLabel: "prebuilt"}
	for name, c := range map[string]struct {
		reason, label, value string
		allowed              bool
		has                  map[string]string
	}{
		"a priority class":       {"it exists", constants.WorkloadPriorityClassLabel, "high", true, nil},
		"no such priority class": {"nothing would be evicted", constants.WorkloadPriorityClassLabel, "typo", false, nil},
		"a prebuilt Workload":    {"its own would hold quota", constants.PrebuiltWorkloadLabel, "other", false, nil},
		"a queue":                {"it leaves the first", constants.QueueLabel, "other", true, nil},
		"a queue, prebuilt":      {"its Workload doesn't follow", constants.QueueLabel, "other", false, prebuilt},
		"a queue of no name":     {"creation refuses it", constants.QueueLabel, "Team_A", false, nil},
		"of such a queue": {"it was created", constants.WorkloadPriorityClassLabel, "high", true,
			map[string]string{constants.QueueLabel: "Team_A"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.create(&kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 100})
			job := newTrainJob()
			maps.Copy(job.Labels, c.has)
			before := encoded(t, job)
			job.Labels[c.label] = c.value
			answer := h.ask("/validate-trainjob", "user", before, encoded(t, job))
			if answer.Allowed != c.allowed || !c.allowed && !strings.Contains(answer.Result.Message, c.label) {
				t.Errorf("%s: got %v", c.reason, answer.Result)
			}
		})
	}
}

func TestEviction(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	job := newTrainJob()
	job.UID = "job"
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "job", UID: "set",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, managed.Kind)}}}
	labels := map[string]string{jobset.JobSetNameKey: "job", jobset.JobSetUIDKey: "set"}
	child := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "job-node-0", UID: "child", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(js, jobset.SchemeGroupVersion.WithKind("JobSet"))}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "job-node-0-0", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(child,
			batchv1.SchemeGroupVersion.WithKind("Job"))}}}
	for _, o := range []client.Object{js, child, pod} {
		h.create(o)
	}
	evict := func() webhookadmission.Response {
		request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "request",
			Operation: admissionv1.Create, SubResource: "eviction", Namespace: team, Name: pod.Name}}
		return h.handlers["/validate-eviction"].Handler.Handle(t.Context(), request)
	}
	if answer := evict(); !answer.Allowed {
		t.Errorf("a pod on no quota may be evicted: got %v", answer.Result)
	}
	pod.Labels[kueueconstants.PodSetLabel] = "node"
	if err := h.store.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if answer := evict(); answer.Allowed || answer.Result.Code != http.StatusForbidden ||
		!strings.Contains(answer.Result.Message, "the quota of TrainJob job") {
		t.Errorf("it would be replaced while it runs: got %v", answer.Result)
	}
	h.fail["list Pod"] = errors.New("down")
	if answer := evict(); answer.Allowed || answer.Result.Code != http.StatusInternalServerError {
		t.Errorf("whose it is isn't known: got %v", answer.Result)
	}
}
