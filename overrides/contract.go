package overrides

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	jobsetconstants "github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jobset/constants"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// MaxEntries is how many entries a TrainJob may have of runtimePatches and of templateOverrides (the CRD's limit).
const MaxEntries = 16

// CheckEntries refuses entries that no runtime could make right.
func (d Dialect) CheckEntries(job *api.TrainJob) field.ErrorList {
	patches := make([]string, 0, len(job.Spec.RuntimePatches))
	for _, patch := range job.Spec.RuntimePatches {
		patches = append(patches, patch.Manager)
	}
	histories := make([]string, 0, len(job.Spec.TemplateOverrides))
	for _, o := range job.Spec.TemplateOverrides {
		histories = append(histories, o.Manager)
	}
	errs := append(checkManagers(patchesPath, patches), checkManagers(historiesPath, histories)...)
	if i := slices.Index(histories, Manager); i >= 0 {
		errs = append(errs, field.Forbidden(historiesPath.Index(i).Child("manager"), fmt.Sprintf(
			"manager %q is the integration's, which writes to %s when the TrainJob is admitted; take this out of the manifest", Manager, patchesPath)))
	}
	for _, entry := range d.Entries(job) {
		errs = append(errs, checkContent(entry)...)
	}
	return errs
}

func checkManagers(list *field.Path, managers []string) field.ErrorList {
	var errs field.ErrorList
	if len(managers) > MaxEntries {
		errs = append(errs, field.TooMany(list, len(managers), MaxEntries))
	}
	seen := map[string]bool{}
	for i, manager := range managers {
		path := list.Index(i).Child("manager")
		if seen[manager] {
			e := field.Duplicate(path, manager)
			e.Detail = "a manager has one entry; join the two"
			errs = append(errs, e)
		}
		seen[manager] = true
		if problems := validation.IsDomainPrefixedPath(path, manager); len(problems) > 0 {
			errs = append(errs, field.Invalid(path, manager, "must be a domain-prefixed path that says who writes the entry, such as example.com/team: "+problems[0].Detail))
		}
	}
	return errs
}

// checkContent refuses what would not merge as it reads: the same ReplicatedJob twice, and
// keys that are directives of a strategic merge ("$patch: delete" among labels takes all labels away).
func checkContent(entry Entry) field.ErrorList {
	path := entry.contentPath()
	var errs field.ErrorList
	if entry.Patch != nil && entry.Patch.Template != nil && entry.Patch.Template.Spec != nil {
		if entry.shape != RuntimePatches && len(entry.Patch.Template.Spec.ReplicatedJobs) == 0 {
			return field.ErrorList{field.Required(path.Child("targetJobs"), "an entry without any changes nothing; name the replicatedJobs of the runtime that it is for")}
		}
		seen := map[string]bool{}
		for i, rj := range entry.Patch.Template.Spec.ReplicatedJobs {
			if seen[rj.Name] {
				e := field.Duplicate(path.Child("template", "spec", "replicatedJobs").Index(i).Child("name"), rj.Name)
				e.Detail = "an entry names a replicatedJob once; join the two"
				errs = append(errs, e)
			}
			seen[rj.Name] = true
		}
	}
	data, err := json.Marshal(entry.Patch)
	if err != nil {
		return append(errs, field.Invalid(path, "", err.Error()))
	}
	var content any
	if err := json.Unmarshal(data, &content); err != nil {
		return append(errs, field.Invalid(path, "", err.Error()))
	}
	values := map[string]string{}
	flatten(path.String(), content, values)
	for _, at := range slices.Sorted(maps.Keys(values)) {
		if strings.Contains(at, ".$") {
			errs = append(errs, field.Invalid(path, at[strings.Index(at, ".$")+1:], "a key may not begin with $, by which strategic merges are directed: leave it out; found at "+at))
		}
	}
	return errs
}

