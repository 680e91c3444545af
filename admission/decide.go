package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"

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
	Job     *trainer.TrainJob
	Runtime *trainer.TrainingRuntimeSpec
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
	Entry           trainer.RuntimePatch
	// Pin is the runtime to be written with the start (overrides.Pin); "" where Kubeflow Trainer keeps it.
	Pin string
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
	effective, err := overrides.Compute(in.Job, in.Runtime, overrides.Others(in.Job))
	if err != nil {
		return nil, err
	}
	if len(all) != len(effective.ReplicatedJobs) {
		return nil, fmt.Errorf("Workload %s was admitted with %d PodSets, but the TrainJob has %d ReplicatedJobs", in.Workload.Name, len(all), len(effective.ReplicatedJobs))
	}
	patches := make([]trainer.ReplicatedJobPatch, 0, len(effective.ReplicatedJobs))
	for i := range effective.ReplicatedJobs {
		rj := &effective.ReplicatedJobs[i]
		n, found := all[kueue.NewPodSetReference(rj.Name)]
		if !found {
			return nil, fmt.Errorf("Workload %s was admitted without a PodSet for ReplicatedJob %q", in.Workload.Name, rj.Name)
		}
		patch, err := complete(in.Job, rj, n)
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
	}
	return start, verify(in, all, start.Entry)
}

// complete adds what is needed to what the ReplicatedJob has, and returns the whole.
func complete(job *trainer.TrainJob, rj *jobset.ReplicatedJob, n *needs) (patch trainer.ReplicatedJobPatch, err error) {
	pod := &rj.Template.Spec.Template
	labels, err1 := union(job, rj.Name, overrides.Labels, pod.Labels, n.labels, n)
	annotations, err2 := union(job, rj.Name, overrides.Annotations, pod.Annotations, n.annotations, n)
	selector, err3 := union(job, rj.Name, overrides.NodeSelector, pod.Spec.NodeSelector, n.nodeSelector, n)
	if err := errors.Join(err1, err2, err3); err != nil {
		return patch, err
	}
	spec := &trainer.PodSpecPatch{NodeSelector: selector}
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
			Path: entryPath(overrides.Manager, rj.Name, "spec"), Source: "a complete entry",
			Says:  fmt.Sprintf("%d tolerations and %d scheduling gates", len(spec.Tolerations), len(spec.SchedulingGates)),
			Needs: fmt.Sprintf("at most %d and %d", maxTolerations, maxGates), WayOut: "give the runtime or the other entries fewer",
		}
	}
	return podPatch(rj.Name, &metav1.ObjectMeta{Labels: labels, Annotations: annotations}, spec), nil
}

// union merges what is needed into what is there; another value for a key is a conflict with whoever set it. Nothing
// needed gives nothing, so that the field stays out of the entry.
func union(job *trainer.TrainJob, replicatedJob string, field overrides.Field, have, need map[string]string, n *needs) (map[string]string, error) {
	if len(need) == 0 {
		return nil, nil
	}
	for _, key := range slices.Sorted(maps.Keys(need)) {
		if value, found := have[key]; found && value != need[key] {
			return nil, conflict(job, replicatedJob, field, key, value, need[key], n.origin(key))
		}
	}
	whole := maps.Clone(need)
	for key, value := range have {
		whole[key] = value
	}
	return whole, nil
}

// conflict names who set a value: the last entry that does, or the runtime.
func conflict(job *trainer.TrainJob, replicatedJob string, field overrides.Field, key, says, wants, source string) *ConflictError {
	e := &ConflictError{Says: says, Needs: wants, Source: source}
	keyed := string(field)
	if key != "" {
		keyed += "[" + key + "]"
	}
	if manager := overrides.Setter(job.Spec.RuntimePatches, replicatedJob, field, key); manager != "" {
		e.Path = entryPath(manager, replicatedJob, keyed)
		e.WayOut = fmt.Sprintf("take it out of the entry of %s, or queue the TrainJob where the two agree", manager)
	} else {
		e.Path = fmt.Sprintf("runtime %s: replicatedJobs[%s].template.spec.template.%s", job.Spec.RuntimeRef.Name, replicatedJob, keyed)
		e.WayOut = "change the runtime, or queue the TrainJob where the two agree"
	}
	return e
}

