package boost

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// levels are the GPU minutes from which what would be lost gives a boost of 1, 2 and 3: each is sixteen times the one
// before. They are the same for all, so that TrainJobs are in the right order without looking at each other: one that
// would lose less never stands above one that loses more, when both are looked at. Three levels are to reach from one
// GPU to thousands; a narrower base would put all large TrainJobs on the highest within seconds.
var levels = [...]float64{4, 64, 1024}

// Level returns the boost by what would be lost, in GPU minutes.
func Level(lost float64) (level int32) {
	for _, from := range levels {
		if lost >= from {
			level++
		}
	}
	return level
}

// unsaved is after how long without a checkpoint it isn't known any more whether a process saves its work: what it has
// once reported protects it no longer.
const unsaved = 24 * time.Hour

// cpusPerGPU is how many CPUs count as a GPU where a TrainJob has none: a node has about so many for each of its GPUs.
const cpusPerGPU = 16

// Lost returns the GPU minutes that a TrainJob would lose if it were preempted now: those since its last checkpoint or,
// if that is older, since its admission. It is 0 for one of which that isn't known.
func Lost(wl *kueue.Workload, saved *api.Checkpoint, now time.Time) float64 {
	since := admittedAt(wl)
	if saved == nil || since.IsZero() {
		return 0
	}
	if saved.Time.After(since) {
		since = saved.Time.Time
	}
	if now.Before(since) || now.Sub(since) > unsaved {
		return 0
	}
	return now.Sub(since).Minutes() * devices(wl)
}

// admittedAt returns since when a Workload is admitted; zero if it isn't.
func admittedAt(wl *kueue.Workload) time.Time {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
	if c == nil || c.Status != metav1.ConditionTrue {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

// devices returns the GPUs that a Workload uses. All that a device plugin serves counts as such; of several resources
// the largest does, because they come together. Without one it is the CPUs, by cpusPerGPU.
func devices(wl *kueue.Workload) (most float64) {
	if wl.Status.Admission == nil {
		return 0
	}
	used := map[corev1.ResourceName]float64{}
	for i := range wl.Status.Admission.PodSetAssignments {
		for name, q := range wl.Status.Admission.PodSetAssignments[i].ResourceUsage {
			used[name] += q.AsApproximateFloat64()
		}
	}
	for name, n := range used {
		if isDevice(name) {
			most = max(most, n)
		}
	}
	if most == 0 {
		most = used[corev1.ResourceCPU] / cpusPerGPU
	}
	return most
}

// everywhere are the resources that each node has.
var everywhere = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods,
}

// isDevice reports whether a resource is served by a device plugin.
func isDevice(name corev1.ResourceName) bool {
	return !slices.Contains(everywhere, name) && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) &&
		!strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
}
