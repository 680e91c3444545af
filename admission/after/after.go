// Package after knows which TrainJobs of its namespace a TrainJob waits for, as annotation signalbox.dev/after of it
// says, and what follows from how these have ended. It reads and writes nothing.
package after

import (
	"errors"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/util/csv"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Gate is the name by which Kueue's annotation kueue.x-k8s.io/admission-gated-by keeps a TrainJob that waits for others
// from being admitted. Index finds the TrainJobs that wait for one of a name.
const (
	Gate  = api.AfterAnnotation
	Index = Gate
)

// Reason is the reason of condition Blocked where what a TrainJob waits for can't come true, or not before others are
// created. The message has the TrainJob that it waits for; delete the one that waits, or create the other.
const Reason = "DependencyNeverMet"

// Most is for how many TrainJobs one may wait.
const Most = 32

// When is how a TrainJob has to end that another waits for.
type When string

// How a TrainJob may have to end.
const (
	OK     When = "ok"
	Failed When = "failed"
	Any    When = "any"
)

// there and gone are noted of one that may end in any way: that it was there, and then that it was deleted, which is an
// end, too.
const (
	there When = "there"
	gone  When = "gone"
)

// words say how it has to end.
var words = map[When]string{OK: "has succeeded", Failed: "has failed", Any: "has ended"}

// String says it in words.
func (w When) String() string { return words[w] }

// holds reports whether an end is as it has to be.
func (w When) holds(end When) bool { return ended(end) && (w == Any || w == end) }

// ended reports whether what is noted of a TrainJob is an end.
func ended(end When) bool { return end != "" && end != there }

// Dependency is a TrainJob that another one waits for.
type Dependency struct {
	Name string
	When When
}

var errInvalid = errors.New(`must be names of TrainJobs of the namespace and how each has to end (ok, failed or any), ` +
	`such as "prepare=ok,warmup=any"; each name once, at most 32, and not its own`)

// parse reads a value of the annotation.
func parse(value string) ([]Dependency, error) {
	all, err := pairs(value)
	if err != nil || slices.ContainsFunc(all, func(d Dependency) bool { return words[d.When] == "" }) {
		return nil, errInvalid
	}
	return all, nil
}

// pairs reads names of TrainJobs, each once, with a word.
func pairs(value string) ([]Dependency, error) {
	var all []Dependency
	for part := range strings.SplitSeq(value, ",") {
		name, when, _ := strings.Cut(strings.TrimSpace(part), "=")
		d := Dependency{strings.TrimSpace(name), When(strings.TrimSpace(when))}
		same := func(o Dependency) bool { return o.Name == d.Name }
		if len(validation.IsDNS1123Subdomain(d.Name)) > 0 || slices.ContainsFunc(all, same) ||
			len(all) == Most {
			return nil, errInvalid
		}
		all = append(all, d)
	}
	return all, nil
}

// Of returns the TrainJobs that one waits for, or waited for; nil if none, or if the annotation is invalid.
func Of(job *api.TrainJob) []Dependency {
	value, set := job.Annotations[api.AfterAnnotation]
	if !set {
		return nil
	}
	all, err := parse(value)
	if err != nil {
		return nil // no webhook has seen it, and nothing waits
	}
	return all
}

// Check returns an error if the annotation of a new TrainJob is invalid.
func Check(job *api.TrainJob, path *field.Path) field.ErrorList {
	value, set := job.Annotations[api.AfterAnnotation]
	if !set {
		return nil
	}
	all, err := parse(value)
	if err == nil && job.Name != "" && slices.ContainsFunc(all, func(d Dependency) bool { return d.Name == job.Name }) {
		err = errInvalid
	}
	if err != nil {
		const most = 64
		if len(value) > most {
			value = value[:most] + "…"
		}
		return field.ErrorList{field.Invalid(path.Key(api.AfterAnnotation), value, err.Error())}
	}
	return nil
}

// gates returns the names by which a TrainJob's admission is gated.
func gates(job *api.TrainJob) []string {
	value := job.Annotations[constants.AdmissionGatedByAnnotation]
	if value == "" {
		return nil
	}
	return csv.Parse(value)
}

// Gated reports whether a TrainJob waits for others, or for being told that it doesn't any more.
func Gated(job *api.TrainJob) bool { return slices.Contains(gates(job), Gate) }

// Waits reports whether a TrainJob waits for others. One that nobody queues any more may run or end with its gate.
func Waits(job *api.TrainJob) bool {
	return Gated(job) && ptr.Deref(job.Spec.Suspend, false) && EndOf(job) == ""
}

// WithGate returns the value of Kueue's annotation with the gate.
func WithGate(job *api.TrainJob) string {
	if Gated(job) {
		return job.Annotations[constants.AdmissionGatedByAnnotation]
	}
	return strings.Join(append(gates(job), Gate), ",")
}

// WithoutGate returns the value of Kueue's annotation without the gate.
func WithoutGate(job *api.TrainJob) string {
	return strings.Join(slices.DeleteFunc(gates(job), func(name string) bool { return name == Gate }), ",")
}

// waitsFor returns the TrainJobs that one waits for.
func waitsFor(job *api.TrainJob) []Dependency {
	if !Waits(job) {
		return nil
	}
	return Of(job)
}

// IndexOf returns the names of the TrainJobs that one waits for.
func IndexOf(o client.Object) []string {
	job := o.(*api.TrainJob)
	var names []string
	for _, d := range waitsFor(job) {
		names = append(names, d.Name)
	}
	return names
}

// Pending returns the names of the TrainJobs that one waits for still: that they have ended as they have to isn't
// noted.
func Pending(job *api.TrainJob) []string {
	var names []string
	noted := notes(job)
	for _, d := range waitsFor(job) {
		if !d.When.holds(noted[d.Name]) {
			names = append(names, d.Name)
		}
	}
	return names
}

// EndOf returns how a TrainJob has ended; "" if it hasn't.
func EndOf(job *api.TrainJob) When {
	switch {
	case is(job, trainerapi.TrainJobComplete):
		return OK
	case is(job, trainerapi.TrainJobFailed):
		return Failed
	}
	return ""
}

func is(job *api.TrainJob, condition string) bool {
	c := job.Status.Condition(condition)
	return c != nil && c.Status == metav1.ConditionTrue
}

// notes returns what a TrainJob has noted of those that it runs after.
func notes(job *api.TrainJob) map[string]When {
	all := map[string]When{}
	noted, err := pairs(job.Annotations[api.AfterEndedAnnotation])
	if err != nil {
		return all // nothing yet, or what no webhook has seen
	}
	for _, d := range noted {
		all[d.Name] = d.When
	}
	return all
}

// Heeded reports whether a TrainJob that waits for another has noted how that has ended, or needn't any more, so that
// the other may go.
func Heeded(job, other *api.TrainJob) bool {
	noted := notes(job)[other.Name]
	return noted == EndOf(other) || slices.ContainsFunc(waitsFor(job), func(d Dependency) bool {
		return d.Name == other.Name && d.When.holds(noted)
	})
}
