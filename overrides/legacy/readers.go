// Package legacy reads what TrainJobs say in the fields that they had before runtimePatches: the lists of Kubeflow
// Trainer v2.0 and v2.1, whose elements have no managers, and templateOverrides, which no release has. A Reader returns
// all of it as entries, which are merged as all others are. A Record keeps which elements of a list are the
// integration's. Migrate and Convert turn what is left into runtimePatches.
package legacy

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Reader is how a Trainer reads the forms before runtimePatches.
type Reader interface {
	// Entries returns the entries in every earlier form that the Trainer reads, in the order in which it merges them, the
	// integration's with its manager. runtimePatches take precedence over them.
	Entries(job *api.TrainJob) []overrides.Entry
	// Migrate returns the operations that replace the Record of another Trainer, or why this one can't express what the
	// Record holds. The caller guards them against other changes of the TrainJob. now is the time of a new entry.
	Migrate(job *api.TrainJob, record *Record, now metav1.Time) ([]jsonpatch.Operation, error)
}

// The readers of the Trainers whose entries are keyed by manager, and of manifests.
var (
	// Recorded is Kubeflow Trainer's since v2.2: it has no earlier form. What a Record holds is of an earlier Trainer.
	Recorded Reader = recorded{}
	// Guide is the bundled Trainer's: podTemplateOverrides, merged as their operator guide describes, and
	// templateOverrides. All other Trainers merge strategically, whatever the guide says.
	Guide Reader = &guide{func(job *api.TrainJob) []overrides.Entry { return podTemplateEntries(job, true) }}
)

// Manifests returns the reader of manifests, which may hold every form, written for whatever Trainer. strategic merges
// podTemplateOverrides as Kubeflow Trainer v2.1 does, and not as the operator guide describes.
func Manifests(strategic bool) Reader {
	return &guide{func(job *api.TrainJob) []overrides.Entry {
		return slices.Concat(jobSetEntries(job), podTemplateEntries(job, !strategic), podSpecEntries(job))
	}}
}

type recorded struct{}

func (recorded) Entries(job *api.TrainJob) []overrides.Entry {
	record := readableRecord(job)
	if record == nil {
		return nil
	}
	return record.entries(record.Users)
}

// ConvertedManager is the manager of the entry of runtimePatches to which a TrainJob's lists without managers are
// converted.
const ConvertedManager = "signalbox.dev/converted"

// Migrate removes the Record, and adds to runtimePatches, as the first, an entry that does what its entries do.
func (recorded) Migrate(job *api.TrainJob, record *Record, now metav1.Time) ([]jsonpatch.Operation, error) {
	const list = "/spec/" + overrides.RuntimePatches
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("remove", recordPointer, nil)}
	entries := record.entries(record.Users)
	if len(entries) == 0 || hasPatch(job, ConvertedManager) {
		return operations, nil // the users have applied a converted manifest
	}
	n := len(job.Spec.RuntimePatches)
	if n >= overrides.MaxEntries {
		return nil, fmt.Errorf("spec.%s needs an entry of spec.%s, which has %d already; take one out",
			record.Field, overrides.RuntimePatches, n)
	}
	patch, err := overrides.Fold(entries)
	if err != nil {
		return nil, err
	}
	entry := &trainerapi.RuntimePatch{Manager: ConvertedManager, Time: &now, TrainingRuntimeSpec: patch}
	if n > 0 {
		return append(operations, jsonpatch.NewOperation("add", list+"/0", entry)), nil
	}
	return append(operations, jsonpatch.NewOperation("add", list, []any{entry})), nil
}

func hasPatch(job *api.TrainJob, manager string) bool {
	return slices.ContainsFunc(job.Spec.RuntimePatches, func(p trainerapi.RuntimePatch) bool {
		return p.Manager == manager
	})
}

// guide reads lists, which aren't those of a Record, and templateOverrides.
type guide struct {
	lists func(job *api.TrainJob) []overrides.Entry
}

func (g *guide) Entries(job *api.TrainJob) []overrides.Entry {
	record := readableRecord(job)
	switch {
	case record == nil:
		return append(g.lists(job), histories(job)...)
	case !edited(job, record):
		return append(record.entries(record.Users), histories(job)...)
	}
	live := job.DeepCopy()
	live.Annotations, live.Spec.Labels, live.Spec.Annotations = nil, nil, nil
	live.Spec.PodTemplateOverrides = usersList(job, record)
	return append(g.lists(live), histories(job)...)
}

// Migrate brings podTemplateOverrides to what the users have written, if they have changed it, and adds an entry else.
func (g *guide) Migrate(job *api.TrainJob, record *Record, now metav1.Time) ([]jsonpatch.Operation, error) {
	const list = "/spec/" + PodTemplateOverrides
	if edited(job, record) {
		operations := []jsonpatch.Operation{jsonpatch.NewOperation("remove", recordPointer, nil)}
		switch users := usersList(job, record); {
		case len(users) > 0:
			return append(operations, jsonpatch.NewOperation("replace", list, users)), nil
		case len(job.Spec.PodTemplateOverrides) > 0:
			return append(operations, jsonpatch.NewOperation("remove", list, nil)), nil
		}
		return operations, nil
	}
	operations, err := recorded{}.Migrate(job, record, now)
	if err == nil && len(job.Spec.PodTemplateOverrides) > 0 {
		operations = slices.Insert(operations, 1, jsonpatch.NewOperation("remove", list, nil))
	}
	return operations, err
}

// edited reports whether the users have changed podTemplateOverrides since another Trainer's Record was written: this
// Trainer's CRD has that list too, and it takes precedence over the Record.
func edited(job *api.TrainJob, record *Record) bool {
	if record.Field != PodTemplateOverrides {
		return false
	}
	read, err := specOf(record.Users)
	return err == nil && !equality.Semantic.DeepEqual(read.Spec.PodTemplateOverrides, usersList(job, record))
}

// usersList returns podTemplateOverrides as they are on a CRD that still has them, without the integration's elements.
func usersList(job *api.TrainJob, record *Record) []api.PodTemplateOverride {
	plain, err := overrides.Generic(job.Spec.PodTemplateOverrides)
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

// EveryEntry returns the entries of all forms, whichever the Trainer reads.
func EveryEntry(job *api.TrainJob) []overrides.Entry {
	return slices.Concat(podSpecEntries(job), podTemplateEntries(job, false), histories(job), overrides.PatchEntries(job))
}
