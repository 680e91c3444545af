package overrides

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// ConvertedManager names the entry of runtimePatches that stands for what a TrainJob said in a shape without managers.
const ConvertedManager = "signalbox.dev/converted"

// HistorySuffix is added to a manager's name where it has an entry of runtimePatches already, which must stay apart: it
// wins over every manager's history.
const HistorySuffix = "-template-overrides"

// Conversion is what a TrainJob says in earlier shapes, as runtimePatches.
type Conversion struct {
	// Patches is the whole list, the TrainJob's own entries last.
	Patches []trainerapi.RuntimePatch
	// Changes says what became of each field that was there.
	Changes []string
	// Lost says what runtimePatches can't express, whatever the runtime.
	Lost []string
	// Depends says what comes out the same only where the runtime doesn't set it too: it was replaced, and is merged now.
	Depends []string
}

// Needed tells whether a TrainJob says anything in an earlier shape.
func Needed(job *api.TrainJob) bool {
	s := &job.Spec
	return len(s.PodTemplateOverrides)+len(s.PodSpecOverrides)+len(s.TemplateOverrides)+len(s.Labels)+len(s.Annotations) > 0
}

// Convert returns the runtimePatches that say what the TrainJob says in earlier shapes.
func (d Dialect) Convert(job *api.TrainJob) (*Conversion, error) {
	c := &Conversion{}
	has := map[string]bool{}
	for _, patch := range job.Spec.RuntimePatches {
		has[patch.Manager] = true
	}
	for _, entry := range d.Entries(job) {
		if entry.shape == PodTemplateOverrides && entry.Replaces {
			c.Depends = append(c.Depends, replaced(entry)...)
		}
	}
	lists := slices.DeleteFunc(d.Others(job), func(e Entry) bool { return e.shape == RuntimePatches || e.shape == TemplateOverrides })
	converted := ConvertedManager
	for n := 2; has[converted]; n++ { // it was converted before, and said something in an earlier shape again
		converted = fmt.Sprintf("%s-%d", ConvertedManager, n)
	}
	if err := c.add(lists, converted, nil); err != nil {
		return nil, err
	}
	if n := len(job.Spec.PodTemplateOverrides); n > 0 {
		c.Changes = append(c.Changes, fmt.Sprintf("spec.%s (%d) became the entry of %s in spec.%s", PodTemplateOverrides, n, converted, RuntimePatches))
	}
	if n := len(job.Spec.PodSpecOverrides); n > 0 {
		c.Changes = append(c.Changes, fmt.Sprintf("spec.%s (%d) became the entry of %s in spec.%s", PodSpecOverrides, n, converted, RuntimePatches))
	}
	if len(job.Spec.Labels)+len(job.Spec.Annotations) > 0 {
		c.Changes = append(c.Changes, fmt.Sprintf("spec.labels and spec.annotations became the template's metadata in the entry of %s in spec.%s", converted, RuntimePatches))
	}
	for i := range job.Spec.TemplateOverrides {
		o := &job.Spec.TemplateOverrides[i]
		manager := o.Manager
		if has[manager] {
			manager += HistorySuffix
		}
		if manager == Manager {
			c.Lost = append(c.Lost, fmt.Sprintf("spec.%s[%s] is the integration's, which writes its entry when the TrainJob is admitted; take it out", TemplateOverrides, Manager))
			continue
		}
		entries := history(o)
		if err := c.add(entries, manager, last(o)); err != nil {
			return nil, err
		}
		c.Changes = append(c.Changes, fmt.Sprintf("spec.%s[%s] (%d) became the entry of %s in spec.%s; what was overridden within it is no longer there to be read", TemplateOverrides, o.Manager, len(entries), manager, RuntimePatches))
	}
	c.Patches = append(c.Patches, job.Spec.RuntimePatches...)
	if n := len(c.Patches); n > MaxEntries {
		c.Lost = append(c.Lost, fmt.Sprintf("spec.%s would have %d entries, and may have %d", RuntimePatches, n, MaxEntries))
	}
	return c, nil
}

