package grow

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

var (
	now      = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	halfHour = Policy{Every: 30 * time.Minute, Guard: "guard"}
)

func ago(minutes int) time.Time { return now.Add(-time.Duration(minutes) * time.Minute) }

func condition(name string, at time.Time) metav1.Condition {
	return metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: "Admitted",
		LastTransitionTime: metav1.NewTime(at)}
}

// partial is a Workload that was admitted an hour ago with so many of its 16 pods, of four GPUs each.
func partial(count int32) *kueue.Workload {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "old", UID: "old",
		Labels: map[string]string{constants.JobUIDLabel: "job", "team": "vision"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob",
			Name: "job", UID: "job", Controller: ptr.To(true)}}}}
	wl.Spec.PodSets = []kueue.PodSet{{Name: "launcher", Count: 1}, {Name: "node", Count: 16, MinCount: ptr.To[int32](2)}}
	wl.Spec.QueueName, wl.Spec.Priority = "queue", ptr.To[int32](7)
	wl.Status.Conditions = []metav1.Condition{
		condition(kueue.WorkloadQuotaReserved, ago(60)), condition(kueue.WorkloadAdmitted, ago(60))}
	wl.Status.Admission = &kueue.Admission{ClusterQueue: "vision", PodSetAssignments: []kueue.PodSetAssignment{
		{Name: "launcher", Count: ptr.To[int32](1)},
		{Name: "node", Count: &count,
			Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a100"},
			ResourceUsage: corev1.ResourceList{gpu: *resource.NewQuantity(int64(count)*4, resource.DecimalSI)}},
	}}
	return wl
}

// grownTo is a slice that was admitted with so many pods.
func grownTo(count int32) *kueue.Workload {
	wl := partial(count)
	wl.Annotations = map[string]string{
		workloadslicing.WorkloadSliceReplacementFor: "team/older",
		podsets.SliceAnnotation:                     podsets.Slice{PodSet: "node", From: 4, Of: 16}.String(),
	}
	wl.Spec.PodSets[1].Count, wl.Spec.PodSets[1].MinCount = count, nil
	return wl
}

// TestMay holds when a TrainJob may grow, and to how many pods.
func TestMay(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		policy Policy
		change func(*Input)
		want   *Want
		never  string
		again  time.Duration
	}{
		"off":         {reason: "nothing grows", policy: Policy{Guard: "guard"}},
		"doesn't ask": {reason: "no annotation", change: func(in *Input) { in.Job.Annotations = nil }},
		"asks otherwise": {reason: "true alone counts", change: func(in *Input) {
			in.Job.Annotations[api.GrowAnnotation] = "yes"
		}},
		"has all":     {reason: "nothing is missing", change: func(in *Input) { in.Workload = partial(16) }},
		"has no pods": {reason: "it isn't started", change: func(in *Input) { in.Started = time.Time{} }},
		"just saved": {reason: "it loses nothing", change: func(in *Input) { in.Saved = savedAgo(0) },
			want: &Want{"node", 8, 9, 16}, again: 5 * time.Minute},
		"saved a while ago": {reason: "eight pods lose fifteen minutes, which four further ones give in half an hour",
			change: func(in *Input) { in.Saved = savedAgo(15) }, want: &Want{"node", 8, 13, 16}, again: 5 * time.Minute},
		"saved too long ago": {reason: "eight pods lose half an hour: eight further ones give no more than that",
			change: func(in *Input) { in.Saved = savedAgo(30) }, again: 5 * time.Minute},
		"never saved": {reason: "all since the start is lost", again: 5 * time.Minute},
		"has just started": {reason: "its pods were restarted since its admission", change: func(in *Input) {
			in.Started = ago(1)
		}, want: &Want{"node", 8, 9, 16}, again: 5 * time.Minute},
		"saved before its start": {reason: "what counts is the start", change: func(in *Input) {
			in.Saved, in.Started = savedAgo(50), ago(5)
		}, want: &Want{"node", 8, 10, 16}, again: 5 * time.Minute},
		"by a clock that is ahead": {reason: "nothing is lost", change: func(in *Input) { in.Saved = savedAgo(-5) },
			want: &Want{"node", 8, 9, 16}, again: 5 * time.Minute},
		"admitted a moment ago": {reason: "once in half an hour", change: func(in *Input) {
			in.Workload.Status.Conditions[1].LastTransitionTime = metav1.NewTime(ago(10))
		}, again: 20 * time.Minute},
		"grows again": {reason: "it has twelve of sixteen", change: func(in *Input) {
			in.Workload, in.Saved = grownTo(12), savedAgo(0)
		}, want: &Want{"node", 12, 13, 16}, again: 5 * time.Minute},
		"has grown to all": {reason: "nothing is missing", change: func(in *Input) {
			in.Workload, in.Saved = grownTo(16), savedAgo(0)
		}},
		"pods have ended": {reason: "it is about to end", change: func(in *Input) {
			in.Saved = savedAgo(0)
			in.Workload.Status.ReclaimablePods = []kueue.ReclaimablePod{{Name: "node", Count: 1}}
		}},
		"an initializer has ended": {reason: "that doesn't end it", change: func(in *Input) {
			in.Saved = savedAgo(0)
			in.Workload.Status.ReclaimablePods = []kueue.ReclaimablePod{{Name: "launcher", Count: 1}, {Name: "node"}}
		}, want: &Want{"node", 8, 9, 16}, again: 5 * time.Minute},
		"often": {reason: "room is looked for once a minute", policy: Policy{Every: time.Minute},
			change: func(in *Input) { in.Saved = savedAgo(0) }, want: &Want{"node", 8, 9, 16}, again: time.Minute},
		"required topology": {reason: "Kueue replaces none", change: func(in *Input) {
			in.Workload.Spec.PodSets[1].TopologyRequest = &kueue.PodSetTopologyRequest{Required: ptr.To("rack")}
		}, never: "topology request"},
		"preferred topology": {reason: "Kueue replaces none", change: func(in *Input) {
			in.Workload.Spec.PodSets[0].TopologyRequest = &kueue.PodSetTopologyRequest{Preferred: ptr.To("rack")}
		}, never: "PodSet launcher has a topology request"},
		"its flavor has a topology": {reason: "Kueue places it", change: func(in *Input) {
			in.Workload.Status.Admission.PodSetAssignments[1].TopologyAssignment = &kueue.TopologyAssignment{}
		}, never: "placed by a topology"},
		"a maximum execution time": {reason: "it would begin again", change: func(in *Input) {
			in.Workload.Spec.MaximumExecutionTimeSeconds = ptr.To[int32](60)
		}, never: "maximum execution time"},
		"admission checks": {reason: "it would be stopped for them", change: func(in *Input) {
			in.Workload.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "capacity"}}
		}, never: "admission checks"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Job: &api.TrainJob{}, Workload: partial(8), Started: ago(60), Now: now}
			in.Job.Annotations = map[string]string{api.GrowAnnotation: "true"}
			if c.change != nil {
				c.change(&in)
			}
			if c.policy == (Policy{}) {
				c.policy = halfHour
			}
			before := in.Workload.DeepCopy()
			got := c.policy.May(in)
			if !ptr.Equal(got.Want, c.want) || !strings.Contains(got.Never, c.never) ||
				(got.Never == "") != (c.never == "") || got.Again != c.again {
				t.Errorf("%s: got %+v %+v", c.reason, got, got.Want)
			}
			if !apiequality.Semantic.DeepEqual(before, in.Workload) {
				t.Error("the Workload is changed")
			}
		})
	}
}

