package podsets

import (
	"slices"
	"strconv"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
)

// Final returns the ReplicatedJobs of a JobSet whose Jobs never run again once they have succeeded. Others need their
// quota until the end. None is final while the failure policy has restarts left, because a restart recreates every Job.
// A ReplicatedJob with a time to live is never final, because JobSet replaces a finished Job that is deleted.
func Final(js *jobset.JobSet) []jobset.ReplicatedJob {
	if p := js.Spec.FailurePolicy; p != nil {
		unbounded := slices.ContainsFunc(p.Rules, func(rule jobset.FailurePolicyRule) bool {
			return rule.Action != jobset.FailJobSet && rule.Action != jobset.RestartJobSet
		})
		if unbounded || p.MaxRestarts > js.Status.RestartsCountTowardsMax {
			return nil
		}
	}
	return slices.DeleteFunc(slices.Clone(js.Spec.ReplicatedJobs), func(rj jobset.ReplicatedJob) bool {
		return rj.Template.Spec.TTLSecondsAfterFinished != nil
	})
}

// Reclaimable returns the pods whose quota a TrainJob no longer needs: those of the succeeded Jobs of final
// ReplicatedJobs, such as initializers. It returns nil when all Jobs of all have succeeded: the TrainJob is about to
// finish and releases its whole quota at once.
func Reclaimable(all, final []jobset.ReplicatedJob, status []trainerapi.JobStatus) []kueue.ReclaimablePod {
	running := slices.ContainsFunc(all, func(rj jobset.ReplicatedJob) bool {
		return ptr.Deref(statusOf(status, rj.Name).Succeeded, 0) < rj.Replicas
	})
	if !running {
		return nil
	}
	pods := make([]kueue.ReclaimablePod, 0, len(final))
	for i := range final {
		rj := &final[i]
		if succeeded := min(ptr.Deref(statusOf(status, rj.Name).Succeeded, 0), rj.Replicas); succeeded > 0 {
			pods = append(pods, kueue.ReclaimablePod{Name: kueue.NewPodSetReference(rj.Name),
				Count: succeeded * overrides.PodsPerJob(rj)})
		}
	}
	return pods
}

// Statuses returns the status of a JobSet's ReplicatedJobs in the form of a TrainJob's status.
func Statuses(js *jobset.JobSet) []trainerapi.JobStatus {
	statuses := make([]trainerapi.JobStatus, 0, len(js.Status.ReplicatedJobsStatus))
	for _, s := range js.Status.ReplicatedJobsStatus {
		statuses = append(statuses, trainerapi.JobStatus{
			Name: s.Name, Ready: &s.Ready, Succeeded: &s.Succeeded, Failed: &s.Failed, Active: &s.Active,
			Suspended: &s.Suspended,
		})
	}
	return statuses
}

// Outlived returns the pods of the ReplicatedJobs that don't run again when a stopped TrainJob is started again.
func Outlived(spec *jobset.JobSetSpec, statuses []trainerapi.JobStatus) []kueue.ReclaimablePod {
	done := overrides.Outlived(spec, statuses)
	return Reclaimable(spec.ReplicatedJobs, spec.ReplicatedJobs,
		slices.DeleteFunc(slices.Clone(statuses), func(s trainerapi.JobStatus) bool { return !done[s.Name] }))
}

// AtLeast returns the reclaimable pods computed, with no count below the one stored. Kueue refuses to lower a count
// while a Workload holds quota; a JobSet that restarts all its Jobs would lower it.
func AtLeast(computed, stored []kueue.ReclaimablePod) []kueue.ReclaimablePod {
	all := slices.Clone(computed)
	for _, s := range stored {
		i := slices.IndexFunc(all, func(p kueue.ReclaimablePod) bool { return p.Name == s.Name })
		if i < 0 {
			all = append(all, s)
		} else {
			all[i].Count = max(all[i].Count, s.Count)
		}
	}
	return all
}

// AddNotAdmitted returns the reclaimable pods with those added that were not admitted: Kueue v0.19.2 subtracts
// reclaimable pods from all pods of a PodSet (workload.podSetsCountsAfterReclaim), not from the admitted ones.
func AddNotAdmitted(pods []kueue.ReclaimablePod, wl *kueue.Workload) []kueue.ReclaimablePod {
	podSet, fewer := PartiallyAdmitted(wl)
	if podSet == nil || SliceOf(wl) != nil { // a slice has no pods that weren't admitted
		return pods
	}
	all := slices.Clone(pods)
	for i := range all {
		if all[i].Name == podSet.Name && all[i].Count > 0 {
			all[i].Count += fewer
		}
	}
	return all
}

// Ready reports whether all pods of a TrainJob are ready or have succeeded, by the status of its Jobs. A TrainJob
// without ReplicatedJobs is not ready.
func Ready(replicatedJobs []jobset.ReplicatedJob, status []trainerapi.JobStatus) bool {
	for i := range replicatedJobs {
		s := statusOf(status, replicatedJobs[i].Name)
		if ptr.Deref(s.Ready, 0)+ptr.Deref(s.Succeeded, 0) < replicatedJobs[i].Replicas {
			return false
		}
	}
	return len(replicatedJobs) > 0
}

