// Package audit compares what runs with what was admitted. It doesn't rely on Signalbox's own decisions: it follows the owners
// of each pod by their UIDs, and compares what the pods ask for with what Kueue counted. It reads labels only of pods whose
// owners are gone. Look is a pure function of objects.
package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"
	controllerconstants "sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Rule is what a finding breaks.
type Rule string

// The rules.
const (
	// Unquoted: a pod of a queued TrainJob runs, and no Workload holds quota for it.
	Unquoted Rule = "no-quota"
	// Exceeds: the pods of a PodSet use more of a resource than Kueue counted for it.
	Exceeds Rule = "exceeds-admission"
	// Idle: a Workload holds quota, and its TrainJob has no pod that runs or can be scheduled.
	Idle Rule = "quota-for-nothing"
	// Altered: a Job differs from the JobSet that it was made of, in how many pods it makes or in what they ask for.
	Altered Rule = "altered-child"
	// Doubled: a TrainJob has more than one JobSet that is not being deleted, or more than one Workload with quota.
	Doubled Rule = "doubled"
)

// Finding is one breach of a rule.
type Finding struct {
	Rule   Rule
	Object string // kind namespace/name
	Says   string
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Rule, f.Object, f.Says) }

// Objects are all that Look compares, of one namespace or of all.
type Objects struct {
	TrainJobs []api.TrainJob
	Workloads []kueue.Workload
	JobSets   []jobset.JobSet
	Jobs      []batchv1.Job
	Pods      []corev1.Pod
}

// Look returns what breaks a rule in objects that were read at about the same time, sorted. Reads that are not of the same
// moment break rules that nobody broke: only what stays is a finding.
func Look(o Objects) []Finding {
	l := newLook(o)
	findings := slices.Concat(l.pods(), l.workloads(), l.jobs())
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Says, b.Says))
	})
	return findings
}

// look is the objects by their UIDs.
type look struct {
	Objects
	jobSets    map[types.UID]*jobset.JobSet
	jobsByUID  map[types.UID]*batchv1.Job
	trainJobs  map[types.UID]*api.TrainJob
	quota      map[types.UID][]*kueue.Workload // by the UID of the TrainJob; only those that hold quota
	everQueued map[types.UID]bool              // TrainJobs, also gone ones, that have a Workload
}

func newLook(o Objects) *look {
	l := &look{Objects: o, jobSets: map[types.UID]*jobset.JobSet{}, jobsByUID: map[types.UID]*batchv1.Job{}, trainJobs: map[types.UID]*api.TrainJob{},
		quota: map[types.UID][]*kueue.Workload{}, everQueued: map[types.UID]bool{}}
	for i := range o.JobSets {
		l.jobSets[o.JobSets[i].UID] = &o.JobSets[i]
	}
	for i := range o.Jobs {
		l.jobsByUID[o.Jobs[i].UID] = &o.Jobs[i]
	}
	for i := range o.TrainJobs {
		l.trainJobs[o.TrainJobs[i].UID] = &o.TrainJobs[i]
	}
	for i := range o.Workloads {
		wl := &o.Workloads[i]
		owner := controller(wl, trainerapi.TrainJobKind)
		if owner == "" {
			continue
		}
		l.everQueued[owner] = true
		// Kueue counts a Workload that is not active, and one that is finished, for nothing.
		if workload.HasQuotaReservation(wl) && workload.IsActive(wl) && !workloadfinish.IsFinished(wl) {
			l.quota[owner] = append(l.quota[owner], wl)
		}
	}
	return l
}

func controller(o client.Object, kind string) types.UID {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.Kind == kind {
		return owner.UID
	}
	return ""
}

// trainJobOf returns the UID of the TrainJob that a pod is of, by the UIDs of its owners; "" where it is of none, or an
// owner is gone.
func (l *look) trainJobOf(pod *corev1.Pod) types.UID {
	job := l.jobsByUID[controller(pod, "Job")]
	if job == nil {
		return ""
	}
	js := l.jobSets[controller(job, "JobSet")]
	if js == nil {
		return ""
	}
	return controller(js, trainerapi.TrainJobKind)
}

// abandoned reports whether a pod was of a TrainJob's JobSet, whose owners are gone.
func (l *look) abandoned(pod *corev1.Pod) bool {
	_, placed := pod.Labels[constants.PodSetLabel]
	owner := metav1.GetControllerOfNoCopy(pod)
	return placed && pod.Labels[jobset.JobSetUIDKey] != "" && (owner == nil || owner.Kind == "Job" && l.jobsByUID[owner.UID] == nil)
}

