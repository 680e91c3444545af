package model

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/store"
)

// action is a step of one actor.
type action struct {
	name string
	when when
	do   func(*world)
}

// when is when a step is taken.
type when int

const (
	maybe  when = iota // if ever
	surely             // eventually
	later              // eventually, although no event triggers it
)

var background = context.Background()

// actions returns all enabled steps, in an order that depends on the state alone.
func (w *world) actions() []action {
	return slices.Concat(w.managerActions(), w.watchActions(), w.kueueActions(), w.growActions(), w.avoidActions(),
		w.jobSetActions(), w.collectorActions(), w.userActions(), w.hostileActions(), w.dueActions())
}

func (w *world) managerActions() []action {
	var all []action
	for _, name := range names {
		if !w.queue[name] {
			continue
		}
		all = append(all, action{"the manager reconciles " + name, surely, func(w *world) { w.reconcile(name) }})
		if w.budget.Faults == 0 {
			continue
		}
		for after := 1; after <= 3; after++ {
			all = append(all, action{
				fmt.Sprintf("the manager reconciles %s, and crashes after %d writes", name, after), maybe, func(w *world) {
					w.budget.Faults--
					w.left = after
					w.reconcile(name)
					w.left = -1
					w.restart()
				},
			}, action{
				fmt.Sprintf("the manager reconciles %s, and the response to write %d is lost", name, after), maybe, func(w *world) {
					w.budget.Faults--
					w.writes, w.lost = 0, after
					w.reconcile(name)
					w.lost = 0
				},
			})
		}
	}
	if w.budget.Faults > 0 {
		all = append(all, action{"the manager restarts", maybe, func(w *world) {
			w.budget.Faults--
			w.restart()
		}})
	}
	return all
}

// dueActions are the reconciles by RequeueAfter.
func (w *world) dueActions() []action {
	var all []action
	for _, name := range names {
		if _, due := w.again[name]; due && !w.queue[name] {
			all = append(all, action{"time passes, and the manager reconciles " + name, later, func(w *world) {
				w.reconcile(name)
			}})
		}
	}
	return all
}

func (w *world) watchActions() []action {
	var all []action
	for _, kind := range watched {
		if w.late(kind) {
			all = append(all, action{"the manager's cache of " + kind + "s is synced", surely, func(w *world) { w.sync(kind) }})
		}
	}
	return all
}

// counts reports whether Kueue counts the quota of a Workload as used.
func counts(wl *kueue.Workload) bool {
	return workload.HasQuotaReservation(wl) && workload.IsActive(wl) && !workloadfinish.IsFinished(wl)
}

func (w *world) update(o client.Object) { must(w.store.Update(background, o)) }

func (w *world) updateStatus(o client.Object) { must(w.store.Status().Update(background, o)) }

// kueueActions are Kueue's steps on a quota for one TrainJob.
func (w *world) kueueActions() []action {
	workloads := list[*kueue.Workload](w, "Workload")
	used := slices.ContainsFunc(workloads, counts)
	var all []action
	for _, wl := range workloads {
		owner := metav1.GetControllerOf(wl)
		evicted := apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadEvicted)
		switch {
		// Kueue's scheduler ends a cycle's preemptions before it admits in the next: with another Workload admitted on
		// the quota, its cache has seen that this one is finished.
		case workloadfinish.IsFinished(wl) && workload.HasQuotaReservation(wl) && !evicted && owner != nil && !used &&
			w.budget.Preemptions > 0:
			all = append(all, action{"Kueue preempts " + wl.Name + " from a stale cache", maybe, func(w *world) {
				w.budget.Preemptions--
				stale := wl.DeepCopy() // its patch replaces all conditions
				apimeta.RemoveStatusCondition(&stale.Status.Conditions, kueue.WorkloadFinished)
				w.evict(stale, kueue.WorkloadEvictedByPreemption)
			}})
		case workloadfinish.IsFinished(wl) || owner == nil:
		case !workload.HasQuotaReservation(wl):
			if !used && workload.IsActive(wl) && wl.DeletionTimestamp.IsZero() && !workload.IsOnHold(wl) &&
				!workload.HasAdmissionGate(wl) {
				all = append(all, action{"Kueue admits " + wl.Name, surely, func(w *world) { w.admit(wl) }})
			}
		case !workload.IsActive(wl) && !evicted:
			all = append(all, action{"Kueue evicts inactive " + wl.Name, surely, func(w *world) {
				w.evict(wl, kueue.WorkloadDeactivated)
			}})
		case workload.IsActive(wl) && !evicted && w.budget.Preemptions > 0:
			all = append(all, action{"Kueue preempts " + wl.Name, maybe, func(w *world) {
				w.budget.Preemptions--
				w.evict(wl, kueue.WorkloadEvictedByPreemption)
			}})
		}
	}
	return all
}

