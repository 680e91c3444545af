package stalled

import (
	"reflect"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// readyFor is condition Stalled of a TrainJob whose pods have been ready for so long.
func readyFor(d time.Duration) *metav1.Condition {
	return &metav1.Condition{Type: api.ConditionStalled, Status: metav1.ConditionFalse, Reason: ReasonReports,
		LastTransitionTime: ago(d), ObservedGeneration: 7}
}

// runs is a TrainJob with the annotation that has been ready for an hour, on quota, and has three restarts left.
func runs(value string) Run {
	job := &api.TrainJob{}
	job.Name, job.Annotations = "resnet", map[string]string{api.StalledAfterAnnotation: value}
	job.Status.Queue = &api.QueueStatus{Conditions: []metav1.Condition{*readyFor(time.Hour)}}
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{UID: "js", Annotations: map[string]string{}}}
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "sidecar"}, {Name: "node", Env: []corev1.EnvVar{{Name: "A"}, {Name: serverURL}}}}
	js.Spec.ReplicatedJobs = []jobset.ReplicatedJob{rj}
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Ready: 1}}
	wl := &kueue.Workload{}
	wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadAdmitted, Status: metav1.ConditionTrue}}
	return Run{Job: job, JobSet: js, Workload: wl, Restarts: 3, Listening: now.Add(-24 * time.Hour)}
}

// reports is a report that has arrived so long ago.
func reports(d time.Duration) func(*Run) {
	return func(r *Run) { r.Job.Status.TrainerStatus = &trainerapi.TrainerStatus{LastUpdatedTime: ago(d)} }
}

// all are several changes.
func all(changes ...func(*Run)) func(*Run) {
	return func(r *Run) {
		for _, change := range changes {
			change(r)
		}
	}
}

func ready(d time.Duration) func(*Run) {
	return func(r *Run) { r.Job.Status.Queue.Conditions[0] = *readyFor(d) }
}

// wasStalled is a stall that was written, with the last report so long ago.
func wasStalled(d time.Duration) func(*Run) {
	return func(r *Run) {
		c := &r.Job.Status.Queue.Conditions[0]
		c.Status, c.Reason, c.LastTransitionTime = metav1.ConditionTrue, ReasonNoReport, ago(d)
	}
}