func savedAgo(minutes int) *api.Checkpoint {
	return &api.Checkpoint{Time: metav1.NewTime(ago(minutes)), Value: "1"}
}

// TestRoom holds in which ClusterQueues a TrainJob may grow, and how far by what their status says is free.
func TestRoom(t *testing.T) {
	queue := func(nominal, used int64, change ...func(*kueue.ClusterQueue)) *kueue.ClusterQueue {
		cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "vision"}}
		gpus := func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
		cq.Spec.ResourceGroups = []kueue.ResourceGroup{{Flavors: []kueue.FlavorQuotas{
			{Name: "other", Resources: []kueue.ResourceQuota{{Name: gpu, NominalQuota: gpus(1000)}}},
			{Name: "a100", Resources: []kueue.ResourceQuota{{Name: gpu, NominalQuota: gpus(nominal)}}},
		}}}
		cq.Status.FlavorsReservation = []kueue.FlavorUsage{
			{Name: "other", Resources: []kueue.ResourceUsage{{Name: gpu, Total: gpus(7)}}},
			{Name: "a100", Resources: []kueue.ResourceUsage{{Name: gpu, Total: gpus(used)}}},
		}
		for _, f := range change {
			f(cq)
		}
		return cq
	}
	for name, c := range map[string]struct {
		cq   *kueue.ClusterQueue
		most int32
		says string
	}{
		"room for all":  {queue(64, 32), 16, ""},
		"room for some": {queue(50, 32), 12, ""},
		"no room":       {queue(32, 32), 8, ""},
		"overcommitted": {queue(16, 32), 8, ""},
		"in a cohort": {queue(64, 32, func(cq *kueue.ClusterQueue) { cq.Spec.CohortName = "all" }), 16,
			"ClusterQueue vision is in cohort all"},
		"with checks": {queue(64, 32, func(cq *kueue.ClusterQueue) {
			cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{
				AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: "capacity"}}}
		}), 16, "admission checks"},
	} {
		t.Run(name, func(t *testing.T) {
			want := Want{PodSet: "node", Have: 8, Least: 9, Most: 16}
			if got := want.Free(c.cq, partial(8)); got != c.most {
				t.Errorf("got %d pods, want %d", got, c.most)
			}
			if got := Suits(c.cq); !strings.Contains(got, c.says) || (got == "") != (c.says == "") {
				t.Errorf("got %q, want %q", got, c.says)
			}
		})
	}
}

