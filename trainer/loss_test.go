package trainer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// losesPod puts a pod of the TrainJob's JobSet that its node has taken with it.
func losesPod(h *harness, _ *api.TrainJob) {
	h.put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job-node-0-0", Labels: map[string]string{
			jobset.JobSetNameKey: "job", jobset.JobSetUIDKey: "jobset"}, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "batch/v1", Kind: "Job", Name: "job-node-0", UID: "gone", Controller: new(true)}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
	})
}

// cutsPod puts one that its node was drained of, and that has ended with success.
func cutsPod(h *harness, job *api.TrainJob) {
	losesPod(h, job)
	pod := &corev1.Pod{}
	if !h.get(pod, "job-node-0-0") {
		h.t.Fatal("there is no pod")
	}
	pod.Finalizers = []string{"batch.kubernetes.io/job-tracking"}
	pod.DeletionTimestamp, pod.Status.Phase = new(metav1.Now()), corev1.PodSucceeded
	h.remove(&corev1.Pod{}, "job-node-0-0")
	pod.ResourceVersion = ""
	h.put(pod)
}

func TestLoss(t *testing.T) {
	const (
		runs   = "{}"
		failed = "status: {conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}"
		wl     = "{}"
		told   = "patch TrainJob/status job"
	)
	lost := func(text string) string {
		return started + "\nstatus: {lost: {jobSet: jobset, pod: job-node-0-0, " + text + "}}"
	}
	budget := func(n string) string {
		return started + "\nmetadata: {annotations: {signalbox.dev/restarts-after-loss: '" + n + "'}}"
	}
	runSteps(t, map[string]scenario{
		"a pod is lost": {reason: "it is written before the JobSet can fail", job: started, js: runs, wl: wl,
			arrange: losesPod, sent: []string{told}, events: []string{"Warning PodLost Pod job-node-0-0 was lost with its " +
				"node; if the JobSet fails, the TrainJob is restarted (0 of 3 restarts used)"}},
		"lost, and the JobSet has failed": {reason: "the loss first", job: started, js: failed, wl: wl, arrange: losesPod,
			sent: []string{told}, events: []string{"Warning PodLost"}},
		"then it fails": {reason: "the restart is counted before it", job: lost("restarts: 1"), js: failed, wl: wl,
			sent: []string{told}, events: []string{"Warning Restarting Its JobSet has failed after pod job-node-0-0 was lost " +
				"with its node; restart 2 of 3"}},
		"counted": {reason: "it is stopped, and the integration starts it again",
			job: lost("restarts: 3, restarting: true"), js: failed, wl: wl, sent: []string{"patch TrainJob job"}},
		"counted, and its Workload is gone": {reason: "what was decided stands",
			job: lost("restarts: 3, restarting: true"), js: failed, sent: []string{"patch TrainJob job"}},
		"its Workload is finished": {reason: "nobody would start it again", job: lost("restarts: 1"), js: failed,
			wl:   "status: {conditions: [{type: Finished, status: 'True', reason: Failed}]}",
			sent: []string{told}, status: "Failed=True/FailedJobs", state: api.StateFailed},
		"no budget left": {reason: "it fails", job: lost("restarts: 3"), js: failed, wl: wl, sent: []string{told},
			status: "Failed=True/FailedJobs", state: api.StateFailed},
		"no budget": {reason: "its user wants it to fail", job: budget("0"), js: failed, wl: wl, arrange: losesPod,
			sent: []string{told}, status: "Failed=True/FailedJobs", state: api.StateFailed},
		"a pod that only says so": {reason: "labels are anybody's", job: started, js: failed, wl: wl,
			arrange: func(h *harness, _ *api.TrainJob) {
				h.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", Labels: map[string]string{
					jobset.JobSetNameKey: "job", jobset.JobSetUIDKey: "jobset"}}, Status: corev1.PodStatus{
					Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}})
			}, sent: []string{told}, status: "Failed=True/FailedJobs", state: api.StateFailed},
		"of an earlier run": {reason: "this run has lost nothing", job: strings.Replace(lost("restarts: 1, restarting: true"),
			"jobset", "another", 1), js: failed, wl: wl, sent: []string{told}, status: "Failed=True/FailedJobs",
			state: api.StateFailed},
		"cut short": {reason: "its exit code says nothing", job: lost("restarts: 0"), js: runs, wl: wl, arrange: cutsPod,
			sent: []string{told}, events: []string{"Warning Restarting Pod job-node-0-0 was deleted by a drain or a " +
				"preemption, and has ended with exit code 0, which its Job counts as its end; restart 1 of 3"}},
		"cut short, and its JobSet is complete": {reason: "it isn't", job: lost("restarts: 1, restarting: true"),
			js: "status: {conditions: [{type: Completed, status: 'True', reason: AllJobsCompleted}]}", wl: wl,
			arrange: cutsPod, sent: []string{"patch TrainJob job"}},
		"cut short, no budget left": {reason: "it runs on", job: lost("restarts: 3"), js: runs, wl: wl, arrange: cutsPod},
		"not queued": {reason: "nobody would start it again", job: started, js: failed, arrange: losesPod,
			sent: []string{told}, status: "Failed=True/FailedJobs", state: api.StateFailed},
		"its own failure": {reason: "nothing was lost", job: started, js: failed, wl: wl, sent: []string{told},
			status: "Failed=True/FailedJobs", state: api.StateFailed},
	})
}

