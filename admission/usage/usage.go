// Package usage knows what a TrainJob's quota was held for: what was saved of it, what was lost, and when no pod ran.
// It reads and writes nothing.
//
// A run is one time that a TrainJob's Workload holds quota. What Kueue has counted for it is split by time, so that the
// four parts always add up to the quantity, multiplied by the time for which it was held.
package usage

import (
	"encoding/json"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
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
}

// String returns the value of the annotation.
func (n Note) String() string {
	n.Run, n.Running = n.Run.UTC(), n.Running.UTC()
	text, _ := json.Marshal(n) // neither a string nor a time of Kubernetes' fails
	return string(text)
}

// NoteOf returns what a Workload's annotation says; nothing if it can't be read.
func NoteOf(wl *kueue.Workload) Note {
	var n Note
	if json.Unmarshal([]byte(wl.Annotations[Annotation]), &n) != nil {
		return Note{}
	}
	return n
}

// Reserved returns since when a Workload holds quota; zero if it doesn't.
func Reserved(wl *kueue.Workload) time.Time {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved)
	if c == nil || c.Status != metav1.ConditionTrue || workloadfinish.IsFinished(wl) {
		return time.Time{}
	}
	return c.LastTransitionTime.UTC()
}

// Began reports whether it is noted when pods of a Workload's present run were first seen to run.
func Began(wl *kueue.Workload) bool {
	n := NoteOf(wl)
	return !n.Running.IsZero() && n.Run.Equal(Reserved(wl))
}

// Releases reports whether a Workload is about to lose its quota, by what is written to it: a condition, or that
// nothing keeps it any more. What isn't sent of a Workload stays.
func Releases(sent *kueue.Workload) bool {
	c := apimeta.FindStatusCondition(sent.Status.Conditions, kueue.WorkloadQuotaReserved)
	return c != nil && c.Status != metav1.ConditionTrue || workloadfinish.IsFinished(sent)
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

// RunOf returns the present run of a Workload, until now; nil if it holds no quota.
func RunOf(wl *kueue.Workload, facts Facts, now time.Time) *Run {
	from := Reserved(wl)
	if from.IsZero() || wl.Status.Admission == nil {
		return nil
	}
	r := &Run{
		Facts: facts, Note: NoteOf(wl), Namespace: wl.Namespace, Queue: string(wl.Spec.QueueName),
		ClusterQueue: string(wl.Status.Admission.ClusterQueue), Key: Key(wl), From: from, Until: now.UTC(),
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