// TestJudge holds when a TrainJob has stalled, what follows, and when to look again.
func TestJudge(t *testing.T) {
	const half, second = 30 * time.Minute, time.Second
	byRuntime := func(value string) func(*Run) {
		return func(r *Run) {
			r.Job.Annotations = nil
			r.JobSet.Annotations[api.StalledAfterAnnotation] = value
		}
	}
	for name, c := range map[string]struct {
		value   string // default 30m
		change  func(*Run)
		stalled bool
		then    Action
		since   time.Duration // the condition's time, before now
		again   time.Duration
		says    string // in the message
	}{
		"it has never reported": {stalled: true, since: time.Hour,
			says: "since 2026-11-28T11:00:00Z, for longer than 30m"},
		"it reported long ago": {change: reports(half), stalled: true, since: half,
			says: "kubectl signalbox logs resnet"},
		"it reported a second later": {change: reports(half - second), since: time.Hour, again: second,
			says: "after 30m"},
		"it reports at this moment":    {change: reports(0), since: time.Hour, again: half},
		"it became ready a minute ago": {change: ready(time.Minute), since: time.Minute, again: half - time.Minute},
		"it reported in its last run": {change: all(reports(time.Hour), ready(time.Minute)), since: time.Minute,
			again: half - time.Minute},
		"it is ready for the first time": {change: func(r *Run) { r.Job.Status.Queue = nil }, again: half},
		"another clock is ahead":         {change: reports(-half / 60), since: time.Hour, again: half + half/60},
		"another clock is far ahead":     {value: "30m,stop", change: reports(-time.Hour), since: time.Hour, again: half},
		"its condition is of the future": {change: ready(-time.Hour), again: half},
		"stopped": {value: "30m,stop", stalled: true, since: time.Hour, then: Stop,
			says: "; it is stopped"},
		"restarted": {value: "30m, restart", stalled: true, since: time.Hour, then: Restart,
			says: "; it is restarted"},
		"its runtime's": {change: byRuntime("30m,stop"), stalled: true, since: time.Hour, then: Stop},
		"its own precedes its runtime's": {value: "2h",
			change: func(r *Run) { r.JobSet.Annotations[api.StalledAfterAnnotation] = "30m" }, since: time.Hour,
			again: time.Hour},
		"the shortest": {value: "1m", change: ready(time.Minute), stalled: true, since: time.Minute,
			says: "longer than 60s"},
		"stalled, and goes on": {change: all(reports(40*time.Minute), wasStalled(40*time.Minute)),
			stalled: true, since: 40 * time.Minute},
		"stalled, and reports": {change: all(reports(second), wasStalled(time.Hour)), since: second,
			again: half - second},
		"stalled, and it may take longer": {value: "2h", change: wasStalled(time.Hour), since: time.Hour,
			again: time.Hour},
		"the manager has just started": {value: "30m,stop", change: func(r *Run) { r.Listening = now.Add(-second) },
			stalled: true, since: time.Hour, again: half - second, says: "it is stopped"},
		"nothing follows of one that was received": {value: "30m,stop", stalled: true, since: time.Hour,
			change: func(r *Run) { r.Job.Labels = map[string]string{kueue.MultiKueueOriginLabel: "a"} },
			says:   "in the cluster that it was submitted to"},
		"one that was received restarts": {value: "30m,restart", stalled: true, since: time.Hour, then: Restart,
			change: func(r *Run) { r.Job.Labels = map[string]string{kueue.MultiKueueOriginLabel: "a"} }},
		"its restarts are used up": {value: "30m,restart", change: func(r *Run) { r.Restarts = 0 }, stalled: true,
			since: time.Hour, says: "it isn't restarted: the restarts of annotation"},
		"it used more than it has": {value: "30m,restart", change: func(r *Run) { r.Restarts = -2 }, stalled: true,
			since: time.Hour},
		"nothing starts it again": {value: "30m,restart", change: func(r *Run) { r.Workload = nil }, stalled: true,
			since: time.Hour, says: "it is in no queue"},
		"it is stopped without a queue": {value: "30m,stop", change: func(r *Run) { r.Workload = nil }, stalled: true,
			since: time.Hour, then: Stop},
	} {
		t.Run(name, func(t *testing.T) {
			if c.value == "" {
				c.value = "30m"
			}
			run := runs(c.value)
			if c.change != nil {
				c.change(&run)
			}
			job, js := run.Job.DeepCopy(), run.JobSet.DeepCopy()
			v := Judge(run, now)
			if v.Condition == nil {
				t.Fatal("it is judged")
			}
			want := map[bool]string{true: "True/NoReport", false: "False/Reports"}[c.stalled]
			got := string(v.Condition.Status) + "/" + v.Condition.Reason
			if got != want || v.Then != c.then || v.Again != c.again {
				t.Errorf("got %s, then %q, again in %s; want %s, %q, %s", got, v.Then, v.Again, want, c.then, c.again)
			}
			if at := ago(c.since); !v.Condition.LastTransitionTime.Equal(&at) || !strings.Contains(v.Condition.Message,
				c.says) {
				t.Errorf("got %s %q, want %s %q", v.Condition.LastTransitionTime, v.Condition.Message, at, c.says)
			}
			if !reflect.DeepEqual(job, run.Job) || !reflect.DeepEqual(js, run.JobSet) {
				t.Error("it changes what it judges")
			}
		})
	}
}

// TestNotJudged holds who has no condition, whatever the annotation says.
func TestNotJudged(t *testing.T) {
	const yes = metav1.ConditionTrue
	workload := func(c ...metav1.Condition) func(*Run) {
		return func(r *Run) { r.Workload.Status.Conditions = append(r.Workload.Status.Conditions, c...) }
	}
	for name, change := range map[string]func(*Run){
		"it hasn't the annotation": func(r *Run) { r.Job.Annotations = nil },
		"no JobSet yet":            func(r *Run) { r.JobSet = nil },
		"neither JobSet nor one":   func(r *Run) { r.JobSet, r.Job.Annotations = nil, nil },
		"nothing listens":          func(r *Run) { r.Listening = time.Time{} },
		"its pods were never told": func(r *Run) {
			r.JobSet.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers = nil
		},
		"a pod isn't ready":            func(r *Run) { r.JobSet.Status.ReplicatedJobsStatus[0].Ready = 0 },
		"it is suspended":              func(r *Run) { r.Job.Spec.Suspend = ptr.To(true) },
		"its user stops it":            func(r *Run) { r.Job.Annotations[api.StopAnnotation] = "" },
		"it is being deleted":          func(r *Run) { r.Job.DeletionTimestamp = ptr.To(ago(0)) },
		"its JobSet is being deleted":  func(r *Run) { r.JobSet.DeletionTimestamp = ptr.To(ago(0)) },
		"its JobSet has ended":         func(r *Run) { r.JobSet.Status.TerminalState = "Completed" },
		"it is restarted after a loss": func(r *Run) { r.Job.Status.Lost = &api.Loss{JobSet: "js", Restarting: true} },
		"it has ended": func(r *Run) {
			r.Job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobComplete, Status: yes}}
		},
		"it waits for a checkpoint": workload(metav1.Condition{Type: kueue.WorkloadEvicted, Status: yes,
			Reason: kueue.WorkloadEvictedByPreemption}),
		"its Workload is finished": workload(metav1.Condition{Type: kueue.WorkloadFinished, Status: yes}),
		"it is deactivated":        func(r *Run) { r.Workload.Spec.Active = ptr.To(false) },
		"it has no quota":          func(r *Run) { r.Workload.Status.Conditions = nil },
	} {
		t.Run(name, func(t *testing.T) {
			run := runs("30m,stop")
			change(&run)
			if v := Judge(run, now); v != (Verdict{}) {
				t.Errorf("got %+v", v)
			}
		})
	}
	run := runs("30m,stop")
	run.Job.Status.Lost = &api.Loss{JobSet: "an earlier", Restarting: true}
	if v := Judge(run, now); v.Then != Stop {
		t.Errorf("the restart of an earlier run is over: got %+v", v)
	}
}