func runs(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" && !admission.PodEnded(pod) }

func (l *look) queued(uid types.UID) bool {
	tj := l.trainJobs[uid]
	return l.everQueued[uid] || tj != nil && tj.Labels[controllerconstants.QueueLabel] != ""
}

func (l *look) pods() []Finding {
	var findings []Finding
	type group struct {
		workload *kueue.Workload
		podSet   kueue.PodSetReference
	}
	used := map[group]corev1.ResourceList{}
	for i := range l.Pods {
		pod := &l.Pods[i]
		if !runs(pod) {
			continue
		}
		uid := l.trainJobOf(pod)
		if uid == "" {
			// Of a JobSet that is gone: its Workload is known by its name alone.
			if l.abandoned(pod) && !slices.ContainsFunc(l.Workloads, func(wl kueue.Workload) bool {
				owner := metav1.GetControllerOfNoCopy(&wl)
				return owner != nil && wl.Namespace == pod.Namespace && owner.Name == pod.Labels[jobset.JobSetNameKey] && len(l.quota[owner.UID]) > 0
			}) {
				findings = append(findings, Finding{Unquoted, name("Pod", pod), "its owners are gone, and no Workload holds quota for it"})
			}
			continue
		}
		if !l.queued(uid) {
			continue
		}
		if len(l.quota[uid]) == 0 {
			findings = append(findings, Finding{Unquoted, name("Pod", pod), "it runs on node " + pod.Spec.NodeName + ", and no Workload of its TrainJob holds quota"})
			continue
		}
		g := group{l.quota[uid][0], kueue.NewPodSetReference(pod.Labels[jobset.ReplicatedJobNameKey])}
		if used[g] == nil {
			used[g] = corev1.ResourceList{}
		}
		for resourceName, quantity := range podsets.Requests(&corev1.PodTemplateSpec{Spec: pod.Spec}) {
			sum := used[g][resourceName]
			sum.Add(quantity)
			used[g][resourceName] = sum
		}
	}
	for g, resources := range used {
		for resourceName, quantity := range resources {
			if counted, found := counted(g.workload, g.podSet, resourceName); found && quantity.Cmp(counted) > 0 {
				findings = append(findings, Finding{Exceeds, name("Workload", g.workload), fmt.Sprintf(
					"the pods of PodSet %s use %s of %s, and %s was counted", g.podSet, quantity.String(), resourceName, counted.String())})
			}
		}
	}
	return findings
}

// counted returns the quantity of a resource that Kueue counts for a PodSet, without reclaimed pods.
func counted(wl *kueue.Workload, podSet kueue.PodSetReference, name corev1.ResourceName) (resource.Quantity, bool) {
	if wl.Status.Admission == nil {
		return resource.Quantity{}, false
	}
	for _, a := range wl.Status.Admission.PodSetAssignments {
		if a.Name == podSet {
			quantity, found := a.ResourceUsage[name]
			if count := ptr.Deref(a.Count, 0); count > 0 {
				quantity = *resource.NewMilliQuantity(quantity.MilliValue()/int64(count)*int64(max(count-reclaimed(wl, podSet), 0)), quantity.Format)
			}
			return quantity, found
		}
	}
	return resource.Quantity{}, true // nothing was
}

// reclaimed returns the number of reclaimed pods of a PodSet.
func reclaimed(wl *kueue.Workload, podSet kueue.PodSetReference) int32 {
	for _, r := range wl.Status.ReclaimablePods {
		if r.Name == podSet {
			return r.Count
		}
	}
	return 0
}

// gated reports whether a pod has a scheduling gate that Kueue doesn't remove.
func gated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return !strings.HasPrefix(g.Name, podsets.KueueGates) })
}

