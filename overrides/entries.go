package overrides

import (
	"cmp"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Manager is the manager of the integration's entry of runtimePatches. Kueue's built-in integration uses the same, so
// that a TrainJob that it has admitted doesn't keep a second, stale entry.
const Manager = "kueue.x-k8s.io/manager"

// Entry is one change of a runtime, in any shape.
type Entry struct {
	// Manager that owns it; "" in the shapes that have none.
	Manager string
	// Time at which it was written; nil where it is not known.
	Time *metav1.Time
	// Replaces is set where it is merged as the operator guide of podTemplateOverrides describes, and not strategically.
	Replaces bool
	// Patch is the change; nil for none.
	Patch *trainerapi.TrainingRuntimeSpecPatch

	shape string
	root  *field.Path // of the entry in the TrainJob
}

// Path returns the entry's path in the TrainJob.
func (e Entry) Path() *field.Path { return e.root }

// Targets reports whether the entry is for a ReplicatedJob.
func (e Entry) Targets(replicatedJob string) bool {
	return e.Patch != nil && e.Patch.Template != nil && e.Patch.Template.Spec != nil &&
		slices.ContainsFunc(e.Patch.Template.Spec.ReplicatedJobs, func(p trainerapi.ReplicatedJobPatch) bool {
			return p.Name == replicatedJob
		})
}

// targetPath returns the path at which the entry names a ReplicatedJob.
func (e Entry) targetPath(replicatedJob string) *field.Path {
	if e.shape == RuntimePatches {
		return e.root.Child("trainingRuntimeSpec", "template", "spec", "replicatedJobs").Key(replicatedJob)
	}
	return e.root.Child("targetJobs").Key(replicatedJob)
}

// PodPath returns the path above the metadata and spec of a ReplicatedJob's pods in the entry.
func (e Entry) PodPath(replicatedJob string) *field.Path {
	if e.shape == RuntimePatches {
		return e.targetPath(replicatedJob).Child("template", "spec", "template")
	}
	return e.root
}

// specPath returns the path of the spec of a ReplicatedJob's pods in the entry.
func (e Entry) specPath(replicatedJob string) *field.Path {
	if e.shape == PodSpecOverrides {
		return e.root
	}
	return e.PodPath(replicatedJob).Child("spec")
}

// contentPath returns the path above all of the entry's content.
func (e Entry) contentPath() *field.Path {
	if e.shape == RuntimePatches {
		return e.root.Child("trainingRuntimeSpec")
	}
	return e.root
}

// podTemplateEntries returns the entries of podTemplateOverrides. replaces merges them as the operator guide describes.
func podTemplateEntries(job *api.TrainJob, replaces bool) []Entry {
	var entries []Entry
	for i := range job.Spec.PodTemplateOverrides {
		o := &job.Spec.PodTemplateOverrides[i]
		entries = append(entries, Entry{
			Replaces: replaces, shape: PodTemplateOverrides, root: field.NewPath("spec", PodTemplateOverrides).Index(i),
			Patch: forPods(o.TargetJobs, o.Metadata, podSpec(o.Spec)),
		})
	}
	return entries
}

// podSpecEntries returns the entries of podSpecOverrides.
func podSpecEntries(job *api.TrainJob) []Entry {
	var entries []Entry
	for i := range job.Spec.PodSpecOverrides {
		o := &job.Spec.PodSpecOverrides[i]
		entries = append(entries, Entry{
			shape: PodSpecOverrides, root: field.NewPath("spec", PodSpecOverrides).Index(i),
			Patch: forPods(o.TargetJobs, nil, podSpec(withoutTargets(o))),
		})
	}
	return entries
}

// jobSetEntries returns the entry of spec.labels and spec.annotations, the JobSet's metadata before runtimePatches.
func jobSetEntries(job *api.TrainJob) []Entry {
	if len(job.Spec.Labels)+len(job.Spec.Annotations) == 0 {
		return nil
	}
	meta := &metav1.ObjectMeta{Labels: job.Spec.Labels, Annotations: job.Spec.Annotations}
	return []Entry{{
		shape: "labels", root: field.NewPath("spec"),
		Patch: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Metadata: meta}},
	}}
}

