package integration

import (
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// now is the time of every observation in these tests.
var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// ago returns the time so long before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// is returns a condition that is true since so long ago.
func is(name string, since time.Duration) metav1.Condition {
	return metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: name, LastTransitionTime: ago(since)}
}

// ownedBy returns the metadata of an object that a TrainJob owns.
func ownedBy(uid types.UID, controller bool) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", OwnerReferences: []metav1.OwnerReference{{
		APIVersion: trainerapi.GroupVersion.String(), Kind: trainerapi.TrainJobKind, Name: "job", UID: uid,
		Controller: &controller}}}
}

// observation returns what is observed of a suspended TrainJob with one Workload that waits, and changes it.
func observation(d *dialect.Dialect, change ...func(*observed)) *situation {
	job := &api.TrainJob{}
	job.Namespace, job.Name, job.UID, job.Spec.Suspend = "ns", "job", "uid", ptr.To(true)
	podSets := []kueue.PodSet{{Name: "node", Count: 2}}
	wl := &kueue.Workload{ObjectMeta: ownedBy("uid", true), Spec: kueue.WorkloadSpec{PodSets: podSets}}
	wl.Name, wl.UID, wl.Finalizers = "wl", "wl-uid", []string{kueue.ResourceInUseFinalizerName}
	o := &observed{
		job:       job,
		now:       now,
		stage:     stageSuspended,
		standing:  managed.Queued,
		memory:    recollection{since: now.Add(-time.Hour)},
		workloads: claims{own: []*kueue.Workload{wl}},
		queue:     queueing{wouldRun: wouldRun{podSets: podSets}},
	}
	for _, c := range change {
		c(o)
	}
	o.compare()
	return weighed(o, trainerOf(d))
}

// weighed returns the situation of a TrainJob that was observed so.
func weighed(o *observed, trainer Trainer) *situation {
	s := &situation{observed: o, trainer: trainer, origin: originOf(o.job)}
	o.entry = trainer.Own(o.job)
	s.weigh()
	return s
}

func TestFits(t *testing.T) {
	none := func(o *observed) { o.queue.podSets = nil }
	cases := map[string]struct {
		reason string
		change func(*observed, *kueue.Workload)
		want   bool
	}{
		"equal": {"it is what the TrainJob needs", func(*observed, *kueue.Workload) {}, true},
		"another count": {"a TrainJob that waits needs another Workload", func(o *observed, _ *kueue.Workload) {
			o.queue.podSets = []kueue.PodSet{{Name: "node", Count: 3}}
		}, false},
		"another count, running": {"nothing stops a TrainJob that runs", func(o *observed, _ *kueue.Workload) {
			none(o)
			o.job.Spec.Suspend = ptr.To(false)
		}, true},
		"another count, blocked": {"one that can't be computed keeps it", func(o *observed, _ *kueue.Workload) {
			none(o)
			o.queue.blocked = &admission.BlockedError{}
		}, true},
		"another count, finished": {"a finished TrainJob keeps its Workload", func(o *observed, _ *kueue.Workload) {
			none(o)
			o.job.Status.Conditions = []metav1.Condition{is(trainerapi.TrainJobFailed, 0)}
		}, true},
		"another count, still running": {"its quota is in use until its pods have ended",
			func(o *observed, wl *kueue.Workload) {
				none(o)
				o.left.pods = []corev1.Pod{{}}
				wl.Status.Admission = &kueue.Admission{}
				wl.Status.Conditions = []metav1.Condition{is(kueue.WorkloadQuotaReserved, 0)}
			}, true},
		"another count, inactive": {"another would be active, and start what somebody has stopped",
			func(o *observed, wl *kueue.Workload) {
				none(o)
				wl.Spec.Active = ptr.To(false)
			}, true},
		"of an earlier TrainJob": {"a TrainJob of the same name has another UID",
			func(_ *observed, wl *kueue.Workload) { wl.ObjectMeta = ownedBy("other", true) }, false},
		"owned, not controlled": {"an owner that isn't the controller is none, and no reason to panic",
			func(_ *observed, wl *kueue.Workload) { wl.ObjectMeta = ownedBy("uid", false) }, false},
		"maximum execution time": {"a changed limit needs another Workload",
			func(_ *observed, wl *kueue.Workload) { wl.Spec.MaximumExecutionTimeSeconds = ptr.To[int32](5) }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := observation(dialect.Kubeflow23)
			wl := o.workloads.own[0]
			c.change(o.observed, wl)
			o.weigh()
			o.compare()
			if got := o.fits(wl); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
			if got := o.fits(wl.DeepCopy()); got != c.want {
				t.Errorf("%s: got %t of a copy, as jobframework has it of a prebuilt Workload", c.reason, got)
			}
			if got := o.match() == wl; got != c.want {
				t.Errorf("%s: match got %t", c.reason, got)
			}
		})
	}
	o := observation(dialect.Bundled)
	o.job.Labels = map[string]string{"kueue.x-k8s.io/prebuilt-workload-name": "other"}
	if o.match() != nil {
		t.Error("a prebuilt Workload is the one of its name")
	}
}

