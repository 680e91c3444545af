package integration

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/podset"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

func runtimeSpec(image string) *trainerapi.TrainingRuntimeSpec {
	rj := jobset.ReplicatedJob{Name: "node"}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node", Image: image}}
	return &trainerapi.TrainingRuntimeSpec{Template: trainerapi.JobSetTemplateSpec{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{rj}}}}
}

func image(spec *trainerapi.TrainingRuntimeSpec) string {
	if spec == nil {
		return ""
	}
	return spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image
}

func TestRuntimeOf(t *testing.T) {
	hasRun := []trainerapi.RuntimePatch{{Manager: overrides.Manager}}
	cases := map[string]struct {
		reason  string
		entries []trainerapi.RuntimePatch
		live    *trainerapi.TrainingRuntimeSpec
		pinned  *snapshot
		want    string
		stale   bool
		blocked string
	}{
		"not pinned":               {reason: "a new TrainJob stands on the live runtime", live: runtimeSpec("v1"), want: "v1"},
		"pinned as it is":          {reason: "nothing is out of date", live: runtimeSpec("v1"), pinned: &snapshot{spec: *runtimeSpec("v1")}, want: "v1"},
		"edited, has not run":      {reason: "one that waits follows the edit, and Trainer is to follow too", live: runtimeSpec("v2"), pinned: &snapshot{spec: *runtimeSpec("v1")}, want: "v2", stale: true},
		"edited, has run":          {reason: "one that has run keeps what it ran on", entries: hasRun, live: runtimeSpec("v2"), pinned: &snapshot{spec: *runtimeSpec("v1")}, want: "v1"},
		"has run, no snapshot":     {reason: "Trainer v2.2 has no snapshots", entries: hasRun, live: runtimeSpec("v2"), want: "v2"},
		"deleted":                  {reason: "Trainer refuses to change the TrainJob, so it can't start", pinned: &snapshot{spec: *runtimeSpec("v1")}, blocked: ReasonRuntimeNotFound},
		"never there":              {reason: "there is nothing to compute from", blocked: ReasonRuntimeNotFound},
		"deleted, has run, pinned": {reason: "the same holds for one that has run", entries: hasRun, pinned: &snapshot{spec: *runtimeSpec("v1")}, blocked: ReasonRuntimeNotFound},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{RuntimePatches: c.entries, RuntimeRef: trainerapi.RuntimeRef{
				APIGroup: &trainerapi.GroupVersion.Group, Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: "torch"}}}}
			spec, stale, err := runtimeOf(job, overrides.Kubeflow23.Own(job) != nil, c.live, c.pinned)
			var blocked *admission.BlockedError
			if c.blocked != "" {
				if !errors.As(err, &blocked) || blocked.Reason != c.blocked || !strings.Contains(err.Error(), `spec.runtimeRef: there is no TrainingRuntime "torch" in namespace "ns"; create it`) {
					t.Errorf("%s: got %v", c.reason, err)
				}
				return
			}
			if err != nil || image(spec) != c.want || stale != c.stale {
				t.Errorf("%s: got runtime %q, stale %t, error %v", c.reason, image(spec), stale, err)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	m := newMemory()
	key := types.NamespacedName{Namespace: "ns", Name: "job"}
	m.keep(key, "first", func(r *record) { r.rebuilt = "7" })
	if m.of(key, "first").rebuilt != "7" {
		t.Error("what was kept is known")
	}
	if got := m.of(key, "second"); got.uid != "second" || got.rebuilt != "" {
		t.Error("another TrainJob of the same name starts from nothing")
	}
	m.keep(key, "second", func(r *record) { r.workload = "wl" })
	if got := m.of(key, "second"); got.workload != "wl" || got.rebuilt != "" {
		t.Errorf("nothing is taken over from the first: got %+v", got)
	}
	other, now := types.NamespacedName{Namespace: "ns", Name: "other"}, time.Now()
	m.look(other, "third", false, now)
	m.look(key, "second", true, now.Add(time.Second))
	m.keep(key, "second", func(r *record) { r.workload = "its next" })
	if got, since := m.unfinished(); got != 1 || !since.Equal(now) {
		t.Errorf("one of two has ended: got %d that have not, since %v", got, since)
	}
	m.look(key, "fourth", false, now)
	if got, _ := m.unfinished(); got != 2 {
		t.Errorf("what comes by the name of one that had ended has not: got %d", got)
	}
	m.look(key, "fourth", true, now)
	m.forget(key)
	m.forget(key)
	if got, _ := m.unfinished(); m.of(key, "fourth").ended || got != 1 {
		t.Errorf("what is forgotten is gone: got %d that have not ended", got)
	}
}

