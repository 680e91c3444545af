package integration

import (
	"reflect"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/integration/webhook"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// stopped gives the TrainJob and its JobSet the condition Suspended since so long ago, and the JobSet all its Jobs.
func stopped(trainJob, js time.Duration) func(*observed) {
	return func(o *observed) {
		o.job.Status.Conditions = append(o.job.Status.Conditions, is(trainerapi.TrainJobSuspended, trainJob))
		o.jobSet.Status.Conditions = append(o.jobSet.Status.Conditions, is(string(jobset.JobSetSuspended), js))
		o.jobSet.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Suspended: 1}}
		o.job.Status.JobsStatus = []trainerapi.JobStatus{{Name: "node", Ready: ptr.To[int32](0), Succeeded: ptr.To[int32](0),
			Failed: ptr.To[int32](0), Active: ptr.To[int32](0), Suspended: ptr.To[int32](1)}}
	}
}

// isForeign gives the TrainJob the Record of a previous Trainer.
func isForeign(o *observed) {
	o.queue.foreign = &legacy.Record{Field: legacy.PodTemplateOverrides}
}

func TestActive(t *testing.T) {
	const bundled, kubeflow = "bundled", "kubeflow"
	dialects := map[string]*dialect.Dialect{bundled: dialect.Bundled, kubeflow: dialect.Kubeflow23}
	pod := func(o *observed) { o.left.pods = []corev1.Pod{{}} }
	cases := map[string]struct {
		reason, trainer string
		change          []func(*observed)
		want            bool
	}{
		"runs":  {"it isn't suspended", kubeflow, []func(*observed){runs}, true},
		"ended": {"its last pod has not", bundled, []func(*observed){ends}, true},
		"over": {"its last pod has", bundled, []func(*observed){ends,
			func(o *observed) { o.left.over = true }}, false},
		"nothing":        {"nothing runs", bundled, nil, false},
		"a pod":          {"a pod that terminates still runs", bundled, []func(*observed){pod}, true},
		"bundled JobSet": {"it is deleted after its last pod", bundled, []func(*observed){withJobSet}, true},
		"kept JobSet": {"only a finalizer keeps it", bundled, []func(*observed){withJobSet,
			func(o *observed) { o.left.kept = "JobSet job" }}, false},
		"Trainer's JobSet":       {"it is kept between runs", kubeflow, []func(*observed){withJobSet}, false},
		"Trainer's JobSet's pod": {"a pod that terminates still runs", kubeflow, []func(*observed){withJobSet, pod}, true},
		"stopped soon after start": {"Trainer may see the start only now", kubeflow,
			[]func(*observed){withJobSet, withEntry(time.Second)}, true},
		"stopped, only Trainer has": {"JobSet may see the start only now", kubeflow, []func(*observed){withJobSet,
			withEntry(10 * time.Second), stopped(time.Second, time.Minute)}, true},
		"stopped, only JobSet has": {"Trainer may see the start only now", kubeflow, []func(*observed){withJobSet,
			withEntry(10 * time.Second), stopped(time.Minute, time.Second)}, true},
		"stopped, both have": {"both have followed the start", kubeflow, []func(*observed){withJobSet,
			withEntry(10 * time.Second), stopped(time.Second, time.Second)}, false},
		"stopped in the second of the start": {"conditions have no fractions of seconds", kubeflow, []func(*observed){
			withJobSet, withEntry(10 * time.Second), stopped(10*time.Second, time.Second)}, true},
		"stopped later": {"nobody acts on the start any more", kubeflow, []func(*observed){withJobSet,
			withEntry(resumeTimeout)}, false},
		"cleared": {"it has not been started since", kubeflow,
			[]func(*observed){withJobSet, withClearedEntry(time.Second)}, false},
		"no JobSet": {"there is nothing to resume", kubeflow, []func(*observed){withEntry(time.Second)}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := observation(dialects[c.trainer], c.change...).left.active; got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
	left := observation(dialect.Kubeflow23, withJobSet, withEntry(5*time.Second))
	if got := left.trainer.trainerStarts.(keyedTrainer).mayResume(left.observed); got != 15*time.Second {
		t.Errorf("it is over 20 seconds after the start: got %s", got)
	}
}

func TestPrepare(t *testing.T) {
	snapshot := &store.Snapshot{Object: &corev1.ConfigMap{}}
	snapshot.Object.UID, snapshot.Object.CreationTimestamp = "snapshot", ago(time.Minute)
	outdated := func(o *observed) { o.queue.choice.Snapshot, o.queue.choice.Outdated = snapshot, true }
	older := func(o *observed) {
		o.queue.choice.Snapshot = snapshot
		o.jobSet.CreationTimestamp = ago(time.Hour)
	}
	const state = "generation 0, snapshot snapshot"
	resumed := func(o *observed) { o.jobSet.Spec.Suspend = ptr.To(false) }
	const cleared, edited = "the last admission is not cleared yet", "Trainer has not taken the edited runtime yet"
	const migrating = "its spec.podTemplateOverrides is not migrated to spec.runtimePatches yet"
	b, k := dialect.Bundled, dialect.Kubeflow23
	type list = []func(*observed)
	deletes := func(foreground bool, rebuilt string) func(*observed) []step {
		return func(o *observed) []step { return []step{deleteJobSet{o.jobSet, foreground, rebuilt}} }
	}
	cases := map[string]struct {
		reason  string
		dialect *dialect.Dialect
		change  list
		want    func(*observed) []step
		waiting string
	}{
		"bundled":         {"it is ready", b, nil, nil, ""},
		"bundled JobSet":  {"its pods may run", b, list{withJobSet}, nil, "the JobSet of the last admission is not gone yet"},
		"bundled, a pod":  {"entries can't change", b, list{withEntry(0), hasPod}, nil, cleared},
		"bundled, entry":  {"nothing runs", b, list{withEntry(0)}, clears, cleared},
		"migrates":        {"nothing runs", b, list{isForeign}, migrates, migrating},
		"migrates later":  {"entries can't change", b, list{isForeign, hasPod}, nil, migrating},
		"migrates, stops": {"it stops", b, list{isForeign, withJobSet}, nil, migrating},
		"migrates, can't stop": {"the present Trainer can't stop it", b, list{isForeign, withJobSet, resumed},
			deletes(true, ""), migrating},
		"Trainer":          {"it is ready", k, list{withJobSet}, nil, ""},
		"Trainer migrates": {"nothing runs", k, list{withJobSet, isForeign}, migrates, migrating},
		"no JobSet yet":    {"nothing is to be rebuilt", k, nil, nil, ""},
		"cleared":          {"it is ready", k, list{withJobSet, withClearedEntry(0)}, nil, ""},
		"entry":            {"nothing runs", k, list{withEntry(time.Hour)}, clears, cleared},
		"entry, a pod":     {"entries can't change", k, list{withEntry(time.Hour), withJobSet, hasPod}, nil, cleared},
		"entry, overdue": {"it doesn't wait for ever", k, list{withEntry(time.Hour), withJobSet,
			isAdmitted(settleTimeout + time.Second)}, clears, cleared},
		"entry, writes pending": {"Trainer is about to write the TrainJob", k, list{withEntry(time.Hour), withJobSet,
			isAdmitted(time.Second)}, nil, cleared},
		"edited": {"Trainer is to follow", k, list{withJobSet, outdated},
			func(o *observed) []step {
				return []step{deleteSnapshot{snapshot.Object}, deleteJobSet{jobSet: o.jobSet}}
			}, edited},
		"edited, no JobSet": {"Trainer is to follow", k, list{outdated},
			func(*observed) []step { return []step{deleteSnapshot{snapshot.Object}} }, edited},
		"older JobSet": {"it is of an earlier runtime", k, list{withJobSet, older}, deletes(false, state), ""},
		"older JobSet again": {"somebody else changed it", k, list{withJobSet, older,
			func(o *observed) { o.memory.rebuilt = state }}, nil, ""},
		"another JobSet": {"it can't be updated", k, list{withJobSet,
			func(o *observed) { o.jobSet.Spec.ReplicatedJobs[0].Name = "other" }}, deletes(false, "generation 0"), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := observation(c.dialect, append(list{withChoice}, c.change...)...)
			steps, waiting := o.trainer.prepare(o.observed)
			var want []step
			if c.want != nil {
				want = c.want(o.observed)
			}
			wantSteps(t, c.reason, steps, want...)
			if waiting != c.waiting {
				t.Errorf("%s: waits for %q", c.reason, waiting)
			}
		})
	}
}

func hasPod(o *observed) { o.left.pods = []corev1.Pod{{}} }

func clears(*observed) []step { return []step{clearEntry{}} }

func migrates(o *observed) []step { return []step{migrate{record: o.queue.foreign}} }

// A start waits until the Jobs of the last admission follow the JobSet's template: JobSet merges into a Job that it
// resumes.
func TestSettle(t *testing.T) {
	child := func(change ...func(*batchv1.Job)) func(*observed) {
		return func(o *observed) {
			job := batchv1.Job{}
			job.Name, job.Labels = "job-node-0", map[string]string{jobset.ReplicatedJobNameKey: "node"}
			job.Spec.Suspend = ptr.To(true)
			for _, c := range change {
				c(&job)
			}
			o.queue.start.jobs = append(o.queue.start.jobs, job)
		}
	}
	differs := func(job *batchv1.Job) { job.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "b"} }
	deleted := func(job *batchv1.Job) { job.DeletionTimestamp = ptr.To(ago(0)) }
	restarts := func(admitted time.Duration, more ...func(*observed)) *situation {
		return observation(dialect.Kubeflow23, append([]func(*observed){withChoice, withJobSet, isAdmitted(admitted),
			stopped(time.Minute, time.Minute), withClearedEntry(time.Minute)}, more...)...)
	}
	const replaced, missing = "its Jobs of the last admission are being replaced", "its Job job-node-0 is not created yet"
	unmade := func(o *observed) { o.jobSet = nil }
	cases := map[string]struct {
		reason  string
		o       *situation
		deletes bool
		waiting string
		events  []events.Event
	}{
		"ready":            {"its Job follows", restarts(0, child()), false, "", nil},
		"differs":          {"it would be merged into", restarts(0, child(differs)), true, replaced, nil},
		"differs for long": {"it is deleted again", restarts(jobsTimeout, child(differs)), true, replaced, nil},
		"differs for ever": {"somebody else changes it", restarts(jobsTimeout+time.Second, child(differs)), false, "", nil},
		"deleted":          {"its successor comes", restarts(0, child(differs, deleted)), false, replaced, nil},
		"missing":          {"its successor comes", restarts(0), false, missing, nil},
		"missing for long": {"its successor comes", restarts(jobsTimeout), false, missing, nil},
		"missing for ever": {"nothing makes it", restarts(jobsTimeout + time.Second), false, "", nil},
		"cleared just now": {"the wait begins with the clearing", restarts(time.Hour, withClearedEntry(0)), false,
			missing, nil},
		"first start": {"it has no Jobs of a last admission", restarts(0, func(o *observed) {
			o.job.Spec.RuntimePatches = nil
		}), false, "", nil},
		"not settled": {"Trainer has writes to do", restarts(0, unmade), false, "its JobSet is not created yet", nil},
		"not settled, late": {"it starts in the end", restarts(time.Minute, unmade), false, "", []events.Event{
			events.NotSettled.Of(settleTimeout, "its JobSet is not created yet")}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := c.o.trainer.settle(c.o.observed)
			if got.waiting != c.waiting || !reflect.DeepEqual(got.events, c.events) {
				t.Errorf("%s: got %+v", c.reason, got)
			}
			if c.deletes {
				wantSteps(t, c.reason, got.steps, deleteJob{&c.o.queue.start.jobs[0]})
			} else {
				wantSteps(t, c.reason, got.steps)
			}
		})
	}
	if got := observation(dialect.Bundled).trainer.settle(nil); !reflect.DeepEqual(got, settlement{}) {
		t.Errorf("the bundled Trainer has nothing to finish: got %+v", got)
	}
}