// ReadyAsAdmitted reports what Ready does of a TrainJob whose ReplicatedJobs aren't known any more: by the names of the
// PodSets that it was admitted with. Each must have Jobs, and none of them a pod that isn't ready.
func ReadyAsAdmitted(admitted []kueue.PodSet, status []trainerapi.JobStatus) bool {
	for i := range admitted {
		s := statusOf(status, string(admitted[i].Name))
		ready := ptr.Deref(s.Ready, 0)
		if ready < ptr.Deref(s.Active, 0) || ready+ptr.Deref(s.Succeeded, 0) == 0 {
			return false
		}
	}
	return len(admitted) > 0
}

// Pods is how many pods a ReplicatedJob has: those that haven't ended, and those that have succeeded.
type Pods struct{ Present, Succeeded int32 }

// PodsOf returns the pods of ReplicatedJobs by the status of their Jobs, which also counts those that are gone. A pod
// of an index that has failed isn't replaced, so that it counts as one that has succeeded.
func PodsOf(jobs []batchv1.Job) map[string]Pods {
	all := map[string]Pods{}
	for i := range jobs {
		step, s := jobs[i].Labels[jobset.ReplicatedJobNameKey], &jobs[i].Status
		n := all[step]
		n.Present += s.Active + ptr.Deref(s.Terminating, 0)
		n.Succeeded += s.Succeeded + indexes(ptr.Deref(s.FailedIndexes, ""))
		all[step] = n
	}
	return all
}

// mostIndexes is how many indexes of a Job can fail for good: as many as one with backoffLimitPerIndex may have
// (k8s.io/kubernetes v1.36, pkg/apis/batch/validation).
const mostIndexes = 100_000

// indexes returns how many indexes a text such as "1,3-5" has. What isn't of that form has none.
func indexes(text string) (n int32) {
	for _, interval := range strings.Split(text, ",") {
		first, last, found := strings.Cut(interval, "-")
		if !found {
			last = first
		}
		from, errFrom := strconv.ParseInt(first, 10, 32)
		to, errTo := strconv.ParseInt(last, 10, 32)
		if count := to - from + 1; errFrom == nil && errTo == nil && count > 0 {
			n = int32(min(int64(n)+count, mostIndexes))
		}
	}
	return n
}

// Shortage is a ReplicatedJob that has fewer pods than it needs.
type Shortage struct {
	ReplicatedJob string
	Have, Need    int32
}

// Short returns the first ReplicatedJob of a running JobSet that has fewer pods than it needs; nil if all have enough.
// A ReplicatedJob whose Jobs have ended needs none, and neither does one that waits for another.
func Short(js *jobset.JobSet, pods map[string]Pods) *Shortage {
	if ptr.Deref(js.Spec.Suspend, false) || !js.DeletionTimestamp.IsZero() || js.Status.TerminalState != "" {
		return nil
	}
	statuses := Statuses(js)
	for i := range js.Spec.ReplicatedJobs {
		rj := &js.Spec.ReplicatedJobs[i]
		s := statusOf(statuses, rj.Name)
		left := rj.Replicas - ptr.Deref(s.Succeeded, 0) - ptr.Deref(s.Failed, 0)
		if waits(js, rj, statuses) || left <= 0 {
			continue
		}
		// Of the pods that have succeeded, those count that are of Jobs which haven't.
		perJob := max(ptr.Deref(rj.Template.Spec.Completions, 0), overrides.PodsPerJob(rj))
		have := pods[rj.Name].Present + max(pods[rj.Name].Succeeded-ptr.Deref(s.Succeeded, 0)*perJob, 0)
		if need := left * overrides.PodsPerJob(rj); have < need {
			return &Shortage{rj.Name, have, need}
		}
	}
	return nil
}

// waits reports whether the Jobs of a ReplicatedJob wait for others, by its dependsOn or by the JobSet's startup policy
// (JobSet v0.12.0, pkg/controllers).
func waits(js *jobset.JobSet, rj *jobset.ReplicatedJob, statuses []trainerapi.JobStatus) bool {
	reached := func(name string, status jobset.DependsOnStatus) bool {
		s, other := statusOf(statuses, name), ReplicatedJob(js.Spec.ReplicatedJobs, name)
		done := ptr.Deref(s.Succeeded, 0)
		if status == jobset.DependencyReady {
			done += ptr.Deref(s.Ready, 0) + ptr.Deref(s.Failed, 0)
		}
		return other == nil || done >= other.Replicas
	}
	for _, d := range rj.DependsOn {
		if !reached(d.Name, d.Status) {
			return true
		}
	}
	if p := js.Spec.StartupPolicy; p == nil || p.StartupPolicyOrder != jobset.InOrder {
		return false
	}
	for i := range js.Spec.ReplicatedJobs {
		if js.Spec.ReplicatedJobs[i].Name == rj.Name {
			break
		}
		if !reached(js.Spec.ReplicatedJobs[i].Name, jobset.DependencyReady) {
			return true
		}
	}
	return false
}

// ReplicatedJob returns the ReplicatedJob of a name; nil if there is none.
func ReplicatedJob(replicatedJobs []jobset.ReplicatedJob, name string) *jobset.ReplicatedJob {
	i := slices.IndexFunc(replicatedJobs, func(rj jobset.ReplicatedJob) bool { return rj.Name == name })
	if i < 0 {
		return nil
	}
	return &replicatedJobs[i]
}

func statusOf(status []trainerapi.JobStatus, name string) trainerapi.JobStatus {
	if i := slices.IndexFunc(status, func(s trainerapi.JobStatus) bool { return s.Name == name }); i >= 0 {
		return status[i]
	}
	return trainerapi.JobStatus{}
}
