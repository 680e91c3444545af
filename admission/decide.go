package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Features are the feature gates of Kueue that a start depends on.
type Features struct {
	// TopologyAware gates pods until their topology is assigned (gate TopologyAwareScheduling).
	TopologyAware bool
	// QueueLabels labels pods with their queues (gate AssignQueueLabelsForPods).
	QueueLabels bool
}

// Input is all that a start is decided on.
type Input struct {
	Job     *api.TrainJob
	Runtime *trainerapi.TrainingRuntimeSpec
	// Dialect of the Trainer that is to run it.
	Dialect overrides.Dialect
	// Memo of what TrainJobs run; nil computes it.
	Memo *overrides.Memo
	// Workload is admitted: status.admission is set.
	Workload *kueue.Workload
	// Flavors holds every ResourceFlavor that the admission assigns.
	Flavors  map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec
	Features Features
	// Now becomes the entry's time. Trainer's webhook sets it where it is missing, and then rewrites the whole object.
	Now metav1.Time
}

// Start is a decided start: the entry to write together with suspend: false, and the version of the TrainJob that it
// was decided on.
type Start struct {
	Key             types.NamespacedName
	UID             types.UID
	ResourceVersion string
	Entry           trainerapi.RuntimePatch
	// Record is written instead of the entry to a Trainer whose list of overrides is not keyed by manager; nil else.
	Record *overrides.Record
	// Pin is the runtime to be written with the start (overrides.Pin); "" where Kubeflow Trainer keeps it.
	Pin string
	// NewPin is set where the TrainJob has no pin yet.
	NewPin bool
	// At is the place of the integration's entry in spec.runtimePatches, -1 where it has none; Others is set where the list
	// has entries. Annotated is set where the TrainJob has annotations.
	At                int
	Others, Annotated bool
}

// ConflictError says that something contradicts what admission needs. Trying again does not help; somebody has to
// change one of the two.
type ConflictError struct {
	// Path names the entry (or the runtime, or the admission check) and the field in it.
	Path string
	// Says is the value there, Needs the one that Source asks for.
	Says, Needs, Source string
	// WayOut says what to change.
	WayOut string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is %q, but %s needs %q; %s", e.Path, e.Says, e.Source, e.Needs, e.WayOut)
}

// Limits of an entry (Trainer v2.3.0's CRD).
const (
	maxTolerations = 128
	maxGates       = 16
)

// Decide returns the start of the TrainJob on what its Workload was admitted to. The entry is complete: each field that
// it sets holds the whole effective value, what the runtime and the other entries give and what admission adds, so that
// it is right whether the field is merged or replaced. The result of applying it is computed before it is returned; a
// start that would not give every pod what admission needs is an error, a *ConflictError where another entry is in the
// way.
func Decide(in Input) (*Start, error) {
	if in.Workload.Status.Admission == nil {
		return nil, fmt.Errorf("Workload %s is not admitted", in.Workload.Name)
	}
	all, err := assigned(in)
	if err != nil {
		return nil, err
	}
	others := in.Dialect.Others(in.Job)
	effective, err := in.Memo.Compute(in.Dialect, in.Job, in.Runtime, others)
	if err != nil {
		return nil, err
	}
	if len(all) != len(effective.ReplicatedJobs) {
		return nil, fmt.Errorf("Workload %s was admitted with %d PodSets, but the TrainJob has %d ReplicatedJobs", in.Workload.Name, len(all), len(effective.ReplicatedJobs))
	}
	patches := make([]trainerapi.ReplicatedJobPatch, 0, len(effective.ReplicatedJobs))
	for i := range effective.ReplicatedJobs {
		rj := &effective.ReplicatedJobs[i]
		n, found := all[kueue.NewPodSetReference(rj.Name)]
		if !found {
			return nil, fmt.Errorf("Workload %s was admitted without a PodSet for ReplicatedJob %q", in.Workload.Name, rj.Name)
		}
		patch, err := complete(in.Job, others, rj, n)
		if err != nil {
			return nil, err
		}
		patches = append(patches, patch)
	}
	start := &Start{
		Key:             types.NamespacedName{Namespace: in.Job.Namespace, Name: in.Job.Name},
		UID:             in.Job.UID,
		ResourceVersion: in.Job.ResourceVersion,
		Entry:           entry(patches, &in.Now),
		At:              overrides.OwnIndex(in.Job),
		Others:          len(in.Job.Spec.RuntimePatches) > 0,
		Annotated:       in.Job.Annotations != nil, // a cache that drops the last annotation leaves an empty map
	}
	if in.Dialect.Field == overrides.PodSpecOverrides {
		if err := carriable(in, all, others, patches); err != nil {
			return nil, err
		}
	}
	if err := verify(in, all, start.Entry); err != nil || in.Dialect.Keyed() {
		return start, err
	}
	start.Record, err = recordOf(in.Dialect, in.Job, &start.Entry)
	return start, err
}