// withoutTargets returns the content of an element of podSpecOverrides.
func withoutTargets(o *api.PodSpecOverride) *api.PodTemplateSpecOverride {
	return &api.PodTemplateSpecOverride{
		ServiceAccountName: o.ServiceAccountName, NodeSelector: o.NodeSelector, Tolerations: o.Tolerations,
		Volumes:        o.Volumes,
		InitContainers: o.InitContainers, Containers: o.Containers, SchedulingGates: o.SchedulingGates,
	}
}

// each returns one patch for each ReplicatedJob that is named.
func each(targets []api.TargetJob, of func(name string) trainerapi.ReplicatedJobPatch) []trainerapi.ReplicatedJobPatch {
	patches := make([]trainerapi.ReplicatedJobPatch, 0, len(targets))
	for _, target := range targets {
		if !slices.ContainsFunc(patches, func(p trainerapi.ReplicatedJobPatch) bool { return p.Name == target.Name }) {
			patches = append(patches, of(target.Name))
		}
	}
	return patches
}

// forPods returns a patch of the pods of the targets. Both meta and spec may be nil.
func forPods(targets []api.TargetJob, meta *metav1.ObjectMeta,
	spec *trainerapi.PodSpecPatch) *trainerapi.TrainingRuntimeSpecPatch {
	return &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
		Spec: &trainerapi.JobSetSpecPatch{
			ReplicatedJobs: each(targets, func(name string) trainerapi.ReplicatedJobPatch {
				pod := &trainerapi.PodTemplatePatch{Metadata: named(meta), Spec: spec}
				return trainerapi.ReplicatedJobPatch{Name: name, Template: &trainerapi.JobTemplatePatch{
					Spec: &trainerapi.JobSpecPatch{Template: pod}}}
			}),
		}}}
}

// named returns the labels and annotations of an override's metadata, the only part that Trainer reads.
func named(meta *metav1.ObjectMeta) *metav1.ObjectMeta {
	if meta == nil {
		return nil
	}
	return &metav1.ObjectMeta{Labels: meta.Labels, Annotations: meta.Annotations}
}

func podSpec(o *api.PodTemplateSpecOverride) *trainerapi.PodSpecPatch {
	if o == nil {
		return nil
	}
	return &trainerapi.PodSpecPatch{
		ServiceAccountName: o.ServiceAccountName, NodeSelector: o.NodeSelector, Affinity: o.Affinity,
		Tolerations: o.Tolerations, Volumes: o.Volumes,
		InitContainers: containers(o.InitContainers), Containers: containers(o.Containers),
		SchedulingGates: o.SchedulingGates, ImagePullSecrets: o.ImagePullSecrets,
	}
}

func containers(overrides []api.ContainerOverride) []trainerapi.ContainerPatch {
	if overrides == nil {
		return nil
	}
	patches := make([]trainerapi.ContainerPatch, 0, len(overrides))
	for _, o := range overrides {
		patches = append(patches, trainerapi.ContainerPatch{Name: o.Name, Env: o.Env, VolumeMounts: o.VolumeMounts})
	}
	return patches
}

// OwnIndex returns the index of the integration's entry in the TrainJob's runtimePatches, -1 where it has none.
func OwnIndex(job *api.TrainJob) int {
	return slices.IndexFunc(job.Spec.RuntimePatches, func(p trainerapi.RuntimePatch) bool { return p.Manager == Manager })
}

