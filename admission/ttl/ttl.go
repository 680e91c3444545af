// Package ttl knows for how long a TrainJob stays after its end, as annotation signalbox.dev/ttl-seconds-after-finished
// of it, or of its runtime, says. It reads and writes nothing.
package ttl

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// setting is what the annotation says: for how long a TrainJob stays that has succeeded, and one that has failed.
type setting struct{ complete, failed time.Duration }

// longest is ten years, which leaves room in a time.Duration.
const longest = 10 * 365 * 24 * 60 * 60

const forFailed = "failed="

var errInvalid = errors.New(`must be a number of seconds from 0 to 315360000, such as 3600, with ",failed=" and another ` +
	`one after it for a TrainJob that has failed; correct or remove it`)

// parse reads a value of the annotation. The error says what is valid.
func parse(value string) (s setting, err error) {
	all, failed, differs := strings.Cut(value, ",")
	if s.complete, err = seconds(all); err != nil || !differs {
		s.failed = s.complete
		return s, err
	}
	number, named := strings.CutPrefix(strings.TrimSpace(failed), forFailed)
	if !named {
		return s, errInvalid
	}
	s.failed, err = seconds(number)
	return s, err
}

func seconds(number string) (time.Duration, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 32)
	if err != nil || n > longest {
		return 0, errInvalid
	}
	return time.Duration(n) * time.Second, nil
}

// Check returns an error if the annotation is invalid, among those of a TrainJob or of a runtime.
func Check(annotations map[string]string, path *field.Path) field.ErrorList {
	value, set := annotations[api.TTLAnnotation]
	if !set {
		return nil
	}
	if _, err := parse(value); err != nil {
		return field.ErrorList{field.Invalid(path.Key(api.TTLAnnotation), cut(value), err.Error())}
	}
	return nil
}

// cut bounds what a message repeats of an annotation.
func cut(value string) string {
	const most = 64
	if len(value) <= most {
		return value
	}
	return value[:most] + "…"
}

// Own reports whether a TrainJob has the annotation itself, so that its runtime's doesn't count.
func Own(job *api.TrainJob) bool {
	_, set := job.Annotations[api.TTLAnnotation]
	return set
}

// Ended returns when a TrainJob has ended, and false if it hasn't.
func Ended(job *api.TrainJob) (at metav1.Time, ended bool) {
	end, _ := endOf(job)
	if end == nil {
		return at, false
	}
	return end.LastTransitionTime, true
}

func endOf(job *api.TrainJob) (end *metav1.Condition, failed bool) {
	for _, name := range []string{trainerapi.TrainJobComplete, trainerapi.TrainJobFailed} {
		if c := job.Status.Condition(name); c != nil && c.Status == metav1.ConditionTrue {
			return c, name == trainerapi.TrainJobFailed
		}
	}
	return nil, false
}

// Left returns for how much longer a TrainJob stays, 0 or less if its time is over, and false if it stays: it hasn't
// ended, or nothing says how long. The annotations are those that its runtime gives to its JobSet.
func Left(job *api.TrainJob, runtime map[string]string, now time.Time) (left time.Duration, set bool, err error) {
	end, failed := endOf(job)
	value, set := job.Annotations[api.TTLAnnotation]
	if !set {
		value, set = runtime[api.TTLAnnotation]
	}
	if end == nil || !set {
		return 0, false, nil
	}
	s, err := parse(value)
	if err != nil {
		return 0, false, fmt.Errorf("annotation %s of it or its runtime is %q; it %w", api.TTLAnnotation, cut(value), err)
	}
	stays := s.complete
	if failed {
		stays = s.failed
	}
	return end.LastTransitionTime.Add(stays).Sub(now), true, nil
}