// A Workload from another cluster isn't finished when its TrainJob is deleted here, but released once it is deleted.
func TestDeletedWorkloadFromElsewhere(t *testing.T) {
	deleted := ago(time.Second)
	of := func(origin string, deleted *metav1.Time) *kueue.Workload {
		return &kueue.Workload{ObjectMeta: metav1.ObjectMeta{
			Name: "w", Labels: map[string]string{kueue.MultiKueueOriginLabel: origin}, DeletionTimestamp: deleted,
		}}
	}
	for name, c := range map[string]struct {
		stage    stage
		workload *kueue.Workload
		want     int
	}{
		"its TrainJob is deleted":        {stageDeleted, of("manager", nil), 0},
		"it is deleted itself":           {stageDeleted, of("manager", &deleted), 1},
		"of this cluster":                {stageDeleted, of("", nil), 1},
		"its TrainJob is there":          {stageSuspended, of("manager", nil), 1},
		"its TrainJob is there, and ran": {stageEnded, of("manager", nil), 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := &observed{stage: c.stage}
			o.workloads.own = []*kueue.Workload{c.workload}
			list, err := (&job{o: &situation{observed: o}}).ListChildWorkloads(t.Context(), nil, types.NamespacedName{})
			if err != nil || len(list.Items) != c.want {
				t.Errorf("got %v, %v, want %d Workloads", list, err, c.want)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	m := newMemory()
	key := types.NamespacedName{Namespace: "ns", Name: "job"}
	m.keep(key, "first", func(r *record) { r.rebuilt = "7" })
	if m.of(key, "first").rebuilt != "7" {
		t.Error("what was kept is known")
	}
	if got := m.of(key, "second"); got.uid != "second" || got.rebuilt != "" {
		t.Error("another TrainJob of the same name starts from nothing")
	}
	m.keep(key, "second", func(r *record) { r.workload = "wl" })
	if got := m.of(key, "second"); got.workload != "wl" || got.rebuilt != "" {
		t.Errorf("nothing is taken over from the first: got %+v", got)
	}
	other := types.NamespacedName{Namespace: "ns", Name: "other"}
	m.recall(other, "third", now)
	m.keep(other, "third", func(*record) {})
	m.keep(key, "second", func(r *record) { r.ended = true })
	m.keep(key, "second", func(r *record) { r.workload = "its next" })
	if got := m.recall(other, "third", now.Add(time.Second)); got.unfinished != 1 || !got.since.Equal(now) {
		t.Errorf("one of two has ended: got %+v", got)
	}
	m.keep(key, "fourth", func(*record) {})
	if got := m.recall(key, "fourth", now); got.unfinished != 2 {
		t.Errorf("a TrainJob that takes the name of one that had ended has not ended: got %+v", got)
	}
	m.keep(key, "fourth", func(r *record) { r.ended = true })
	m.forget(key)
	m.forget(key)
	if got := m.recall(key, "fourth", now); got.ended || got.unfinished != 1 {
		t.Errorf("a forgotten TrainJob isn't counted: got %+v", got)
	}
}
