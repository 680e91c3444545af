package legacy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
)

// List is the list of overrides of a Kubeflow Trainer before v2.2, which has no managers. A Record marks the
// integration's elements.
type List struct{ field string }

// The lists of overrides.
var (
	// PodTemplateList is podTemplateOverrides, of Kubeflow Trainer v2.1.
	PodTemplateList = &List{PodTemplateOverrides}
	// PodSpecList is podSpecOverrides, of Kubeflow Trainer v2.0. It has no metadata of pods, and names each ReplicatedJob
	// once in the whole list.
	PodSpecList = &List{PodSpecOverrides}
)

// podSpecTrainer is the only Trainer with podSpecOverrides, for messages.
const podSpecTrainer = "Kubeflow Trainer v2.0"

// Own returns the integration's entry, made of the elements that the Record names; nil where the TrainJob has never
// been started.
func (l *List) Own(job *api.TrainJob) *trainerapi.RuntimePatch {
	if record := readableRecord(job); record != nil && record.Field == l.field {
		return record.Entry()
	}
	return nil
}

// Entries returns the entries of the list, after the JobSet's metadata and what the other list's Record holds.
func (l *List) Entries(job *api.TrainJob) []overrides.Entry {
	entries := listEntries(job, l.field)
	record := readableRecord(job)
	switch {
	case record != nil && record.Field != l.field:
		// The JobSet's metadata is the TrainJob's: its CRD has these fields.
		users := map[string]any{}
		maps.Copy(users, record.Users)
		users["labels"], users["annotations"] = job.Spec.Labels, job.Spec.Annotations
		return append(record.entries(users), entries...)
	case record != nil:
		markOwn(entries, record)
	}
	return append(jobSetEntries(job), entries...)
}

// markOwn gives the integration's manager to the entries that the Record names: of several that are alike, the last.
func markOwn(entries []overrides.Entry, record *Record) {
	own := record.entries(map[string]any{record.Field: record.Own})
	for i := range slices.Backward(entries) {
		same := func(o overrides.Entry) bool { return reflect.DeepEqual(o.Patch, entries[i].Patch) }
		if at := slices.IndexFunc(own, same); at >= 0 {
			own = slices.Delete(own, at, at+1)
			entries[i].Manager = overrides.Manager
		}
	}
}

// elements returns the entry as elements of the list, one for each ReplicatedJob that it changes. It leaves out what
// the list can't hold; Uncarried reports whether that is needed.
func (l *List) elements(own *trainerapi.RuntimePatch) ([]any, error) {
	elements := []any{}
	for _, name := range overrides.StepsOf(own) {
		meta, spec := overrides.PodPatch(own.TrainingRuntimeSpec, name)
		if element := l.element(name, meta, spec); element != nil {
			elements = append(elements, element)
		}
	}
	plain, err := overrides.Generic(elements)
	list, _ := plain.([]any)
	return list, err
}

// Record returns the TrainJob's Record with the entry's elements as the integration's.
func (l *List) Record(job *api.TrainJob, own *trainerapi.RuntimePatch) (*Record, error) {
	record, err := RecordOf(job)
	if err != nil {
		return nil, err
	}
	if record == nil {
		record = &Record{}
	}
	record.Field, record.Time = l.field, own.Time
	record.Own, err = l.elements(own)
	return record, err
}

// Migrate returns the operations that put the other list's elements first, and write a Record of this list.
func (l *List) Migrate(job *api.TrainJob, record *Record, _ metav1.Time) ([]jsonpatch.Operation, error) {
	all, err := l.migrated(job, record)
	if err != nil {
		return nil, err
	}
	users, err := overrides.Generic(all)
	if err != nil {
		return nil, fmt.Errorf("encoding the migration: %w", err)
	}
	value, err := (&Record{Field: l.field, Users: map[string]any{l.field: users}}).String()
	if err != nil {
		return nil, err
	}
	var operations []jsonpatch.Operation
	if len(all) > 0 {
		operations = append(operations, jsonpatch.NewOperation("add", "/spec/"+l.field, all))
	}
	return append(operations, jsonpatch.NewOperation("replace", recordPointer, value)), nil
}

// Render returns the patch that brings a list of overrides in line with the Record: the users' elements as they were
// sent, and after them the integration's. The Record is the integration's alone; whoever sends a list sends it for the
// users. The Record keeps what they have sent, for the day on which the CRD no longer has the list.
func (l *List) Render(rq *review.Request) ([]jsonpatch.Operation, error) {
	if !rq.HasSpec() {
		return nil, nil
	}
	before, record := records(rq)
	if record.Field != "" && record.Field != l.field {
		return annotateRecord(rq, record) // to be migrated
	}
	sent, err := rq.Sent()
	if err != nil {
		return nil, err
	}
	list, _ := sent[l.field].([]any)
	users := list
	if before.Field == l.field {
		users = before.Strip(list)
		if dropped, err := l.dropped(rq, before); err != nil {
			return nil, err
		} else if dropped {
			// The CRD has been upgraded, which isn't known yet: the Record is all that is left of the list.
			return annotateRecord(rq, before)
		}
	}
	record.Field, record.Users = l.field, map[string]any{}
	if len(users) > 0 {
		record.Users[l.field] = users
	}
	for _, name := range []string{"labels", "annotations"} { // of the JobSet; later CRDs don't have them
		if value := sent[name]; value != nil {
			record.Users[name] = value
		}
	}
	patch := l.patch(list, append(slices.Clone(users), record.Own...))
	if record.Empty() {
		return append(patch, rq.Annotate(RecordAnnotation, nil)...), nil
	}
	annotated, err := annotateRecord(rq, record)
	return append(patch, annotated...), err
}

