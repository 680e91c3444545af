package overrides

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// The fields of a TrainJob's spec that hold what it changes of its runtime.
const (
	RuntimePatches       = "runtimePatches"
	TemplateOverrides    = "templateOverrides"
	PodTemplateOverrides = "podTemplateOverrides"
	PodSpecOverrides     = "podSpecOverrides"
)

// Dialect is how a Trainer takes what a TrainJob changes of its runtime.
type Dialect struct {
	// Name of the Trainer, for people.
	Name string
	// Field of a TrainJob's spec that holds the integration's entry.
	Field string
	// Bundled takes every shape, and podTemplateOverrides as the operator guide describes them. All others merge
	// strategically, whatever the guide says.
	Bundled bool
	// Snapshots are ConfigMaps in which the Trainer keeps the runtime that a TrainJob runs on.
	Snapshots bool
	// Counts tells that the Trainer keeps status.jobsStatus, which v2.0 has and leaves empty.
	Counts bool
	// replaces tells that spec.trainer.resourcesPerNode takes the place of the runtime's resources, as a whole.
	replaces bool
	// manifests takes every shape that a manifest may have been written in, for whatever Trainer.
	manifests bool
	// strategic merges podTemplateOverrides as Kubeflow Trainer v2.1 does, and not as its guide says.
	strategic bool
	// launcherAlone tells that with MPI's launcher as a node, resourcesPerNode is the launcher's alone.
	launcherAlone bool
}

// The Trainers that there are.
var (
	Bundled    = Dialect{Name: "the bundled Trainer", Field: RuntimePatches, Bundled: true, Counts: true}
	Kubeflow23 = Dialect{Name: "Kubeflow Trainer v2.3", Field: RuntimePatches, Snapshots: true, Counts: true}
	Kubeflow22 = Dialect{Name: "Kubeflow Trainer v2.2", Field: RuntimePatches, Counts: true, replaces: true}
	Kubeflow21 = Dialect{Name: "Kubeflow Trainer v2.1", Field: PodTemplateOverrides, Counts: true, replaces: true}
	Kubeflow20 = Dialect{Name: "Kubeflow Trainer v2.0", Field: PodSpecOverrides, replaces: true, launcherAlone: true}
)

// Manifests is the dialect of manifests, in which every shape may stand. strategic takes podTemplateOverrides as Kubeflow
// Trainer v2.1 merges them, and not as its operator guide and the bundled Trainer do.
func Manifests(strategic bool) Dialect {
	return Dialect{Name: "a manifest", Field: RuntimePatches, Bundled: true, manifests: true, strategic: strategic}
}

// Keyed tells whether entries are keyed by their managers. In a list that is not, the integration's elements are found
// again by its Record.
func (d Dialect) Keyed() bool { return d.Field == RuntimePatches }

// RecordAnnotation is on TrainJobs of Trainers whose lists of overrides are not keyed by manager. It holds a Record.
const RecordAnnotation = "signalbox.dev/overrides"

// Record says which elements of a list of overrides are the integration's, and keeps the users' elements: when the CRD is
// upgraded to another shape, the API server drops the list.
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

// RecordOf returns the TrainJob's Record, nil where it has none.
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
		return nil, fmt.Errorf("metadata.annotations[%s]: %w; it was not written by Signalbox: delete the TrainJob and create it without the annotation", RecordAnnotation, err)
	}
	return record, nil
}

// String returns the annotation's value.
func (r *Record) String() (string, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding annotation %s: %w", RecordAnnotation, err)
	}
	return string(data), nil
}

// check refuses a Record whose elements can't be read.
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

// specOf reads fields of a TrainJob's spec.
func specOf(fields map[string]any) (*api.TrainJob, error) {
	data, err := json.Marshal(map[string]any{"spec": fields})
	if err != nil {
		return nil, err
	}
	read := &api.TrainJob{}
	return read, json.Unmarshal(data, read)
}

// Entry returns the integration's entry that a Record holds; nil where the TrainJob has never been started.
func (r *Record) Entry(job *api.TrainJob) *trainerapi.RuntimePatch {
	return trainerOf(r.Field).Own(job)
}

