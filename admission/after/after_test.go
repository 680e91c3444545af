package after

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kueue/pkg/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// jobOf returns a gated TrainJob.
func jobOf(name, after, noted string) *api.TrainJob {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		api.AfterAnnotation: after, constants.AdmissionGatedByAnnotation: Gate}}}
	job.Spec.Suspend = new(true)
	if noted != "" {
		job.Annotations[api.AfterEndedAnnotation] = noted
	}
	return job
}

// others are TrainJobs by their names: how each has ended, "" if it hasn't, "never" if it can't run.
type others map[string]string

func (o others) lookup(name string) (*api.TrainJob, error) {
	end, there := o[name]
	if !there {
		return nil, nil
	}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c := metav1.Condition{Status: metav1.ConditionTrue}
	switch end {
	case "ok":
		c.Type = trainerapi.TrainJobComplete
	case "failed":
		c.Type = trainerapi.TrainJobFailed
	case "never":
		c.Type, c.Reason = api.ConditionBlocked, Reason
	case "down":
		return nil, errors.New("down")
	}
	job.Status.Conditions = []metav1.Condition{c}
	return job, nil
}

// TestDecide holds what follows from how others have ended, or haven't.
func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		reason       string
		after, noted string
		others       others
		open         bool
		note, never  string
		missing      bool
	}{
		"succeeded": {reason: "as it had to", after: "a=ok", others: others{"a": "ok"}, open: true},
		"ended": {reason: "either will do",
			after: "a=any, b=any", others: others{"a": "ok", "b": "failed"}, open: true},
		"failed as it had to": {reason: "a cleanup, say", after: "a=failed", others: others{"a": "failed"}, open: true},
		"runs":                {reason: "it waits", after: "a=ok", others: others{"a": ""}},
		"one of two": {reason: "that is noted",
			after: "a=ok,b=ok", others: others{"a": "ok", "b": ""}, note: "a=ok"},
		"noted before": {reason: "once is enough", after: "a=ok,b=ok", noted: "a=ok", others: others{"b": ""}},
		"there": {reason: "its deletion is to be an end",
			after: "a=any,b=ok", others: others{"a": "", "b": ""}, note: "a=there"},
		"there, noted":        {reason: "once is enough", after: "a=any", noted: "a=there", others: others{"a": ""}},
		"there, then deleted": {reason: "that is an end", after: "a=any", noted: "a=there", open: true},
		"one of two deleted": {reason: "that is noted",
			after: "a=any,b=ok", noted: "a=there", others: others{"b": ""}, note: "a=gone"},
		"created after that": {reason: "it had ended before",
			after: "a=any,b=ok", noted: "a=gone", others: others{"a": "", "b": ""}},
		"there, has ended": {reason: "in any way",
			after: "a=any", noted: "a=there", others: others{"a": "failed"}, open: true},
		"deleted meanwhile": {reason: "it counts as it ended", after: "a=ok", noted: "a=ok", open: true},
		"failed": {reason: "it must not have",
			after: "a=ok", others: others{"a": "failed"}, note: "a=failed", never: "a has succeeded, and that has failed"},
		"failed and deleted": {reason: "it counts as it ended",
			after: "a=ok", noted: "a=failed", never: "create a again"},
		"created again": {reason: "the new one counts",
			after: "a=ok", noted: "a=failed", others: others{"a": ""}},
		"created again, ended": {reason: "the new one counts",
			after: "a=ok", noted: "a=failed", others: others{"a": "ok"}, open: true},
		"succeeded and again": {reason: "it had succeeded",
			after: "a=ok", noted: "a=ok", others: others{"a": "failed"}, open: true},
		"not there": {reason: "it may be created",
			after: "a=ok", never: "there is none of that name", missing: true},
		"neither there": {reason: "the first is named",
			after: "a=ok,b=ok", never: "TrainJob a has", missing: true},
		"not there, and failed": {reason: "nothing helps",
			after: "a=ok,b=ok", others: others{"b": "failed"}, note: "b=failed", never: "TrainJob b has"},
		"can't run": {reason: "nor can this one",
			after: "a=ok", others: others{"a": "never"}, never: "that can't run"},
		"nothing":          {reason: "its manifest has the gate alone", after: " ", open: true},
		"noted what isn't": {reason: "no webhook has seen it", after: "a=ok", noted: "x", others: others{"a": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := Decide(jobOf("job", c.after, c.noted), c.others.lookup)
			never := ""
			if v.Never != nil {
				never = v.Never.Error()
			}
			if err != nil || v.Open != c.open || ptr.Deref(v.Note, "") != c.note || v.Missing != c.missing ||
				(never == "") != (c.never == "") ||
				!strings.Contains(never, c.never) {
				t.Errorf("%s: got %+v, %v", c.reason, v, err)
			}
		})
	}
	again := jobOf("job", "a=ok", "a=failed")
	if v, err := Decide(again, others{"a": ""}.lookup); err != nil || v.Note == nil || *v.Note != "" {
		t.Errorf("what an earlier one of the name did is taken back: got %+v, %v", v, err)
	}
	free := jobOf("job", "a=ok", "")
	delete(free.Annotations, constants.AdmissionGatedByAnnotation)
	if v, err := Decide(free, nil); err != nil || v != (Verdict{}) || IndexOf(free) != nil {
		t.Errorf("one whose gate is open waits for nobody: got %+v, %v", v, err)
	}
	down := others{"a": "down"}
	if _, err := Decide(jobOf("job", "a=ok", ""), down.lookup); err == nil {
		t.Error("what can't be read decides nothing")
	}
	if _, err := Circle(jobOf("job", "a=ok", ""), down.lookup); err == nil {
		t.Error("what can't be read is no circle")
	}
}

