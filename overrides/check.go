package overrides

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	jobsetconstants "github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jobset/constants"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// CheckEntries returns an error for each of a TrainJob's entries that is invalid whatever the runtime.
func CheckEntries(job *api.TrainJob, entries []Entry) field.ErrorList {
	managerOf := func(p trainerapi.RuntimePatch) string { return p.Manager }
	errs := CheckManagers(patchesPath, job.Spec.RuntimePatches, managerOf)
	for _, entry := range entries {
		errs = append(errs, checkContent(entry)...)
	}
	return Few(errs)
}

// CheckRoom returns an error if there is no room for the integration's entry: the API server would refuse every start.
func CheckRoom(job *api.TrainJob) field.ErrorList {
	if n := len(job.Spec.RuntimePatches); n >= MaxEntries && OwnIndex(job) < 0 {
		return field.ErrorList{field.Invalid(patchesPath, fmt.Sprintf("%d entries", n), fmt.Sprintf(
			"a TrainJob in a queue may have at most %d, because its start adds one; join two of them", MaxEntries-1))}
	}
	return nil
}

// CheckManagers returns an error for each manager of a list that is invalid or has a second entry.
func CheckManagers[T any](list *field.Path, entries []T, managerOf func(T) string) field.ErrorList {
	var errs field.ErrorList
	if len(entries) > MaxEntries {
		errs = append(errs, field.TooMany(list, len(entries), MaxEntries))
	}
	seen := map[string]bool{}
	for i, entry := range entries {
		path, manager := list.Index(i).Child("manager"), managerOf(entry)
		if seen[manager] {
			e := field.Duplicate(path, manager)
			e.Detail = "a manager has one entry; join the two"
			errs = append(errs, e)
		}
		seen[manager] = true
		if problems := validation.IsDomainPrefixedPath(path, manager); len(problems) > 0 {
			errs = append(errs, field.Invalid(path, manager, "must be a domain-prefixed path that says who writes the entry, "+
				"such as example.com/team: "+problems[0].Detail))
		}
	}
	return errs
}

// checkContent returns an error for each part of an entry that would not merge as it reads.
func checkContent(entry Entry) field.ErrorList {
	path := entry.contentPath()
	var errs field.ErrorList
	if entry.Patch != nil && entry.Patch.Template != nil && entry.Patch.Template.Spec != nil {
		replicatedJobs := entry.Patch.Template.Spec.ReplicatedJobs
		if entry.Field != RuntimePatches && len(replicatedJobs) == 0 {
			return field.ErrorList{field.Required(path.Child("targetJobs"),
				"an entry without any changes nothing; name the replicatedJobs of the runtime that it is for")}
		}
		errs = checkNamedOnce(path.Child("template", "spec", "replicatedJobs"), replicatedJobs)
	}
	return append(errs, checkKeys(path, entry.Patch)...)
}

// checkNamedOnce returns an error for each ReplicatedJob that an entry has a second patch for.
func checkNamedOnce(path *field.Path, replicatedJobs []trainerapi.ReplicatedJobPatch) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, rj := range replicatedJobs {
		if seen[rj.Name] {
			e := field.Duplicate(path.Index(i).Child("name"), rj.Name)
			e.Detail = "an entry names a replicatedJob once; join the two"
			errs = append(errs, e)
		}
		seen[rj.Name] = true
	}
	return errs
}

// checkKeys returns an error for each key that is a directive of a strategic merge: "$patch: delete" among labels
// removes all labels.
func checkKeys(path *field.Path, patch *trainerapi.TrainingRuntimeSpecPatch) field.ErrorList {
	values, err := ValuesOf(path.String(), patch)
	if err != nil {
		return field.ErrorList{field.Invalid(path, "", err.Error())}
	}
	var errs field.ErrorList
	for _, at := range slices.Sorted(maps.Keys(values)) {
		if directive := strings.Index(at, ".$"); directive >= 0 {
			errs = append(errs, field.Invalid(path, at[directive+1:],
				"a key may not begin with $, by which strategic merges are directed: leave it out; found at "+at))
		}
	}
	return errs
}

// changesNothing reports whether a patch has none of the fields that an entry may have, so that it looks the same as
// one with fields that this version doesn't know.
func changesNothing(patch *trainerapi.TrainingRuntimeSpecPatch) bool {
	changes := func(rj trainerapi.ReplicatedJobPatch) bool {
		meta, spec := PodPatch(patch, rj.Name)
		return rj.Template != nil && hasMetadata(rj.Template.Metadata) || hasMetadata(meta) ||
			spec != nil && !equality.Semantic.DeepEqual(*spec, trainerapi.PodSpecPatch{})
	}
	return !hasMetadata(jobSetMetadata(patch)) && !slices.ContainsFunc(ReplicatedJobsOf(patch), changes)
}

// Check returns an error for each part of the TrainJob's entries and initializers that is for something that the
// runtime doesn't have. The runtime is given without the entries.
func Check(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) field.ErrorList {
	errs := checkInitializers(job, runtime, entries)
	for _, entry := range entries {
		errs = append(errs, checkEntry(entry, job.Spec.RuntimeRef.Name, runtime.Template.Spec.ReplicatedJobs)...)
	}
	return Few(errs)
}

