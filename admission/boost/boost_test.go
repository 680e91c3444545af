package boost

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func minutes(n float64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(n * float64(time.Minute))}
}

// admitted is a Workload that was admitted so many minutes ago, with so many GPUs.
func admitted(ago float64, gpus int64) *kueue.Workload {
	wl := &kueue.Workload{}
	wl.Annotations = map[string]string{}
	wl.Spec.PriorityClassRef = kueue.NewWorkloadPriorityClassRef("low")
	wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadAdmitted, Status: metav1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now.Add(-minutes(ago).Duration))}}
	wl.Status.Admission = &kueue.Admission{ClusterQueue: "vision", PodSetAssignments: []kueue.PodSetAssignment{
		{ResourceUsage: corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}},
	}}
	return wl
}

// boosted is one that Signalbox gave a boost so many minutes ago; the highest is for a minimum runtime of ten minutes.
func boosted(wl *kueue.Workload, value int32, ago float64) *kueue.Workload {
	mark := Mark{Value: value, Written: now.Add(-minutes(ago).Duration)}
	if value == Highest {
		mark.Until = admittedAt(wl).Add(minutes(10).Duration)
	}
	wl.Annotations[MarkAnnotation] = mark.String()
	if value > 0 {
		wl.Annotations[Annotation] = mark.Text()
	}
	return wl
}

func savedAgo(m float64) *api.Checkpoint {
	return &api.Checkpoint{Time: metav1.NewTime(now.Add(-minutes(m).Duration)), Value: "1"}
}

var (
	tenMinutes = Policy{MinimumRuntime: configapi.MinimumRuntime{Default: minutes(10)}}
	cheapest   = Policy{CheapestVictim: true}
	both       = Policy{MinimumRuntime: configapi.MinimumRuntime{Default: minutes(10)}, CheapestVictim: true}
)