// recordOf returns the TrainJob's Record with the entry as the integration's.
func recordOf(d overrides.Dialect, job *api.TrainJob, own *trainerapi.RuntimePatch) (*overrides.Record, error) {
	record, err := overrides.RecordOf(job)
	if err != nil {
		return nil, err
	}
	if record == nil {
		record = &overrides.Record{}
	}
	record.Field, record.Time = d.Field, own.Time
	record.Own, err = d.Elements(own)
	return record, err
}

// carriable refuses a start that podSpecOverrides, of Kubeflow Trainer v2.0, can't carry: they have no metadata of pods, and
// name each ReplicatedJob once in the whole list.
func carriable(in Input, all map[kueue.PodSetReference]*needs, others []overrides.Entry, patches []trainerapi.ReplicatedJobPatch) error {
	const path, has = "spec." + overrides.PodSpecOverrides, "without labels and annotations of pods, in " // the Trainer's name
	for _, patch := range patches {
		n := all[kueue.NewPodSetReference(patch.Name)]
		if n.metadata != "" {
			return &ConflictError{
				Path: path, Says: has + in.Dialect.Name, Source: n.metadata, Needs: "labels or annotations on the pods of " + patch.Name,
				WayOut: "upgrade Kubeflow Trainer to v2.1 or later, or queue the TrainJob where they are not needed",
			}
		}
		if len(n.nodeSelector)+len(n.tolerations)+len(n.gates) == 0 {
			continue
		}
		for _, entry := range others {
			if entry.Targets(patch.Name) {
				return &ConflictError{
					Path: entry.Path().String(), Says: "for replicatedJob " + patch.Name, Source: in.Dialect.Name, Needs: "one element for each replicatedJob, and admission writes it",
					WayOut: "move what it says to the runtime, or upgrade Kubeflow Trainer to v2.1 or later",
				}
			}
		}
	}
	return nil
}

// complete adds what is needed to what the ReplicatedJob has, and returns the whole.
func complete(job *api.TrainJob, others []overrides.Entry, rj *jobset.ReplicatedJob, n *needs) (patch trainerapi.ReplicatedJobPatch, err error) {
	pod := &rj.Template.Spec.Template
	labels, err1 := union(job, others, rj.Name, overrides.Labels, pod.Labels, n.labels, n)
	annotations, err2 := union(job, others, rj.Name, overrides.Annotations, pod.Annotations, n.annotations, n)
	selector, err3 := union(job, others, rj.Name, overrides.NodeSelector, pod.Spec.NodeSelector, n.nodeSelector, n)
	if err := errors.Join(err1, err2, err3); err != nil {
		return patch, err
	}
	spec := &trainerapi.PodSpecPatch{NodeSelector: selector}
	if len(n.tolerations) > 0 {
		spec.Tolerations = tolerate(slices.Clone(pod.Spec.Tolerations), n.tolerations)
	}
	if len(n.gates) > 0 {
		spec.SchedulingGates = slices.Clone(pod.Spec.SchedulingGates)
		for _, g := range n.gates {
			if !slices.Contains(spec.SchedulingGates, g) {
				spec.SchedulingGates = append(spec.SchedulingGates, g)
			}
		}
	}
	if len(spec.Tolerations) > maxTolerations || len(spec.SchedulingGates) > maxGates {
		return patch, &ConflictError{
			Path: fmt.Sprintf("the entry of %s for replicatedJob %s", overrides.Manager, rj.Name), Source: "a complete entry",
			Says:  fmt.Sprintf("%d tolerations and %d scheduling gates", len(spec.Tolerations), len(spec.SchedulingGates)),
			Needs: fmt.Sprintf("at most %d and %d", maxTolerations, maxGates), WayOut: "give the runtime or the other entries fewer",
		}
	}
	return podPatch(rj.Name, &metav1.ObjectMeta{Labels: labels, Annotations: annotations}, spec), nil
}