// Strip returns the users' elements of a list that they or we have sent: all but the integration's. One that equals an
// element of the integration's is theirs as long as they have said as much before.
func (r *Record) Strip(list []any) []any {
	said, _ := r.Users[r.Field].([]any)
	count := func(in []any, element any) int {
		n := 0
		for _, e := range in {
			if sameJSON(e, element) {
				n++
			}
		}
		return n
	}
	var own []any
	for _, element := range r.Own {
		if count(list, element)-count(said, element) > count(own, element) {
			own = append(own, element)
		}
	}
	return Without(list, own)
}

// Empty tells whether there is nothing to record.
func (r *Record) Empty() bool { return r.Time == nil && len(r.Own) == 0 && len(r.Users) == 0 }

// Elements returns the integration's entry as elements of the dialect's list, one for each ReplicatedJob that it says
// something of. What the list can't carry is left out; Decide looks whether it was needed.
func (d Dialect) Elements(own *trainerapi.RuntimePatch) ([]any, error) {
	elements := []any{}
	for _, rj := range replicatedJobsOf(own) {
		meta, spec := PodPatch(own.TrainingRuntimeSpec, rj.Name)
		target := []api.TargetJob{{Name: rj.Name}}
		var element any
		switch {
		case d.Field == PodSpecOverrides && spec == nil || meta == nil && spec == nil:
			continue
		case d.Field == PodSpecOverrides:
			if len(spec.NodeSelector)+len(spec.Tolerations)+len(spec.SchedulingGates) == 0 {
				continue
			}
			element = api.PodSpecOverride{TargetJobs: target, NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, SchedulingGates: spec.SchedulingGates}
		default:
			o := api.PodTemplateOverride{TargetJobs: target, Metadata: meta}
			if spec != nil && len(spec.NodeSelector)+len(spec.Tolerations)+len(spec.SchedulingGates) > 0 {
				o.Spec = &api.PodTemplateSpecOverride{NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, SchedulingGates: spec.SchedulingGates}
			}
			element = o
		}
		plain, err := generic(element)
		if err != nil {
			return nil, err
		}
		elements = append(elements, plain)
	}
	return elements, nil
}

// generic returns a value as JSON has it.
func generic(value any) (any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var plain any
	return plain, kjson.UnmarshalCaseSensitivePreserveInts(data, &plain)
}

// Without returns the elements of the list that are not among own; each of own takes away one, the last.
func Without(list, own []any) []any {
	own = slices.Clone(own)
	users := make([]any, 0, len(list))
	for _, element := range slices.Backward(list) {
		if i := slices.IndexFunc(own, func(o any) bool { return sameJSON(o, element) }); i >= 0 {
			own = slices.Delete(own, i, i+1)
			continue
		}
		users = append(users, element)
	}
	slices.Reverse(users)
	return users
}

// sameJSON compares two values of JSON, however their numbers were read.
func sameJSON(a, b any) bool {
	x, err1 := generic(a)
	y, err2 := generic(b)
	return err1 == nil && err2 == nil && reflect.DeepEqual(x, y)
}

// Own returns the integration's entry of the TrainJob, or nil where it has none.
func (d Dialect) Own(job *api.TrainJob) *trainerapi.RuntimePatch {
	if d.Keyed() {
		if i := OwnIndex(job); i >= 0 {
			return &job.Spec.RuntimePatches[i]
		}
		return nil
	}
	record, err := RecordOf(job)
	if err != nil || record == nil || record.Time == nil || record.Field != d.Field {
		return nil
	}
	own := &trainerapi.RuntimePatch{Manager: Manager, Time: record.Time}
	for _, e := range d.legacy(job, record.Own) {
		if own.TrainingRuntimeSpec == nil {
			own.TrainingRuntimeSpec = &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{}}}
		}
		spec := own.TrainingRuntimeSpec.Template.Spec
		spec.ReplicatedJobs = append(spec.ReplicatedJobs, e.Patch.Template.Spec.ReplicatedJobs...)
	}
	return own
}