func (l *look) workloads() []Finding {
	var findings []Finding
	alive := map[types.UID]int{} // pods, by TrainJob
	sets := map[types.UID]int{}
	for i := range l.Pods {
		if pod := &l.Pods[i]; !admission.PodEnded(pod) && !gated(pod) {
			alive[l.trainJobOf(pod)]++
			if l.abandoned(pod) {
				for uid, tj := range l.trainJobs {
					if tj.Namespace == pod.Namespace && tj.Name == pod.Labels[jobset.JobSetNameKey] {
						alive[uid]++
					}
				}
			}
		}
	}
	for i := range l.JobSets {
		owner := controller(&l.JobSets[i], trainerapi.TrainJobKind)
		if l.JobSets[i].DeletionTimestamp.IsZero() {
			sets[owner]++
		}
	}
	for uid, all := range l.quota {
		if len(all) > 1 {
			findings = append(findings, Finding{Doubled, name("Workload", all[1]), "another Workload of the same TrainJob holds quota: " + all[0].Name})
		}
		// One whose TrainJob is gone is deleted with it.
		if wl := all[0]; apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted) && alive[uid] == 0 && l.trainJobs[uid] != nil {
			findings = append(findings, Finding{Idle, name("Workload", wl), "it is admitted, and its TrainJob has no pod that runs or can be scheduled"})
		}
	}
	for uid, n := range sets {
		if tj := l.trainJobs[uid]; tj != nil && n > 1 {
			findings = append(findings, Finding{Doubled, name("TrainJob", tj), fmt.Sprintf("it has %d JobSets", n)})
		}
	}
	return findings
}

func (l *look) jobs() []Finding {
	var findings []Finding
	for i := range l.Jobs {
		job := &l.Jobs[i]
		js := l.jobSets[controller(job, "JobSet")]
		if js == nil || controller(js, trainerapi.TrainJobKind) == "" || !job.DeletionTimestamp.IsZero() {
			continue
		}
		rj := (&overrides.Effective{ReplicatedJobs: js.Spec.ReplicatedJobs}).ReplicatedJob(job.Labels[jobset.ReplicatedJobNameKey])
		if rj == nil {
			findings = append(findings, Finding{Altered, name("Job", job), fmt.Sprintf("JobSet %s has no replicatedJob %q", js.Name, job.Labels[jobset.ReplicatedJobNameKey])})
			continue
		}
		if have, was := podsets.Requests(&job.Spec.Template), podsets.Requests(&rj.Template.Spec.Template); !equality.Semantic.DeepEqual(have, was) {
			findings = append(findings, Finding{Altered, name("Job", job), fmt.Sprintf("its pods ask for %s, and those of its JobSet for %s", text(have), text(was))})
		}
		for _, f := range []struct {
			field     string
			have, was *int32
		}{{"parallelism", job.Spec.Parallelism, rj.Template.Spec.Parallelism}, {"completions", job.Spec.Completions, rj.Template.Spec.Completions}} {
			if ptr.Deref(f.have, 1) != ptr.Deref(f.was, 1) {
				findings = append(findings, Finding{Altered, name("Job", job), fmt.Sprintf("its %s is %d, and that of its JobSet %d", f.field, ptr.Deref(f.have, 1), ptr.Deref(f.was, 1))})
			}
		}
	}
	return findings
}

// text formats resources in the order of their names.
func text(list corev1.ResourceList) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		all = append(all, fmt.Sprintf("%s of %s", quantity.String(), name))
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

func name(kind string, o client.Object) string {
	return fmt.Sprintf("%s %s/%s", kind, o.GetNamespace(), o.GetName())
}

// Lasting keeps findings until they have lasted: reads of several kinds are never of one moment.
type Lasting struct {
	// Idle and Other are how long a finding must have stayed: of rule Idle, and of all others.
	Idle, Other time.Duration

	mu    sync.Mutex
	since map[Finding]time.Time
	told  map[Finding]bool
}

// SetPatience sets how long findings must have stayed, while a Watcher runs.
func (l *Lasting) SetPatience(other, idle time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Other, l.Idle = other, idle
}

// Next takes the findings of now, and returns those that have lasted and were not returned before.
func (l *Lasting) Next(findings []Finding, now time.Time) []Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, told := map[Finding]time.Time{}, map[Finding]bool{}
	var lasting []Finding
	for _, f := range findings {
		first, known := l.since[f]
		if !known {
			first = now
		}
		since[f], told[f] = first, l.told[f]
		must := l.Other
		if f.Rule == Idle {
			must = l.Idle
		}
		if now.Sub(first) >= must && !told[f] {
			told[f] = true
			lasting = append(lasting, f)
		}
	}
	l.since, l.told = since, told
	return lasting
}

// Pending is how many findings have not lasted yet.
func (l *Lasting) Pending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for f := range l.since {
		if !l.told[f] {
			n++
		}
	}
	return n
}
