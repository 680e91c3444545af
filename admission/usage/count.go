package usage

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Count returns what a TrainJob has held with a run, which may be counted already in part. before may be nil.
func Count(before *api.Usage, r *Run) *api.Usage {
	after, from := &api.Usage{}, r.From
	if before != nil {
		after = before.DeepCopy()
	}
	until := r.Until.Truncate(time.Microsecond)
	if after.Run == r.Key {
		if from = after.Until.Time; !from.Before(until) {
			return after
		}
	} else {
		after.Runs++
	}
	after.Run, after.Until = r.Key, metav1.NewMicroTime(until)
	for _, s := range r.Split(from, until) {
		at := slices.IndexFunc(after.Resources, func(u api.UsedResource) bool { return u.Resource == s.Resource })
		if at < 0 {
			at = len(after.Resources)
			after.Resources = append(after.Resources, api.UsedResource{Resource: s.Resource})
		}
		u := &after.Resources[at]
		u.Useful, u.Lost = Add(u.Useful, s.Useful), Add(u.Lost, s.Lost)
		u.Idle, u.Unknown = Add(u.Idle, s.Idle), Add(u.Unknown, s.Unknown)
	}
	return after
}