// legacy reads elements of the dialect's list.
func (d Dialect) legacy(job *api.TrainJob, elements []any) []Entry {
	read, err := specOf(map[string]any{d.Field: elements})
	if err != nil {
		return nil // RecordOf has read them
	}
	read.Name = job.Name
	return d.lists(read)
}

// Entries returns all that the TrainJob changes of its runtime, what comes first in the order in which it is merged:
// runtimePatches win over templateOverrides, these over podTemplateOverrides, and of each the later over the earlier.
func (d Dialect) Entries(job *api.TrainJob) []Entry { return d.entries(job, true) }

// Others returns the entries that are not the integration's.
func (d Dialect) Others(job *api.TrainJob) []Entry { return d.entries(job, false) }

func (d Dialect) entries(job *api.TrainJob, own bool) []Entry {
	entries := d.unkeyed(job)
	for i := range job.Spec.RuntimePatches {
		patch := &job.Spec.RuntimePatches[i]
		entries = append(entries, Entry{Manager: patch.Manager, Time: patch.Time, Patch: patch.TrainingRuntimeSpec, shape: RuntimePatches, root: patchesPath.Key(patch.Manager)})
	}
	if own {
		return entries
	}
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.Manager == Manager })
}

// unkeyed returns the entries in earlier shapes than runtimePatches.
func (d Dialect) unkeyed(job *api.TrainJob) []Entry {
	record, err := RecordOf(job)
	if err != nil {
		record = nil // who reads it says so
	}
	var entries []Entry
	if d.Foreign(record) {
		entries = d.recorded(job, record)
		if d.Bundled {
			entries = append(entries, histories(job)...)
		}
		return entries
	}
	if (d.manifests || !d.Keyed()) && len(job.Spec.Labels)+len(job.Spec.Annotations) > 0 {
		entries = append(entries, Entry{shape: "labels", root: field.NewPath("spec"), Patch: &trainerapi.TrainingRuntimeSpecPatch{
			Template: &trainerapi.JobSetTemplatePatch{Metadata: &metav1.ObjectMeta{Labels: job.Spec.Labels, Annotations: job.Spec.Annotations}}}})
	}
	lists := d.lists(job)
	if record != nil {
		lists = d.markOwn(job, lists, record)
	}
	entries = append(entries, lists...)
	if d.Bundled {
		entries = append(entries, histories(job)...)
	}
	return entries
}

// Foreign tells whether a Record is of another Trainer, which this one has taken the place of: what the users' elements
// said is to be said in this one's way.
func (d Dialect) Foreign(record *Record) bool { return record != nil && record.Field != d.Field }

// trainerOf is the Trainer whose list the field is.
func trainerOf(field string) Dialect {
	if field == PodSpecOverrides {
		return Kubeflow20
	}
	return Kubeflow21
}

// recorded returns the entries that a foreign Record has kept, and what the users have said in this dialect's list since.
func (d Dialect) recorded(job *api.TrainJob, record *Record) []Entry {
	if d.edited(job, record) {
		live := job.DeepCopy()
		live.Annotations = nil
		live.Spec.PodTemplateOverrides = d.liveList(job, record)
		return d.lists(live)
	}
	users := map[string]any{}
	maps.Copy(users, record.Users)
	if !d.Keyed() { // its CRD has these still
		users["labels"], users["annotations"] = job.Spec.Labels, job.Spec.Annotations
	}
	read, err := specOf(users)
	if err != nil {
		return nil // RecordOf has read them
	}
	entries := trainerOf(record.Field).unkeyed(read)
	if !d.Keyed() {
		entries = append(entries, d.lists(job)...)
	}
	return entries
}

// liveList is the list of podTemplateOverrides as it stands on a CRD that still has it, without the integration's elements
// of before.
func (d Dialect) liveList(job *api.TrainJob, record *Record) []api.PodTemplateOverride {
	plain, err := generic(job.Spec.PodTemplateOverrides)
	list, ok := plain.([]any)
	if err != nil || !ok {
		return nil
	}
	read, err := specOf(map[string]any{PodTemplateOverrides: record.Strip(list)})
	if err != nil {
		return nil // it was read from the TrainJob
	}
	return read.Spec.PodTemplateOverrides
}

