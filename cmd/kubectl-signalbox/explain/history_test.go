package explain

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/admission/stalled"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/podsets"
)

// TestTimeline holds what each object adds to a timeline, in its order.
func TestTimeline(t *testing.T) {
	f := facts(runs, func(f *Facts) {
		f.Job.Status.Conditions = append(f.Job.Status.Conditions, metav1.Condition{Type: "Failed", Reason: "Failed",
			Status: metav1.ConditionTrue, Message: "exit 1", LastTransitionTime: ago(time.Second)})
		f.Workload.Status.AdmissionChecks = []kueue.AdmissionCheckState{
			{Name: "capacity", State: kueue.CheckStateReady, Message: "there", LastTransitionTime: ago(50 * time.Second)}}
		f.JobSet = &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(45 * time.Second)}}
		f.JobSet.Status.Conditions = []metav1.Condition{{Type: "StartupPolicyCompleted", Status: metav1.ConditionTrue,
			LastTransitionTime: ago(44 * time.Second)}}
		for i, name := range []string{"job-node-0-0", "job-node-0-1"} {
			pod(f, func(p *corev1.Pod) {
				p.Name, p.Status.StartTime = name, ptr.To(ago(time.Duration(40-i)*time.Second))
			})
		}
		f.Pods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "node", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: ago(5 * time.Second)}}}}
		f.Events = []corev1.Event{{Reason: "Slow", Message: "image", Count: 3,
			EventTime: metav1.NewMicroTime(ago(30 * time.Second).Time)}}
	})
	var texts []string
	for _, m := range Explain(f).Timeline {
		texts = append(texts, m.Text)
	}
	want := []string{
		"submitted", "queued in queue", "started", "QuotaReserved", "Admitted", "admission check capacity: Ready there",
		"created", "StartupPolicyCompleted", "job-node-0-0 is on its node, the first of 2 pods",
		"job-node-0-1 is on its node, the last", "Slow: image (3 times)",
		"job-node-0-1: container node ended with exit code 1 Error", "Failed: exit 1",
	}
	if !slices.Equal(texts, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(texts, "\n"), strings.Join(want, "\n"))
	}
}

// stalls starts a TrainJob whose condition Stalled has a status.
func stalls(f *Facts, status metav1.ConditionStatus) {
	runs(f)
	f.Job.Status.State = api.StateRunning
	f.Job.Status.Queue = &api.QueueStatus{Conditions: []metav1.Condition{{Type: api.ConditionStalled, Status: status,
		Reason: "NoReport", Message: "it has reported nothing since noon", LastTransitionTime: ago(time.Hour)}}}
}

// savesFirst preempts a TrainJob that runs on until its next checkpoint.
func savesFirst(f *Facts, wl *kueue.Workload) {
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByPreemption,
		LastTransitionTime: metav1.NewTime(f.Now)})
	owner := metav1.OwnerReference{Kind: "TrainJob", Name: simulate.Owner(wl), Controller: ptr.To(true)}
	wl.OwnerReferences = []metav1.OwnerReference{owner}
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, checkpoint.UntilAnnotation,
		f.Now.Add(time.Minute).UTC().Format(time.RFC3339))
}

// withinMinimum puts a Workload within its minimum runtime.
func withinMinimum(f *Facts, wl *kueue.Workload) {
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kueue.WorkloadAdmitted, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(f.Now)})
	mark := boost.Mark{Value: boost.Highest, Written: f.Now, Until: f.Now.Add(time.Minute)}
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, boost.Annotation, mark.Text())
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, boost.MarkAnnotation, mark.String())
}