// TestChanged holds which changes of a TrainJob are looked at by those that wait for it.
func TestChanged(t *testing.T) {
	all := others{"runs": "", "ok": "ok", "failed": "failed", "never": "never"}
	for before := range all {
		for now := range all {
			was, _ := all.lookup(before)
			is, _ := all.lookup(now)
			if got := Changed(was, is); got != (before != now) {
				t.Errorf("from %s to %s: got %v", before, now, got)
			}
		}
	}
}

// TestCircle holds who waits for itself.
func TestCircle(t *testing.T) {
	long := map[string]string{"job": "0=ok"}
	for i := range 2 * longest {
		long[fmt.Sprint(i)] = fmt.Sprintf("%d=ok", i+1)
	}
	for name, c := range map[string]struct {
		of   map[string]string
		want string
	}{
		"two": {map[string]string{"job": "a=ok", "a": "job=any"}, "job waits for a waits for job"},
		"three, by one": {map[string]string{"job": "a=ok,b=ok", "b": "a=ok,c=ok", "c": "job=ok"},
			"job waits for b waits for c waits for job"},
		"a chain":         {map[string]string{"job": "a=ok", "a": "b=ok"}, ""},
		"before a circle": {map[string]string{"job": "a=ok", "a": "b=ok", "b": "a=ok"}, ""},
		"twice":           {map[string]string{"job": "a=ok,b=ok", "a": "c=ok", "b": "c=ok", "c": "d=ok"}, ""},
		"too long":        {long, ""},
	} {
		lookup := func(name string) (*api.TrainJob, error) {
			if after, there := c.of[name]; there {
				return jobOf(name, after, ""), nil
			}
			return nil, nil
		}
		circle, err := Circle(jobOf("job", c.of["job"], ""), lookup)
		if err != nil || (circle == nil) != (c.want == "") ||
			circle != nil && !strings.Contains(circle.Error(), ": "+c.want+";") {
			t.Errorf("%s: got %v, %v", name, circle, err)
		}
	}
	again := map[string]*api.TrainJob{"a": jobOf("a", "b=ok", "b=failed"), "b": jobOf("b", "a=any", "a=there")}
	for name, job := range again { // b was created again
		lookup := func(name string) (*api.TrainJob, error) { return again[name], nil }
		if circle, err := Circle(job, lookup); circle == nil || err != nil {
			t.Errorf("%s waits for itself, by one that was created again: got %v, %v", name, circle, err)
		}
	}
	noted := jobOf("job", "job-2=ok", "job-2=ok")
	if circle, err := Circle(noted, others{}.lookup); circle != nil || err != nil {
		t.Errorf("one that has ended waits for nobody: got %v, %v", circle, err)
	}
}