// TestDecide holds when a boost is written, what it is, and when it is looked at again.
func TestDecide(t *testing.T) {
	others := func(wl *kueue.Workload, value string) *kueue.Workload {
		wl.Annotations[Annotation] = value
		return wl
	}
	yes, no := ptr.To(true), ptr.To(false)
	for name, c := range map[string]struct {
		policy Policy
		wl     *kueue.Workload
		saved  *api.Checkpoint
		room   int64 // default 100
		waits  *bool
		write  bool
		want   int32
		again  time.Duration
		narrow bool
	}{
		"nothing is set":              {wl: admitted(1, 8)},
		"it has just been admitted":   {policy: tenMinutes, wl: admitted(0, 8), write: true, want: 4, again: Every},
		"by a clock that is ahead":    {policy: tenMinutes, wl: admitted(-0.5, 8), write: true, want: 4, again: Every},
		"by no time of Kueue's":       {policy: tenMinutes, wl: admitted(-2, 8)},
		"a minute is left":            {policy: tenMinutes, wl: boosted(admitted(9, 8), 4, 9), want: 4, again: time.Minute},
		"its time is over":            {policy: tenMinutes, wl: boosted(admitted(10, 8), 4, 1), write: true},
		"it has none any more":        {policy: tenMinutes, wl: admitted(11, 8)},
		"the admin has turned it off": {wl: boosted(admitted(1, 8), 4, 1), write: true},
		"the admin has shortened it": {
			policy: Policy{MinimumRuntime: configapi.MinimumRuntime{Default: minutes(1)}},
			wl:     boosted(admitted(2, 8), 4, 2), write: true,
		},
		"the admin has lengthened it": {
			policy: Policy{MinimumRuntime: configapi.MinimumRuntime{Default: minutes(20)}},
			wl:     boosted(admitted(2, 8), 4, 2), write: true, want: 4, again: Every,
		},
		"by a part of a second": {
			policy: Policy{MinimumRuntime: configapi.MinimumRuntime{Default: minutes(10.001)}},
			wl:     boosted(admitted(9, 8), 4, 9), want: 4, again: time.Minute,
		},
		"there is just room": {policy: tenMinutes, wl: admitted(0, 8), room: 5, write: true, want: 4, again: Every},
		"there is no room":   {policy: tenMinutes, wl: admitted(0, 8), room: 4, narrow: true, again: Every},
		"there is no room any more": {policy: tenMinutes, wl: boosted(admitted(1, 8), 4, 1), room: 1, write: true,
			narrow: true, again: Every},
		"no room, and no need of it": {policy: tenMinutes, wl: admitted(20, 8), room: 1},
		"others have boosted it":     {policy: both, wl: others(admitted(0, 8), "7"), waits: yes},
		"others have lowered it":     {policy: both, wl: others(admitted(0, 8), "-1"), waits: yes},
		"others have changed ours":   {policy: both, wl: others(boosted(admitted(1, 8), 4, 1), "9"), want: 4, waits: yes},
		"others have removed ours": {policy: both, wl: func() *kueue.Workload {
			wl := boosted(admitted(1, 8), 4, 1)
			delete(wl.Annotations, Annotation)
			return wl
		}(), want: 4, waits: yes},
		"others wait": {policy: cheapest, wl: admitted(30, 8), saved: savedAgo(10), waits: yes, write: true, want: 2,
			again: Every},
		"nobody waits":        {policy: cheapest, wl: admitted(30, 8), saved: savedAgo(10), waits: no, again: Every},
		"whether isn't known": {policy: cheapest, wl: admitted(30, 8), saved: savedAgo(10), again: Every},
		"nobody waits any more": {policy: cheapest, wl: boosted(admitted(30, 8), 2, 6), saved: savedAgo(10), waits: no,
			write: true, again: Every},
		"it isn't known any more": {policy: cheapest, wl: boosted(admitted(30, 8), 2, 6), saved: savedAgo(10), want: 2,
			again: Every},
		"nothing is reported": {policy: cheapest, wl: admitted(30, 8), waits: yes, again: Every},
		"it was written a minute ago": {policy: cheapest, wl: boosted(admitted(30, 8), 1, 1), saved: savedAgo(29),
			waits: yes,
			want:  1, again: 4 * time.Minute},
		"none was written a minute ago": {policy: cheapest, wl: boosted(admitted(30, 8), 0, 1), saved: savedAgo(29),
			waits: yes,
			again: 4 * time.Minute},
		"it was written five minutes ago": {policy: cheapest, wl: boosted(admitted(30, 8), 1, 5), saved: savedAgo(29),
			waits: yes,
			write: true, want: 2, again: Every},
		"it was written by a clock that is ahead": {policy: cheapest, wl: boosted(admitted(30, 8), 1, -60),
			saved: savedAgo(29),
			waits: yes, write: true, want: 2, again: Every},
		"both, within": {policy: both, wl: boosted(admitted(9, 8), 4, 9), saved: savedAgo(1), want: 4,
			again: time.Minute},
		"both, and it is over": {policy: both, wl: boosted(admitted(10, 8), 4, 1), saved: savedAgo(1), waits: yes,
			write: true, want: 1, again: Every},
		"both, over, and it isn't known who waits": {policy: both, wl: boosted(admitted(10, 8), 4, 1), saved: savedAgo(1),
			write: true, again: Every},
		"it wasn't admitted": {policy: both, wl: &kueue.Workload{}, again: Every},
	} {
		t.Run(name, func(t *testing.T) {
			if c.room == 0 {
				c.room = 100
			}
			before := c.wl.DeepCopy()
			d := c.policy.Decide(Input{Workload: c.wl, Saved: c.saved, Room: c.room, Waits: c.waits, Now: now})
			if d.Write != c.write || d.Value != c.want || d.Again != c.again || d.Narrow != c.narrow {
				t.Errorf("got write %t, value %d, again %s, narrow %t; want %t, %d, %s, %t", d.Write, d.Value, d.Again,
					d.Narrow,
					c.write, c.want, c.again, c.narrow)
			}
			if !apiequality.Semantic.DeepEqual(before, c.wl) {
				t.Error("the Workload is the cache's own")
			}
		})
	}
}

// TestMinimumRuntime holds whose minimum runtime counts.
func TestMinimumRuntime(t *testing.T) {
	by := func(d float64) map[string]metav1.Duration {
		return map[string]metav1.Duration{"low": minutes(d), "vision": minutes(d + 1)}
	}
	all := configapi.MinimumRuntime{Default: minutes(1), PriorityClasses: by(10), ClusterQueues: by(20)}
	for name, c := range map[string]struct {
		change func(*configapi.MinimumRuntime, *kueue.Workload)
		want   float64
	}{
		"its ClusterQueue's": {want: 21},
		"its ClusterQueue's 0": {func(m *configapi.MinimumRuntime,
			_ *kueue.Workload) {
			m.ClusterQueues["vision"] = minutes(0)
		}, 0},
		"its class's": {func(m *configapi.MinimumRuntime, _ *kueue.Workload) { m.ClusterQueues = nil }, 10},
		"the default": {func(m *configapi.MinimumRuntime, _ *kueue.Workload) {
			m.ClusterQueues, m.PriorityClasses = nil, nil
		}, 1},
		"a class of pods is another": {func(m *configapi.MinimumRuntime, wl *kueue.Workload) {
			m.ClusterQueues = nil
			wl.Spec.PriorityClassRef = kueue.NewPodPriorityClassRef("low")
		}, 1},
		"it has no class": {func(m *configapi.MinimumRuntime, wl *kueue.Workload) {
			m.ClusterQueues = nil
			wl.Spec.PriorityClassRef = nil
		}, 1},
		"it has no admission": {func(_ *configapi.MinimumRuntime, wl *kueue.Workload) { wl.Status.Admission = nil }, 10},
	} {
		t.Run(name, func(t *testing.T) {
			m, wl := all, admitted(0, 1)
			m.PriorityClasses, m.ClusterQueues = by(10), by(20)
			if c.change != nil {
				c.change(&m, wl)
			}
			p := Policy{MinimumRuntime: m}
			if got := p.protected(wl, now); !got.Equal(now.Add(minutes(c.want).Duration)) {
				t.Errorf("got %s, want %s", got.Sub(now), minutes(c.want).Duration)
			}
		})
	}
}

