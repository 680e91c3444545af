package stalled

import (
	"errors"
	"strings"
	"time"

	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Action is what follows when a TrainJob has stalled.
type Action string

// The actions.
const (
	// Nothing follows: a condition and an event say so.
	Nothing Action = ""
	// Stop stops the TrainJob as its user would.
	Stop Action = "stop"
	// Restart restarts it, within its budget of restarts.
	Restart Action = "restart"
)

// Bounds of the time. It is no shorter than what a training may take between two reports: a step, or a checkpoint.
const (
	shortest = time.Minute
	longest  = 168 * time.Hour
)

// Setting is what annotation signalbox.dev/stalled-after says.
type Setting struct {
	// After is for how long a running TrainJob may report nothing.
	After time.Duration
	Then  Action
}

var errInvalid = errors.New(`must be a duration from 1m to 168h, such as 30m, with ",stop" or ",restart" after it for ` +
	`what is to follow; correct or remove it`)

// parse reads a value of the annotation. The error says what is valid.
func parse(value string) (Setting, error) {
	after, then, follows := strings.Cut(value, ",")
	d, err := time.ParseDuration(strings.TrimSpace(after))
	s := Setting{After: d, Then: Action(strings.TrimSpace(then))}
	if err != nil || d < shortest || d > longest || follows && s.Then != Stop && s.Then != Restart {
		return Setting{}, errInvalid
	}
	return s, nil
}

// valueOf returns the annotation of a TrainJob, or else that of its runtime's template, which its JobSet has. js may be
// nil.
func valueOf(job *api.TrainJob, js *jobset.JobSet) (value string, set bool) {
	if value, set = job.Annotations[api.StalledAfterAnnotation]; set || js == nil {
		return value, set
	}
	value, set = js.Annotations[api.StalledAfterAnnotation]
	return value, set
}

// byStall begins the value of annotation signalbox.dev/stop on a TrainJob that was stopped because it had stalled.
const byStall = "stalled: it has reported nothing since "

// StopValue returns the value of annotation signalbox.dev/stop for a TrainJob that has stalled.
func StopValue(since string) string { return byStall + since }

// StoppedSince returns since when a TrainJob had reported nothing that was stopped for it, by the value of that
// annotation, and whether it was. Anybody may write the annotation: only a time is taken from it.
func StoppedSince(value string) (since string, stopped bool) {
	since, stopped = strings.CutPrefix(value, byStall)
	if _, err := time.Parse(time.RFC3339, since); !stopped || err != nil {
		return "", false
	}
	return since, true
}

// Check returns an error if the annotation is invalid, among those of a TrainJob or of a runtime.
func Check(annotations map[string]string, path *field.Path) field.ErrorList {
	value, set := annotations[api.StalledAfterAnnotation]
	if !set {
		return nil
	}
	if _, err := parse(value); err != nil {
		return field.ErrorList{field.Invalid(path.Key(api.StalledAfterAnnotation), value, err.Error())}
	}
	return nil
}

// Unheard returns the warning about a TrainJob that gets the annotation where nothing can report; nil for none. before
// is nil on creation. Of a TrainJob that runs in another cluster, that one knows.
func Unheard(before, after *api.TrainJob) []string {
	value, set := after.Annotations[api.StalledAfterAnnotation]
	same := before != nil && before.Annotations[api.StalledAfterAnnotation] == value
	if !set || same || trainjobutil.IsManagedByExternalController(after.Upstream()) {
		return nil
	}
	return []string{NoEffect}
}

// NoEffect is the warning about the annotation where nothing can report.
const NoEffect = "annotation " + api.StalledAfterAnnotation + " has no effect: training processes can't report in " +
	"this cluster; it needs the bundled Trainer with trainer.progress"