func TestTrainers(t *testing.T) {
	for d, want := range map[*dialect.Dialect]struct {
		ways           []string
		state, deletes bool
		reviews        webhook.Reviews
	}{
		dialect.Bundled:    {[]string{oneWrite}, true, true, webhook.Bundled()},
		dialect.Kubeflow23: {[]string{oneWrite, twoWrites}, false, false, webhook.Keyed(dialect.Kubeflow23.Name)},
		dialect.Kubeflow22: {[]string{oneWrite, twoWrites}, false, false, webhook.Keyed(dialect.Kubeflow22.Name)},
		dialect.Kubeflow21: {[]string{oneWrite, twoWrites}, false, false, webhook.Lists(dialect.Kubeflow21.List)},
		dialect.Kubeflow20: {[]string{oneWrite, twoWrites}, false, false, webhook.Lists(dialect.Kubeflow20.List)},
	} {
		tr := trainerOf(d)
		if !reflect.DeepEqual(tr.ways, want.ways) || (len(tr.states) > 0) != want.state || tr.deletesJobSet != want.deletes ||
			tr.reviews != want.reviews {
			t.Errorf("%s: got %v, %v, %t, %T", d.Name, tr.ways, tr.states, tr.deletesJobSet, tr.reviews)
		}
	}
}

