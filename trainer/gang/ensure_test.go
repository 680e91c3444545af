package gang

import (
	"errors"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	signalboxevents "github.com/signalbox-dev/signalbox/store/events"
)

func TestEnsure(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	if _, err := s.start(t, twoPhases); err != nil {
		t.Fatal(err)
	}
	s.config.Reader = brokenReader{}
	_, err := s.start(t, twoPhases)
	if err == nil || !strings.Contains(err.Error(), "reading Workload") {
		t.Errorf("an existing object that can't be read is an error: got %v", err)
	}
	s.config.Reader = s.client
	finalizers := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/slow"]}}`))
	w := s.of("Workload", planOf(s.js).base)
	if err := errors.Join(s.client.Patch(t.Context(), w, finalizers), s.client.Delete(t.Context(), w)); err != nil {
		t.Fatal(err)
	}
	_, err = s.start(t, twoPhases)
	if err == nil || !strings.Contains(err.Error(), "is not deleted yet") {
		t.Errorf("an object that is being deleted can't be used: got %v", err)
	}
	s = newCluster(t, api.GangRequired)
	s.fails = func(string, client.Object) error {
		return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "workloads"}, "")
	}
	if _, err = s.start(t, twoPhases); err == nil || s.prober.last.usable(time.Now().Add(time.Millisecond), time.Hour) {
		t.Errorf("the API may no longer be served: got %v, %+v", err, s.prober.last)
	}
}

func TestDecide(t *testing.T) {
	s := newCluster(t, api.GangRequired)
	effective := &overrides.Effective{ReplicatedJobs: specOf(t, "replicatedJobs:\n"+rj("a", 1, 2, "")).ReplicatedJobs}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	if err := s.Startable(t.Context(), s.job, runtime, effective); err != nil {
		t.Errorf("groups can be created: got %v", err)
	}
	var blocked *admission.BlockedError
	runtime.PodGroupPolicy = &trainerapi.PodGroupPolicy{}
	err := s.Startable(t.Context(), s.job, runtime, effective)
	if !errors.As(err, &blocked) || blocked.Reason != ReasonInvalid || !strings.Contains(err.Error(), "podGroupPolicy") {
		t.Errorf("a pod is in one group: got %v", err)
	}
	s.defaults.Mode = api.GangPreferred
	if err := s.Startable(t.Context(), s.job, runtime, effective); err != nil {
		t.Errorf("preferred starts without groups: got %v", err)
	}
	s.job.Annotations = map[string]string{api.GangModeAnnotation: "always"}
	err = s.Startable(t.Context(), s.job, runtime, effective)
	if !errors.As(err, &blocked) || blocked.Reason != ReasonInvalid {
		t.Errorf("an unknown mode is refused: got %v", err)
	}
}

func TestUnsupported(t *testing.T) {
	runtime := &trainerapi.TrainingRuntimeSpec{}
	for mode, want := range map[string]string{
		"": "", "off": "", "preferred": "", "always": ReasonInvalid, "required": ReasonUnavailable,
	} {
		job := &api.TrainJob{}
		if mode != "" {
			job.Annotations = map[string]string{api.GangModeAnnotation: mode}
		}
		err := Unsupported(job, runtime)
		var blocked *admission.BlockedError
		if errors.As(err, &blocked) != (want != "") || blocked != nil && blocked.Reason != want {
			t.Errorf("%s: got %v, want %q", mode, err, want)
		}
	}
}

func TestSkipped(t *testing.T) {
	s := newCluster(t, api.GangPreferred)
	recorder := events.NewFakeRecorder(1)
	s.recorder = signalboxevents.NewRecorder(recorder)
	s.Skipped(s.job, errors.New("it is not served"))
	if got := <-recorder.Events; got != "Warning GangSchedulingSkipped Its pods are placed one by one: it is not served" {
		t.Errorf("got %s", got)
	}
}

func TestPlanOfPodsWithoutGroup(t *testing.T) {
	js := &jobset.JobSet{Spec: *specOf(t, "replicatedJobs:\n"+rj("a", 1, 2, ""))}
	js.Annotations = map[string]string{baseAnnotation: "train-1"}
	if p := planOf(js); p == nil || len(p.groups) != 0 {
		t.Errorf("a ReplicatedJob without a group is in none: got %+v", p)
	}
}

func TestPinnedSetting(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{store.PinAnnotation: "{}"}}}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	runtime.Template.Annotations = map[string]string{api.GangModeAnnotation: "required"}
	s, err := SettingOf(job, runtime, Setting{})
	if err != nil || !strings.Contains(s.From, "when it was first started") {
		t.Errorf("the runtime may have changed since: got %+v, %v", s, err)
	}
}