func TestCanonical(t *testing.T) {
	raw := `{"spec":{"runtimeRef":{"name":"torch"},"trainer":{"numNodes":2,"resourcesPerNode":{"requests":{"cpu":4,"nvidia.com/gpu":"8","a~b/c":"1000m"}}},
		"runtimePatches":[{"manager":"a.com/a","future":1,"trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{
		"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1024Mi"}}],"containers":[{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v","readOnly":false}]}]}}}}}]}}}}]}}`
	var job api.TrainJob
	if err := json.Unmarshal([]byte(raw), &job); err != nil {
		t.Fatal(err)
	}
	operations, err := canonical([]byte(raw), &job)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, o := range operations {
		if o.Operation != "replace" {
			t.Errorf("nothing is added or removed, but there is %v", o)
		}
		got[o.Path] = o.Value
	}
	want := map[string]any{
		"/spec/trainer/resourcesPerNode/requests/cpu":     "4",
		"/spec/trainer/resourcesPerNode/requests/a~0b~1c": "1",
		"/spec/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/0/template/spec/template/spec/volumes/0/emptyDir/sizeLimit": "1Gi",
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for path, value := range want {
		if got[path] != value {
			t.Errorf("%s: got %v, want %v", path, got[path], value)
		}
	}
}

func TestKeepOwn(t *testing.T) {
	const own = `{"manager":"kueue.x-k8s.io/manager","future":"kept","trainingRuntimeSpec":{"template":{"spec":{}}}}`
	const theirs = `{"manager":"a.com/a","zero":false}`
	const other = `{"manager":"kueue.x-k8s.io/manager"}`
	cases := map[string]struct {
		reason, old, sent, want string
	}{
		"removed":              {"a manifest without it leaves it as it stands, unknown fields included", own, "", own},
		"removed, others sent": {"the others are as sent, ours is last", own, theirs, theirs + "," + own},
		"changed":              {"nobody else changes it", own, other, own},
		"unchanged":            {"nothing is to be done", own, own, ""},
		"others added after":   {"ours stays the last word", own, own + "," + theirs, theirs + "," + own},
		"not last before":      {"an update of something else leaves the order alone", own + "," + theirs, own + "," + theirs, ""},
		"none before":          {"there is nothing to keep", theirs, "", ""},
		"forged":               {"nobody else makes one", theirs, theirs + "," + other, theirs},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			object := func(entries string) ([]byte, *job) {
				raw := []byte(`{"spec":{"runtimePatches":[` + entries + `]}}`)
				j := &job{}
				if err := json.Unmarshal(raw, &j.TrainJob); err != nil {
					t.Fatal(err)
				}
				return raw, j
			}
			rv := &review{}
			rv.rawOld, rv.old = object(c.old)
			rv.raw, rv.new = object(c.sent)
			got, err := keepOwn(rv)
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			if got != nil {
				var want []any
				if err := json.Unmarshal([]byte("["+c.want+"]"), &want); err != nil {
					t.Fatal(err)
				}
				a, _ := json.Marshal(got)
				b, _ := json.Marshal(want)
				if text = string(a); text == string(b) {
					return
				}
			}
			if text != "" || c.want != "" {
				t.Errorf("%s: got %s, want [%s]", c.reason, text, c.want)
			}
		})
	}
}

func TestCompareWithKueue(t *testing.T) {
	ours := func() *configapi.Kueue { return &configapi.Default().Kueue }
	cases := map[string]struct {
		reason string
		ours   func(*configapi.Kueue)
		theirs kueueconfig.Configuration
		want   []string
	}{
		"as it should be": {reason: "nothing to say", theirs: kueueconfig.Configuration{Integrations: &kueueconfig.Integrations{ExternalFrameworks: []string{externalFramework}}}},
		"built-in": {
			reason: "two integrations would fight", theirs: kueueconfig.Configuration{Integrations: &kueueconfig.Integrations{Frameworks: []string{"batch/job", builtinFramework}}},
			want: []string{`integrations.frameworks lists "trainer.kubeflow.org/trainjob"`, "take it out"},
		},
		"nothing said": {
			reason: "Kueue must know that TrainJobs are managed", theirs: kueueconfig.Configuration{},
			want: []string{"integrations.externalFrameworks does not list", "add it"},
		},
		"other settings": {
			reason: "every difference is named, with both values",
			ours:   func(k *configapi.Kueue) { k.WaitForPodsReady = true },
			theirs: kueueconfig.Configuration{ManageJobsWithoutQueueName: true, Integrations: &kueueconfig.Integrations{ExternalFrameworks: []string{externalFramework}}},
			want:   []string{"manageJobsWithoutQueueName is true there and kueue.manageJobsWithoutQueueName false here", "waitForPodsReady is set there: false, and kueue.waitForPodsReady is true here"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			config := ours()
			if c.ours != nil {
				c.ours(config)
			}
			err := compare(config, &c.theirs)
			if len(c.want) == 0 && err != nil {
				t.Errorf("%s: got %v", c.reason, err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want it to say %q", c.reason, err, want)
				}
			}
		})
	}
}