// saysNothing tells whether an entry has none of the fields that an entry may have, so that it can't be told from one of
// fields that this version doesn't know.
func saysNothing(entry Entry) bool {
	if entry.Patch == nil || entry.Patch.Template == nil {
		return true
	}
	has := func(m *metav1.ObjectMeta) bool { return m != nil && len(m.Labels)+len(m.Annotations) > 0 }
	if has(entry.Patch.Template.Metadata) {
		return false
	}
	if entry.Patch.Template.Spec == nil {
		return true
	}
	return !slices.ContainsFunc(entry.Patch.Template.Spec.ReplicatedJobs, func(rj trainerapi.ReplicatedJobPatch) bool {
		meta, spec := PodPatch(entry.Patch, rj.Name)
		return rj.Template != nil && has(rj.Template.Metadata) || has(meta) || spec != nil && !equality.Semantic.DeepEqual(*spec, trainerapi.PodSpecPatch{})
	})
}

// Check refuses what the TrainJob's entries and initializers ask of a runtime that doesn't have it. The runtime is taken
// as it is, without the entries.
func (d Dialect) Check(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) field.ErrorList {
	replicatedJobs := runtime.Template.Spec.ReplicatedJobs
	entries := d.Entries(job)
	var errs field.ErrorList
	if init := job.Spec.Initializer; init != nil {
		path, merged := field.NewPath("spec", "initializer"), replicatedJobs
		if with, err := merge(runtime.Template.Spec, entries); err == nil { // else it is refused below
			merged = with.ReplicatedJobs // an entry may bring the mount
		}
		if init.Dataset != nil {
			errs = append(errs, checkInitializer(path.Child("dataset"), constants.DatasetInitializer, job, merged)...)
		}
		if init.Model != nil {
			errs = append(errs, checkInitializer(path.Child("model"), constants.ModelInitializer, job, merged)...)
		}
	}
	for _, entry := range entries {
		fine := len(errs)
		if entry.Patch == nil || entry.Patch.Template == nil || entry.Patch.Template.Spec == nil {
			errs = append(errs, checkSays(entry)...)
			continue
		}
		for _, patch := range entry.Patch.Template.Spec.ReplicatedJobs {
			rj := find(replicatedJobs, patch.Name)
			if rj == nil {
				errs = append(errs, unknown(entry.targetPath(patch.Name), patch.Name, names(replicatedJobs), fmt.Sprintf("runtime %q has no such replicatedJob", job.Spec.RuntimeRef.Name)))
				continue
			}
			if _, pod := PodPatch(entry.Patch, patch.Name); pod != nil {
				path := entry.specPath(patch.Name)
				where := fmt.Sprintf("replicatedJob %q of runtime %q has no such", rj.Name, job.Spec.RuntimeRef.Name)
				errs = append(errs, checkContainers(path.Child("containers"), pod.Containers, rj.Template.Spec.Template.Spec.Containers, where+" container")...)
				errs = append(errs, checkContainers(path.Child("initContainers"), pod.InitContainers, rj.Template.Spec.Template.Spec.InitContainers, where+" initContainer")...)
			}
		}
		if len(errs) == fine {
			errs = append(errs, checkSays(entry)...)
		}
	}
	return errs
}

// checkSays refuses an entry that says nothing. The integration knows what it does.
func checkSays(entry Entry) field.ErrorList {
	if entry.Manager == Manager || !saysNothing(entry) {
		return nil
	}
	return field.ErrorList{field.Required(entry.contentPath(), "the entry says nothing of what may be changed (a field that this version doesn't know is dropped before it is seen here); write a field that it knows, or leave the entry out")}
}

// unknown is a name that is not among those that there are.
func unknown(path *field.Path, name string, known []string, reason string) *field.Error {
	e := field.NotSupported(path, name, known)
	e.Detail = reason + "; " + e.Detail
	return e
}