// checkEntry returns an error for each ReplicatedJob and container of an entry that the runtime of that name doesn't
// have, or else one where the entry is empty.
func checkEntry(entry Entry, runtime string, replicatedJobs []jobset.ReplicatedJob) field.ErrorList {
	var errs field.ErrorList
	for _, patch := range ReplicatedJobsOf(entry.Patch) {
		rj := find(replicatedJobs, patch.Name)
		if rj == nil {
			errs = append(errs, notFound(entry.targetPath(patch.Name), patch.Name, names(replicatedJobs),
				fmt.Sprintf("runtime %q has no such replicatedJob", runtime)))
			continue
		}
		_, pod := PodPatch(entry.Patch, patch.Name)
		if pod == nil {
			continue
		}
		path, have := entry.specPath(patch.Name), &rj.Template.Spec.Template.Spec
		where := fmt.Sprintf("replicatedJob %q of runtime %q has no such", rj.Name, runtime)
		errs = append(errs, checkContainers(path.Child("containers"), pod.Containers, have.Containers, where+" container")...)
		errs = append(errs, checkContainers(path.Child("initContainers"), pod.InitContainers, have.InitContainers,
			where+" initContainer")...)
	}
	if len(errs) > 0 {
		return errs
	}
	return checkEmpty(entry)
}

// checkEmpty returns an error where an entry of a user changes nothing. One of runtimePatches that has nothing but its
// manager gets a warning instead: Trainer v2.3.0 takes it, and controllers write such entries.
func checkEmpty(entry Entry) field.ErrorList {
	if entry.Manager == Manager || !changesNothing(entry.Patch) || entry.bare() {
		return nil
	}
	return field.ErrorList{field.Required(entry.contentPath(),
		"the entry sets no field that may be changed (a field that "+
			"this version doesn't know is dropped before it is seen here); write a field that it knows, or leave the entry out")}
}

func notFound(path *field.Path, name string, known []string, reason string) *field.Error {
	e := field.NotSupported(path, name, known)
	e.Detail = reason + "; " + e.Detail
	return e
}

// envField returns the field of a TrainJob that sets the environment of a container, "" where there is none.
func envField(container string) string {
	switch container {
	case constants.Node:
		return "spec.trainer.env"
	case constants.DatasetInitializer:
		return "spec.initializer.dataset.env"
	case constants.ModelInitializer:
		return "spec.initializer.model.env"
	}
	return ""
}

// checkContainers returns an error for each container that the pods don't have, and for environment that the TrainJob
// has a field for.
func checkContainers(
	path *field.Path, patches []trainerapi.ContainerPatch, have []corev1.Container, reason string,
) field.ErrorList {
	var errs field.ErrorList
	for _, patch := range patches {
		if findContainer(have, patch.Name) == nil {
			known := utilslices.Map(have, func(c *corev1.Container) string { return c.Name })
			errs = append(errs, notFound(path.Key(patch.Name), patch.Name, known, reason))
		}
		if api := envField(patch.Name); api != "" && len(patch.Env) > 0 {
			errs = append(errs, field.Forbidden(path.Key(patch.Name).Child("env"), fmt.Sprintf(
				"the environment of container %q (here %q) is not for an entry; set it by %s", patch.Name, patch.Env[0].Name, api)))
		}
	}
	return errs
}

// checkInitializers returns an error for each initializer that the runtime has no step for. An entry may add the step's
// mount.
func checkInitializers(
	job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) field.ErrorList {
	init, path := job.Spec.Initializer, field.NewPath("spec", "initializer")
	if init == nil {
		return nil
	}
	replicatedJobs := runtime.Template.Spec.ReplicatedJobs
	if merged, err := Merge(runtime, entries); err == nil { // else checkEntry returns an error
		replicatedJobs = merged.Template.Spec.ReplicatedJobs
	}
	var errs field.ErrorList
	if init.Dataset != nil {
		errs = append(errs, checkInitializer(path.Child("dataset"), constants.DatasetInitializer, job, replicatedJobs)...)
	}
	if init.Model != nil {
		errs = append(errs, checkInitializer(path.Child("model"), constants.ModelInitializer, job, replicatedJobs)...)
	}
	return errs
}

// checkInitializer returns an error where the runtime doesn't have the step that an initializer's configuration is for.
// Like Trainer, it wants the ReplicatedJob, in it the container of that name, and in that a mount of the volume
// "initializer".
func checkInitializer(
	path *field.Path, name string, job *api.TrainJob, replicatedJobs []jobset.ReplicatedJob,
) field.ErrorList {
	without := func(what string) field.ErrorList {
		return field.ErrorList{field.Invalid(path, job.Spec.RuntimeRef.Name, fmt.Sprintf("the runtime has no %s, which this "+
			"configures; refer to a runtime that has one in spec.runtimeRef, or leave this out", what))}
	}
	rj := find(replicatedJobs, name)
	if rj == nil {
		return without(fmt.Sprintf("replicatedJob %q", name))
	}
	container := findContainer(rj.Template.Spec.Template.Spec.Containers, name)
	if container == nil {
		return without(fmt.Sprintf("container %q in its replicatedJob %q", name, name))
	}
	const volume = jobsetconstants.VolumeNameInitializer
	if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
		return without(fmt.Sprintf("mount of a volume %q in container %q of its replicatedJob %q", volume, name, name))
	}
	return nil
}