func TestFollowsTemplate(t *testing.T) {
	js := &jobset.JobSet{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{{Name: "node"}}}}
	template := &js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	template.Tolerations = []corev1.Toleration{{Key: "spot"}}
	cases := map[string]struct {
		reason string
		change func(*batchv1.Job)
		want   bool
	}{
		"as the template says": {"it can be resumed", func(*batchv1.Job) {}, true},
		"another selector":     {"JobSet would merge it into the next flavor's", func(j *batchv1.Job) { j.Spec.Template.Spec.NodeSelector = map[string]string{"gpu": "a100"} }, false},
		"another toleration":   {"the same", func(j *batchv1.Job) { j.Spec.Template.Spec.Tolerations = nil }, false},
		"another gate":         {"the same", func(j *batchv1.Job) { j.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }, false},
		"of no ReplicatedJob":  {"a Job that the JobSet doesn't have any more", func(j *batchv1.Job) { j.Labels = nil }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			child := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{jobset.ReplicatedJobNameKey: "node"}}}
			child.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "spot"}}
			c.change(child)
			if got := followsTemplate(child, js); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}

func TestFits(t *testing.T) {
	uid := types.UID("uid")
	controlled := func(uid types.UID, controller bool) metav1.ObjectMeta {
		return metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: trainerapi.GroupVersion.String(), Kind: trainerapi.TrainJobKind, Name: "job", UID: uid, Controller: &controller}}}
	}
	podSets := []kueue.PodSet{{Name: "node", Count: 2}}
	cases := map[string]struct {
		reason string
		change func(*job, *kueue.Workload)
		want   bool
	}{
		"equal":                  {"it is what the job gives", func(*job, *kueue.Workload) {}, true},
		"another count":          {"a job that waits needs another Workload", func(j *job, _ *kueue.Workload) { j.podSets = []kueue.PodSet{{Name: "node", Count: 3}} }, false},
		"another count, running": {"nothing stops a job that runs", func(j *job, _ *kueue.Workload) { j.podSets, j.Spec.Suspend = nil, ptr.To(false) }, true},
		"another count, blocked": {"a job that can't be computed keeps its Workload", func(j *job, _ *kueue.Workload) { j.podSets, j.blocked = nil, &admission.BlockedError{} }, true},
		"another count, finished": {"a finished job keeps its Workload", func(j *job, _ *kueue.Workload) {
			j.podSets = nil
			j.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobFailed, Status: metav1.ConditionTrue}}
		}, true},
		"another count, still running": {"its quota is in use until its pods have ended", func(j *job, wl *kueue.Workload) {
			j.podSets = nil
			j.pods = []corev1.Pod{{}}
			wl.Status.Admission = &kueue.Admission{}
			wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue}}
		}, true},
		"of an earlier job":      {"a job of the same name has another UID", func(_ *job, wl *kueue.Workload) { wl.ObjectMeta = controlled("other", true) }, false},
		"owned, not controlled":  {"an owner that is no controller is none, and no reason to panic", func(_ *job, wl *kueue.Workload) { wl.ObjectMeta = controlled(uid, false) }, false},
		"maximum execution time": {"a changed limit needs another Workload", func(_ *job, wl *kueue.Workload) { wl.Spec.MaximumExecutionTimeSeconds = ptr.To[int32](5) }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			j := &job{r: &Reconciler{}, podSets: podSets}
			j.Name, j.UID, j.Spec.Suspend = "job", uid, ptr.To(true)
			wl := &kueue.Workload{ObjectMeta: controlled(uid, true), Spec: kueue.WorkloadSpec{PodSets: podSets}}
			c.change(j, wl)
			if got := j.fits(wl); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}

func TestFinalError(t *testing.T) {
	cause := errors.New("cause")
	err := error(&finalError{cause})
	if !podset.IsPermanent(err) || !errors.Is(err, cause) || err.Error() != "cause" {
		t.Errorf("jobframework must take it as permanent, and the user must read the cause alone: got %v", err)
	}
}