func (w *world) admit(wl *kueue.Workload) {
	owner := metav1.GetControllerOf(wl).UID
	flavor := flavors[w.ledger.Admissions[owner]%len(flavors)]
	if old := w.replacedBy(wl); old != nil && counts(old) {
		flavor = old.Status.Admission.PodSetAssignments[0].Flavors[gpu]
	}
	wl = wl.DeepCopy()
	count := ptr.Deref(wl.Spec.PodSets[0].MinCount, wl.Spec.PodSets[0].Count)
	assignment := kueue.PodSetAssignment{Name: wl.Spec.PodSets[0].Name, Count: &count,
		Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: flavor},
		ResourceUsage: corev1.ResourceList{gpu: *resource.NewQuantity(int64(count), resource.DecimalSI)}}
	workload.SetQuotaReservation(wl, &kueue.Admission{
		ClusterQueue: "queue", PodSetAssignments: []kueue.PodSetAssignment{assignment},
	}, w.clock)
	workload.SyncAdmittedCondition(wl, w.clock.Now())
	w.updateStatus(wl)
	w.ledger.Admissions[owner]++
	w.ledger.Runs[usage.Key(wl)] = true
}

func (w *world) evict(wl *kueue.Workload, reason string) {
	wl = wl.DeepCopy()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue, Reason: reason, Message: "evicted",
		LastTransitionTime: metav1.NewTime(w.clock.Now())})
	w.updateStatus(wl)
}

// avoidActions end the time of what is remembered.
func (w *world) avoidActions() []action {
	if w.budget.Expiries == 0 {
		return nil
	}
	return []action{{"the time of what is avoided is over", maybe, func(w *world) {
		w.budget.Expiries--
		w.clock.Step(remains)
	}}}
}

// jobSetActions are the steps of JobSet, the Job controller, the scheduler and the kubelet for JobSets of one pod.
func (w *world) jobSetActions() []action {
	jobs, pods := list[*batchv1.Job](w, "Job"), list[*corev1.Pod](w, "Pod")
	var all []action
	for _, js := range list[*jobset.JobSet](w, "JobSet") {
		if !js.DeletionTimestamp.IsZero() || js.Status.TerminalState != "" {
			continue
		}
		i := slices.IndexFunc(jobs, func(j *batchv1.Job) bool { return metav1.IsControlledBy(j, js) })
		taken := slices.ContainsFunc(jobs, func(j *batchv1.Job) bool {
			return j.Name == jobName(js) // a previous JobSet's, too
		})
		switch {
		case i < 0 && taken || ptr.Deref(js.Spec.Suspend, false):
		case i < 0:
			all = append(all, action{"JobSet creates the Job of " + js.Name, surely, func(w *world) { w.makeJob(js) }})
		case jobs[i].DeletionTimestamp.IsZero() && jobs[i].Status.Succeeded > 0:
			all = append(all, action{"JobSet completes " + js.Name, surely, func(w *world) { w.finish(js) }})
		}
	}
	for _, job := range jobs {
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return metav1.IsControlledBy(p, job) })
		if i < 0 && job.DeletionTimestamp.IsZero() && job.Status.Succeeded == 0 {
			all = append(all, action{"the Job controller creates the pod of " + job.Name, surely, func(w *world) {
				w.makePod(job)
			}})
		}
		if i >= 0 && pods[i].Status.Phase == corev1.PodSucceeded && job.Status.Succeeded == 0 {
			all = append(all, action{"the Job controller completes " + job.Name, surely, func(w *world) {
				job := job.DeepCopy()
				job.Status.Succeeded = 1
				job.Status.Conditions = append(job.Status.Conditions,
					batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue})
				w.updateStatus(job)
			}})
		}
	}
	return append(all, w.podActions(pods)...)
}