// edited tells whether the users have changed the list since another Trainer's Record was written: the bundled Trainer's
// CRD has podTemplateOverrides too. What stands there now is what they say.
func (d Dialect) edited(job *api.TrainJob, record *Record) bool {
	if !d.Bundled || record.Field != PodTemplateOverrides {
		return false
	}
	read, err := specOf(record.Users)
	return err == nil && !equality.Semantic.DeepEqual(read.Spec.PodTemplateOverrides, d.liveList(job, record))
}

// Migration is what takes the place of a foreign Record.
type Migration struct {
	// Patch is a further entry, the first of runtimePatches; nil where there is nothing to say.
	Patch *trainerapi.RuntimePatch
	// List is what podTemplateOverrides are to be.
	List []api.PodTemplateOverride
}

// Migrate returns what says in this dialect what a foreign Record has kept, or why that can't be said.
func (d Dialect) Migrate(job *api.TrainJob, record *Record, now metav1.Time) (*Migration, error) {
	m := &Migration{}
	switch {
	case d.edited(job, record):
		m.List = d.liveList(job, record)
		return m, nil
	case d.Field == PodSpecOverrides:
		if len(record.Users) > 0 {
			return nil, fmt.Errorf("what was said in spec.%s can't be said to %s; upgrade Kubeflow Trainer, or delete the TrainJob and create it anew", record.Field, d.Name)
		}
		return m, nil
	case !d.Keyed():
		read, err := specOf(record.Users)
		if err != nil {
			return nil, fmt.Errorf("reading annotation %s: %w", RecordAnnotation, err)
		}
		for i := range read.Spec.PodSpecOverrides {
			old := &read.Spec.PodSpecOverrides[i]
			m.List = append(m.List, api.PodTemplateOverride{TargetJobs: old.TargetJobs, Spec: withoutTargets(old)})
		}
		m.List = append(m.List, job.Spec.PodTemplateOverrides...)
		return m, nil
	}
	said := slices.ContainsFunc(job.Spec.RuntimePatches, func(p trainerapi.RuntimePatch) bool { return p.Manager == ConvertedManager })
	entries := d.recorded(job, record)
	if len(entries) == 0 || said { // by the users, with their converted manifests
		return m, nil
	}
	if n := len(job.Spec.RuntimePatches); n >= MaxEntries {
		return nil, fmt.Errorf("what was said in spec.%s needs an entry of spec.%s, which has %d already; take one out", record.Field, RuntimePatches, n)
	}
	patch, err := fold(entries)
	m.Patch = &trainerapi.RuntimePatch{Manager: ConvertedManager, Time: &now, TrainingRuntimeSpec: patch}
	return m, err
}

// Record returns the Record of a TrainJob that was migrated to the dialect and has not been started since.
func (m *Migration) Record(d Dialect) (*Record, error) {
	list, err := generic(m.List)
	return &Record{Field: d.Field, Users: map[string]any{d.Field: list}}, err
}

// markOwn gives the integration's elements its manager.
func (d Dialect) markOwn(job *api.TrainJob, lists []Entry, record *Record) []Entry {
	own := d.legacy(job, record.Own)
	for i := range slices.Backward(lists) {
		if at := slices.IndexFunc(own, func(o Entry) bool { return reflect.DeepEqual(o.Patch, lists[i].Patch) }); at >= 0 {
			own = slices.Delete(own, at, at+1)
			lists[i].Manager = Manager
		}
	}
	return lists
}

// With returns the entries as they stand after the integration has written its own: in the place of the one it has, or
// as the last.
func (d Dialect) With(job *api.TrainJob, own trainerapi.RuntimePatch) []Entry {
	entry := Entry{Manager: Manager, Patch: own.TrainingRuntimeSpec, shape: RuntimePatches, root: patchesPath.Key(Manager)}
	if d.Keyed() {
		entries := d.Entries(job)
		if i := slices.IndexFunc(entries, func(e Entry) bool { return e.Manager == Manager }); i >= 0 {
			entries[i] = entry
			return entries
		}
		return append(entries, entry)
	}
	return append(d.Others(job), entry)
}
