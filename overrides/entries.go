package overrides

import (
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Manager names the entry of runtimePatches that belongs to the integration. It is the name that Kueue's built-in
// integration uses, so that a job that it has admitted is taken over without a second, stale entry.
const Manager = "kueue.x-k8s.io/manager"

// Entry is one change of a runtime, whatever shape it was written in.
type Entry struct {
	// Manager that owns it; "" in the shapes that have none.
	Manager string
	// Time at which it was written; nil where it is not known.
	Time *metav1.Time
	// Replaces tells that it is merged as the operator guide of podTemplateOverrides says, and not strategically.
	Replaces bool
	// Patch is what it changes; nil where it says nothing.
	Patch *trainerapi.TrainingRuntimeSpecPatch

	shape string
	root  *field.Path // where it stands in the TrainJob
}

// Path is where the entry stands in the TrainJob.
func (e Entry) Path() *field.Path { return e.root }

// Targets tells whether the entry is about a ReplicatedJob.
func (e Entry) Targets(replicatedJob string) bool {
	return e.Patch != nil && e.Patch.Template != nil && e.Patch.Template.Spec != nil &&
		slices.ContainsFunc(e.Patch.Template.Spec.ReplicatedJobs, func(p trainerapi.ReplicatedJobPatch) bool { return p.Name == replicatedJob })
}

// targetPath is where the entry names a ReplicatedJob.
func (e Entry) targetPath(replicatedJob string) *field.Path {
	if e.shape == RuntimePatches {
		return e.root.Child("trainingRuntimeSpec", "template", "spec", "replicatedJobs").Key(replicatedJob)
	}
	return e.root.Child("targetJobs").Key(replicatedJob)
}

// PodPath is where the entry says something of the pods of a ReplicatedJob: their metadata and spec stand under it.
func (e Entry) PodPath(replicatedJob string) *field.Path {
	if e.shape == RuntimePatches {
		return e.targetPath(replicatedJob).Child("template", "spec", "template")
	}
	return e.root
}

// specPath is where the entry says something of the spec of a ReplicatedJob's pods.
func (e Entry) specPath(replicatedJob string) *field.Path {
	if e.shape == PodSpecOverrides {
		return e.root
	}
	return e.PodPath(replicatedJob).Child("spec")
}

// contentPath is what stands above all that the entry says.
func (e Entry) contentPath() *field.Path {
	if e.shape == RuntimePatches {
		return e.root.Child("trainingRuntimeSpec")
	}
	return e.root
}

// lists returns the entries of podTemplateOverrides and podSpecOverrides.
func (d Dialect) lists(job *api.TrainJob) []Entry {
	var entries []Entry
	for i := range job.Spec.PodTemplateOverrides {
		if !d.Bundled && d.Field != PodTemplateOverrides {
			break // another Trainer's
		}
		o := &job.Spec.PodTemplateOverrides[i]
		entries = append(entries, Entry{Replaces: d.Bundled && !d.strategic, shape: PodTemplateOverrides, root: field.NewPath("spec", PodTemplateOverrides).Index(i),
			Patch: forPods(o.TargetJobs, o.Metadata, podSpec(o.Spec))})
	}
	for i := range job.Spec.PodSpecOverrides {
		if !d.manifests && d.Field != PodSpecOverrides {
			break // another Trainer's
		}
		o := &job.Spec.PodSpecOverrides[i]
		entries = append(entries, Entry{shape: PodSpecOverrides, root: field.NewPath("spec", PodSpecOverrides).Index(i),
			Patch: forPods(o.TargetJobs, nil, podSpec(withoutTargets(o)))})
	}
	return entries
}

func withoutTargets(o *api.PodSpecOverride) *api.PodTemplateSpecOverride {
	return &api.PodTemplateSpecOverride{
		ServiceAccountName: o.ServiceAccountName, NodeSelector: o.NodeSelector, Tolerations: o.Tolerations, Volumes: o.Volumes,
		InitContainers: o.InitContainers, Containers: o.Containers, SchedulingGates: o.SchedulingGates,
	}
}

func each(targets []api.TargetJob, of func(name string) trainerapi.ReplicatedJobPatch) []trainerapi.ReplicatedJobPatch {
	patches := make([]trainerapi.ReplicatedJobPatch, 0, len(targets))
	for _, target := range targets {
		if !slices.ContainsFunc(patches, func(p trainerapi.ReplicatedJobPatch) bool { return p.Name == target.Name }) {
			patches = append(patches, of(target.Name))
		}
	}
	return patches
}

func forPods(targets []api.TargetJob, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) *trainerapi.TrainingRuntimeSpecPatch {
	return &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{
		ReplicatedJobs: each(targets, func(name string) trainerapi.ReplicatedJobPatch {
			pod := &trainerapi.PodTemplatePatch{Metadata: named(meta), Spec: spec}
			return trainerapi.ReplicatedJobPatch{Name: name, Template: &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: pod}}}
		}),
	}}}
}

// named returns the part of an override's metadata that counts: labels and annotations.
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
		ServiceAccountName: o.ServiceAccountName, NodeSelector: o.NodeSelector, Affinity: o.Affinity, Tolerations: o.Tolerations, Volumes: o.Volumes,
		InitContainers: containers(o.InitContainers), Containers: containers(o.Containers), SchedulingGates: o.SchedulingGates, ImagePullSecrets: o.ImagePullSecrets,
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

// OwnIndex is where the integration's entry stands in the TrainJob's runtimePatches, -1 where it has none.
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

func replicatedJobsOf(entry *trainerapi.RuntimePatch) []trainerapi.ReplicatedJobPatch {
	if entry == nil || entry.TrainingRuntimeSpec == nil || entry.TrainingRuntimeSpec.Template == nil || entry.TrainingRuntimeSpec.Template.Spec == nil {
		return nil
	}
	return entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs
}

// PodPatch returns what a patch says of the pods of a ReplicatedJob; both results may be nil.
func PodPatch(spec *trainerapi.TrainingRuntimeSpecPatch, replicatedJob string) (*metav1.ObjectMeta, *trainerapi.PodSpecPatch) {
	if spec == nil || spec.Template == nil || spec.Template.Spec == nil {
		return nil, nil
	}
	for _, rj := range spec.Template.Spec.ReplicatedJobs {
		if rj.Name != replicatedJob {
			continue
		}
		if rj.Template == nil || rj.Template.Spec == nil || rj.Template.Spec.Template == nil {
			return nil, nil
		}
		return rj.Template.Spec.Template.Metadata, rj.Template.Spec.Template.Spec
	}
	return nil, nil
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

// Setter returns the last entry but the integration's that sets the key of the field for the ReplicatedJob (any key where
// key is empty), or nil where none does and the value is the runtime's.
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

func sets(meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch, field Field, key string) bool {
	inMap := func(m map[string]string) bool {
		_, found := m[key]
		return found || key == "" && len(m) > 0
	}
	switch field {
	case Labels:
		return meta != nil && inMap(meta.Labels)
	case Annotations:
		return meta != nil && inMap(meta.Annotations)
	case NodeSelector:
		return spec != nil && inMap(spec.NodeSelector)
	case Tolerations:
		return spec != nil && len(spec.Tolerations) > 0
	case SchedulingGates:
		return spec != nil && slices.ContainsFunc(spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return key == "" || g.Name == key })
	}
	return false
}