// union merges what is needed into what is there; another value for a key is a conflict with whoever set it. Nothing
// needed gives nothing, so that the field stays out of the entry.
func union(job *api.TrainJob, others []overrides.Entry, replicatedJob string, field overrides.Field, have, need map[string]string, n *needs) (map[string]string, error) {
	if len(need) == 0 {
		return nil, nil
	}
	for _, key := range slices.Sorted(maps.Keys(need)) {
		if value, found := have[key]; found && value != need[key] {
			return nil, conflict(job, others, replicatedJob, field, key, value, need[key], n.origin(key))
		}
	}
	whole := maps.Clone(need)
	for key, value := range have {
		whole[key] = value
	}
	return whole, nil
}

// conflict names who set a value: the last entry that does, or the runtime.
func conflict(job *api.TrainJob, entries []overrides.Entry, replicatedJob string, field overrides.Field, key, says, wants, source string) *ConflictError {
	e := &ConflictError{Says: says, Needs: wants, Source: source}
	keyed := string(field)
	if key != "" {
		keyed += "[" + key + "]"
	}
	if entry := overrides.Setter(entries, replicatedJob, field, key); entry != nil {
		e.Path = entry.PodPath(replicatedJob).String() + "." + keyed
		e.WayOut = "take it out there, or queue the TrainJob where the two agree"
		if entry.Manager != "" {
			e.WayOut = fmt.Sprintf("take it out of the entry of %s, or queue the TrainJob where the two agree", entry.Manager)
		}
	} else {
		e.Path = fmt.Sprintf("runtime %s: replicatedJobs[%s].template.spec.template.%s", job.Spec.RuntimeRef.Name, replicatedJob, keyed)
		e.WayOut = "change the runtime, or queue the TrainJob where the two agree"
	}
	return e
}

// verify computes what the TrainJob would run with the entry among the others, where a later one has the last word, and
// looks whether every pod gets what admission needs.
func verify(in Input, all map[kueue.PodSetReference]*needs, own trainerapi.RuntimePatch) error {
	entries := in.Dialect.With(in.Job, own)
	result, err := in.Dialect.Compute(in.Job, in.Runtime, entries) // it names the Workload: no other TrainJob runs the same
	if err != nil {
		return err
	}
	for i := range result.ReplicatedJobs {
		rj := &result.ReplicatedJobs[i]
		n := all[kueue.NewPodSetReference(rj.Name)]
		pod := &rj.Template.Spec.Template
		for _, m := range []struct {
			field      overrides.Field
			have, want map[string]string
		}{{overrides.Labels, pod.Labels, n.labels}, {overrides.Annotations, pod.Annotations, n.annotations}, {overrides.NodeSelector, pod.Spec.NodeSelector, n.nodeSelector}} {
			for _, key := range slices.Sorted(maps.Keys(m.want)) {
				if m.have[key] != m.want[key] {
					return conflict(in.Job, entries, rj.Name, m.field, key, m.have[key], m.want[key], n.origin(key))
				}
			}
		}
		if len(tolerate(slices.Clone(pod.Spec.Tolerations), n.tolerations)) != len(pod.Spec.Tolerations) {
			return conflict(in.Job, entries, rj.Name, overrides.Tolerations, "", fmt.Sprint(pod.Spec.Tolerations), fmt.Sprint(n.tolerations), "the admission")
		}
		for _, g := range n.gates {
			if !slices.Contains(pod.Spec.SchedulingGates, g) {
				return conflict(in.Job, entries, rj.Name, overrides.SchedulingGates, g.Name, fmt.Sprint(pod.Spec.SchedulingGates), g.Name, "the topology assignment")
			}
		}
	}
	return nil
}

