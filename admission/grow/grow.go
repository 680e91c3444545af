// Package grow decides whether a partially admitted TrainJob that runs gets more of the nodes that it asks for, and to
// how many pods. It reads and writes nothing.
//
// Such a TrainJob gets a larger Workload that replaces its own: a slice (podsets.Slice). Kueue admits the slice if the
// ClusterQueue has room for what it has more, and then finishes what it replaces (Kueue v0.19.2, pkg/workloadslicing).
// The TrainJob is stopped at its next checkpoint, and started with more nodes.
//
// Kueue checks a slice that is in one scheduling cycle with a Workload of another ClusterQueue of its cohort as if the
// quota of what it replaces were free (scheduler.go, fits), and admits both. So nothing grows in a cohort.
package grow

import (
	"fmt"
	"maps"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	kueuemath "sigs.k8s.io/kueue/pkg/util/math"
	"sigs.k8s.io/kueue/pkg/workload"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Policy is what the configuration says.
type Policy struct {
	// Every is the least time between an admission of a TrainJob and the next; 0 if nothing grows.
	Every time.Duration
	// Guard is the name of the ValidatingAdmissionPolicy that rejects preemptions for slices.
	Guard string
}

// On reports whether a TrainJob may grow.
func (p Policy) On() bool { return p.Every > 0 }

// Asks is how often room is looked for: six times in Every, and once a minute at most.
func (p Policy) Asks() time.Duration { return max(p.Every/6, time.Minute) }

// Input is what is known of a TrainJob that runs on its Workload.
type Input struct {
	Job      *api.TrainJob
	Workload *kueue.Workload
	// Saved is its last checkpoint; nil if it has reported none.
	Saved *api.Checkpoint
	// Started is when its pods were started.
	Started time.Time
	Now     time.Time
}

// Want is what a TrainJob may grow to: from Have pods of a PodSet to at least Least, and at most Most.
type Want struct {
	PodSet            kueue.PodSetReference
	Have, Least, Most int32
}

// Answer is whether a TrainJob may grow now.
type Answer struct {
	// Want is nil if it may not.
	Want *Want
	// Never is why it doesn't grow on its Workload at all; "" if it may, now or later.
	Never string
	// Again is when to look again; 0 for never.
	Again time.Duration
}

// May returns whether a TrainJob may grow. One that has all its nodes, or doesn't ask for more, doesn't.
func (p Policy) May(in Input) Answer {
	wl := in.Workload
	whole, fewer := podsets.PartiallyAdmitted(wl)
	if !p.On() || in.Job.Annotations[api.GrowAnnotation] != "true" || whole == nil || in.Started.IsZero() {
		return Answer{}
	}
	if never := unsuitable(wl); never != "" {
		return Answer{Never: never}
	}
	for _, reclaimed := range wl.Status.ReclaimablePods {
		if reclaimed.Name == whole.Name && reclaimed.Count > 0 {
			return Answer{} // it is about to end
		}
	}
	if left := p.Every - in.Now.Sub(admittedAt(wl)); left > 0 {
		return Answer{Again: left}
	}
	want := &Want{PodSet: whole.Name, Have: whole.Count - fewer, Most: whole.Count}
	want.Least = want.Have + p.worth(in, want.Have)
	if want.Least > want.Most {
		return Answer{Again: p.Asks()} // its next checkpoint triggers a reconcile, too
	}
	return Answer{Want: want, Again: p.Asks()}
}

// worth returns the fewest further pods that give more in Every than the restart loses: all that the present pods have
// done since the last checkpoint or, if that is older, since their start.
func (p Policy) worth(in Input, have int32) int32 {
	since := in.Started
	if in.Saved != nil && in.Saved.Time.After(since) {
		since = in.Saved.Time.Time
	}
	lost := in.Now.Sub(since).Seconds() * float64(have)
	return int32(min(max(lost/p.Every.Seconds(), 0), 1<<30)) + 1
}

// unsuitable returns why a TrainJob doesn't grow on its Workload; "" if it may.
func unsuitable(wl *kueue.Workload) string {
	for i := range wl.Spec.PodSets {
		if r := wl.Spec.PodSets[i].TopologyRequest; r != nil && (r.Required != nil || r.Preferred != nil) {
			return fmt.Sprintf("PodSet %s has a topology request, and Kueue replaces no such Workload; take the topology "+
				"annotation out, or the annotation %s", wl.Spec.PodSets[i].Name, api.GrowAnnotation)
		}
	}
	for _, a := range ptr.Deref(wl.Status.Admission, kueue.Admission{}).PodSetAssignments {
		if a.TopologyAssignment != nil || a.DelayedTopologyRequest != nil {
			return fmt.Sprintf("PodSet %s is placed by a topology, and Kueue replaces no such Workload; use a "+
				"ClusterQueue whose flavors have no topologyName", a.Name)
		}
	}
	switch {
	case wl.Spec.MaximumExecutionTimeSeconds != nil:
		return "Kueue would count its maximum execution time from zero again; take the label out, or let it not grow"
	case len(wl.Status.AdmissionChecks) > 0:
		return "its ClusterQueue has admission checks, which would have to pass once more while it runs"
	}
	return ""
}

// Suits returns why nothing grows in a ClusterQueue; "" if a TrainJob may.
func Suits(cq *kueue.ClusterQueue) string {
	checks := cq.Spec.AdmissionChecksStrategy
	switch {
	case cq.Spec.CohortName != "":
		return fmt.Sprintf("ClusterQueue %s is in cohort %s, in which Kueue may admit another Workload on the same quota "+
			"at the same time", cq.Name, cq.Spec.CohortName)
	case checks != nil && len(checks.AdmissionChecks) > 0:
		return fmt.Sprintf("ClusterQueue %s has admission checks, which would have to pass once more while it runs", cq.Name)
	}
	return ""
}

// Free returns the most pods that a TrainJob could have by the quota that its ClusterQueue doesn't use, whoever waits
// for it. It is an upper bound: the usage in the status may be a moment old.
func (w Want) Free(cq *kueue.ClusterQueue, wl *kueue.Workload) int32 {
	most := w.Most
	for _, a := range wl.Status.Admission.PodSetAssignments {
		count := int64(ptr.Deref(a.Count, 0))
		if a.Name != w.PodSet || count == 0 {
			continue
		}
		for name, flavor := range a.Flavors {
			perPod := kueuemath.SafeMilliValue(a.ResourceUsage[name]) / count
			if free := kueuemath.SafeMilliValue(unused(cq, flavor, name)); perPod > 0 {
				most = int32(min(int64(most), int64(w.Have)+min(max(free/perPod, 0), math.MaxInt32)))
			}
		}
	}
	return most
}

// unused returns the quota of a flavor that is free.
func unused(
	cq *kueue.ClusterQueue, flavor kueue.ResourceFlavorReference, name corev1.ResourceName,
) (free resource.Quantity) {
	for _, group := range cq.Spec.ResourceGroups {
		for _, f := range group.Flavors {
			for i := range f.Resources {
				if f.Name == flavor && f.Resources[i].Name == name {
					free.Add(f.Resources[i].NominalQuota)
				}
			}
		}
	}
	for _, f := range cq.Status.FlavorsReservation {
		for i := range f.Resources {
			if f.Name == flavor && f.Resources[i].Name == name {
				free.Sub(f.Resources[i].Total)
			}
		}
	}
	return free
}

// pendingFor is how long Kueue has to decide about a slice. It decides within a second; a slice that waits behind
// others would keep those back that are behind it.
const pendingFor = 30 * time.Second

// Waits returns for how much longer a slice may wait for Kueue's decision; 0 if it is to be deleted.
func Waits(slice *kueue.Workload, now time.Time) time.Duration {
	if podsets.Refused(slice) || !slice.DeletionTimestamp.IsZero() {
		return 0
	}
	return max(pendingFor-now.Sub(slice.CreationTimestamp.Time), 0)
}

// replacedWithin is how long Kueue has to finish a Workload that a slice has replaced.
const replacedWithin = 2 * time.Second

// Replaces returns for how much longer Kueue alone may finish what a slice with quota replaces. A Kueue that was
// restarted in between never does.
func Replaces(slice *kueue.Workload, now time.Time) time.Duration {
	c := apimeta.FindStatusCondition(slice.Status.Conditions, kueue.WorkloadQuotaReserved)
	if c == nil || c.LastTransitionTime.After(now) {
		return replacedWithin
	}
	return max(replacedWithin-now.Sub(c.LastTransitionTime.Time), 0)
}

// Outgrown reports whether a TrainJob that runs has to be started again to have the nodes of its slice: its entry has
// those from before. nodes is the number that the entry says; 0 if it has all.
func Outgrown(wl *kueue.Workload, nodes int32) bool {
	slice := podsets.SliceOf(wl)
	return slice != nil && workload.IsAdmitted(wl) && slice.From == nodes
}

// Awaited returns until when a TrainJob that has grown runs on as it is, so that it saves its work: until its next
// checkpoint, and for within at most, from its admission on. It is zero if it is to be started again now.
func Awaited(wl *kueue.Workload, saved *api.Checkpoint, within time.Duration, now time.Time) time.Time {
	admitted := admittedAt(wl)
	until := admitted.Add(within)
	if saved == nil || saved.Time.After(admitted) || !now.Before(until) || until.Sub(now) > within+skew {
		return time.Time{}
	}
	return until
}

// skew is how far Kueue's clock may be ahead. What is later is no time of Kueue's.
const skew = time.Minute

func admittedAt(wl *kueue.Workload) time.Time {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
	if c == nil {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

// Check returns an error if annotation signalbox.dev/grow is invalid, among those of a TrainJob.
func Check(annotations map[string]string, path *field.Path) field.ErrorList {
	switch value, set := annotations[api.GrowAnnotation]; {
	case !set || value == "true" || value == "false":
		return nil
	default:
		return field.ErrorList{field.Invalid(path.Key(api.GrowAnnotation), value,
			`must be "true" for a TrainJob that may be restarted with more nodes, or "false"; correct or remove it`)}
	}
}

// NoEffect is the beginning of the warning about an annotation that lets nothing grow.
const NoEffect = "annotation " + api.GrowAnnotation + " has no effect: "

// Warnings returns why the annotation of a TrainJob has no effect, which asks for so many nodes and runs with at least
// so many; nil if it has one. enabled is what the configuration says.
func Warnings(enabled bool, least, all int32) []string {
	switch {
	case !enabled:
		return []string{NoEffect + "grow.enabled is false in Signalbox's configuration; ask your admin to enable it, or " +
			"remove the annotation"}
	case least >= all:
		return []string{fmt.Sprintf("%sthe TrainJob is admitted with all its nodes (%d) or not at all; set annotation %s to "+
			"the fewest nodes that are enough, or remove this one", NoEffect, all, overrides.MinParallelismAnnotation)}
	}
	return nil
}

// guarded begins label kueue.x-k8s.io/job-uid of a slice. Kueue names the value in the message of each preemption
// (Kueue v0.19.2, pkg/scheduler/preemption: "Preempted to accommodate a workload (UID: …, JobUID: …)"), and the
// policy Guard of the chart rejects those that it begins.
const guarded = "grows-"

// gate keeps a slice from preempting where Kueue's feature gates ConcurrentAdmission or
// MultiKueueOrchestratedPreemption are on. Nothing opens it.
const gate = "signalbox.dev/grow"

// Slice returns the Workload with which a TrainJob gets so many pods in place of those of wl, without its name. It
// preempts nobody. nodes is the number of nodes that the TrainJob's entry has.
func (w Want) Slice(wl *kueue.Workload, count, nodes int32) *kueue.Workload {
	slice := &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: wl.Namespace, Labels: maps.Clone(wl.Labels),
			Annotations: map[string]string{
				workloadslicing.WorkloadSliceReplacementFor: string(workload.Key(wl)),
				podsets.SliceAnnotation:                     podsets.Slice{PodSet: w.PodSet, From: nodes, Of: w.Most}.String(),
			},
			Finalizers: []string{kueue.ResourceInUseFinalizerName},
		},
		Spec: *wl.Spec.DeepCopy(),
	}
	if owner := metav1.GetControllerOf(wl); owner != nil {
		slice.OwnerReferences = []metav1.OwnerReference{*owner}
		metav1.SetMetaDataLabel(&slice.ObjectMeta, constants.JobUIDLabel, guarded+string(owner.UID))
	}
	slice.Spec.PodSets = podsets.WithCount(wl.Spec.PodSets, w.PodSet, count)
	workload.EnsurePreemptionGateOnSpec(slice, gate)
	return slice
}