// apiOf is where the environment of a container is set that the TrainJob's own API is for.
var apiOf = map[string]string{
	constants.Node:               "spec.trainer.env",
	constants.DatasetInitializer: "spec.initializer.dataset.env",
	constants.ModelInitializer:   "spec.initializer.model.env",
}

func checkContainers(path *field.Path, patches []trainerapi.ContainerPatch, have []corev1.Container, reason string) field.ErrorList {
	var errs field.ErrorList
	for _, patch := range patches {
		if findContainer(have, patch.Name) == nil {
			known := make([]string, 0, len(have))
			for _, c := range have {
				known = append(known, c.Name)
			}
			errs = append(errs, unknown(path.Key(patch.Name), patch.Name, known, reason))
		}
		if api, reserved := apiOf[patch.Name]; reserved && len(patch.Env) > 0 {
			errs = append(errs, field.Forbidden(path.Key(patch.Name).Child("env"), fmt.Sprintf(
				"the environment of container %q (here %q) is not for an entry; set it by %s", patch.Name, patch.Env[0].Name, api)))
		}
	}
	return errs
}

// checkInitializer looks whether the runtime has the step that an initializer's configuration is for, as Trainer does:
// the ReplicatedJob, in it the container of that name, and in that a mount of the volume "initializer".
func checkInitializer(path *field.Path, name string, job *api.TrainJob, replicatedJobs []jobset.ReplicatedJob) field.ErrorList {
	refuse := func(what string) field.ErrorList {
		return field.ErrorList{field.Invalid(path, job.Spec.RuntimeRef.Name, fmt.Sprintf(
			"the runtime has no %s, which this configures; refer to a runtime that has one in spec.runtimeRef, or leave this out", what))}
	}
	rj := find(replicatedJobs, name)
	if rj == nil {
		return refuse(fmt.Sprintf("replicatedJob %q", name))
	}
	container := findContainer(rj.Template.Spec.Template.Spec.Containers, name)
	if container == nil {
		return refuse(fmt.Sprintf("container %q in its replicatedJob %q", name, name))
	}
	if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == jobsetconstants.VolumeNameInitializer }) {
		return refuse(fmt.Sprintf("mount of a volume %q in container %q of its replicatedJob %q", jobsetconstants.VolumeNameInitializer, name, name))
	}
	return nil
}

// Changed tells whether an update changes the entries in more than their time.
func Changed(before, after *api.TrainJob) bool {
	return !equality.Semantic.DeepEqual(timeless(before.Spec.RuntimePatches), timeless(after.Spec.RuntimePatches)) ||
		!equality.Semantic.DeepEqual(timelessHistories(before), timelessHistories(after)) ||
		!equality.Semantic.DeepEqual(before.Spec.PodTemplateOverrides, after.Spec.PodTemplateOverrides)
}

func timeless(entries []trainerapi.RuntimePatch) []trainerapi.RuntimePatch {
	entries = slices.Clone(entries)
	for i := range entries {
		entries[i].Time = nil
	}
	return entries
}

// CheckTransition refuses an update of the entries at a time when they may not change: while the TrainJob runs before
// and after it, and while a ReplicatedJob of its JobSet (nil where there is none) is still active.
func CheckTransition(before, after *api.TrainJob, js *jobset.JobSet) field.ErrorList {
	if !Changed(before, after) {
		return nil
	}
	if !ptr.Deref(before.Spec.Suspend, false) && !ptr.Deref(after.Spec.Suspend, false) {
		return field.ErrorList{field.Forbidden(changedPath(before, after), fmt.Sprintf("%s can't change while the TrainJob runs; suspend it before, or in the same update", changedEntries(before, after)))}
	}
	if js == nil {
		return nil
	}
	var errs field.ErrorList
	for _, status := range js.Status.ReplicatedJobsStatus {
		if status.Active > 0 {
			errs = append(errs, field.Forbidden(changedPath(before, after), fmt.Sprintf("%s can't change while replicatedJob %q of the last run is still active (%d); try again when it has stopped",
				changedEntries(before, after), status.Name, status.Active)))
		}
	}
	return errs
}