// A restart is neither lost nor repeated, wherever the manager is killed.
func TestRestartAfterLoss(t *testing.T) {
	h := newHarness(t)
	job := h.pinned(h.trainJob("torch", started))
	h.put(job)
	js := jobSetOf(t, job, "status: {conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}")
	h.put(js, workloadOf(t, job, "{}"))
	losesPod(h, job)
	for range 8 {
		h.construct(options{})
		h.reconcile("job")
	}
	after := h.job("job")
	if got := fmt.Sprintf("%+v", after.Status.Lost); after.Status.Lost == nil || after.Status.Lost.Restarts != 1 {
		t.Errorf("restarts are counted once: %s", got)
	}
	// Its second run loses a pod too.
	h.remove(&jobset.JobSet{}, "job")
	h.edit("job", func(job *api.TrainJob) {
		job.Spec.Suspend = new(bool)
		job.Status.Lost.JobSet = "the first"
	})
	h.put(js)
	h.construct(options{})
	h.reconcile("job")
	if got := h.job("job").Status.Lost; got.JobSet != "jobset" || got.Restarting || got.Restarts != 1 {
		t.Errorf("the restart of the first run is over: %+v", got)
	}
	if after.Spec.Suspend == nil || !*after.Spec.Suspend || hasFailed(after) {
		t.Errorf("it is to be stopped and not failed: %+v", after.Status.Conditions)
	}
}

func hasFailed(job *api.TrainJob) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == "Failed" && c.Status == metav1.ConditionTrue {
			return true
		}
	}
	return false
}

func TestRecall(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	m := newMemory()
	waited := func(name string) (time.Duration, int) {
		p := m.recall(types.NamespacedName{Name: name}, clk.Now(), true, false)
		return clk.Since(p.since), p.others
	}
	for _, name := range []string{"a", "b", "c"} {
		waited(name)
	}
	clk.Step(time.Second)
	waited("a")
	m.written(types.NamespacedName{Name: "b"})
	m.written(types.NamespacedName{Name: "c"})
	clk.Step(time.Second)
	if waited, others := waited("a"); waited != 2*time.Second || others != 2 {
		t.Errorf("a crowd that gets less is still one: got %v and %d others, want 2s and 2", waited, others)
	}
	m.written(types.NamespacedName{Name: "a"})
	if waited, others := waited("a"); waited != 0 || others != 0 {
		t.Errorf("what was written has waited: got %v and %d others, want 0s and 0", waited, others)
	}
}

// The Job controller replaces a pod of a queued TrainJob only after its end, whatever its runtime says.
func TestReplaceEnded(t *testing.T) {
	b := testBuilder(t, testClient(t))
	const (
		queue = "metadata: {labels: {kueue.x-k8s.io/queue-name: team-a}}\n"
		entry = "spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager}]}"
	)
	for name, c := range map[string]struct {
		reason, job string
		runtime     *batchv1.PodReplacementPolicy
		want        *batchv1.PodReplacementPolicy
	}{
		"in a queue": {"it is checked as it will be built", queue + stopped, nil, ptr.To(batchv1.Failed)},
		"admitted":   {"Kueue may manage TrainJobs without a queue's label", entry, nil, ptr.To(batchv1.Failed)},
		"against its runtime": {"it would use more than it was admitted for", queue + entry,
			ptr.To(batchv1.TerminatingOrFailed), ptr.To(batchv1.Failed)},
		"not queued":             {"it is built as before", started, nil, nil},
		"not queued, by runtime": {"as its runtime says", started, ptr.To(batchv1.Failed), ptr.To(batchv1.Failed)},
	} {
		t.Run(name, func(t *testing.T) {
			spec := runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)
			for i := range spec.Template.Spec.ReplicatedJobs {
				spec.Template.Spec.ReplicatedJobs[i].Template.Spec.PodReplacementPolicy = c.runtime
			}
			js, err := builtJobSet(b.Build(t.Context(), jobOf(t, "torch", c.job), spec))
			if err != nil {
				t.Fatal(err)
			}
			for _, rj := range js.Spec.ReplicatedJobs {
				if got := rj.Template.Spec.PodReplacementPolicy; !ptr.Equal(got, c.want) {
					t.Errorf("%s: podReplacementPolicy of %s is %q", c.reason, *rj.Name, ptr.Deref(got, "unset"))
				}
			}
		})
	}
}
