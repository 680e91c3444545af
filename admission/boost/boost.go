// Package boost decides by how much a running TrainJob stands above its equals, so that none of them preempts it within
// its minimum runtime, and so that of several the one that loses least is preempted. It reads and writes nothing.
//
// Kueue (feature gate PriorityBoost) adds the annotation kueue.x-k8s.io/priority-boost of a Workload to its priority.
// The sum decides who is preempted, and where a Workload stands in its queue. So a boost is never negative, an equal
// could preempt the TrainJob by that; it is less than the way to the next priority in use; and a Workload without quota
// has none, or it would jump its queue.
package boost

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	controllerconstants "sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/util/priority"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Annotation of a Workload is what Kueue adds to its priority.
const Annotation = controllerconstants.PriorityBoostAnnotationKey

// Highest is the boost of a TrainJob within its minimum runtime. What would be lost gives less.
const Highest int32 = 4

// Every is how often the boost of a running TrainJob may follow what it would lose: each change has Kueue look at all
// that wait in the ClusterQueue.
const Every = 5 * time.Minute

// recheck is when to look again at a boost that stays: a class that was created may have narrowed the room for it.
const recheck = Every

// Policy is what the configuration says.
type Policy struct {
	MinimumRuntime configapi.MinimumRuntime
	CheapestVictim bool
}

// On reports whether a TrainJob may have a boost.
func (p Policy) On() bool { return p.CheapestVictim || p.MinimumRuntime.Set() }

// Input is what a boost is decided on.
type Input struct {
	// Workload runs on its quota, and wasn't evicted.
	Workload *kueue.Workload
	// Saved is the TrainJob's last checkpoint; nil if it has reported none.
	Saved *api.Checkpoint
	// Room is how far it is from the Workload's priority to the next one in use.
	Room int64
	// Waits is whether others wait for the quota; nil if that isn't known. Then what follows from it stays as it is.
	Waits *bool
	Now   time.Time
}

// Decision is what the boost of a Workload is to be.
type Decision struct {
	Mark
	// Write is set if the Workload says something else.
	Write bool
	// Narrow is set if there is no room for a boost.
	Narrow bool
	// Again is when to look again; 0 for never.
	Again time.Duration
}

// Decide decides the boost of a TrainJob that runs on its quota. A boost of others, and that they have removed one, is
// left alone.
func (p Policy) Decide(in Input) Decision {
	mark, ours := Of(in.Workload)
	d := Decision{Mark: mark}
	if !ours {
		return d
	}
	until, value := p.protected(in.Workload, in.Now), int32(0)
	within := in.Now.Before(until)
	switch {
	case !within && !p.CheapestVictim:
	case in.Room <= int64(Highest):
		d.Narrow, d.Again = true, recheck
	case within:
		value, d.Again = Highest, min(until.Sub(in.Now), recheck)
	default:
		value, d.Again = p.victim(in, mark)
	}
	// When it was written is remembered as long as the next time depends on it.
	remembers := p.CheapestVictim && !d.Narrow
	d.Write = value != mark.Value || !remembers && value == 0 && mark != (Mark{}) ||
		value == Highest && !mark.Until.Equal(until) // the configuration has changed, or it is admitted again
	if !d.Write {
		return d
	}
	d.Mark = Mark{}
	if value != 0 || remembers {
		d.Mark = Mark{Value: value, Written: in.Now}
	}
	if value == Highest {
		d.Until = until
	}
	return d
}

// victim returns the boost of a TrainJob whose minimum runtime is over, and when to look again. It follows what would
// be lost while others wait.
func (p Policy) victim(in Input, mark Mark) (int32, time.Duration) {
	if left := due(mark, in.Now); left > 0 {
		return mark.Value, left
	}
	switch {
	case in.Waits == nil && mark.Value < Highest:
		return mark.Value, Every
	case in.Waits == nil || !*in.Waits:
		return 0, Every
	}
	return Level(Lost(in.Workload, in.Saved, in.Now)), Every
}

// due returns after how long a boost may be written again. The Workload remembers when it was, so that a restart of the
// manager doesn't bring it forward. The end of the minimum runtime is written at once.
func due(mark Mark, now time.Time) time.Duration {
	if mark.Value == Highest || mark.Written.After(now) { // by another clock
		return 0
	}
	return max(Every-now.Sub(mark.Written), 0)
}