// TestCheck holds what the annotation may say.
func TestCheck(t *testing.T) {
	const spaced = " a = failed , b=ok "
	for value, valid := range map[string]bool{
		"a=ok": true, "a=ok,b.c=any": true, spaced: true,
		"": false, "a": false, "a=": false, "=ok": false, "a=done": false, "a=ok,": false, "a=ok,a=any": false, "A=ok": false,
		"a/b=ok": false, "job=ok": false, strings.Repeat("x", 300) + "=ok": false,
		strings.Repeat("a=ok,", Most) + "b=ok": false,
	} {
		job := jobOf("job", value, "")
		if errs := Check(job, field.NewPath("annotations")); (len(errs) == 0) != valid {
			t.Errorf("%q: got %v", value, errs)
		}
	}
	if errs := Check(&api.TrainJob{}, nil); len(errs) > 0 {
		t.Errorf("one without it: got %v", errs)
	}
	many := make([]string, Most)
	for i := range many {
		many[i] = fmt.Sprintf("a%d=any", i)
	}
	if got := Of(jobOf("job", strings.Join(many, ","), "")); len(got) != Most || got[31] != (Dependency{"a31", Any}) {
		t.Errorf("as many as there may be: got %v", got)
	}
	if got := Of(jobOf("job", strings.Join(append(many, "b=any"), ","), "")); got != nil {
		t.Errorf("one more: got %v", got)
	}
}

// TestGate holds that gates of others are left.
func TestGate(t *testing.T) {
	job := jobOf("job", "a=ok,b=any", "")
	if got := IndexOf(job); !reflect.DeepEqual(got, []string{"a", "b"}) || !Gated(job) || WithGate(job) != Gate ||
		WithoutGate(job) != "" {
		t.Errorf("it waits for both: got %v", got)
	}
	for name, change := range map[string]func(*api.TrainJob){
		"runs": func(job *api.TrainJob) { job.Spec.Suspend = new(false) },
		"ends": func(job *api.TrainJob) {
			job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobFailed, Status: metav1.ConditionTrue}}
		},
	} {
		free := job.DeepCopy()
		if change(free); IndexOf(free) != nil {
			t.Errorf("one that %s with its gate, outside of its queue, waits for nobody: got %v", name, IndexOf(free))
		}
	}
	job.Annotations[constants.AdmissionGatedByAnnotation] = "example.com/budget"
	if Gated(job) || WithGate(job) != "example.com/budget,"+Gate {
		t.Errorf("another's gate is another's: got %q", WithGate(job))
	}
	job.Annotations[constants.AdmissionGatedByAnnotation] = Gate + ",example.com/budget"
	if WithoutGate(job) != "example.com/budget" {
		t.Errorf("another's gate stays: got %q", WithoutGate(job))
	}
	failed, _ := others{"a": "failed"}.lookup("a")
	for noted, want := range map[string]bool{
		"": false, "a=failed": true, "a=ok": true, "b=failed": false, "a=there": false,
	} {
		if got := Heeded(jobOf("job", "a=ok,b=any", noted), failed); got != want {
			t.Errorf("noted %q: got %v", noted, got)
		}
	}
}

// TestPending holds for whom one waits still.
func TestPending(t *testing.T) {
	for noted, want := range map[string]string{
		"": "a b c", "a=ok": "b c", "a=failed": "a b c", "a=ok,b=there": "b c", "a=ok,b=gone,c=failed": "",
	} {
		if got := strings.Join(Pending(jobOf("job", "a=ok,b=any,c=failed", noted)), " "); got != want {
			t.Errorf("%q: waits for %q, want %q", noted, got, want)
		}
	}
}