// Neutral returns the integration's entry for a TrainJob that does not run: nothing of an admission is left in it. It
// keeps one label for each ReplicatedJob, because Trainer v2.3.0 can't apply a JobSet whose pod template had metadata
// and has none any more ("template.metadata: Invalid value: null").
func Neutral(own *trainerapi.RuntimePatch) trainerapi.RuntimePatch {
	var patches []trainerapi.ReplicatedJobPatch
	if s := own.TrainingRuntimeSpec; s != nil && s.Template != nil && s.Template.Spec != nil {
		for _, rj := range s.Template.Spec.ReplicatedJobs {
			patches = append(patches, podPatch(rj.Name, &metav1.ObjectMeta{Labels: map[string]string{constants.PodSetLabel: rj.Name}}, nil))
		}
	}
	return entry(patches, nil)
}

// IsNeutral tells whether nothing of an admission is left in the integration's entry; nil is none.
func IsNeutral(own *trainerapi.RuntimePatch) bool {
	if own == nil || own.TrainingRuntimeSpec == nil || own.TrainingRuntimeSpec.Template == nil || own.TrainingRuntimeSpec.Template.Spec == nil {
		return true
	}
	return !slices.ContainsFunc(own.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs, func(rj trainerapi.ReplicatedJobPatch) bool {
		meta, spec := overrides.PodPatch(own.TrainingRuntimeSpec, rj.Name)
		return spec != nil || meta != nil && (len(meta.Annotations) > 0 || len(meta.Labels) > 1)
	})
}

func entry(patches []trainerapi.ReplicatedJobPatch, now *metav1.Time) trainerapi.RuntimePatch {
	return trainerapi.RuntimePatch{
		Manager: overrides.Manager,
		Time:    now,
		TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
			Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: patches}},
		},
	}
}

func podPatch(replicatedJob string, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) trainerapi.ReplicatedJobPatch {
	return trainerapi.ReplicatedJobPatch{
		Name:     replicatedJob,
		Template: &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Metadata: meta, Spec: spec}}},
	}
}

// Running returns why a TrainJob that is suspended may still hold resources, or "" where none of it is left: its JobSet
// has stopped its Jobs, and no pod is running (Pods.Running). A pod that is terminating still runs.
func Running(job *api.TrainJob, js *jobset.JobSet, pods []corev1.Pod) string {
	if !ptr.Deref(job.Spec.Suspend, false) {
		return "the TrainJob is not suspended"
	}
	if len(pods) > 0 {
		return fmt.Sprintf("pod %s has not ended", pods[0].Name)
	}
	if js == nil {
		return ""
	}
	if !ptr.Deref(js.Spec.Suspend, false) {
		return "the JobSet is not suspended"
	}
	for _, status := range js.Status.ReplicatedJobsStatus {
		if status.Active > 0 {
			return fmt.Sprintf("ReplicatedJob %s has active Jobs", status.Name)
		}
	}
	// A JobSet that was made suspended and never changed has not run; any other says so when its Jobs are suspended.
	suspended := slices.ContainsFunc(js.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == string(jobset.JobSetSuspended) && c.Status == metav1.ConditionTrue
	})
	if js.Generation > 1 && !suspended {
		return "the JobSet has not suspended its Jobs"
	}
	return ""
}
