package overrides

import (
	"fmt"
	"reflect"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// unkeyed is Kubeflow Trainer before v2.2: TrainJobs have a list of overrides without managers. The integration's
// elements are marked by a Record.
type unkeyed struct {
	trainer
	list overrideList
}

// overrideList is one of the shapes of a list of overrides without managers.
type overrideList interface {
	field() string
	// entries returns the list's entries.
	entries(job *api.TrainJob) []Entry
	// element returns the list's element that sets the metadata and placement of a ReplicatedJob's pods, nil where there
	// is nothing that the list can hold.
	element(replicatedJob string, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) any
	// migrated returns the list that holds what a foreign Record does, ahead of the list's own elements.
	migrated(trainer string, job *api.TrainJob, record *Record) ([]api.PodTemplateOverride, error)
	uncarried(trainer string, others []Entry, replicatedJob string, needs Needs) *Uncarried
	countsJobs() bool
}

// Field returns the list's field.
func (d *unkeyed) Field() string { return d.list.field() }

// Keyed reports false.
func (d *unkeyed) Keyed() bool { return false }

// CountsJobs reports whether it is v2.1, the first that does.
func (d *unkeyed) CountsJobs() bool { return d.list.countsJobs() }

// Own returns the integration's entry, made of the elements that the Record names; nil where the TrainJob has never
// been started.
func (d *unkeyed) Own(job *api.TrainJob) *trainerapi.RuntimePatch {
	record := readableRecord(job)
	if record == nil || record.Time == nil || d.Foreign(record) {
		return nil
	}
	own := &trainerapi.RuntimePatch{Manager: Manager, Time: record.Time}
	for _, e := range d.read(job, record.Own) {
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

// read returns the entries of elements of the list.
func (d *unkeyed) read(job *api.TrainJob, elements []any) []Entry {
	read, err := specOf(map[string]any{d.Field(): elements})
	if err != nil {
		return nil // RecordOf has read them
	}
	read.Name = job.Name
	return d.list.entries(read)
}

// Entries returns the entries of the list, after the JobSet's metadata and what a foreign Record holds.
func (d *unkeyed) Entries(job *api.TrainJob) []Entry {
	return append(d.listed(job), patchEntries(job)...)
}

// Others returns the entries that are not the integration's.
func (d *unkeyed) Others(job *api.TrainJob) []Entry { return withoutOwn(d.Entries(job)) }

// With returns the entries with the integration's as the last: its elements are the last of the list.
func (d *unkeyed) With(job *api.TrainJob, own trainerapi.RuntimePatch) []Entry {
	return append(d.Others(job), ownEntry(own))
}

// listed returns the entries of the list and of the JobSet's metadata.
func (d *unkeyed) listed(job *api.TrainJob) []Entry {
	record := readableRecord(job)
	entries := d.list.entries(job)
	switch {
	case d.Foreign(record):
		return append(d.recorded(job, record), entries...)
	case record != nil:
		d.markOwn(job, entries, record)
	}
	return append(jobSetEntries(job), entries...)
}

// recorded returns what a foreign Record holds. The JobSet's metadata is the TrainJob's: its CRD has these fields.
func (d *unkeyed) recorded(job *api.TrainJob, record *Record) []Entry {
	users := make(map[string]any, len(record.Users)+2)
	for name, value := range record.Users {
		users[name] = value
	}
	users["labels"], users["annotations"] = job.Spec.Labels, job.Spec.Annotations
	return record.entries(users)
}

// markOwn gives the integration's manager to the entries that the Record names: of several that are alike, the last.
func (d *unkeyed) markOwn(job *api.TrainJob, entries []Entry, record *Record) {
	own := d.read(job, record.Own)
	for i := range slices.Backward(entries) {
		same := func(o Entry) bool { return reflect.DeepEqual(o.Patch, entries[i].Patch) }
		if at := slices.IndexFunc(own, same); at >= 0 {
			own = slices.Delete(own, at, at+1)
			entries[i].Manager = Manager
		}
	}
}

// elements returns the entry as elements of the list, one for each ReplicatedJob that it changes. It leaves out what
// the list can't hold; Uncarried reports whether that is needed.
func (d *unkeyed) elements(own *trainerapi.RuntimePatch) ([]any, error) {
	elements := []any{}
	for _, rj := range replicatedJobsOf(own) {
		meta, spec := PodPatch(own.TrainingRuntimeSpec, rj.Name)
		element := d.list.element(rj.Name, meta, spec)
		if element == nil {
			continue
		}
		plain, err := generic(element)
		if err != nil {
			return nil, err
		}
		elements = append(elements, plain)
	}
	return elements, nil
}

// Record returns the TrainJob's Record with the entry's elements as the integration's.
func (d *unkeyed) Record(job *api.TrainJob, own *trainerapi.RuntimePatch) (*Record, error) {
	record, err := RecordOf(job)
	if err != nil {
		return nil, err
	}
	if record == nil {
		record = &Record{}
	}
	record.Field, record.Time = d.Field(), own.Time
	record.Own, err = d.elements(own)
	return record, err
}

// Foreign reports whether a Record is of the other list.
func (d *unkeyed) Foreign(record *Record) bool { return record != nil && record.Field != d.Field() }

// Uncarried returns why the list can't hold what admission needs.
func (d *unkeyed) Uncarried(others []Entry, patch trainerapi.ReplicatedJobPatch, needs Needs) *Uncarried {
	return d.list.uncarried(d.name, others, patch.Name, needs)
}

// Migrate returns the list with the foreign Record's elements first.
func (d *unkeyed) Migrate(job *api.TrainJob, record *Record, _ metav1.Time) (*Migration, error) {
	all, err := d.list.migrated(d.name, job, record)
	if err != nil {
		return nil, err
	}
	return &Migration{List: all, dialect: d}, nil
}

// operations writes the list and a Record of its own.
func (d *unkeyed) operations(_ *api.TrainJob, m *Migration) ([]PatchOperation, error) {
	users, err := generic(m.List)
	if err != nil {
		return nil, fmt.Errorf("encoding the migration: %w", err)
	}
	value, err := (&Record{Field: d.Field(), Users: map[string]any{d.Field(): users}}).String()
	if err != nil {
		return nil, err
	}
	var operations []PatchOperation
	if len(m.List) > 0 {
		operations = append(operations, PatchOperation{Op: "add", Path: "/spec/" + d.Field(), Value: m.List})
	}
	return append(operations, PatchOperation{Op: "replace", Path: recordPointer, Value: value}), nil
}

// places reports whether a patch has any of what admission places pods by.
func places(spec *trainerapi.PodSpecPatch) bool {
	return spec != nil && len(spec.NodeSelector)+len(spec.Tolerations)+len(spec.SchedulingGates) > 0
}

// podTemplateList is podTemplateOverrides, of Kubeflow Trainer v2.1.
type podTemplateList struct{}

func (podTemplateList) field() string { return PodTemplateOverrides }

func (podTemplateList) countsJobs() bool { return true }

func (podTemplateList) entries(job *api.TrainJob) []Entry { return podTemplateEntries(job, false) }

func (podTemplateList) element(replicatedJob string, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) any {
	if meta == nil && spec == nil {
		return nil
	}
	o := api.PodTemplateOverride{TargetJobs: []api.TargetJob{{Name: replicatedJob}}, Metadata: meta}
	if places(spec) {
		o.Spec = &api.PodTemplateSpecOverride{
			NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, SchedulingGates: spec.SchedulingGates,
		}
	}
	return o
}

func (podTemplateList) migrated(_ string, job *api.TrainJob, record *Record) ([]api.PodTemplateOverride, error) {
	read, err := specOf(record.Users)
	if err != nil {
		return nil, fmt.Errorf("reading annotation %s: %w", RecordAnnotation, err)
	}
	var all []api.PodTemplateOverride
	for i := range read.Spec.PodSpecOverrides {
		old := &read.Spec.PodSpecOverrides[i]
		all = append(all, api.PodTemplateOverride{TargetJobs: old.TargetJobs, Spec: withoutTargets(old)})
	}
	return append(all, job.Spec.PodTemplateOverrides...), nil
}

func (podTemplateList) uncarried(string, []Entry, string, Needs) *Uncarried { return nil }

// podSpecList is podSpecOverrides, of Kubeflow Trainer v2.0. It has no metadata of pods, and names each ReplicatedJob
// once in the whole list.
type podSpecList struct{}

func (podSpecList) field() string { return PodSpecOverrides }

func (podSpecList) countsJobs() bool { return false }

func (podSpecList) entries(job *api.TrainJob) []Entry { return podSpecEntries(job) }

func (podSpecList) element(replicatedJob string, _ *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) any {
	if !places(spec) {
		return nil
	}
	return api.PodSpecOverride{
		TargetJobs:   []api.TargetJob{{Name: replicatedJob}},
		NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, SchedulingGates: spec.SchedulingGates,
	}
}

func (podSpecList) migrated(trainer string, _ *api.TrainJob, record *Record) ([]api.PodTemplateOverride, error) {
	if len(record.Users) == 0 {
		return nil, nil
	}
	return nil, fmt.Errorf("spec.%s can't be migrated to %s; upgrade Kubeflow Trainer, or delete the "+
		"TrainJob "+
		"and create it again", record.Field, trainer)
}

func (podSpecList) uncarried(trainer string, others []Entry, replicatedJob string, needs Needs) *Uncarried {
	if needs.Metadata != "" {
		return &Uncarried{
			Path: "spec." + PodSpecOverrides, Says: "without labels and annotations of pods, in " + trainer,
			Source: needs.Metadata, Needs: "labels or annotations on the pods of " + replicatedJob,
			WayOut: "upgrade Kubeflow Trainer to v2.1 or later, or queue the TrainJob where they are not needed",
		}
	}
	at := slices.IndexFunc(others, func(e Entry) bool { return e.Targets(replicatedJob) })
	if !needs.Placement || at < 0 {
		return nil
	}
	return &Uncarried{
		Path: others[at].Path().String(), Says: "for replicatedJob " + replicatedJob, Source: trainer,
		Needs:  "one element for each replicatedJob, and admission writes it",
		WayOut: "move its fields to the runtime, or upgrade Kubeflow Trainer to v2.1 or later",
	}
}
