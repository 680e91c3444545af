package legacy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// HistorySuffix is added to a manager's name where it has an entry of runtimePatches already. The two must stay apart:
// that entry takes precedence over every manager's history.
const HistorySuffix = "-template-overrides"

// Conversion is the content of a TrainJob's earlier shapes, as runtimePatches.
type Conversion struct {
	// Patches is the whole list, the TrainJob's own entries last.
	Patches []trainerapi.RuntimePatch
	// Changes describes the conversion of each field.
	Changes []string
	// Lost describes what runtimePatches can't express, whatever the runtime.
	Lost []string
	// Depends describes what gives the same pods only where the runtime doesn't set it too: it replaced the runtime's
	// value, and is merged with it now.
	Depends []string
}

// Needed reports whether a TrainJob has anything in an earlier shape.
func Needed(job *api.TrainJob) bool {
	s := &job.Spec
	return len(s.PodTemplateOverrides)+len(s.PodSpecOverrides)+len(s.TemplateOverrides)+len(s.Labels)+
		len(s.Annotations) > 0
}

// Convert returns the runtimePatches that do what the TrainJob's earlier forms do, as the reader reads them.
func Convert(reader Reader, job *api.TrainJob) (*Conversion, error) {
	c := &Conversion{}
	if err := c.addLists(reader.Entries(job), job); err != nil {
		return nil, err
	}
	for i := range job.Spec.TemplateOverrides {
		if err := c.addHistory(job, &job.Spec.TemplateOverrides[i]); err != nil {
			return nil, err
		}
	}
	c.Patches = append(c.Patches, job.Spec.RuntimePatches...)
	if n := len(c.Patches); n > overrides.MaxEntries {
		c.Lost = append(c.Lost, fmt.Sprintf("spec.%s would have %d entries, and may have %d", overrides.RuntimePatches, n,
			overrides.MaxEntries))
	}
	return c, nil
}

// addLists adds the entry for the shapes without managers.
func (c *Conversion) addLists(entries []overrides.Entry, job *api.TrainJob) error {
	for _, entry := range entries {
		if entry.Replaces {
			c.Depends = append(c.Depends, replaced(entry)...)
		}
	}
	converted := ConvertedManager
	for n := 2; hasPatch(job, converted); n++ { // it was converted before, and has an earlier shape again
		converted = fmt.Sprintf("%s-%d", ConvertedManager, n)
	}
	managed := func(e overrides.Entry) bool { return e.Field == TemplateOverrides }
	if err := c.add(slices.DeleteFunc(entries, managed), converted); err != nil {
		return err
	}
	became := func(field string, n int) {
		if n > 0 {
			c.Changes = append(c.Changes, fmt.Sprintf("spec.%s (%d) became the entry of %s in spec.%s",
				field, n, converted, overrides.RuntimePatches))
		}
	}
	became(PodTemplateOverrides, len(job.Spec.PodTemplateOverrides))
	became(PodSpecOverrides, len(job.Spec.PodSpecOverrides))
	if len(job.Spec.Labels)+len(job.Spec.Annotations) > 0 {
		c.Changes = append(c.Changes, fmt.Sprintf("spec.labels and spec.annotations became the template's metadata in the "+
			"entry of %s in spec.%s", converted, overrides.RuntimePatches))
	}
	return nil
}

func (c *Conversion) addHistory(job *api.TrainJob, o *api.TemplateOverride) error {
	manager := o.Manager
	if hasPatch(job, manager) {
		manager += HistorySuffix
	}
	if manager == overrides.Manager {
		c.Lost = append(c.Lost, fmt.Sprintf("spec.%s[%s] is the integration's, which writes its entry when the TrainJob is "+
			"admitted; take it out", TemplateOverrides, overrides.Manager))
		return nil
	}
	entries := history(o)
	if err := c.add(entries, manager); err != nil {
		return err
	}
	c.Changes = append(c.Changes, fmt.Sprintf("spec.%s[%s] (%d) became the entry of %s in spec.%s; what was overridden "+
		"within it is no longer there to be read", TemplateOverrides, o.Manager, len(entries), manager,
		overrides.RuntimePatches))
	return nil
}

// add joins entries into one entry of the manager, with the time of the last.
func (c *Conversion) add(entries []overrides.Entry, manager string) error {
	if len(entries) == 0 {
		return nil
	}
	patch, err := overrides.Fold(entries)
	if err != nil {
		return err
	}
	if patch.Template.Metadata == nil && len(patch.Template.Spec.ReplicatedJobs) == 0 {
		c.Lost = append(c.Lost, fmt.Sprintf("%s and what follows it set no field that may be changed; leave it out",
			entries[0].Path))
		return nil
	}
	c.Patches = append(c.Patches, trainerapi.RuntimePatch{
		Manager: manager, Time: entries[len(entries)-1].Time, TrainingRuntimeSpec: patch,
	})
	for _, rj := range overrides.ReplicatedJobsOf(patch) {
		if _, spec := overrides.PodPatchOf(&rj); spec != nil {
			c.Lost = append(c.Lost, mountedTwice(rj.Name, slices.Concat(spec.InitContainers, spec.Containers))...)
		}
	}
	return nil
}

