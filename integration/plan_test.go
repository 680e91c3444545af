package integration

import (
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store/events"
)

func TestBeforehand(t *testing.T) {
	deleting := func(o *observed) {
		o.stage = stageDeleted
		o.job.Spec.Suspend, o.job.DeletionTimestamp = ptr.To(false), ptr.To(ago(time.Second))
		withJobSet(o)
	}
	foreign := func(o *observed) {
		runs(o)
		o.job.Annotations = map[string]string{
			legacy.RecordAnnotation: `{"field":"podTemplateOverrides","time":"2026-01-01T00:00:00Z"}`}
	}
	d := dialect.Kubeflow23
	cases := map[string]struct {
		reason string
		o      *situation
		want   func(*observed) []step
		done   bool
		again  time.Duration
		retry  time.Duration
	}{
		"waits": {"jobframework decides", observation(d), nil, false, 0, 0},
		"behind": {"nothing is decided on an older version",
			observation(d, func(o *observed) { o.stage = stageBehind }), nil, true, 0, recheckDelay},
		"being deleted": {"Kubeflow Trainer keeps the JobSet of one that a finalizer keeps", observation(d, deleting),
			func(*observed) []step { return []step{suspend{reason: "the TrainJob is being deleted"}} }, true, 0, 0},
		"being deleted, bundled": {"the bundled Trainer deletes the JobSet", observation(dialect.Bundled, deleting),
			nil, true, 0, 0},
		"deleted, over": {"jobframework removes the finalizers", observation(d, deleting,
			func(o *observed) { o.left.over = true }), nil, false, 0, 0},
		"deleted, ends": {"no event announces the end of its Jobs", observation(d,
			func(o *observed) { o.stage, o.left.again = stageDeleted, time.Second }), nil, true, time.Second, 0},
		"an earlier one": {"its pods have ended", observation(d, earlier),
			func(o *observed) []step { return []step{releaseWorkload{o.workloads.earlier[0]}} }, false, 0, 0},
		"an earlier one runs": {"its quota is in use",
			observation(d, earlier, func(o *observed) { o.workloads.earlierRuns = true }), nil, false, recheckDelay, 0},
		"deletion not seen": {"a watch that missed a creation has no event for the deletion",
			observation(d, func(o *observed) { o.workloads.deleted = true }), nil, false, recheckDelay, 0},
		"recalled": {"the present Trainer doesn't read its entry", observation(d, foreign),
			func(*observed) []step { return []step{suspend{reason: "it was started for another Trainer"}} },
			true, 0, recheckDelay},
		"recalled, not managed": {"it isn't Kueue's",
			observation(d, foreign, func(o *observed) { o.standing = managed.Unqueued }),
			func(o *observed) []step { return nil }, true, 0, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var want []step
			if c.want != nil {
				want = c.want(c.o.observed)
			}
			p, done := beforehand(c.o)
			wantSteps(t, c.reason, p.Steps, want...)
			if done != c.done || p.Again != c.again || p.retry != c.retry {
				t.Errorf("%s: got done %t, again %s, retry %s", c.reason, done, p.Again, p.retry)
			}
		})
	}
}

