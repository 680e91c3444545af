package checkpoint

import (
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func reporting(metrics ...trainerapi.Metric) *api.TrainJob {
	job := &api.TrainJob{}
	job.Annotations = map[string]string{api.CheckpointMetricAnnotation: "saved"}
	job.Status.TrainerStatus = &trainerapi.TrainerStatus{
		Metrics: metrics, LastUpdatedTime: metav1.NewTime(now.Add(time.Hour)), // a process may say what it likes
	}
	return job
}

// TestSaved holds that a checkpoint is seen when the metric that is named changes, at the manager's time.
func TestSaved(t *testing.T) {
	before := &api.Checkpoint{Time: metav1.NewTime(now.Add(-time.Hour)), Value: "100"}
	annotated := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{api.CheckpointMetricAnnotation: "epoch"},
	}}
	for name, c := range map[string]struct {
		job  func(*api.TrainJob)
		js   *jobset.JobSet
		want *api.Checkpoint
	}{
		"the first":     {want: &api.Checkpoint{Time: metav1.NewTime(now), Value: "100"}},
		"the same":      {job: func(j *api.TrainJob) { j.Status.Checkpoint = before }, want: before},
		"nothing named": {job: func(j *api.TrainJob) { j.Annotations = nil; j.Status.Checkpoint = before }, want: before},
		"twice": {job: func(j *api.TrainJob) {
			j.Status.Checkpoint = before
			j.Status.TrainerStatus.Metrics = append(j.Status.TrainerStatus.Metrics,
				trainerapi.Metric{Name: "saved", Value: "200"})
		}, want: before},
		"another": {job: func(j *api.TrainJob) { j.Status.Checkpoint = &api.Checkpoint{Value: "50"} },
			want: &api.Checkpoint{Time: metav1.NewTime(now), Value: "100"}},
		"nothing reported": {job: func(j *api.TrainJob) { j.Status.TrainerStatus = nil }},
		"another metric":   {job: func(j *api.TrainJob) { j.Status.TrainerStatus.Metrics[1].Name = "step" }},
		"its runtime names one": {job: func(j *api.TrainJob) {
			j.Annotations = nil
			j.Status.TrainerStatus.Metrics[0].Name = "epoch"
		}, js: annotated, want: &api.Checkpoint{Time: metav1.NewTime(now), Value: "0.1"}},
		"it names another than its runtime": {js: annotated, want: &api.Checkpoint{Time: metav1.NewTime(now), Value: "100"}},
	} {
		t.Run(name, func(t *testing.T) {
			job := reporting(trainerapi.Metric{Name: "loss", Value: "0.1"}, trainerapi.Metric{Name: "saved", Value: "100"})
			if c.job != nil {
				c.job(job)
			}
			got := Saved(job, c.js, now)
			if (got == nil) != (c.want == nil) || got != nil && (got.Value != c.want.Value || !got.Time.Equal(&c.want.Time)) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestAwaited holds that nothing lets a TrainJob run on for longer after its eviction than the admin allows.
func TestAwaited(t *testing.T) {
	const within, four, three, hour = 5 * time.Minute, 4 * time.Minute, 3 * time.Minute, time.Hour
	for name, c := range map[string]struct {
		since  time.Duration // the eviction
		saved  time.Duration // before now; negative for none
		own    *string
		change func(*kueue.Workload)
		want   time.Duration // from now; 0 for at once
	}{
		"just evicted":           {saved: time.Minute, want: within},
		"saved before the clock": {since: -20 * time.Second, saved: 0},
		"a minute ago":           {since: time.Minute, saved: 2 * time.Minute, want: 4 * time.Minute},
		"saved since":            {since: time.Minute, saved: 30 * time.Second},
		"saved in that second":   {since: time.Minute, saved: time.Minute},
		"too long ago":           {since: within, saved: time.Hour},
		"Kueue's clock is ahead": {since: -30 * time.Second, saved: time.Hour, want: within},
		"another was announced":  {since: time.Minute, saved: time.Hour, change: announced(4*time.Minute, "0")},
		"it was announced":       {since: time.Minute, saved: time.Hour, change: announced(three, "1"), want: three},
		"a later was announced":  {since: time.Minute, saved: time.Hour, change: announced(hour, "1"), want: four},
		"an earlier eviction was": {since: time.Minute, saved: time.Hour, change: announced(-2*time.Minute, "0"),
			want: 4 * time.Minute},
		"without quota":             {saved: time.Hour, change: withoutQuota},
		"evicted in the future":     {since: -2 * time.Minute, saved: time.Hour},
		"never saved":               {saved: -1},
		"the user's is shorter":     {since: time.Minute, saved: time.Hour, own: ptr.To("90s"), want: 30 * time.Second},
		"the user's is longer":      {saved: time.Hour, own: ptr.To("87600h"), want: within},
		"the user's is negative":    {saved: time.Hour, own: ptr.To("-1s")},
		"the user's is no duration": {saved: time.Hour, own: ptr.To("1 day")},
		"the Workload is inactive":  {saved: time.Hour, change: func(wl *kueue.Workload) { wl.Spec.Active = ptr.To(false) }},
		"not evicted": {saved: time.Hour, change: func(wl *kueue.Workload) {
			wl.Status.Conditions[0].Status = metav1.ConditionFalse
		}},
		"evicted for another reason": {saved: time.Hour, change: func(wl *kueue.Workload) {
			wl.Status.Conditions[0].Reason = kueue.WorkloadEvictedByAdmissionCheck
		}},
	} {
		t.Run(name, func(t *testing.T) {
			job, wl := &api.TrainJob{}, &kueue.Workload{}
			if c.own != nil {
				job.Annotations = map[string]string{api.CheckpointWithinAnnotation: *c.own}
			}
			wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue,
				Reason: kueue.WorkloadEvictedByPreemption, LastTransitionTime: metav1.NewTime(now.Add(-c.since))},
				{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue}}
			if c.change != nil {
				c.change(wl)
			}
			var saved *api.Checkpoint
			if c.saved >= 0 {
				saved = &api.Checkpoint{Time: metav1.NewTime(now.Add(-c.saved)), Value: "1"}
			}
			want := time.Time{}
			if c.want > 0 {
				want = now.Add(c.want)
			}
			if got := Awaited(job, wl, saved, within, now); !got.Equal(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func withoutQuota(wl *kueue.Workload) { wl.Status.Conditions = wl.Status.Conditions[:1] }

func drained(wl *kueue.Workload) {
	wl.Status.Conditions[0].Reason = kueue.WorkloadEvictedByClusterQueueStopped
}

// announced is what an earlier look has written.
func announced(until time.Duration, before string) func(*kueue.Workload) {
	return func(wl *kueue.Workload) {
		wl.Annotations = map[string]string{
			UntilAnnotation: now.Add(until).Format(time.RFC3339), BeforeAnnotation: before,
		}
	}
}

// TestAnnounced holds that only what Signalbox has said of a preempted TrainJob is passed on.
func TestAnnounced(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*kueue.Workload)
		want   bool
	}{
		"preempted":      {func(*kueue.Workload) {}, true},
		"of a Job":       {func(wl *kueue.Workload) { wl.OwnerReferences[0].Kind = "Job" }, false},
		"of nobody":      {func(wl *kueue.Workload) { wl.OwnerReferences = nil }, false},
		"in years":       {announced(1000*time.Hour, "1"), false},
		"over":           {announced(-time.Second, "1"), false},
		"drained":        {drained, false},
		"without quota":  {withoutQuota, false},
		"no time at all": {func(wl *kueue.Workload) { wl.Annotations[UntilAnnotation] = "soon" }, false},
	} {
		wl := &kueue.Workload{}
		wl.OwnerReferences = []metav1.OwnerReference{{Kind: "TrainJob", Name: "job", Controller: ptr.To(true)}}
		wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadEvicted, Status: metav1.ConditionTrue,
			Reason: kueue.WorkloadEvictedByPreemption, LastTransitionTime: metav1.NewTime(now)},
			{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue}}
		announced(time.Minute, "1")(wl)
		c.change(wl)
		if got := Announced(wl, now); got.IsZero() == c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		errs        int
	}{
		"none": {nil, 0},
		"valid": {map[string]string{
			api.CheckpointMetricAnnotation: "saved", api.CheckpointWithinAnnotation: "90s",
		}, 0},
		"at once":       {map[string]string{api.CheckpointWithinAnnotation: "0s"}, 0},
		"an empty name": {map[string]string{api.CheckpointMetricAnnotation: ""}, 1},
		"a long name":   {map[string]string{api.CheckpointMetricAnnotation: strings.Repeat("a", 65)}, 1},
		"both":          {map[string]string{api.CheckpointMetricAnnotation: "", api.CheckpointWithinAnnotation: "5"}, 2},
		"negative":      {map[string]string{api.CheckpointWithinAnnotation: "-5s"}, 1},
	} {
		if errs := CheckRuntime(map[string]string{api.CheckpointWithinAnnotation: "5s"}, nil); len(errs) != 1 {
			t.Errorf("a runtime's time is refused: got %v", errs)
		}
		if errs := Check(c.annotations, field.NewPath("metadata", "annotations")); len(errs) != c.errs {
			t.Errorf("%s: got %v, want %d errors", name, errs, c.errs)
		}
	}
}
