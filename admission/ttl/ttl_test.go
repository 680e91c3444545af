package ttl

import (
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestLeft holds for how long a TrainJob stays that ended a minute ago.
func TestLeft(t *testing.T) {
	const complete, failed = trainerapi.TrainJobComplete, trainerapi.TrainJobFailed
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		reason             string
		own, runtime, ends string
		want               time.Duration
		set, invalid       bool
	}{
		"nothing says":       {reason: "it stays", ends: complete},
		"it runs":            {reason: "it stays", own: "0"},
		"an hour":            {reason: "a minute is over", own: "3600", ends: complete, want: 59 * time.Minute, set: true},
		"at once":            {reason: "a minute ago", own: "0", ends: failed, want: -time.Minute, set: true},
		"its runtime's":      {reason: "it has none itself", runtime: "120", ends: failed, want: time.Minute, set: true},
		"its own":            {reason: "it has precedence", own: "60", runtime: "120", ends: complete, set: true},
		"failed":             {reason: "longer", own: "60, failed=180", ends: failed, want: 2 * time.Minute, set: true},
		"succeeded":          {reason: "the shorter time", own: "60,failed=180", ends: complete, set: true},
		"longer":             {reason: "too long", own: "315360001", ends: complete, invalid: true},
		"negative":           {reason: "no number", own: "-1", ends: complete, invalid: true},
		"a duration":         {reason: "no number", own: "1h", ends: complete, invalid: true},
		"empty":              {reason: "no number", runtime: " ", ends: complete, invalid: true},
		"of something else":  {reason: "no name", own: "1,complete=2", ends: complete, invalid: true},
		"long":               {reason: "it is cut", own: strings.Repeat("7", 999), ends: complete, invalid: true},
		"failed without one": {reason: "no number", own: "1,failed=", ends: complete, invalid: true},
		"the longest": {reason: "ten years", own: "315360000", ends: complete, set: true,
			want: longest*time.Second - time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{}
			var runtime map[string]string
			if c.own != "" {
				job.Annotations = map[string]string{api.TTLAnnotation: c.own}
			}
			if c.runtime != "" {
				runtime = map[string]string{api.TTLAnnotation: c.runtime}
			}
			if c.ends != "" {
				job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionTrue},
					{Type: c.ends, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}}
			}
			left, set, err := Left(job, runtime, now)
			if left != c.want || set != c.set || (err != nil) != c.invalid {
				t.Errorf("%s: got %v, %v, %v", c.reason, left, set, err)
			}
			if _, set, err := Left(job, nil, now); c.own == "" && (set || err != nil) {
				t.Error("without a runtime's it is its own alone")
			}
			path := field.NewPath("metadata", "annotations")
			errs := append(Check(job.Annotations, path), Check(runtime, path)...)
			if (len(errs) > 0) != c.invalid {
				t.Errorf("%s: got %v", c.reason, errs)
			}
			if c.invalid && !strings.Contains(errs[0].Error(), "metadata.annotations[signalbox.dev/ttl") {
				t.Errorf("it names the path: got %v", errs[0])
			}
			if err != nil && len(err.Error()) > 400 || c.invalid && len(errs[0].Error()) > 400 {
				t.Error("a message isn't as long as an annotation")
			}
			if at, ended := Ended(job); ended != (c.ends != "") || ended && !at.Time.Equal(now.Add(-time.Minute)) {
				t.Errorf("ended: got %v, %v", at, ended)
			}
			if Own(job) != (c.own != "") {
				t.Error("its own counts before its runtime's")
			}
		})
	}
}
