// Package usage knows what a TrainJob's quota was held for: what was saved of it, what was lost, and when no pod ran.
// It reads and writes nothing.
//
// A run is one time that a TrainJob's Workload holds quota. What Kueue has counted for it is split by time, so that the
// four parts always add up to the quantity, multiplied by the time for which it was held.
package usage

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"gopkg.in/inf.v0"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Annotation of a TrainJob's Workload has whose it is, and when pods of the present run were first seen to run.
const Annotation = "signalbox.dev/usage"

// Note is the value of Annotation, as JSON.
type Note struct {
	Team string `json:"team,omitempty"`
	User string `json:"user,omitempty"`
	// Run is when the quota was reserved of the run whose pods were seen, and Running when they were.
	Run     time.Time `json:"run,omitzero"`
	Running time.Time `json:"running,omitzero"`
	// Attempt is another one when the pods of the run were made again: what wasn't saved before is lost.
	Attempt string `json:"attempt,omitempty"`
}

// String returns the value of the annotation.
func (n Note) String() string {
	n.Run, n.Running = n.Run.UTC(), n.Running.UTC()
	text, _ := json.Marshal(n) // neither a string nor a time of Kubernetes' fails
	return string(text)
}

// MaxText is the longest name of a team or user, in bytes: a user may be named by as much as a token holds.
const MaxText = 253

// Fitting returns a text, or one of at most so many bytes, of 18 or more, that differs for others.
func Fitting(s string, most int) string {
	if len(s) <= most {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	hash := hex.EncodeToString(sum[:8])
	return strings.TrimRight(strings.ToValidUTF8(s[:most-len(hash)-1], ""), "-.") + "-" + hash
}

// NoteOf returns what a Workload's annotation says; nothing if it can't be read.
func NoteOf(wl *kueue.Workload) Note {
	var n Note
	if json.Unmarshal([]byte(wl.Annotations[Annotation]), &n) != nil {
		return Note{}
	}
	return n
}

// Reserved returns since when a Workload holds quota, or has held it until another one has replaced it; zero for any
// other.
func Reserved(wl *kueue.Workload) time.Time {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved)
	if c == nil || c.Status != metav1.ConditionTrue || workloadfinish.IsFinished(wl) && !podsets.Replaced(wl) {
		return time.Time{}
	}
	return c.LastTransitionTime.UTC()
}

// heldUntil returns until when a Workload with quota has held it: until now, or until another one has replaced it.
func heldUntil(wl *kueue.Workload, now time.Time) time.Time {
	if podsets.Replaced(wl) {
		return apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished).LastTransitionTime.UTC()
	}
	return now.UTC()
}

// Began reports whether it is noted when pods of a Workload's present run were first seen to run.
func Began(wl *kueue.Workload) bool {
	n := NoteOf(wl)
	return !n.Running.IsZero() && n.Run.Equal(Reserved(wl))
}

// Releases reports whether a Workload is about to lose its quota, by what is written to it: a condition, or that
// nothing keeps it any more. What isn't sent of a Workload stays. One that another has replaced is recorded later: its
// pods run on.
func Releases(sent *kueue.Workload) bool {
	c := apimeta.FindStatusCondition(sent.Status.Conditions, kueue.WorkloadQuotaReserved)
	return c != nil && c.Status != metav1.ConditionTrue || workloadfinish.IsFinished(sent) && !podsets.Replaced(sent)
}

// Facts are what a Workload doesn't say of its run.
type Facts struct {
	// Reports is set if the training process has reported a checkpoint in any run, and Saved is when the last was.
	Reports bool
	Saved   time.Time
	// Succeeded is set if the TrainJob has, and Ended is when its last pod had ended; zero if that isn't known.
	Succeeded bool
	Ended     time.Time
}

