package overrides

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits bound what one TrainJob may ask for, so that none can exhaust the manager or hold quota without end.
type Limits struct {
	// Pods is the most pods, and the most nodes, that a TrainJob may have.
	Pods int32
	// SpecBytes is the largest size of a TrainJob's spec, and of a runtime's, as JSON.
	SpecBytes int
	// Elements is the most elements that the lists and maps of a TrainJob's spec, and of a runtime's, may have in all. A
	// strategic merge (k8s.io/apimachinery) takes time in the square of a list's length, and each element costs more than
	// its bytes.
	Elements int
	// GracePeriodSeconds is the longest time that a pod may take to terminate.
	GracePeriodSeconds int64
	// ReplicatedJobs is the most ReplicatedJobs that a queued TrainJob may run: as many as a Workload of the installed
	// Kueue may have PodSets. 0 is podsets.Max.
	ReplicatedJobs int
	// HostPaths allows entries to reach the files of a node.
	HostPaths bool
	// NoSecrets rejects TrainJobs that name Secrets.
	NoSecrets bool
	// PodsReplaced is set if the Trainer builds Jobs whose terminating pods may be replaced, as their runtime says.
	PodsReplaced bool
}

// mostErrors is how many errors a check returns. Nobody reads more, and the text of all takes memory in the square of
// their number (k8s.io/apimachinery v0.36.3, pkg/util/errors, aggregate.Error).
const mostErrors = 16

// Few returns the first errors of a list.
func Few(errs field.ErrorList) field.ErrorList { return errs[:min(len(errs), mostErrors)] }

func (l Limits) tooMany(path *field.Path, pods int64) *field.Error {
	return field.Invalid(path, pods,
		fmt.Sprintf("a TrainJob may have at most %d pods (limits.pods of Signalbox's configuration); ask for fewer", l.Pods))
}

// checkGrace returns an error where a grace period is too long, or 0: the API server deletes a pod without one while
// its containers still run.
func (l Limits) checkGrace(path *field.Path, seconds *int64) field.ErrorList {
	switch {
	case seconds == nil:
		return nil
	case *seconds > l.GracePeriodSeconds:
		return field.ErrorList{field.Invalid(path, *seconds, fmt.Sprintf(
			"a pod may take at most %d seconds to terminate (limits.terminationGracePeriodSeconds of Signalbox's "+
				"configuration), because its quota is held until then", l.GracePeriodSeconds))}
	case *seconds < 1:
		return field.ErrorList{field.Invalid(path, *seconds,
			"must be 1 or more: without a grace period the quota of a pod would be free before its containers have ended")}
	}
	return nil
}