// OwnLast returns the entries with the integration's moved to the end, where no other can override it, and whether that
// changed anything. Entries apply in the order of the list, and tolerations are replaced as a whole by the last.
func OwnLast(entries []trainerapi.RuntimePatch) ([]trainerapi.RuntimePatch, bool) {
	i := slices.IndexFunc(entries, func(p trainerapi.RuntimePatch) bool { return p.Manager == Manager })
	if i < 0 || i == len(entries)-1 {
		return entries, false
	}
	moved := slices.Delete(slices.Clone(entries), i, i+1)
	return append(moved, entries[i]), true
}

// StepsOf returns the names of the ReplicatedJobs that an entry is for.
func StepsOf(entry *trainerapi.RuntimePatch) []string {
	patches := replicatedJobsOf(entry)
	steps := make([]string, 0, len(patches))
	for i := range patches {
		steps = append(steps, patches[i].Name)
	}
	return steps
}

func replicatedJobsOf(entry *trainerapi.RuntimePatch) []trainerapi.ReplicatedJobPatch {
	if entry == nil || entry.TrainingRuntimeSpec == nil || entry.TrainingRuntimeSpec.Template == nil ||
		entry.TrainingRuntimeSpec.Template.Spec == nil {
		return nil
	}
	return entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs
}

// PodPatch returns the part of a patch for the pods of a ReplicatedJob; both results may be nil.
func PodPatch(
	spec *trainerapi.TrainingRuntimeSpecPatch, replicatedJob string,
) (*metav1.ObjectMeta, *trainerapi.PodSpecPatch) {
	if spec == nil || spec.Template == nil || spec.Template.Spec == nil {
		return nil, nil
	}
	named := func(rj *trainerapi.ReplicatedJobPatch) bool { return rj.Name == replicatedJob }
	if rj := first(spec.Template.Spec.ReplicatedJobs, named); rj != nil {
		return podPatchOf(rj)
	}
	return nil, nil
}

// podPatchOf returns a patch of the pods of a ReplicatedJob; both results may be nil.
func podPatchOf(rj *trainerapi.ReplicatedJobPatch) (*metav1.ObjectMeta, *trainerapi.PodSpecPatch) {
	if rj.Template == nil || rj.Template.Spec == nil || rj.Template.Spec.Template == nil {
		return nil, nil
	}
	return rj.Template.Spec.Template.Metadata, rj.Template.Spec.Template.Spec
}

// Field is a part of a pod template that admission sets.
type Field string

// The fields that admission sets, by their names in a pod template.
const (
	Labels          Field = "metadata.labels"
	Annotations     Field = "metadata.annotations"
	NodeSelector    Field = "spec.nodeSelector"
	Tolerations     Field = "spec.tolerations"
	SchedulingGates Field = "spec.schedulingGates"
)

// Setter returns the last entry but the integration's that sets the key of the field for the ReplicatedJob (any key
// where key is empty), or nil where none does and the value is the runtime's.
func Setter(entries []Entry, replicatedJob string, field Field, key string) *Entry {
	for i := range slices.Backward(entries) {
		if entries[i].Manager == Manager {
			continue
		}
		meta, spec := PodPatch(entries[i].Patch, replicatedJob)
		if sets(meta, spec, field, key) {
			return &entries[i]
		}
	}
	return nil
}

// sets reports whether a patch of pods sets the key of the field, or any key where key is empty.
func sets(meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch, field Field, key string) bool {
	meta, spec = cmp.Or(meta, &metav1.ObjectMeta{}), cmp.Or(spec, &trainerapi.PodSpecPatch{})
	switch field {
	case Labels:
		return hasKey(meta.Labels, key)
	case Annotations:
		return hasKey(meta.Annotations, key)
	case NodeSelector:
		return hasKey(spec.NodeSelector, key)
	case Tolerations:
		return len(spec.Tolerations) > 0
	case SchedulingGates:
		is := func(g corev1.PodSchedulingGate) bool { return key == "" || g.Name == key }
		return slices.ContainsFunc(spec.SchedulingGates, is)
	}
	return false
}

func hasKey(values map[string]string, key string) bool {
	_, found := values[key]
	return found || key == "" && len(values) > 0
}