// last is the latest time of a history; nil where one of its entries has none.
func last(o *api.TemplateOverride) *metav1.Time {
	var latest *metav1.Time
	take := func(t *metav1.Time) bool {
		if t != nil && (latest == nil || latest.Before(t)) {
			latest = t
		}
		return t != nil
	}
	for _, e := range o.Job {
		if !take(e.Time) {
			return nil
		}
	}
	for _, e := range o.Pod {
		if !take(e.Time) {
			return nil
		}
	}
	return latest
}

// add joins entries into one of the manager's.
func (c *Conversion) add(entries []Entry, manager string, time *metav1.Time) error {
	if len(entries) == 0 {
		return nil
	}
	patch, err := fold(entries)
	if err != nil {
		return err
	}
	if saysNothing(Entry{Patch: patch}) {
		c.Lost = append(c.Lost, fmt.Sprintf("%s and what follows it says nothing of what may be changed; leave it out", entries[0].Path()))
		return nil
	}
	c.Patches = append(c.Patches, trainerapi.RuntimePatch{Manager: manager, Time: time, TrainingRuntimeSpec: patch})
	for _, rj := range patch.Template.Spec.ReplicatedJobs {
		_, spec := PodPatch(patch, rj.Name)
		if spec == nil {
			continue
		}
		for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
			seen := map[string]string{}
			for _, mount := range container.VolumeMounts {
				if path, twice := seen[mount.Name]; twice {
					c.Lost = append(c.Lost, fmt.Sprintf("container %s of replicatedJob %s mounts volume %s at %s and at %s; an entry of spec.%s may mount a volume once: mount it at the second path in the runtime",
						container.Name, rj.Name, mount.Name, path, mount.MountPath, RuntimePatches))
				}
				seen[mount.Name] = mount.MountPath
			}
		}
	}
	return nil
}

// fold joins entries into one patch that does what they do one after the other. A patch is a part of what it is merged
// into, so that they are merged as they would be into a runtime that says nothing.
func fold(entries []Entry) (*trainerapi.TrainingRuntimeSpecPatch, error) {
	var base jobset.JobSetSpec
	meta := &metav1.ObjectMeta{Labels: map[string]string{}, Annotations: map[string]string{}}
	for _, entry := range entries {
		if entry.Patch == nil || entry.Patch.Template == nil {
			continue
		}
		if m := entry.Patch.Template.Metadata; m != nil {
			maps.Copy(meta.Labels, m.Labels)
			maps.Copy(meta.Annotations, m.Annotations)
		}
		if entry.Patch.Template.Spec == nil {
			continue
		}
		for _, rj := range entry.Patch.Template.Spec.ReplicatedJobs {
			if find(base.ReplicatedJobs, rj.Name) == nil {
				base.ReplicatedJobs = append(base.ReplicatedJobs, jobset.ReplicatedJob{Name: rj.Name})
			}
		}
	}
	merged, err := merge(base, entries)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}
	spec := &trainerapi.JobSetSpecPatch{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, err
	}
	for i := range spec.ReplicatedJobs {
		prune(&spec.ReplicatedJobs[i])
	}
	spec.ReplicatedJobs = slices.DeleteFunc(spec.ReplicatedJobs, func(rj trainerapi.ReplicatedJobPatch) bool { // of which nothing is said
		return rj.Template == nil || rj.Template.Metadata == nil && rj.Template.Spec == nil
	})
	patch := &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Spec: spec}}
	if len(meta.Labels)+len(meta.Annotations) > 0 {
		patch.Template.Metadata = meta
	}
	return patch, nil
}

// prune takes away what only stands there because a JobSet's types always write it.
func prune(rj *trainerapi.ReplicatedJobPatch) {
	empty := func(m *metav1.ObjectMeta) bool { return m == nil || len(m.Labels)+len(m.Annotations) == 0 }
	if rj.Template == nil {
		return
	}
	if empty(rj.Template.Metadata) {
		rj.Template.Metadata = nil
	}
	if rj.Template.Spec == nil || rj.Template.Spec.Template == nil {
		rj.Template.Spec = nil
		return
	}
	if pod := rj.Template.Spec.Template; empty(pod.Metadata) {
		pod.Metadata = nil
	}
	if data, err := json.Marshal(rj.Template.Spec.Template.Spec); err == nil && string(data) == "{}" {
		rj.Template.Spec.Template.Spec = nil
		if rj.Template.Spec.Template.Metadata == nil {
			rj.Template.Spec = nil
		}
	}
}