func entryPath(manager, replicatedJob, field string) string {
	return fmt.Sprintf("spec.runtimePatches[%s].trainingRuntimeSpec.template.spec.replicatedJobs[%s].template.spec.template.%s", manager, replicatedJob, field)
}

// verify computes what the TrainJob would run with the entry among the others, where a later one has the last word, and
// looks whether every pod gets what admission needs.
func verify(in Input, all map[kueue.PodSetReference]*needs, own trainer.RuntimePatch) error {
	result, err := overrides.Compute(in.Job, in.Runtime, overrides.With(in.Job, own))
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
					return conflict(in.Job, rj.Name, m.field, key, m.have[key], m.want[key], n.origin(key))
				}
			}
		}
		if len(tolerate(slices.Clone(pod.Spec.Tolerations), n.tolerations)) != len(pod.Spec.Tolerations) {
			return conflict(in.Job, rj.Name, overrides.Tolerations, "", fmt.Sprint(pod.Spec.Tolerations), fmt.Sprint(n.tolerations), "the admission")
		}
		for _, g := range n.gates {
			if !slices.Contains(pod.Spec.SchedulingGates, g) {
				return conflict(in.Job, rj.Name, overrides.SchedulingGates, g.Name, fmt.Sprint(pod.Spec.SchedulingGates), g.Name, "the topology assignment")
			}
		}
	}
	return nil
}

// Neutral returns the integration's entry for a TrainJob that does not run: nothing of an admission is left in it. It
// keeps one label for each ReplicatedJob, because Trainer v2.3.0 can't apply a JobSet whose pod template had metadata
// and has none any more ("template.metadata: Invalid value: null").
func Neutral(own *trainer.RuntimePatch) trainer.RuntimePatch {
	var patches []trainer.ReplicatedJobPatch
	if s := own.TrainingRuntimeSpec; s != nil && s.Template != nil && s.Template.Spec != nil {
		for _, rj := range s.Template.Spec.ReplicatedJobs {
			patches = append(patches, podPatch(rj.Name, &metav1.ObjectMeta{Labels: map[string]string{constants.PodSetLabel: rj.Name}}, nil))
		}
	}
	return entry(patches, nil)
}

// IsNeutral tells whether nothing of an admission is left in the TrainJob's own entry.
func IsNeutral(job *trainer.TrainJob) bool {
	own := overrides.Own(job)
	if own == nil || own.TrainingRuntimeSpec == nil || own.TrainingRuntimeSpec.Template == nil || own.TrainingRuntimeSpec.Template.Spec == nil {
		return true
	}
	return !slices.ContainsFunc(own.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs, func(rj trainer.ReplicatedJobPatch) bool {
		meta, spec := overrides.PodPatch(*own, rj.Name)
		return spec != nil || meta != nil && (len(meta.Annotations) > 0 || len(meta.Labels) > 1)
	})
}

func entry(patches []trainer.ReplicatedJobPatch, now *metav1.Time) trainer.RuntimePatch {
	return trainer.RuntimePatch{
		Manager: overrides.Manager,
		Time:    now,
		TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{
			Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{ReplicatedJobs: patches}},
		},
	}
}

func podPatch(replicatedJob string, meta *metav1.ObjectMeta, spec *trainer.PodSpecPatch) trainer.ReplicatedJobPatch {
	return trainer.ReplicatedJobPatch{
		Name:     replicatedJob,
		Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{Template: &trainer.PodTemplatePatch{Metadata: meta, Spec: spec}}},
	}
}

// Running tells why a TrainJob that is suspended may still hold resources, or "" where none of it is left: its JobSet
// has stopped its Jobs, and every pod has come to its end. A pod that is terminating is not at its end yet.
func Running(job *trainer.TrainJob, js *jobset.JobSet, pods []corev1.Pod) string {
	if !ptr.Deref(job.Spec.Suspend, false) {
		return "the TrainJob is not suspended"
	}
	for i := range pods {
		if phase := pods[i].Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return fmt.Sprintf("pod %s has not ended", pods[i].Name)
		}
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