// CheckFrozen refuses an update of what a TrainJob is made of, but for its entries, unless it is suspended before and
// after it, and tells whether there was any. The CRD refuses a change too, but doesn't see one that takes a field away, or
// brings it.
func CheckFrozen(before, after *api.TrainJob) (errs field.ErrorList, changed bool) {
	was, is, path := &before.Spec, &after.Spec, field.NewPath("spec")
	for name, values := range map[string][2]any{
		"runtimeRef": {was.RuntimeRef, is.RuntimeRef}, "initializer": {was.Initializer, is.Initializer}, "trainer": {was.Trainer, is.Trainer},
		"activeDeadlineSeconds": {was.ActiveDeadlineSeconds, is.ActiveDeadlineSeconds}, "managedBy": {was.ManagedBy, is.ManagedBy},
	} {
		if equality.Semantic.DeepEqual(values[0], values[1]) {
			continue
		}
		changed = true
		if !ptr.Deref(was.Suspend, false) || !ptr.Deref(is.Suspend, false) {
			errs = append(errs, field.Forbidden(path.Child(name), "it can't change while the TrainJob runs, nor in the update that starts or stops it; create another TrainJob"))
		}
	}
	return errs, changed
}

// changedPath is the field that holds what was changed, the first of several.
func changedPath(before, after *api.TrainJob) *field.Path {
	switch {
	case !equality.Semantic.DeepEqual(timeless(before.Spec.RuntimePatches), timeless(after.Spec.RuntimePatches)):
		return patchesPath
	case !equality.Semantic.DeepEqual(timelessHistories(before), timelessHistories(after)):
		return historiesPath
	}
	return field.NewPath("spec", PodTemplateOverrides)
}

func changedEntries(before, after *api.TrainJob) string {
	if changedPath(before, after).String() != patchesPath.String() {
		return "its entries"
	}
	byManager := func(entries []trainerapi.RuntimePatch) map[string]trainerapi.RuntimePatch {
		m := make(map[string]trainerapi.RuntimePatch, len(entries))
		for _, e := range timeless(entries) {
			m[e.Manager] = e
		}
		return m
	}
	old, now := byManager(before.Spec.RuntimePatches), byManager(after.Spec.RuntimePatches)
	var changed []string
	for manager, entry := range now {
		if was, found := old[manager]; !found || !equality.Semantic.DeepEqual(was, entry) {
			changed = append(changed, manager)
		}
	}
	for manager := range old {
		if _, found := now[manager]; !found {
			changed = append(changed, manager)
		}
	}
	if len(changed) == 0 {
		return "the order of the entries"
	}
	slices.Sort(changed)
	return "the entry of " + strings.Join(changed, ", ")
}