// TestMoreCauses holds the rest of causes' texts.
func TestMoreCauses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Facts)
		code   Code
		text   string
	}{
		"it runs": {func(f *Facts) { runs(f); f.Job.Status.State = api.StateRunning }, CodeRunning, "it runs on a100"},
		"it has saved": {func(f *Facts) {
			runs(f)
			f.Job.Status.State = api.StateRunning
			f.Job.Status.Checkpoint = &api.Checkpoint{Time: metav1.NewTime(f.Now.Add(-3 * time.Minute)), Value: "4200"}
		}, CodeRunning, "it runs on a100; its last checkpoint, 4200, was saved 3m ago"},
		"it has stalled": {func(f *Facts) { stalls(f, metav1.ConditionTrue) }, CodeStalled,
			"it has reported nothing since noon"},
		"it has stalled, and saved": {func(f *Facts) {
			stalls(f, metav1.ConditionTrue)
			f.Job.Status.Checkpoint = &api.Checkpoint{Time: metav1.NewTime(f.Now.Add(-3 * time.Minute)), Value: "4200"}
		}, CodeStalled, "since noon; its last checkpoint, 4200, was saved 3m ago"},
		"it has stalled in another cluster": {func(f *Facts) {
			stalls(f, metav1.ConditionTrue)
			f.Job.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
		}, CodeStalled, "since noon"},
		"it reports": {func(f *Facts) { stalls(f, metav1.ConditionFalse) }, CodeRunning, "it runs on a100"},
		"it had stalled, and starts": {func(f *Facts) {
			stalls(f, metav1.ConditionTrue)
			f.Job.Status.State = api.StateStarting
		}, CodeStarting, "its pods are starting"},
		"it was stopped for it": {func(f *Facts) {
			f.Job.Annotations = map[string]string{api.StopAnnotation: stalled.StopValue("2026-11-28T12:00:00Z")}
		}, CodeStopped, "it had stalled: its training process had reported nothing since 2026-11-28T12:00:00Z"},
		"it is within its minimum runtime": {func(f *Facts) {
			runs(f)
			f.Job.Status.State = api.StateRunning
			withinMinimum(f, f.Workload)
		}, CodeRunning, "it runs on a100; within its minimum runtime, no equal preempts it until "},
		"it is being deleted": {func(f *Facts) {
			runs(f)
			f.Job.DeletionTimestamp, f.Job.Finalizers = ptr.To(metav1.NewTime(f.Now)), []string{"example.com/keep"}
			pod(f, func(*corev1.Pod) {})
		}, CodeStopping, "it is being deleted; 1 pod (job-node-0-0) hold its quota until they have ended; it stays as long " +
			"as it has finalizer example.com/keep"},
		"it saves before it stops": {func(f *Facts) {
			runs(f)
			f.Job.Status.State = api.StateRunning
			savesFirst(f, f.Workload)
		}, CodeRunning, "it was preempted, and runs on until its next checkpoint"},
		"it was evicted, and its pods end": {func(f *Facts) {
			f.Job.Status.State = api.StateStopping
			f.Workload.Status.Conditions = append(f.Workload.Status.Conditions, metav1.Condition{
				Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue, Message: "preempted"})
			for range 7 {
				pod(f, func(*corev1.Pod) {})
			}
		}, CodeStopping, "it was evicted (preempted); 7 pods (job-node-0-0, job-node-0-0, job-node-0-0, job-node-0-0, " +
			"job-node-0-0 and 2 more)"},
		"a container that has ended before": {func(f *Facts) {
			runs(f)
			pod(f, waitsFor("CrashLoopBackOff", "back-off"))
			f.Pods[0].Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "OOMKilled"}
		}, CodeCrash, "(exit code 137, OOMKilled)"},
		"a check that says nothing": {func(f *Facts) {
			f.Workload.Status.Conditions = []metav1.Condition{
				{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue}}
			f.Workload.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "c", State: kueue.CheckStatePending}}
		}, CodeCheck, "it has no message"},
		"pods that were late": {func(f *Facts) {
			f.Workload.Status.RequeueState = &kueue.RequeueState{RequeueAt: ptr.To(ago(-time.Minute))}
			f.Workload.Status.Conditions = append(f.Workload.Status.Conditions, metav1.Condition{Type: kueue.WorkloadEvicted,
				Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByPodsReadyTimeout, Message: "no pods in time"})
		}, CodeBackoff, "no pods in time"},
		"an inactive ClusterQueue that can't be read": {func(f *Facts) {
			f.Queues.ClusterQueues, f.ClusterQueuesRead = nil, false
			f.Queues.LocalQueues[0].Status.Conditions = []metav1.Condition{{Type: kueue.LocalQueueActive,
				Status: metav1.ConditionFalse, Reason: "ClusterQueueIsInactive", Message: "it is inactive"}}
		}, CodeCQInactive, "it is inactive"},
		"without the right to read Workloads": {func(f *Facts) { f.Workload, f.OwnRead = nil, false }, CodeUnknown,
			"you may not read the Workloads"},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts(c.change)
			if e := Explain(f); e.Cause.Code != c.code || !strings.Contains(e.Cause.Text, c.text) {
				t.Errorf("got %s: %s, want %s: …%s…", e.Cause.Code, e.Cause.Text, c.code, c.text)
			}
			shown := string(f.State())
			if c.code == CodeStalled {
				shown = "Stalled"
			}
			if got := Brief(f).State; got != shown {
				t.Errorf("got %s, want %s", got, shown)
			}
		})
	}
	if q := NewQueues(facts().Queues.Cluster); q.WorkloadOf(&api.TrainJob{}) != nil {
		t.Error("it has no Workload")
	}
}