// mountedTwice describes the volumes that a container mounts a second time: the CRD keys mounts by volume.
func mountedTwice(replicatedJob string, containers []trainerapi.ContainerPatch) []string {
	var lost []string
	for _, container := range containers {
		paths := map[string]string{}
		for _, mount := range container.VolumeMounts {
			if path, twice := paths[mount.Name]; twice {
				lost = append(lost, fmt.Sprintf("container %s of replicatedJob %s mounts volume %s at %s and at %s; an entry of "+
					"spec.%s may mount a volume once: mount it at the second path in the runtime",
					container.Name, replicatedJob, mount.Name, path, mount.MountPath, overrides.RuntimePatches))
			}
			paths[mount.Name] = mount.MountPath
		}
	}
	return lost
}

// replaced describes the runtime's values that an entry of podTemplateOverrides replaces, and that a patch would be
// merged into. The result is sorted.
func replaced(entry overrides.Entry) []string {
	var all []string
	for _, rj := range overrides.ReplicatedJobsOf(entry.Patch) {
		if _, spec := overrides.PodPatchOf(&rj); spec != nil {
			for _, what := range replacedFields(spec) {
				all = append(all, fmt.Sprintf("%s of replicatedJob %s (%s)", what, rj.Name, entry.Path))
			}
		}
	}
	slices.Sort(all)
	return all
}

// replacedFields names the fields of a pod's spec that podTemplateOverrides replace.
func replacedFields(spec *trainerapi.PodSpecPatch) []string {
	var all []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"nodeSelector", len(spec.NodeSelector) > 0},
		{"affinity", spec.Affinity != nil},
		{"schedulingGates", len(spec.SchedulingGates) > 0},
		{"imagePullSecrets", len(spec.ImagePullSecrets) > 0},
		{"volumes", len(spec.Volumes) > 0},
	} {
		if field.set {
			all = append(all, field.name)
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if len(c.Env) > 0 {
			all = append(all, "env of container "+c.Name)
		}
		if len(c.VolumeMounts) > 0 {
			all = append(all, "volumeMounts of container "+c.Name)
		}
	}
	return all
}

// Differences describes in what the pods differ that the TrainJob runs on the runtime before and after the conversion.
// The result is empty where they are the same.
func Differences(
	reader Reader, job *api.TrainJob, c *Conversion, runtime *trainerapi.TrainingRuntimeSpec,
) ([]string, error) {
	converted := job.DeepCopy()
	s := &converted.Spec
	s.RuntimePatches, s.PodTemplateOverrides, s.PodSpecOverrides, s.TemplateOverrides = c.Patches, nil, nil, nil
	s.Labels, s.Annotations = nil, nil
	before, err := templateOf(reader, job, runtime)
	if err != nil {
		return nil, err
	}
	after, err := templateOf(reader, converted, runtime)
	if err != nil {
		return nil, err
	}
	var different []string
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if now, found := after[path]; !found {
			different = append(different, fmt.Sprintf("%s was %s and is gone", path, before[path]))
		} else if now != before[path] {
			different = append(different, fmt.Sprintf("%s was %s and is %s", path, before[path], now))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if _, found := before[path]; !found {
			different = append(different, fmt.Sprintf("%s is %s and was not there", path, after[path]))
		}
	}
	return different, nil
}

// templateOf returns the JobSet template that the TrainJob's entries make of the runtime, every value by its path.
func templateOf(
	reader Reader, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec,
) (map[string]string, error) {
	merged, err := overrides.Merge(runtime, append(reader.Entries(job), overrides.PatchEntries(job)...))
	if err != nil {
		return nil, err
	}
	return overrides.ValuesOf("template", merged.Template)
}

// maxEquivalent bounds the equivalent in a warning, in bytes: an API server truncates warnings of more than 4,096
// characters together.
const maxEquivalent = 2800

// Deprecations returns warnings about the shapes that runtimePatches replace, with the equivalent; nil where the
// TrainJob has none. The runtime is given without the entries.
func Deprecations(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) []string {
	if !Needed(job) {
		return nil
	}
	c, err := Convert(Guide, job)
	if err != nil {
		return nil // CheckEntries and Check refuse what can't be merged
	}
	different, err := Differences(Guide, job, c, runtime)
	if err != nil {
		return nil
	}
	data, err := json.Marshal(map[string]any{overrides.RuntimePatches: c.Patches})
	if err != nil {
		return nil
	}
	subject := deprecatedFields(&job.Spec)
	warnings := []string{fmt.Sprintf("%s deprecated; the equivalent in spec is %s", subject, data)}
	if len(data) > maxEquivalent {
		warnings[0] = subject + " deprecated; kubectl signalbox convert -f rewrites the manifest to spec." +
			overrides.RuntimePatches
	}
	if more := slices.Concat(c.Lost, different); len(more) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.%s are merged with the runtime's values; %d would come out otherwise, "+
			"the first: %s", overrides.RuntimePatches, len(more), more[0]))
	}
	return warnings
}

func deprecatedFields(spec *api.TrainJobSpec) string {
	switch {
	case len(spec.PodTemplateOverrides) == 0:
		return "spec." + TemplateOverrides + " is"
	case len(spec.TemplateOverrides) > 0:
		return "spec." + PodTemplateOverrides + " and spec." + TemplateOverrides + " are"
	}
	return "spec." + PodTemplateOverrides + " is"
}