// TestAsksWhoWaits holds that a request is spent only where something follows from the answer.
func TestAsksWhoWaits(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		wl     *kueue.Workload
		saved  *api.Checkpoint
		want   bool
	}{
		"it reports":         {cheapest, admitted(30, 8), savedAgo(1), true},
		"it reports nothing": {cheapest, admitted(30, 8), nil, false},
		"it has a boost":     {cheapest, boosted(admitted(30, 8), 1, 9), nil, true},
		"it has another's": {cheapest, func() *kueue.Workload {
			wl := admitted(30,
				8)
			wl.Annotations[Annotation] = "1"
			return wl
		}(), savedAgo(1), false},
		"it was written a minute ago": {cheapest, boosted(admitted(30, 8), 1, 1), savedAgo(1), false},
		"it isn't asked for":          {tenMinutes, admitted(30, 8), savedAgo(1), false},
		"within its minimum runtime":  {both, boosted(admitted(9, 8), 4, 9), savedAgo(1), false},
		"its minimum runtime is over": {both, boosted(admitted(10, 8), 4, 1), savedAgo(1), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.policy.AsksWhoWaits(c.wl, c.saved, now); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestRoom holds how far the next priority is.
func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		own   *int32
		inUse []int32
		want  int64
	}{
		"nothing else":           {nil, nil, 1<<31 - 1},
		"only lower ones":        {ptr.To[int32](100), []int32{100, 0, -5}, 1<<31 - 1},
		"the next":               {ptr.To[int32](100), []int32{1000, 105, 103, 100, 99}, 3},
		"no class":               {nil, []int32{7, -7, 0}, 7},
		"the extremes":           {ptr.To[int32](-1 << 31), []int32{1<<31 - 1}, 1<<31 - 1},
		"the least and its next": {ptr.To[int32](-1 << 31), []int32{-1<<31 + 2}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			wl := &kueue.Workload{}
			wl.Spec.Priority = c.own
			if got := Room(wl, c.inUse); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// TestBounds holds for Workloads of all kinds that a boost is never negative, never reaches the next priority, changes
// at most once in five minutes but for the end of the minimum runtime, and is never another's.
func TestBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same cases each time
	for range 20_000 {
		wl := admitted(random.Float64()*40-2, random.Int64N(2000))
		mark := Mark{Value: random.Int32N(Highest + 1), Written: now.Add(-minutes(random.Float64() * 12).Duration)}
		switch random.IntN(4) {
		case 0:
			wl.Annotations[Annotation] = strconv.Itoa(random.IntN(20) - 10)
		case 1, 2:
			boosted(wl, mark.Value, now.Sub(mark.Written).Minutes())
		}
		before, ours := Of(wl)
		in := Input{Workload: wl, Room: random.Int64N(12) + 1, Now: now}
		if random.IntN(3) > 0 {
			in.Saved = savedAgo(random.Float64() * 60)
		}
		if random.IntN(3) > 0 {
			in.Waits = ptr.To(random.IntN(2) > 0)
		}
		policy := []Policy{{}, tenMinutes, cheapest, both}[random.IntN(4)]
		d := policy.Decide(in)
		switch {
		case !d.Write:
		case !ours:
			t.Fatalf("another's is written: %v, %+v", wl.Annotations, d)
		case d.Value < 0 || d.Value > Highest || d.Value > 0 && int64(d.Value) >= in.Room:
			t.Fatalf("got %d, room %d", d.Value, in.Room)
		case d.Value > 0 && d.Value < Highest && before.Value < Highest && now.Sub(before.Written) < Every-time.Second:
			t.Fatalf("it changes %s after the last time: %v, %+v", now.Sub(before.Written), wl.Annotations, d)
		}
		if text := d.Text(); d.Write && (d.Value == 0) != (text == "") {
			t.Fatalf("got %q for %d", text, d.Value)
		}
	}
}
