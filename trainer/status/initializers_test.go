package status

import (
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