// AsksWhoWaits reports whether the boost that a Workload is to have now depends on whether others wait.
func (p Policy) AsksWhoWaits(wl *kueue.Workload, saved *api.Checkpoint, now time.Time) bool {
	mark, ours := Of(wl)
	return p.CheapestVictim && ours && !now.Before(p.protected(wl, now)) && due(mark, now) == 0 &&
		(saved != nil || mark.Value != 0)
}

// skew is how far Kueue's clock may be ahead. What is later is no time of Kueue's.
const skew = time.Minute

// protected returns until when an admitted Workload is within its minimum runtime.
func (p Policy) protected(wl *kueue.Workload, now time.Time) time.Time {
	at := admittedAt(wl)
	if at.IsZero() || at.Sub(now) > skew {
		return time.Time{}
	}
	return at.Add(p.minimumRuntime(wl)).Truncate(time.Second) // as the mark has it
}

// minimumRuntime returns that of a Workload: its ClusterQueue's, or else its WorkloadPriorityClass's, or the default.
func (p Policy) minimumRuntime(wl *kueue.Workload) time.Duration {
	if wl.Status.Admission != nil {
		if d, set := p.MinimumRuntime.ClusterQueues[string(wl.Status.Admission.ClusterQueue)]; set {
			return d.Duration
		}
	}
	if ref := wl.Spec.PriorityClassRef; ref != nil && ref.Kind == kueue.WorkloadPriorityClassKind {
		if d, set := p.MinimumRuntime.PriorityClasses[ref.Name]; set {
			return d.Duration
		}
	}
	return p.MinimumRuntime.Default.Duration
}

// Room returns how far it is from a Workload's priority to the next of the priorities in use.
func Room(wl *kueue.Workload, inUse []int32) int64 {
	own, room := int64(priority.Priority(wl)), int64(math.MaxInt32)
	for _, p := range inUse {
		if above := int64(p) - own; above > 0 {
			room = min(room, above)
		}
	}
	return room
}

// MarkAnnotation of a Workload is what Signalbox has last written of its boost: the value, when that was and, within a
// minimum runtime, until when that is. A boost of another value is another's.
const MarkAnnotation = "signalbox.dev/priority-boost"

// Mark is the value of MarkAnnotation.
type Mark struct {
	Value   int32
	Written time.Time
	Until   time.Time
}

// String returns the value of the annotation; "" for no boost that has to be remembered.
func (m Mark) String() string {
	if m.Written.IsZero() {
		return ""
	}
	text := fmt.Sprintf("%d %s", m.Value, m.Written.UTC().Format(time.RFC3339))
	if !m.Until.IsZero() {
		text += " " + m.Until.UTC().Format(time.RFC3339)
	}
	return text
}

// Text returns the value of Annotation; "" for none.
func (m Mark) Text() string {
	if m.Value == 0 {
		return ""
	}
	return strconv.Itoa(int(m.Value))
}

// Of returns what Signalbox has last written of a Workload's boost, and whether the boost is still that: others may
// have written another, or none.
func Of(wl *kueue.Workload) (mark Mark, ours bool) {
	mark = parse(wl.Annotations[MarkAnnotation])
	return mark, wl.Annotations[Annotation] == mark.Text()
}

// parse returns what an annotation says; nothing if Signalbox can't have written it.
func parse(text string) Mark {
	parts := strings.Fields(text)
	if len(parts) < 2 || len(parts) > 3 {
		return Mark{}
	}
	value, err := strconv.ParseInt(parts[0], 10, 32)
	written, invalid := time.Parse(time.RFC3339, parts[1])
	if err != nil || invalid != nil || value < 0 || value > int64(Highest) {
		return Mark{}
	}
	mark := Mark{Value: int32(value), Written: written}
	if len(parts) == 3 {
		mark.Until, _ = time.Parse(time.RFC3339, parts[2])
	}
	return mark
}

// ProtectedUntil returns until when a TrainJob runs for its minimum runtime, as its Workload says; zero if it doesn't.
func ProtectedUntil(wl *kueue.Workload, now time.Time) time.Time {
	mark, ours := Of(wl)
	if !ours || mark.Value != Highest || !now.Before(mark.Until) ||
		mark.Until.Sub(admittedAt(wl)) > configapi.MaxMinimumRuntime {
		return time.Time{}
	}
	return mark.Until
}