// Run is one time that a TrainJob's Workload holds quota, until now.
type Run struct {
	Facts
	Note
	// Namespace and Queue are the LocalQueue's.
	Namespace, Queue string
	ClusterQueue     string
	// Key is the same whenever the run is looked at, and differs from all others.
	Key         string
	From, Until time.Time
	Amounts     []Amount
}

// RunOf returns the present run of a Workload until now, or the last one of a Workload that another has replaced; nil
// if it holds no quota.
func RunOf(wl *kueue.Workload, facts Facts, now time.Time) *Run {
	from := Reserved(wl)
	if from.IsZero() || wl.Status.Admission == nil {
		return nil
	}
	r := &Run{
		Facts: facts, Note: NoteOf(wl), Namespace: wl.Namespace, Queue: string(wl.Spec.QueueName),
		ClusterQueue: string(wl.Status.Admission.ClusterQueue), Key: Key(wl), From: from, Until: heldUntil(wl, now),
		Amounts: amountsOf(wl.Status.Admission),
	}
	if !r.Run.Equal(from) {
		r.Running = time.Time{}
	}
	return r.bounded()
}

// Key returns the key of a Workload's present run.
func Key(wl *kueue.Workload) string {
	return string(wl.UID) + "/" + Reserved(wl).Format(time.RFC3339)
}

// bounded brings the times of a run into their order, whatever the clocks say of which they are. A training process
// that has saved its work, or has succeeded, has run, although nobody may have seen that.
func (r *Run) bounded() *Run {
	r.Until = later(r.Until, r.From)
	savedNow := r.Reports && r.Saved.After(r.From)
	if r.Running.IsZero() && (r.Succeeded || savedNow) {
		r.Running = r.From
	}
	if r.Running.IsZero() {
		r.Running = r.Until
	}
	r.Running = earlier(later(r.Running, r.From), r.Until)
	if r.Ended.IsZero() {
		r.Ended = r.Until
	}
	r.Ended = earlier(later(r.Ended, r.Running), r.Until)
	if r.Succeeded {
		r.Saved = r.Ended
	}
	r.Saved = earlier(later(r.Saved, r.Running), r.Ended)
	return r
}

// Day is a day in UTC, such as 2026-11-28.
type Day string

// DayOf returns the day of a time.
func DayOf(t time.Time) Day { return Day(t.UTC().Format(time.DateOnly)) }

// Span is a part of a run on one day.
type Span struct {
	Day         Day
	From, Until time.Time
}

// Spans returns the parts of a run on each of its days, as far back as a record may be kept. The first is also returned
// if it is empty: a run of no time is one, too.
func (r *Run) Spans() []Span {
	from := later(r.From, r.Until.Add(-configapi.MaxRetention))
	var spans []Span
	for {
		next := from.Truncate(24 * time.Hour).Add(24 * time.Hour) // the zero time is a midnight in UTC
		until := earlier(r.Until, next)
		spans = append(spans, Span{DayOf(from), from, until})
		if !until.Before(r.Until) {
			return spans
		}
		from = until
	}
}

// Split returns what a run has held from one time to another, by flavor and resource. Of each, what is returned for
// adjacent times adds up to what is returned for both together.
func (r *Run) Split(from, until time.Time) []usageapi.Row {
	from, until = later(from, r.From), earlier(until, r.Until)
	rows := make([]usageapi.Row, 0, len(r.Amounts))
	for _, a := range r.Amounts {
		between := func(begin, end time.Time) int64 {
			begin, end = later(begin, from), earlier(end, until)
			if !begin.Before(end) {
				return 0
			}
			return a.heldFor(end.Sub(r.From)) - a.heldFor(begin.Sub(r.From))
		}
		row := usageapi.Row{
			Team: r.Team, User: r.User, ClusterQueue: r.ClusterQueue, Flavor: a.Flavor, Resource: a.Resource,
		}
		row.Idle = add(between(r.From, r.Running), between(r.Ended, r.Until))
		row.Useful = between(r.Running, r.Saved)
		if rest := between(r.Saved, r.Ended); r.Reports || r.Succeeded {
			row.Lost = rest
		} else {
			row.Unknown = rest
		}
		rows = append(rows, row)
	}
	return rows
}