// The runtime is pinned with the first start, and only beside the bundled Trainer.
func TestComplete(t *testing.T) {
	first, again := &admission.Start{}, &admission.Start{}
	o := observation(dialect.Bundled, withChoice)
	if err := o.trainer.complete(o.observed, first); err != nil || !first.NewPin || first.Pin == "" {
		t.Errorf("got %+v, %v", first, err)
	}
	o.job.Annotations = map[string]string{store.PinAnnotation: "pin"}
	if err := o.trainer.complete(o.observed, again); err != nil || again.NewPin || again.Pin != "pin" {
		t.Errorf("got %+v, %v", again, err)
	}
	beside := &admission.Start{}
	o = observation(dialect.Kubeflow23, withChoice)
	if err := o.trainer.complete(o.observed, beside); err != nil || beside.Pin != "" || beside.NewPin {
		t.Errorf("got %+v, %v", beside, err)
	}
}

func TestReclaimable(t *testing.T) {
	o := observation(dialect.Bundled)
	if o.reclaimable() != nil {
		t.Error("nothing is known before it is computed")
	}
	withJobSet(o.observed)
	runs(o.observed)
	if got := o.reclaimable(); len(got) > 0 || o.ready() {
		t.Errorf("no pod has ended yet: got %v", got)
	}
	o.jobSet.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Succeeded: 1}}
	if !o.ready() {
		t.Error("a pod that has succeeded counts as ready")
	}
	o = observation(dialect.Kubeflow23, withChoice)
	if o.reclaimable() != nil || o.ready() {
		t.Error("Kubeflow Trainer keeps the JobSet")
	}
}