// records returns the Record before a request, and a copy of it or, if the integration sent the request, the one sent.
// One that can't be read was not written by the integration, and counts for nothing.
func records(rq *review.Request) (before, record *Record) {
	before, record = &Record{}, &Record{}
	if rq.Old != nil {
		if r, err := RecordOf(rq.Old); err == nil && r != nil {
			before, record = r, &Record{Field: r.Field, Time: r.Time, Own: r.Own, Users: r.Users}
		}
	}
	if rq.Trusted {
		if r, err := RecordOf(rq.New); err == nil && r != nil {
			record = r
		}
	}
	return before, record
}

// dropped reports whether the API server no longer stores the list although the Record has elements of it.
func (l *List) dropped(rq *review.Request, before *Record) (bool, error) {
	stored, err := rq.Stored()
	if err != nil {
		return false, err
	}
	said, _ := before.Users[l.field].([]any)
	return len(before.Own)+len(said) > 0 && stored[l.field] == nil, nil
}

func (l *List) patch(list, all []any) []jsonpatch.Operation {
	switch {
	case len(all) == 0 && len(list) > 0:
		return []jsonpatch.Operation{jsonpatch.NewOperation("remove", "/spec/"+l.field, nil)}
	case len(all) > 0 && !reflect.DeepEqual(all, list):
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/"+l.field, all)}
	}
	return nil
}

func annotateRecord(rq *review.Request, record *Record) ([]jsonpatch.Operation, error) {
	value, err := record.String()
	if err != nil {
		return nil, err
	}
	return rq.Annotate(RecordAnnotation, &value), nil
}

// places reports whether a patch has any of what admission places pods by.
func places(spec *trainerapi.PodSpecPatch) bool {
	return spec != nil && len(spec.NodeSelector)+len(spec.Tolerations)+len(spec.SchedulingGates) > 0
}

// element returns the list's element that sets the metadata and placement of a ReplicatedJob's pods, nil where there is
// nothing that the list can hold.
func (l *List) element(replicatedJob string, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) any {
	targets := []api.TargetJob{{Name: replicatedJob}}
	switch {
	case l == PodSpecList && places(spec):
		return api.PodSpecOverride{TargetJobs: targets,
			NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, SchedulingGates: spec.SchedulingGates}
	case l == PodSpecList || meta == nil && spec == nil:
		return nil
	case !places(spec):
		return api.PodTemplateOverride{TargetJobs: targets, Metadata: meta}
	}
	return api.PodTemplateOverride{TargetJobs: targets, Metadata: meta, Spec: &api.PodTemplateSpecOverride{
		NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, SchedulingGates: spec.SchedulingGates}}
}

// migrated returns the list that holds what another list's Record does, ahead of the list's own elements.
func (l *List) migrated(job *api.TrainJob, record *Record) ([]api.PodTemplateOverride, error) {
	if l == PodSpecList {
		if len(record.Users) == 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("spec.%s can't be migrated to %s; upgrade Kubeflow Trainer, or delete the TrainJob and "+
			"create it again", record.Field, podSpecTrainer)
	}
	read, err := specOf(record.Users)
	if err != nil {
		return nil, fmt.Errorf("reading annotation %s: %w", RecordAnnotation, err)
	}
	var all []api.PodTemplateOverride
	for _, old := range read.Spec.PodSpecOverrides {
		all = append(all, api.PodTemplateOverride{TargetJobs: old.TargetJobs, Spec: as[api.PodTemplateSpecOverride](old)})
	}
	return append(all, job.Spec.PodTemplateOverrides...), nil
}

// Uncarried returns why the list can't hold the integration's patch of a ReplicatedJob, nil where it can. others are
// the users' entries. metadata names what needs the patch's labels or annotations; "" where nothing does.
func (l *List) Uncarried(
	others []overrides.Entry, patch trainerapi.ReplicatedJobPatch, metadata string,
) *overrides.Conflict {
	at := slices.IndexFunc(others, func(e overrides.Entry) bool { return e.Targets(patch.Name) })
	switch _, spec := overrides.PodPatchOf(&patch); {
	case l == PodTemplateList:
		return nil
	case metadata != "":
		return &overrides.Conflict{
			Path: "spec." + PodSpecOverrides, Says: "without labels and annotations of pods, in " + podSpecTrainer,
			Source: metadata, Needs: "labels or annotations on the pods of " + patch.Name,
			WayOut: "upgrade Kubeflow Trainer to v2.1 or later, or queue the TrainJob where they are not needed",
		}
	case !places(spec) || at < 0:
		return nil
	}
	return &overrides.Conflict{
		Path: others[at].Path.String(), Says: "for replicatedJob " + patch.Name, Source: podSpecTrainer,
		Needs:  "one element for each replicatedJob, and admission writes it",
		WayOut: "move its fields to the runtime, or upgrade Kubeflow Trainer to v2.1 or later",
	}
}