// Amount is how much of a resource of a flavor a run holds.
type Amount struct {
	Flavor, Resource string
	Quantity         resource.Quantity
}

// heldFor returns what is held in a time, in thousandths of a unit and a second, or the most that fits. Bytes are
// counted in GiB, and all else in its own unit. It grows with the time, so that a difference of two is never negative.
func (a Amount) heldFor(d time.Duration) int64 {
	quantity, per := a.Quantity.DeepCopy(), int64(1)
	if inBytes(a.Resource) {
		per = 1 << 30
	}
	held := new(inf.Dec).Mul(quantity.AsDec(), inf.NewDec(d.Milliseconds(), 0))
	if whole := held.QuoRound(held, inf.NewDec(per, 0), 0, inf.RoundDown).UnscaledBig(); whole.IsInt64() {
		return max(whole.Int64(), 0)
	}
	return math.MaxInt64
}

// inBytes reports whether a resource is counted in bytes.
func inBytes(name string) bool {
	return name == string(corev1.ResourceMemory) || name == string(corev1.ResourceEphemeralStorage) ||
		strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)
}

// amountsOf returns what Kueue has counted of an admission, by flavor and resource, in their order.
func amountsOf(admitted *kueue.Admission) []Amount {
	var all []Amount
	for i := range admitted.PodSetAssignments {
		a := &admitted.PodSetAssignments[i]
		for name, quantity := range a.ResourceUsage {
			flavor, counted := a.Flavors[name]
			if !counted || quantity.IsZero() {
				continue // the ClusterQueue has no quota of it
			}
			at := slices.IndexFunc(all, func(o Amount) bool { return o.Flavor == string(flavor) && o.Resource == string(name) })
			if at < 0 {
				all = append(all, Amount{string(flavor), string(name), quantity.DeepCopy()})
			} else {
				all[at].Quantity.Add(quantity)
			}
		}
	}
	slices.SortFunc(all, func(a, b Amount) int {
		return cmp.Or(cmp.Compare(a.Flavor, b.Flavor), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

// Count returns what a TrainJob has held with a run, which may be counted already in part. before may be nil. A run
// that was over before what is counted was counted then.
func Count(before *api.Usage, r *Run) *api.Usage {
	after, from := &api.Usage{}, r.From
	if before != nil {
		after = before.DeepCopy()
	}
	until := r.Until.Truncate(time.Microsecond)
	switch {
	case after.Run == r.Key:
		if from = after.Until.Time; !from.Before(until) {
			return after
		}
	case until.Before(after.Until.Time):
		return after
	default:
		after.Runs++
	}
	after.Run, after.Until = r.Key, metav1.NewMicroTime(until)
	for _, row := range r.Split(from, until) {
		at := slices.IndexFunc(after.Resources, func(u api.UsedResource) bool { return u.Resource == row.Resource })
		if at < 0 {
			at = len(after.Resources)
			after.Resources = append(after.Resources, api.UsedResource{Resource: row.Resource})
		}
		after.Resources[at].Held = Plus(after.Resources[at].Held, row.Held)
	}
	return after
}

// Plus returns the sums of two.
func Plus(a, b usageapi.Held) usageapi.Held {
	return usageapi.Held{
		Useful: add(a.Useful, b.Useful), Lost: add(a.Lost, b.Lost), Idle: add(a.Idle, b.Idle),
		Unknown: add(a.Unknown, b.Unknown),
	}
}

// Total returns the sum of the parts.
func Total(h usageapi.Held) int64 { return add(add(h.Useful, h.Lost), add(h.Idle, h.Unknown)) }

// add returns the sum of two amounts, neither of which is negative, or the most that fits.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}
	return a
}