// A finished Workload keeps its finalizer for a while, or until it is deleted.
func TestDeclared(t *testing.T) {
	cases := map[string]struct {
		reason     string
		suspended  bool          // or ended
		ended      time.Duration // how long the Workload has been finished; 0 if it isn't
		declared   time.Duration // how long ago this process declared the end; 0 if it didn't
		others     int
		since      time.Duration // since when the manager reconciles
		change     func(*kueue.Workload)
		done, gone bool
		again      time.Duration
	}{
		"just now": {reason: "nobody waits for it", ended: 10 * time.Second, declared: 3 * time.Second, done: true,
			again: 50 * time.Second},
		"a while ago": {reason: "it is released", ended: 2 * time.Minute, done: true, gone: true},
		"others have not ended": {reason: "the burst is not over", ended: 2 * time.Minute, others: 500, done: true,
			again: 40 * time.Second},
		"very many have not": {reason: "it keeps it for ten minutes", ended: 10 * time.Minute, others: 10000, done: true,
			gone: true},
		"after a restart": {reason: "what was admitted meanwhile comes first", ended: 2 * time.Minute,
			since: 15 * time.Second, done: true, again: 45 * time.Second},
		"deleted after a restart": {reason: "whoever deletes it waits", ended: 2 * time.Minute, since: 15 * time.Second,
			change: func(wl *kueue.Workload) { wl.DeletionTimestamp = ptr.To(ago(0)) }, done: true, gone: true},
		"deleted": {reason: "whoever deletes it waits", ended: 10 * time.Second,
			change: func(wl *kueue.Workload) { wl.DeletionTimestamp = ptr.To(ago(0)) }, done: true, gone: true},
		"released before": {reason: "nothing is left to do", ended: 2 * time.Minute,
			change: func(wl *kueue.Workload) { wl.Finalizers = nil }, done: true},
		"declared, not seen yet": {
			reason:   "a stale cache doesn't declare it twice",
			declared: 3 * time.Second,
			done:     true,
			again:    7 * time.Second,
		},
		"declared, and overwritten": {
			reason:   "a patch from a stale cache drops the condition",
			declared: 11 * time.Second,
		},
		"not declared": {reason: "jobframework declares it"},
		"finished by somebody": {reason: "jobframework releases what never ended", suspended: true,
			ended: 10 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := observation(dialect.Bundled)
			if !c.suspended {
				ends(o.observed)
			}
			wl := o.workloads.own[0]
			if c.ended > 0 {
				wl.Status.Conditions = []metav1.Condition{is(kueue.WorkloadFinished, c.ended)}
			}
			if c.declared > 0 {
				o.memory.finished = now.Add(-c.declared)
			}
			if c.since > 0 {
				o.memory.since = now.Add(-c.since)
			}
			if c.change != nil {
				c.change(wl)
			}
			o.memory.unfinished = c.others
			got := declared(o)
			if got.all != c.done || got.again != c.again {
				t.Errorf("%s: got %+v", c.reason, got)
			}
			if c.gone {
				wantSteps(t, c.reason, got.release, releaseWorkload{wl})
			} else {
				wantSteps(t, c.reason, got.release)
			}
		})
	}
	none := observation(dialect.Bundled, ends, func(o *observed) { o.workloads = claims{} })
	if declared(none).all {
		t.Error("without a Workload, an end that nobody has declared is declared")
	}
	if none.memory.finished = now; !declared(none).all {
		t.Error("once")
	}
	if declared(observation(dialect.Bundled, ends, earlier)).all {
		t.Error("jobframework deletes the Workload of an earlier TrainJob")
	}
	if declared(observation(dialect.Bundled, runs)).all {
		t.Error("what runs has not ended")
	}
}

func TestAfterwards(t *testing.T) {
	wl := &kueue.Workload{}
	told := failStart{events.FailedToStart.Of("why", "wl")}
	all := &asked{start: &start{message: "m"}, stop: &stop{suspend: suspend{reason: "r"}},
		noted: []step{remember{workload: "wl"}, deleteWorkload{workload: wl}, told, clearEntry{}}}
	p := afterwards(observation(dialect.Bundled), all, true)
	wantSteps(t, "what jobframework has asked for is done, and remembered", p.Steps, remember{workload: "wl"},
		deleteWorkload{workload: wl}, told, clearEntry{}, *all.stop, *all.start)

	p = afterwards(observation(dialect.Bundled, blockedBy("X")), &asked{start: &start{}}, false)
	wantSteps(t, "a write to the TrainJob triggers the next reconcile", p.Steps, start{})
	p = afterwards(observation(dialect.Bundled), &asked{waiting: "it"}, false)
	if p.retry != waitingRetry || p.waiting != "it" || p.blocked {
		t.Errorf("what waits is reconciled again: got %+v", p)
	}
	p = afterwards(observation(dialect.Bundled, blockedBy("X")), &asked{}, false)
	if p.retry != time.Minute || !p.blocked || len(p.Steps) != 1 {
		t.Errorf("so is what is blocked: got %+v", p)
	}
	later := observation(dialect.Bundled, runs, func(o *observed) { o.queue.again = time.Second })
	p = afterwards(later, &asked{}, false)
	if p.Again != time.Second || len(p.Steps) > 0 {
		t.Errorf("it would be blocked later: got %+v", p)
	}
}

