package overrides

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainerruntime "github.com/kubeflow/trainer/v2/pkg/runtime"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// The fields of a TrainJob's spec that hold what it changes of its runtime.
const (
	RuntimePatches       = "runtimePatches"
	TemplateOverrides    = "templateOverrides"
	PodTemplateOverrides = "podTemplateOverrides"
	PodSpecOverrides     = "podSpecOverrides"
)

// Dialect is how a Trainer reads what a TrainJob changes of its runtime. Its values are the package's variables and the
// results of Manifests; they are compared with ==. No other package can implement it.
type Dialect interface {
	// Name returns the Trainer's name, for messages and logs. No two dialects have the same.
	Name() string
	// Field returns the field of a TrainJob's spec that holds the integration's entry.
	Field() string
	// Keyed reports whether entries are keyed by their managers. In a list that is not, a Record marks the integration's
	// elements.
	Keyed() bool
	// CountsJobs reports whether the Trainer keeps status.jobsStatus, which v2.0 has and leaves empty.
	CountsJobs() bool
	// PartialAdmission reports whether the Trainer runs a TrainJob with the nodes that it was admitted with, where those
	// are fewer than it requests.
	PartialAdmission() bool
	// Snapshots reports whether the Trainer keeps the runtime that a TrainJob runs on in a ConfigMap.
	Snapshots() bool

	// Own returns the integration's entry of the TrainJob, nil where it has none.
	Own(job *api.TrainJob) *trainerapi.RuntimePatch
	// Entries returns all that the TrainJob changes of its runtime, in the order in which it is merged: runtimePatches
	// take precedence over templateOverrides, these over podTemplateOverrides, and within each the later over the earlier.
	Entries(job *api.TrainJob) []Entry
	// Others returns the entries that are not the integration's.
	Others(job *api.TrainJob) []Entry
	// With returns the entries as they are after the integration has written its own: in the place of the one it has, or
	// as the last.
	With(job *api.TrainJob, own trainerapi.RuntimePatch) []Entry

	// Compute returns what the TrainJob runs with the given entries on the runtime. It changes none of its arguments. An
	// entry that names a ReplicatedJob that the runtime doesn't have is an error: a strategic merge would append it.
	Compute(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) (*Effective, error)
	// Prepare merges the entries into the runtime, and spec.trainer.resourcesPerNode into that. It returns the result and
	// the TrainJob in the form that Trainer's plugins take, before the first of them has run. It changes none of its
	// arguments; the plugins may change both results.
	Prepare(
		job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
	) (*trainerruntime.Info, *trainerapi.TrainJob, error)

	// Record returns the TrainJob's Record with the entry as the integration's, nil for a keyed dialect.
	Record(job *api.TrainJob, own *trainerapi.RuntimePatch) (*Record, error)
	// Foreign reports whether a Record (nil for none) was written for another dialect's field, so that its elements have
	// to be migrated.
	Foreign(record *Record) bool
	// Migrate returns what replaces a foreign Record, or why this dialect can't express what it holds. now is the time of
	// a new entry.
	Migrate(job *api.TrainJob, record *Record, now metav1.Time) (*Migration, error)
	// Uncarried returns why the dialect's list can't hold what admission needs for the patch's ReplicatedJob, nil where it
	// can. others are the users' entries.
	Uncarried(others []Entry, patch trainerapi.ReplicatedJobPatch, needs Needs) *Uncarried

	// forMemo returns what a Memo keeps of a result.
	forMemo(e *Effective) *Effective
	// operations returns the JSON patch that writes the migration.
	operations(job *api.TrainJob, m *Migration) ([]PatchOperation, error)
}

// The dialects of the Trainers that are known.
var (
	Bundled    Dialect = &bundled{trainer: trainer{"the bundled Trainer", amending}, lists: guideEntries}
	Kubeflow23 Dialect = &keyed{trainer: trainer{"Kubeflow Trainer v2.3", merging}, snapshots: true}
	Kubeflow22 Dialect = &keyed{trainer: trainer{"Kubeflow Trainer v2.2", replacing}}
	Kubeflow21 Dialect = &unkeyed{trainer: trainer{"Kubeflow Trainer v2.1", replacing}, list: podTemplateList{}}
	Kubeflow20 Dialect = &unkeyed{trainer: trainer{"Kubeflow Trainer v2.0", replacingAlone}, list: podSpecList{}}
)

// trainer is what all dialects have: a name, and how the Trainer makes ReplicatedJobs of a runtime.
type trainer struct {
	name string
	*assembly
}

// Name returns the Trainer's name.
func (t trainer) Name() string { return t.name }

// Snapshots reports false: only Kubeflow Trainer v2.3 has them.
func (t trainer) Snapshots() bool { return false }

// PartialAdmission reports false: to Kubeflow Trainer the number of nodes is the one in spec.trainer.
func (t trainer) PartialAdmission() bool { return false }

// forMemo returns the whole result.
func (t trainer) forMemo(e *Effective) *Effective { return e }

// Needs is what admission needs of the pods of a ReplicatedJob.
type Needs struct {
	// Metadata names what needs labels or annotations on the pods; "" where nothing does.
	Metadata string
	// Placement is set where node selectors, tolerations or scheduling gates are needed.
	Placement bool
}

// Uncarried is why a list of overrides can't hold what admission needs.
type Uncarried struct {
	// Path of the list or of the element that is in the way.
	Path string
	// Says is the value at Path, Needs the one that Source asks for.
	Says, Needs, Source string
	// WayOut is what to change.
	WayOut string
}
