package legacy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// RecordAnnotation holds a Record on TrainJobs of Trainers whose lists of overrides have no managers.
const RecordAnnotation = "signalbox.dev/overrides"

var recordPointer = "/metadata/annotations/" + strings.ReplaceAll(RecordAnnotation, "/", "~1")

// Record names the elements of a list of overrides that are the integration's, and keeps the users' elements: when the
// CRD is upgraded to another shape, the API server drops the list.
type Record struct {
	// Field of the TrainJob's spec that the elements belong to.
	Field string `json:"field"`
	// Time at which Own was last written; nil where the TrainJob has never been started.
	Time *metav1.Time `json:"time,omitempty"`
	// Own are the integration's elements, the last of the list.
	Own []any `json:"own,omitempty"`
	// Users are the fields of the spec that the users have set and that another Trainer's CRD doesn't have.
	Users map[string]any `json:"users,omitempty"`
}

// RecordOf returns the TrainJob's Record, nil where it has none, and an error where it can't be read.
func RecordOf(job *api.TrainJob) (*Record, error) {
	value, found := job.Annotations[RecordAnnotation]
	if !found {
		return nil, nil
	}
	record := &Record{}
	err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(value), record)
	if err == nil {
		err = record.check()
	}
	if err != nil {
		return nil, fmt.Errorf("metadata.annotations[%s]: %w; it was not written by Signalbox: "+
			"delete the TrainJob and create it without the annotation", RecordAnnotation, err)
	}
	return record, nil
}

// readableRecord returns the TrainJob's Record, nil where it has none that can be read: RecordOf reports the error.
func readableRecord(job *api.TrainJob) *Record {
	record, _ := RecordOf(job)
	return record
}

// String returns the annotation's value.
func (r *Record) String() (string, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding annotation %s: %w", RecordAnnotation, err)
	}
	return string(data), nil
}

// check returns an error where the Record's elements can't be read.
func (r *Record) check() error {
	if r.Field != PodTemplateOverrides && r.Field != PodSpecOverrides {
		return fmt.Errorf("its field is %q", r.Field)
	}
	for _, spec := range []map[string]any{r.Users, {r.Field: r.Own}} {
		if _, err := specOf(spec); err != nil {
			return err
		}
	}
	return nil
}

// Entry returns the integration's entry, made of its elements; nil if the TrainJob has never been started.
func (r *Record) Entry() *trainerapi.RuntimePatch {
	if r.Time == nil {
		return nil
	}
	own := &trainerapi.RuntimePatch{Manager: overrides.Manager, Time: r.Time}
	for _, e := range r.entries(map[string]any{r.Field: r.Own}) {
		if own.TrainingRuntimeSpec == nil {
			own.TrainingRuntimeSpec = &trainerapi.TrainingRuntimeSpecPatch{
				Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{}},
			}
		}
		spec := own.TrainingRuntimeSpec.Template.Spec
		spec.ReplicatedJobs = append(spec.ReplicatedJobs, e.Patch.Template.Spec.ReplicatedJobs...)
	}
	return own
}

// entries returns the entries of fields of the spec, as the Trainer reads them whose list the Record is of.
func (r *Record) entries(fields map[string]any) []overrides.Entry {
	read, err := specOf(fields)
	if err != nil {
		return nil // RecordOf has read them
	}
	return append(jobSetEntries(read), listEntries(read, r.Field)...)
}

// Strip returns the users' elements of a list: all but the integration's. Of an element that equals one of the
// integration's, the users keep as many as the Record has for them.
func (r *Record) Strip(list []any) []any {
	users, _ := r.Users[r.Field].([]any)
	missing := without(r.Own, without(list, users)) // from the list
	return without(list, without(r.Own, missing))
}

// Rendered reports whether a list has the integration's elements.
func (r *Record) Rendered(list []any) bool { return len(list)-len(without(list, r.Own)) == len(r.Own) }

// Empty reports whether there is nothing to record.
func (r *Record) Empty() bool { return r.Time == nil && len(r.Own) == 0 && len(r.Users) == 0 }

// without returns the elements of the list that are not among own. Each of own removes one element, the last that
// equals it.
func without(list, own []any) []any {
	text := func(element *any) string { return overrides.AsJSON(*element) }
	texts := utilslices.Map(own, text) // so that numbers are the same however they were read
	users := make([]any, 0, len(list))
	for _, element := range slices.Backward(list) {
		if i := slices.Index(texts, text(&element)); i >= 0 {
			texts = slices.Delete(texts, i, i+1)
			continue
		}
		users = append(users, element)
	}
	slices.Reverse(users)
	return users
}

func specOf(fields map[string]any) (*api.TrainJob, error) {
	data, err := json.Marshal(map[string]any{"spec": fields})
	if err != nil {
		return nil, err
	}
	read := &api.TrainJob{}
	return read, json.Unmarshal(data, read)
}