func TestReport(t *testing.T) {
	condition := func(name, reason, message string) metav1.Condition {
		return metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(now)}
	}
	has := func(conditions ...metav1.Condition) func(*observed) {
		return func(o *observed) { o.job.Status.Conditions = conditions }
	}
	late := func(since time.Duration) func(*observed) {
		return func(o *observed) {
			pod := corev1.Pod{}
			pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp = "pod", "n", ptr.To(ago(since))
			o.left.pods = []corev1.Pod{pod}
		}
	}
	const message = "pod pod on node n should have ended by 2026-11-21T11:59:00Z and has not; the TrainJob's quota is " +
		"held until it has. See whether the node's kubelet answers"
	isBlocked := condition(api.ConditionBlocked, "X", "why")
	isOverdue := condition(api.ConditionStopOverdue, "PodsRunning", message)
	suspended := condition(trainerapi.TrainJobSuspended, trainerapi.TrainJobSuspendedReason, "TrainJob is suspended")
	write := func(conditions []metav1.Condition, told ...events.Event) []step {
		conditions = append(conditions, suspended) // which the Trainer has not written yet
		return []step{
			writeStatus{&api.TrainJobStatus{TrainJobStatus: trainerapi.TrainJobStatus{Conditions: conditions}}, told},
		}
	}
	cases := map[string]struct {
		reason string
		o      *situation
		want   []step
		again  time.Duration
	}{
		"nothing": {"nothing is wrong", observation(dialect.Bundled), nil, 0},
		"blocked": {"it is reported, with an event", observation(dialect.Bundled, blockedBy("X")),
			write([]metav1.Condition{isBlocked}, events.Blocked("X").Of("why")), 0},
		"still blocked": {"once", observation(dialect.Bundled, blockedBy("X"), has(isBlocked)), nil, 0},
		"not blocked any more": {"the condition is removed", observation(dialect.Bundled, has(isBlocked)),
			write([]metav1.Condition{}), 0},
		"overdue": {"it is reported, with an event", observation(dialect.Bundled, late(time.Minute)),
			write([]metav1.Condition{isOverdue}, events.StopOverdue.Of(message)), 0},
		"still overdue": {"once", observation(dialect.Bundled, late(time.Minute), has(isOverdue)), nil, 0},
		"not overdue any more": {"the condition is removed", observation(dialect.Bundled, has(isOverdue)),
			write([]metav1.Condition{}), 0},
		"not overdue yet": {"no event announces it", observation(dialect.Bundled, late(10*time.Second)), nil,
			20 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var p plan
			wantSteps(t, c.reason, report(c.o, &p), c.want...)
			if p.Again != c.again {
				t.Errorf("%s: again after %s", c.reason, p.Again)
			}
		})
	}
}

func TestGiveBack(t *testing.T) {
	d := dialect.Kubeflow23
	if got := giveBack(observation(d, runs)); got != nil {
		t.Errorf("nothing is wrong: got %v", got)
	}
	wantSteps(t, "it gives its quota back", giveBack(observation(d, runs, blockedBy(admission.ReasonNoPods))),
		suspend{reason: "it is blocked: NoPods"})
	if got := giveBack(observation(d, ends, blockedBy(admission.ReasonNoPods))); got != nil {
		t.Errorf("it has ended: got %v", got)
	}
	stuck := observation(d, withJobSet, blockedBy(admission.ReasonNoPods), func(o *observed) { o.jobSet.Generation = 2 })
	wantSteps(t, "it never has the condition Suspended", giveBack(stuck), deleteJobSet{jobSet: stuck.jobSet})
	for name, change := range map[string]func(*observed){
		"another reason":  blockedBy("X"),
		"no JobSet":       func(o *observed) { o.jobSet = nil },
		"a pod":           func(o *observed) { o.left.pods = []corev1.Pod{{}} },
		"not to suspend":  func(o *observed) { o.jobSet.Spec.Suspend = ptr.To(false) },
		"deleted already": func(o *observed) { o.jobSet.DeletionTimestamp = ptr.To(ago(0)) },
		"stopped":         func(o *observed) { o.jobSet.Generation = 1 },
	} {
		resumed := func(o *observed) { o.jobSet.Generation = 2 }
		o := observation(d, withJobSet, blockedBy(admission.ReasonNoPods), resumed, change)
		wantSteps(t, name, giveBack(o))
	}
	wantSteps(t, "the bundled ones", giveBack(observation(dialect.Bundled, withJobSet, blockedBy(admission.ReasonNoPods),
		func(o *observed) { o.jobSet.Generation = 2 })))
}