// TestSlice holds what a slice asks Kueue for: more pods of one PodSet, all of them, in the place of the Workload that
// it names, and no preemption.
func TestSlice(t *testing.T) {
	old := partial(8)
	before := old.DeepCopy()
	slice := Want{PodSet: "node", Have: 8, Least: 9, Most: 16}.Slice(old, 12, 4)
	if !apiequality.Semantic.DeepEqual(before, old) {
		t.Error("what it replaces is changed")
	}
	if got := *workloadslicing.ReplacementForKey(slice); got != "team/old" {
		t.Errorf("it replaces %s", got)
	}
	if got := podsets.SliceOf(slice); !ptr.Equal(got, &podsets.Slice{PodSet: "node", From: 4, Of: 16}) {
		t.Errorf("got %+v", got)
	}
	if n, l := slice.Spec.PodSets[1], slice.Spec.PodSets[0]; n.Count != 12 || n.MinCount != nil || l.Count != 1 {
		t.Errorf("got %+v", slice.Spec.PodSets)
	}
	if slice.Spec.QueueName != "queue" || *slice.Spec.Priority != 7 || slice.Labels["team"] != "vision" ||
		!metav1.IsControlledBy(slice, &metav1.ObjectMeta{UID: "job"}) || slice.UID != "" || !podsets.Finalized(slice) {
		t.Errorf("got %+v", slice)
	}
	if slice.Labels[constants.JobUIDLabel] != "grows-job" || len(slice.Spec.PreemptionGates) != 1 {
		t.Errorf("it may preempt: labels %v, gates %v", slice.Labels, slice.Spec.PreemptionGates)
	}
}

// TestWaits holds how long a slice may wait, and how long Kueue has to finish what one has replaced.
func TestWaits(t *testing.T) {
	pending := func(age time.Duration, change ...func(*kueue.Workload)) *kueue.Workload {
		wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))}}
		for _, f := range change {
			f(wl)
		}
		return wl
	}
	for name, c := range map[string]struct {
		slice *kueue.Workload
		want  time.Duration
	}{
		"new": {pending(0), 30 * time.Second},
		"old": {pending(time.Minute), 0},
		"refused": {pending(0, func(wl *kueue.Workload) {
			c := condition(kueue.WorkloadQuotaReserved, now)
			c.Status, c.Reason = metav1.ConditionFalse, "Pending"
			wl.Status.Conditions = []metav1.Condition{c}
		}), 0},
		"deleted": {pending(0, func(wl *kueue.Workload) { wl.DeletionTimestamp = &metav1.Time{Time: now} }), 0},
	} {
		if got := Waits(c.slice, now); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		at   time.Time
		want time.Duration
	}{
		"now": {now, replacedWithin}, "long ago": {ago(1), 0}, "by a clock that is ahead": {ago(-1), replacedWithin},
	} {
		slice := grownTo(16)
		slice.Status.Conditions[0].LastTransitionTime = metav1.NewTime(c.at)
		if got := Replaces(slice, now); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	if Replaces(&kueue.Workload{}, now) != replacedWithin {
		t.Error("it holds no quota yet")
	}
}

// TestAwaited holds when a TrainJob that has grown is started again.
func TestAwaited(t *testing.T) {
	const within = 5 * time.Minute
	for name, c := range map[string]struct {
		admitted, saved int // minutes ago; -1000 for never
		within          time.Duration
		waits           bool
	}{
		"reports no checkpoint": {1, -1000, within, false},
		"saves next":            {1, 10, within, true},
		"has saved since":       {2, 1, within, false},
		"waits for too long":    {6, 10, within, false},
		"waits for none":        {0, 10, 0, false},
		"Kueue's clock":         {-3, 10, within, false},
	} {
		t.Run(name, func(t *testing.T) {
			wl := grownTo(16)
			wl.Status.Conditions[1].LastTransitionTime = metav1.NewTime(ago(c.admitted))
			saved := savedAgo(c.saved)
			if c.saved == -1000 {
				saved = nil
			}
			got := Awaited(wl, saved, c.within, now)
			if got.IsZero() == c.waits || c.waits && !got.Equal(ago(c.admitted).Add(c.within)) {
				t.Errorf("got %s", got)
			}
		})
	}
	if !Awaited(&kueue.Workload{}, savedAgo(1), within, now).IsZero() {
		t.Error("it isn't admitted")
	}
	for name, c := range map[string]struct {
		wl    *kueue.Workload
		nodes int32
		want  bool
	}{
		"runs with fewer": {grownTo(16), 4, true}, "runs with all": {grownTo(16), 0, false},
		"is no slice": {partial(8), 4, false},
		"isn't admitted": {func() *kueue.Workload {
			wl := grownTo(16)
			wl.Status.Conditions = wl.Status.Conditions[:1]
			return wl
		}(), 4, false},
	} {
		if got := Outgrown(c.wl, c.nodes); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
