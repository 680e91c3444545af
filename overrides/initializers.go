package overrides

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Initializers returns what each initializer of a TrainJob on a runtime is, as a hash by the name of its ReplicatedJob:
// its pods, how often they run, and what it waits for, which it works with. It is nil without initializers, and if what
// the TrainJob runs can't be computed.
//
// The integration's entry isn't one of the entries. It says where pods run and how many nodes there are, which differs
// from one start to the next. All else is the user's or the runtime's.
func Initializers(
	rules pipeline.Rules, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) map[string]string {
	names := awaited(&runtime.Template.Spec)
	if len(names) == 0 {
		return nil
	}
	e, err := Compute(rules, job, runtime, entries)
	if err != nil {
		return nil
	}
	hashes := map[string]string{}
	for i := range e.Built { // what others wait for precedes them, as JobSet requires
		hash, err := identity(&e.Built[i], hashes)
		if err != nil {
			return nil
		}
		hashes[e.Built[i].Name] = hash
	}
	maps.DeleteFunc(hashes, func(name, _ string) bool { return !names[name] })
	return hashes
}

// identity returns the hash of a ReplicatedJob. before has those of the preceding ones.
func identity(rj *jobset.ReplicatedJob, before map[string]string) (string, error) {
	type dependency struct {
		jobset.DependsOn
		Hash string
	}
	is := struct {
		Replicas                 int32
		Parallelism, Completions *int32
		CompletionMode           *batchv1.CompletionMode
		Pod                      *corev1.PodTemplateSpec
		After                    []dependency
	}{
		Replicas: rj.Replicas, Parallelism: rj.Template.Spec.Parallelism, Completions: rj.Template.Spec.Completions,
		CompletionMode: rj.Template.Spec.CompletionMode, Pod: &rj.Template.Spec.Template,
	}
	for _, d := range rj.DependsOn {
		is.After = append(is.After, dependency{d, before[d.Name]})
	}
	sum := sha256.New()
	if err := json.NewEncoder(sum).Encode(is); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// Done returns the status of the Jobs of a TrainJob without what was done for something else than the TrainJob is now,
// on the runtime, with entries without the integration's. Without a runtime (nil), initializers aren't compared with
// what they were.
//
// An initializer that ran under a release that didn't keep what it was is done unless an entry was changed after the
// stop.
func Done(
	rules pipeline.Rules, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) []trainerapi.JobStatus {
	was := job.Status.Initializers
	is := was
	if len(was) > 0 && runtime != nil {
		is = Initializers(rules, job, runtime, entries)
	}
	edited := editedSinceStop(job, entries)
	statuses := slices.Clone(job.Status.JobsStatus)
	for i := range statuses {
		if hash, known := was[statuses[i].Name]; known && hash != is[statuses[i].Name] || !known && edited {
			statuses[i].Succeeded = new(int32)
		}
	}
	return statuses
}

func editedSinceStop(job *api.TrainJob, entries []Entry) bool {
	stopped := apimeta.FindStatusCondition(job.Status.Conditions, trainerapi.TrainJobSuspended)
	return stopped != nil && stopped.Status == metav1.ConditionTrue &&
		slices.ContainsFunc(entries, func(e Entry) bool {
			return e.Time != nil && e.Time.After(stopped.LastTransitionTime.Time)
		})
}