// replaced names what an entry of podTemplateOverrides takes the place of, and a patch would be merged into.
func replaced(entry Entry) []string {
	var all []string
	for _, rj := range entry.Patch.Template.Spec.ReplicatedJobs {
		_, spec := PodPatch(entry.Patch, rj.Name)
		if spec == nil {
			continue
		}
		say := func(what string) {
			all = append(all, fmt.Sprintf("%s of replicatedJob %s (%s)", what, rj.Name, entry.Path()))
		}
		for what, there := range map[string]bool{
			"nodeSelector": len(spec.NodeSelector) > 0, "affinity": spec.Affinity != nil, "schedulingGates": len(spec.SchedulingGates) > 0,
			"imagePullSecrets": len(spec.ImagePullSecrets) > 0, "volumes": len(spec.Volumes) > 0,
		} {
			if there {
				say(what)
			}
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			if len(c.Env) > 0 {
				say("env of container " + c.Name)
			}
			if len(c.VolumeMounts) > 0 {
				say("volumeMounts of container " + c.Name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// Differences says in what the TrainJob comes out otherwise on the runtime when it says by runtimePatches what it says
// now. The result is empty where both give the same pods.
func (d Dialect) Differences(job *api.TrainJob, c *Conversion, runtime *trainerapi.TrainingRuntimeSpec) ([]string, error) {
	converted := job.DeepCopy()
	s := &converted.Spec
	s.RuntimePatches, s.PodTemplateOverrides, s.PodSpecOverrides, s.TemplateOverrides, s.Labels, s.Annotations = c.Patches, nil, nil, nil, nil, nil
	before, err := d.template(job, runtime)
	if err != nil {
		return nil, err
	}
	after, err := d.template(converted, runtime)
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

// template returns the JobSet template that the TrainJob's entries make of the runtime, every value by its path.
func (d Dialect) template(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) (map[string]string, error) {
	entries := d.Entries(job)
	merged, err := merge(runtime.Template.Spec, entries)
	if err != nil {
		return nil, err
	}
	labels, annotations := metadata(runtime, entries)
	content, err := generic(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": annotations}, "spec": merged})
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	flatten("template", content, values)
	return values, nil
}

// maxEquivalent bounds the equivalent in a warning, in bytes: an API server cuts warnings off that are longer than 4,096
// characters together.
const maxEquivalent = 2800

// Deprecations warns of the shapes that runtimePatches take the place of, and shows what to write instead. The runtime is
// taken as it is.
func Deprecations(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) []string {
	if !Needed(job) {
		return nil
	}
	field := "spec." + PodTemplateOverrides
	switch {
	case len(job.Spec.PodTemplateOverrides) == 0:
		field = "spec." + TemplateOverrides
	case len(job.Spec.TemplateOverrides) > 0:
		field += " and spec." + TemplateOverrides + " are"
	}
	if field[len(field)-4:] != " are" {
		field += " is"
	}
	c, err := Bundled.Convert(job)
	if err != nil {
		return nil // what can't be merged is refused
	}
	different, err := Bundled.Differences(job, c, runtime)
	if err != nil {
		return nil
	}
	data, err := json.Marshal(map[string]any{RuntimePatches: c.Patches})
	if err != nil {
		return nil
	}
	warning := fmt.Sprintf("%s deprecated; the equivalent in spec is %s", field, data)
	if len(data) > maxEquivalent {
		warning = field + " deprecated; kubectl signalbox convert -f rewrites the manifest to spec." + RuntimePatches
	}
	warnings := []string{warning}
	if more := append(c.Lost, different...); len(more) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.%s are merged with the runtime's values; %d would come out otherwise, the first: %s", RuntimePatches, len(more), more[0]))
	}
	return warnings
}