func (w *world) podActions(pods []*corev1.Pod) []action {
	var all []action
	for _, pod := range pods {
		switch deleted := !pod.DeletionTimestamp.IsZero(); {
		case deleted && endless(pod):
		case deleted && (terminates(pod) || slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)):
			all = append(all, action{"the kubelet terminates " + pod.Name, surely, func(w *world) { w.terminate(pod) }})
		case deleted:
		case pod.Spec.NodeName == "" && len(pod.Spec.NodeSelector) > 0:
			all = append(all, action{"the scheduler binds " + pod.Name, surely, func(w *world) {
				pod := pod.DeepCopy()
				pod.Spec.NodeName = pod.Spec.NodeSelector[pool]
				w.update(pod)
				pod.Status.Phase = corev1.PodRunning
				w.updateStatus(pod)
			}})
		case pod.Status.Phase == corev1.PodRunning && !endless(pod):
			all = append(all, action{pod.Name + " succeeds", surely, func(w *world) {
				pod := pod.DeepCopy()
				pod.Status.Phase = corev1.PodSucceeded
				w.updateStatus(pod)
			}})
		}
	}
	return all
}

// endless reports whether a pod of a user's own takes years to end.
func endless(pod *corev1.Pod) bool {
	return ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0) > 1_000_000
}

// terminate ends the containers of a pod that was deleted. The kubelet and the Job controller then remove what kept it;
// finalizers of others stay.
func (w *world) terminate(pod *corev1.Pod) {
	pod = pod.DeepCopy()
	if !store.PodEnded(pod) {
		pod.Status.Phase = corev1.PodFailed
		w.updateStatus(pod)
	}
	pod.Finalizers = slices.DeleteFunc(pod.Finalizers, func(name string) bool {
		return name == kubelet || name == batchv1.JobTrackingFinalizer
	})
	w.update(pod)
}

// controlled sets the controller reference of a child.
func controlled(child, owner client.Object) {
	must(controllerutil.SetControllerReference(owner, child, scheme))
}

func jobName(js *jobset.JobSet) string { return js.Name + "-node-0" }

func (w *world) makeJob(js *jobset.JobSet) {
	template := js.Spec.ReplicatedJobs[0].Template.DeepCopy()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: jobName(js), Labels: map[string]string{
		jobset.JobSetNameKey: js.Name, jobset.JobSetUIDKey: string(js.UID), jobset.ReplicatedJobNameKey: "node",
	}}, Spec: template.Spec}
	controlled(job, js)
	must(w.api().Create(background, job))
}

func (w *world) makePod(job *batchv1.Job) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%d", job.Name, w.uids), Labels: job.Labels,
			Finalizers: []string{batchv1.JobTrackingFinalizer},
		},
		Spec: *job.Spec.Template.Spec.DeepCopy(),
	}
	controlled(pod, job)
	must(w.api().Create(background, pod))
	if owner := metav1.GetControllerOf(job); owner != nil && w.ledger.Owner[owner.UID] != "" {
		w.ledger.Pods[pod.UID] = w.ledger.Owner[owner.UID]
	}
}

func (w *world) finish(js *jobset.JobSet) {
	js = js.DeepCopy()
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Succeeded: 1}}
	apimeta.SetStatusCondition(&js.Status.Conditions, metav1.Condition{
		Type: string(jobset.JobSetCompleted), Status: metav1.ConditionTrue, Reason: "AllJobsCompleted",
		Message: "over", LastTransitionTime: metav1.NewTime(w.clock.Now())})
	js.Status.TerminalState = string(jobset.JobSetCompleted)
	w.updateStatus(js)
}
