package admission

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

func TestErrors(t *testing.T) {
	cause := errors.New("why")
	for _, err := range []error{&BlockedError{Reason: "Any", Err: cause}, &PendingError{Err: cause}} {
		if err.Error() != "why" || !errors.Is(err, cause) {
			t.Errorf("%T says why, and is it: got %v", err, err)
		}
	}
}

// What a later entry takes away is a conflict with that entry.
func TestDecideAgainstLaterEntries(t *testing.T) {
	own := withEntry(t, overrides.Manager, `{spec: {}}`)
	const pod = "spec.runtimePatches[example.com/late].trainingRuntimeSpec.template.spec.replicatedJobs[node]." +
		"template.spec.template."
	cases := map[string]struct {
		reason, entry string
		change        func(*Input)
		path, source  string
	}{
		"tolerations": {"the flavor's nodes would refuse the pods", `{spec: {tolerations: [{key: late, operator: Exists}]}}`,
			func(*Input) {},
			pod + "spec.tolerations", "the admission"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Decide(input(t, c.change, own, withEntry(t, "example.com/late", c.entry)))
			var conflict *ConflictError
			if !errors.As(err, &conflict) || conflict.Path != c.path || conflict.Source != c.source ||
				conflict.WayOut != "take it out of the entry of example.com/late, or queue the TrainJob where the two agree" {
				t.Errorf("%s: got %+v", c.reason, err)
			}
		})
	}
}

// A Record that nobody of us wrote stops the start.
func TestDecideWithAForgedRecord(t *testing.T) {
	_, err := Decide(input(t, func(in *Input) {
		in.Dialect = dialect.Kubeflow21
		in.Job.Annotations = map[string]string{legacy.RecordAnnotation: "{"}
	}))
	if err == nil || !strings.Contains(err.Error(), "it was not written by Signalbox") {
		t.Errorf("got %v", err)
	}
}

// The place of the entry is decided with it.
func TestDecidePlaces(t *testing.T) {
	late := withEntry(t, "example.com/late", `{metadata: {labels: {a: b}}}`)
	own := withEntry(t, overrides.Manager, `{spec: {}}`)
	cases := map[string]struct {
		reason    string
		change    []func(*Input)
		at        int
		others    bool
		annotated bool
	}{
		"alone":   {"the list comes with it", nil, -1, false, false},
		"others":  {"it is appended", []func(*Input){late}, -1, true, false},
		"its own": {"it is replaced", []func(*Input){late, own}, 1, true, false},
		"annotated": {"even where the last annotation is " +
			"gone", []func(*Input){func(in *Input) { in.Job.Annotations = map[string]string{} }}, -1, false, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			start, err := Decide(input(t, c.change...))
			if err != nil || start.At != c.at || start.Others != c.others || start.Annotated != c.annotated {
				t.Errorf("%s: got %+v, %v", c.reason, start, err)
			}
		})
	}
}

func TestCanFit(t *testing.T) {
	container := func(name string, change ...func(*corev1.Container)) corev1.Container {
		c := corev1.Container{Name: name, Image: "i"}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	gpus := func(n string) func(*corev1.Container) {
		return func(c *corev1.Container) {
			c.Resources.Requests = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}
		}
	}
	env := func(name, value string) func(*corev1.Container) {
		return func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) }
	}
	rj := func(containers ...corev1.Container) jobset.ReplicatedJob {
		r := jobset.ReplicatedJob{Name: "node", Replicas: 1}
		r.Template.Spec.Template.Spec.Containers = containers
		return r
	}
	change := func(r jobset.ReplicatedJob, f func(*jobset.ReplicatedJob)) jobset.ReplicatedJob {
		f(&r)
		return r
	}
	selected := func(r *jobset.ReplicatedJob) {
		r.Template.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
	}
	one := rj(container("a"))
	cases := map[string]struct {
		reason       string
		have, want   jobset.ReplicatedJob
		fit, fitsNow bool
	}{
		"the same":         {"nothing is to be changed", one, one, true, true},
		"another selector": {"an update places its pods", one, change(one, selected), true, false},
		"another name": {"it is another ReplicatedJob", one, change(one, func(r *jobset.ReplicatedJob) { r.Name = "x" }),
			false, false},
		"more replicas": {"they can't change", one, change(one, func(r *jobset.ReplicatedJob) { r.Replicas = 2 }), false,
			false},
		"more pods": {"they can't " +
			"change", one, change(one, func(r *jobset.ReplicatedJob) { r.Template.Spec.Parallelism = ptr.To[int32](2) }), false,
			false},
		"a container less": {"it can't come", one, rj(container("a"), container("b")), false, false},
		"a container more": {"a webhook has added it", rj(container("a"), container("b")), one, true, true},
		"other resources":  {"what was taken away isn't seen otherwise", rj(container("a", gpus("1"))), one, false, false},
		"the variable": {"Trainer adds others, in any order", rj(container("a", env("X", "x"), env("A", "a"))),
			rj(container("a", env("A", "a"))), true, true},
		"a variable less": {"it can't come", one, rj(container("a", env("A", "a"))), false, false},
		"another variable": {"it can't change", rj(container("a", env("A", "b"))), rj(container("a", env("A", "a"))), false,
			false},
		"another container": {"its image can't change", rj(container("a", func(c *corev1.Container) { c.Image = "old" })),
			one, false, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			js := &jobset.JobSet{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{c.have}}}
			effective := &overrides.Effective{Built: []jobset.ReplicatedJob{c.want}}
			if got := CanFit(js, effective); got != c.fit {
				t.Errorf("%s: can fit %t", c.reason, got)
			}
			if got := Fits(js, effective); got != c.fitsNow {
				t.Errorf("%s: fits %t", c.reason, got)
			}
			if CanFit(&jobset.JobSet{}, effective) {
				t.Error("a ReplicatedJob can't come")
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	in := input(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decide(in); err != nil {
			b.Fatal(err)
		}
	}
}

func TestBlockedError(t *testing.T) {
	for name, c := range map[string]struct {
		reason, text string
		most         int
		cut          bool
	}{
		"short":             {"it is told as it is", "no such runtime", 15, false},
		"as long as it may": {"it is told as it is", strings.Repeat("a", maxMessage), maxMessage, false},
		"longer":            {"a condition holds 32,768 bytes", strings.Repeat("a", 100<<10), maxMessage + 3, true},
		"of wide runes":     {"none is cut in two", strings.Repeat("a", maxMessage-1) + "…", maxMessage + 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&BlockedError{Err: errors.New(c.text)}).Error()
			if len(got) != c.most || !utf8.ValidString(got) || strings.HasSuffix(got, "…") != c.cut || !c.cut && got != c.text {
				t.Errorf("%s: got %d bytes, %q", c.reason, len(got), got[max(0, len(got)-5):])
			}
		})
	}
}