// Times returns the time that each entry is to have, by the JSON pointer of its time, where that is another than it has
// now: an entry keeps its time while its content stays; a new or changed one is given now's. trusted is the integration,
// which says the time of its own entry. A history's entries keep the time that they are sent with; one that is sent
// without is an earlier one of the same content, or new.
func Times(before, after *api.TrainJob, now metav1.Time, trusted bool) map[string]metav1.Time {
	times := map[string]metav1.Time{}
	for i := range after.Spec.RuntimePatches {
		entry, pointer := &after.Spec.RuntimePatches[i], fmt.Sprintf("/spec/%s/%d/time", RuntimePatches, i)
		var old *trainerapi.RuntimePatch
		if before != nil {
			if at := slices.IndexFunc(before.Spec.RuntimePatches, func(e trainerapi.RuntimePatch) bool { return e.Manager == entry.Manager }); at >= 0 {
				old = &before.Spec.RuntimePatches[at]
			}
		}
		switch {
		case old == nil || trusted && entry.Manager == Manager:
			if entry.Time == nil {
				times[pointer] = now
			}
		case equality.Semantic.DeepEqual(timeless([]trainerapi.RuntimePatch{*old}), timeless([]trainerapi.RuntimePatch{*entry})):
			if old.Time != nil && !old.Time.Equal(entry.Time) {
				times[pointer] = *old.Time
			} else if old.Time == nil && entry.Time == nil {
				times[pointer] = now
			}
		default:
			times[pointer] = now
		}
	}
	for i := range after.Spec.TemplateOverrides {
		entry, pointer := &after.Spec.TemplateOverrides[i], fmt.Sprintf("/spec/%s/%d", TemplateOverrides, i)
		old := &api.TemplateOverride{}
		if before != nil {
			if at := slices.IndexFunc(before.Spec.TemplateOverrides, func(o api.TemplateOverride) bool { return o.Manager == entry.Manager }); at >= 0 {
				old = &before.Spec.TemplateOverrides[at]
			}
		}
		historyTimes(times, pointer+"/job", old.Job, entry.Job, func(e *api.JobTemplateHistoryEntry) **metav1.Time { return &e.Time }, now)
		historyTimes(times, pointer+"/pod", old.Pod, entry.Pod, func(e *api.PodTemplateHistoryEntry) **metav1.Time { return &e.Time }, now)
	}
	return times
}

// maxWarnings bounds what is said of one TrainJob: an API server cuts long lists of warnings off.
const maxWarnings = 8

// Warnings says where an entry sets what an earlier one of another manager sets to another value. That is allowed, and the
// later wins. The integration's own entry is complete by design and not meant.
func Warnings(entries []Entry) []string {
	type setting struct{ manager, value string }
	set := map[string]setting{}
	var warnings []string
	for _, entry := range entries {
		if entry.Manager == Manager || entry.Manager == "" || entry.Patch == nil {
			continue
		}
		data, err := json.Marshal(entry.Patch)
		if err != nil {
			continue // what can't be written can't be stored either; the API server says so
		}
		var content any
		if err := json.Unmarshal(data, &content); err != nil {
			continue
		}
		values := map[string]string{}
		flatten("trainingRuntimeSpec", content, values)
		for _, path := range slices.Sorted(maps.Keys(values)) {
			if old, found := set[path]; found && old.manager != entry.Manager && old.value != values[path] && len(warnings) < maxWarnings {
				warnings = append(warnings, fmt.Sprintf("spec.%s: %s sets %s to %s and %s to %s; the later entry, of %s, wins",
					entry.shape, old.manager, path, old.value, entry.Manager, values[path], entry.Manager))
			}
			set[path] = setting{entry.Manager, values[path]}
		}
	}
	return warnings
}

// flatten writes every value under its path. Lists of named things are keyed by name (mounts by their path); any other
// list is one value, as it is when it is merged.
func flatten(path string, content any, into map[string]string) {
	switch c := content.(type) {
	case map[string]any:
		for key, value := range c {
			flatten(path+"."+key, value, into)
		}
	case []any:
		for _, item := range c {
			named, ok := item.(map[string]any)
			key := named["mountPath"]
			if key == nil {
				key = named["name"]
			}
			if !ok || key == nil || strings.HasSuffix(path, ".tolerations") {
				if data, err := json.Marshal(c); err == nil {
					into[path] = string(data)
				}
				return
			}
			rest := maps.Clone(named)
			if named["mountPath"] != nil {
				delete(rest, "mountPath")
			} else {
				delete(rest, "name")
			}
			if len(rest) == 0 {
				into[fmt.Sprintf("%s[%v]", path, key)] = "{}" // its name is all that it says
			}
			flatten(fmt.Sprintf("%s[%v]", path, key), rest, into)
		}
	default:
		if data, err := json.Marshal(c); err == nil {
			into[path] = string(data)
		}
	}
}
