package after

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Lookup returns a TrainJob of the namespace by its name; nil if there is none.
type Lookup func(name string) (*api.TrainJob, error)

// Verdict is what follows for a TrainJob from those that it waits for. It is zero for one that waits for none, and for
// one that waits.
type Verdict struct {
	// Open is set if all have ended as they had to: the gate is to be removed.
	Open bool
	// Note is the value of annotation signalbox.dev/after-ended that is to be written, "" for none, so that it isn't
	// forgotten how they have ended when they are deleted; nil if nothing is new.
	Note *string
	// Never is why the TrainJob can't run; nil if it may.
	Never error
	// Missing is set if Never is because one isn't there, which may be created next.
	Missing bool
}

// Decide decides what follows for a TrainJob from those that it waits for.
func Decide(job *api.TrainJob, lookup Lookup) (v Verdict, err error) {
	if !Gated(job) {
		return v, nil
	}
	noted, news, waits := notes(job), false, false
	for _, d := range Of(job) {
		end := noted[d.Name]
		if !d.When.holds(end) { // one that was created again counts instead
			other, err := lookup(d.Name)
			if err != nil {
				return Verdict{}, err
			}
			end = v.look(d, other, end)
			news = news || end != noted[d.Name]
			noted[d.Name] = end
		}
		if !ended(end) {
			waits = true
		} else if !d.When.holds(end) {
			v.Missing = false
			v.Never = fmt.Errorf("it runs after TrainJob %s %s, and that %s; delete it, or create %s again", d.Name, d.When,
				end, d.Name)
		}
	}
	if v.Open = !waits && v.Never == nil; !v.Open && news {
		v.Note = new(note(job, noted))
	}
	return v, nil
}

// look returns what is known of a TrainJob, of which something may be noted, and says why it never will end.
func (v *Verdict) look(d Dependency, other *api.TrainJob, noted When) When {
	if other == nil {
		return v.missed(d, noted)
	}
	if end := EndOf(other); end != "" {
		return end
	}
	if never(other) && v.Never == nil {
		v.Never = fmt.Errorf("it runs after TrainJob %s %s, and that can't run, as its condition %s says", d.Name, d.When,
			api.ConditionBlocked)
	}
	if d.When == Any {
		return there
	}
	return ""
}

// missed returns what is known of a TrainJob that isn't there.
func (v *Verdict) missed(d Dependency, noted When) When {
	switch {
	case noted == there:
		return gone
	case noted == "" && v.Never == nil:
		v.Missing = true
		v.Never = fmt.Errorf("it runs after TrainJob %s %s, and there is none of that name in the namespace, or it was "+
			"deleted before it had ended; create it", d.Name, d.When)
	}
	return noted
}

// never reports whether a TrainJob says that those that it runs after keep it from running.
func never(job *api.TrainJob) bool {
	c := job.Status.Condition(api.ConditionBlocked)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == Reason
}

// Changed reports whether what decides about those that wait for a TrainJob has changed: that it has ended, or that it
// can't run itself.
func Changed(before, now *api.TrainJob) bool {
	return EndOf(before) != EndOf(now) || never(before) != never(now)
}

// note returns the value of the annotation that notes how TrainJobs have ended, in the order in which they are named.
func note(job *api.TrainJob, ends map[string]When) string {
	var parts []string
	for _, d := range Of(job) {
		if end := ends[d.Name]; end != "" {
			parts = append(parts, d.Name+"="+string(end))
		}
	}
	return strings.Join(parts, ",")
}

// longest is how many TrainJobs are looked at for a circle.
const longest = 256

// Circle returns why a TrainJob waits for itself, by those that it waits for; nil if it doesn't, or if the circle is of
// more than 256.
func Circle(job *api.TrainJob, lookup Lookup) (circle, err error) {
	by := map[string]string{} // who waits for it
	next := []*api.TrainJob{job}
	for len(next) > 0 && len(by) < longest {
		at := next[0]
		next = next[1:]
		noted := notes(at)
		for _, d := range waitsFor(at) {
			name := d.Name
			if _, seen := by[name]; seen || d.When.holds(noted[name]) {
				continue
			}
			by[name] = at.Name
			if name == job.Name {
				return fmt.Errorf("it runs after itself: %s; delete one of them", path(job.Name, by)), nil
			}
			other, err := lookup(name)
			if err != nil {
				return nil, err
			}
			if other != nil && EndOf(other) == "" {
				next = append(next, other)
			}
		}
	}
	return nil, nil
}

// path returns the circle, in the order in which they would run.
func path(name string, by map[string]string) string {
	names := []string{name}
	for at := by[name]; at != name; at = by[at] {
		names = append(names, at)
	}
	names = append(names, name)
	slices.Reverse(names)
	return strings.Join(names, " waits for ")
}
