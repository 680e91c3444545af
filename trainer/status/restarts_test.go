package status

import (
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestRestarts(t *testing.T) {
	failed := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{UID: "js"}}
	failed.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetFailed), Status: metav1.ConditionTrue}}
	runs, queued := &jobset.JobSet{ObjectMeta: failed.ObjectMeta}, &kueue.Workload{}
	finished := &kueue.Workload{}
	finished.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue}}
	for name, c := range map[string]struct {
		reason   string
		lost     *api.Loss
		jobSet   *jobset.JobSet
		workload *kueue.Workload
		want     bool
	}{
		"nothing was lost":          {"it has failed by itself", nil, failed, queued, false},
		"a pod was lost":            {"it isn't its fault", &api.Loss{JobSet: "js", Restarts: 1}, failed, queued, true},
		"it goes on":                {"its JobSet has replaced the pod", &api.Loss{JobSet: "js"}, runs, queued, false},
		"of an earlier JobSet":      {"this one has lost nothing", &api.Loss{JobSet: "old"}, failed, queued, false},
		"no restart is left":        {"the budget is used up", &api.Loss{JobSet: "js", Restarts: 3}, failed, queued, false},
		"without a queue":           {"nobody would start it again", &api.Loss{JobSet: "js"}, failed, nil, false},
		"its Workload has finished": {"nobody would start it again", &api.Loss{JobSet: "js"}, failed, finished, false},
		"it is decided": {"that stands, whatever becomes of the Workload",
			&api.Loss{JobSet: "js", Restarts: 3, Restarting: true}, runs, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{}
			job.Status.Lost = c.lost
			if got := Restarts(job, c.jobSet, c.workload); got != c.want {
				t.Errorf("%s: got %t, want %t", c.reason, got, c.want)
			}
		})
	}
}

func TestMaxRestarts(t *testing.T) {
	for value, c := range map[string]struct {
		reason  string
		want    int32
		invalid bool
	}{
		"0":  {"none is allowed", 0, false},
		"12": {"it is a number", 12, false},
		"-1": {"it is negative", api.DefaultRestarts, true},
		"x":  {"it is no number", api.DefaultRestarts, true},
		"":   {"it is empty", api.DefaultRestarts, true},
	} {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.RestartsAnnotation: value}}}
		errs := CheckRestarts(field.NewPath("metadata", "annotations"), job.Annotations)
		if got := MaxRestarts(job); got != c.want || (len(errs) > 0) != c.invalid {
			t.Errorf("%q, because %s: got %d, %v, want %d", value, c.reason, got, errs, c.want)
		}
	}
	if errs := CheckRestarts(field.NewPath("metadata"), nil); len(errs) > 0 || MaxRestarts(&api.TrainJob{}) != 3 {
		t.Errorf("three are allowed by default: got %d, %v", MaxRestarts(&api.TrainJob{}), errs)
	}
}

// TestMarkInitializers holds that the annotation is this Trainer's, and has a bound.
func TestMarkInitializers(t *testing.T) {
	many := map[string]string{}
	for i := range 4000 {
		many[strings.Repeat("x", 40)+string(rune('a'+i%26))+strings.Repeat("y", i/26)] = "0123456789abcdef"
	}
	for name, c := range map[string]struct {
		initializers map[string]string
		want         string
	}{
		"none": {nil, ""}, "one": {map[string]string{"a": "b"}, `{"a":"b"}`}, "too many": {many, ""},
	} {
		js := jobsetac.JobSet("job", "ns").WithAnnotations(map[string]string{InitializersAnnotation: "a user's"})
		if MarkInitializers(js, c.initializers); js.Annotations[InitializersAnnotation] != c.want {
			t.Errorf("%s: got %q", name, js.Annotations[InitializersAnnotation])
		}
	}
}

// TestInitializersOfAnEarlierRelease holds that what a JobSet without the annotation has finished isn't taken for what
// an earlier one did.
func TestInitializersOfAnEarlierRelease(t *testing.T) {
	job := &api.TrainJob{}
	job.Status.Initializers = map[string]string{"init": "old", "other": "kept"}
	js := &jobset.JobSet{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{{Name: "init", Replicas: 2}}}}
	statuses := []trainerapi.JobStatus{
		{Name: "init", Succeeded: ptr.To[int32](2)}, {Name: "other", Succeeded: ptr.To[int32](1)}}
	if got := initializersOf(job, js, statuses); len(got) != 1 || got["other"] != "kept" {
		t.Errorf("got %v", got)
	}
	js.Annotations = map[string]string{InitializersAnnotation: `{"init":"new"}`}
	if got := initializersOf(job, js, statuses); got["init"] != "new" || got["other"] != "kept" {
		t.Errorf("got %v", got)
	}
	statuses[0].Succeeded = ptr.To[int32](1)
	if got := initializersOf(job, js, statuses); len(got) != 1 {
		t.Errorf("one of its two Jobs hasn't succeeded: got %v", got)
	}
	if got := initializersOf(job, nil, nil); len(got) != 2 {
		t.Errorf("without a JobSet, nothing has changed: got %v", got)
	}
}