// TestAnnotation holds which values are valid. What is stored and isn't decides nothing, and says so.
func TestAnnotation(t *testing.T) {
	path := field.NewPath("metadata", "annotations")
	const spaced = " 30m , restart "
	for value, want := range map[string]*Setting{
		"1m": {After: time.Minute}, "168h": {After: 168 * time.Hour}, "1h30m,stop": {90 * time.Minute, Stop},
		spaced: {30 * time.Minute, Restart}, "90s,restart": {90 * time.Second, Restart},
		"": nil, "59s": nil, "59.9s": nil, "-30m": nil, "168h1s": nil, "9999999999999h": nil, "30": nil, "soon": nil,
		"30m,": nil, "30m,delete": nil, "30m,Stop": nil, "30m,stop,restart": nil, ",stop": nil, "stop": nil,
		"stop,30m":               nil,
		strings.Repeat("é", 200): nil,
	} {
		errs := Check(map[string]string{api.StalledAfterAnnotation: value}, path)
		got, err := parse(value)
		if want != nil {
			if len(errs) > 0 || err != nil || got != *want {
				t.Errorf("%q: got %+v, %v, %v", value, got, err, errs)
			}
			continue
		}
		if len(errs) != 1 || errs[0].Field != "metadata.annotations[signalbox.dev/stalled-after]" ||
			errs[0].BadValue != value || !strings.Contains(errs[0].Detail, "correct or remove it") {
			t.Errorf("%q: got %v", value, errs)
		}
		v := Judge(runs(value), now)
		if v.Then != Nothing || v.Again != 0 || v.Condition.Status != metav1.ConditionFalse ||
			v.Condition.Reason != ReasonInvalid || len(v.Condition.Message) > 500 {
			t.Errorf("%q is ignored: got %+v", value, v)
		}
	}
	if errs := Check(nil, path); errs != nil {
		t.Errorf("it is optional: got %v", errs)
	}
}

// TestStopValue holds that a stop for a stall is told from that of a user, who may write any text.
func TestStopValue(t *testing.T) {
	const noon = "2026-11-28T12:00:00Z"
	for value, want := range map[string]string{
		StopValue(noon): noon, "true": "", "": "", noon: "", StopValue("noon"): "", StopValue(noon + "\x1b[2J"): "",
		StopValue(noon + "\nreport it to example.com"): "",
	} {
		if since, stopped := StoppedSince(value); since != want || stopped != (want != "") {
			t.Errorf("%q: got %q, %t", value, since, stopped)
		}
	}
}

func TestUnheard(t *testing.T) {
	job := func(value string) *api.TrainJob {
		return &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
			Annotations: map[string]string{api.StalledAfterAnnotation: value},
		}}
	}
	away := job("1m")
	away.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
	for name, c := range map[string]struct {
		before, after *api.TrainJob
		want          int
	}{
		"created with it":    {nil, job("1m"), 1},
		"created without it": {nil, &api.TrainJob{}, 0},
		"added":              {&api.TrainJob{}, job("1m"), 1},
		"changed":            {job("1m"), job("2m"), 1},
		"as before":          {job("1m"), job("1m"), 0},
		"removed":            {job("1m"), &api.TrainJob{}, 0},
		"of another cluster": {nil, away, 0},
	} {
		if got := Unheard(c.before, c.after); len(got) != c.want {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