// TestWorkloadOf holds which Workload is a TrainJob's, in whatever order they are listed: one that isn't finished, and
// the last of its kind. One of another namespace is none, whatever owner it names.
func TestWorkloadOf(t *testing.T) {
	workload := func(name, namespace string, age time.Duration, finished bool) kueue.Workload {
		wl := kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, CreationTimestamp: ago(age),
			OwnerReferences: []metav1.OwnerReference{{UID: "job"}}}}
		if finished {
			wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue}}
		}
		return wl
	}
	old, ended := workload("old", "team", 9*time.Hour, true), workload("ended", "team", 2*time.Hour, true)
	before, now := workload("before", "team", 8*time.Hour, false), workload("now", "team", 7*time.Hour, false)
	forged := workload("forged", "other", time.Hour, false)
	slice := func() kueue.Workload { // a later one, that has replaced "now"
		wl := workload("slice", "team", time.Hour, false)
		wl.Annotations = map[string]string{
			workloadslicing.WorkloadSliceReplacementFor: "team/now", podsets.SliceAnnotation: "node 2 4",
		}
		wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue}}
		return wl
	}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", UID: "job"}}
	for want, all := range map[string][]kueue.Workload{
		"ended": {old, ended, forged}, "now": {old, ended, before, now, forged}, "before": {ended, before, forged},
		"slice": {now, slice()},
	} {
		for range len(all) {
			all = append(all[1:], all[0])
			for _, listed := range [][]kueue.Workload{all, reversed(all)} {
				if got := NewQueues(simulate.Cluster{Workloads: listed}).WorkloadOf(job); got == nil || got.Name != want {
					t.Errorf("got %+v, want %s", got, want)
				}
			}
		}
	}
}

// TestWaitingSlice holds that a slice that waits isn't its TrainJob's Workload.
func TestWaitingSlice(t *testing.T) {
	owned := []metav1.OwnerReference{{UID: "job"}}
	runs := kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "runs", Namespace: "team", OwnerReferences: owned}}
	slice := kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "slice", Namespace: "team", OwnerReferences: owned,
		CreationTimestamp: ago(time.Second), Annotations: map[string]string{
			workloadslicing.WorkloadSliceReplacementFor: "team/runs", podsets.SliceAnnotation: "node 2 4",
		}}}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", UID: "job"}}
	for _, listed := range [][]kueue.Workload{{runs, slice}, {slice, runs}} {
		if got := NewQueues(simulate.Cluster{Workloads: listed}).WorkloadOf(job); got.Name != "runs" {
			t.Errorf("got %s", got.Name)
		}
	}
}

func reversed(all []kueue.Workload) []kueue.Workload {
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

// addPodSet adds a second PodSet of one pod, which selects a flavor.
func addPodSet(f *Facts, flavor string, n int64) {
	second := *f.Workload.Spec.PodSets[0].DeepCopy()
	second.Name = "second"
	second.Template.Spec.NodeSelector = map[string]string{"gpu": flavor}
	second.Template.Spec.Containers[0].Resources.Requests[gpu] = gpus(n)
	f.Workload.Spec.PodSets = append(f.Workload.Spec.PodSets, second)
}
