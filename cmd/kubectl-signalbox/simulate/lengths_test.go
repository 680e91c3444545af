package simulate

import (
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// took adds a Workload that has finished after a time.
func (c *Cluster) took(name, image string, pods int32, d time.Duration) {
	wl := c.runs(name, "q", "a", 0, pods, 1)
	wl.Spec.PodSets[0].Template.Spec.Containers[0].Image = image
	wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{
		Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(d)),
	})
}

func TestLengths(t *testing.T) {
	const minute = time.Minute
	history := func(c *Cluster) {
		for i, d := range []time.Duration{10, 20, 30, 40, 50} {
			c.took(string(rune('a'+i)), "x", 2, d*minute)
		}
	}
	cases := map[string]struct {
		reason  string
		before  func(*Cluster)
		change  func(*kueue.Workload)
		job     *api.TrainJob
		elapsed time.Duration
		want    time.Duration // Mid
		source  Source
	}{
		"unknown": {reason: "nothing has finished", want: time.Hour, source: Unknown},
		"similar": {reason: "the median of five", before: history, want: 30 * minute, source: Similar},
		"similar, running for long": {reason: "the short ones don't count", before: history, elapsed: 35 * minute,
			want: 40 * minute, source: Similar},
		"longer than any": {reason: "a fifth longer", before: history, elapsed: 100 * minute,
			want: 120*minute + time.Second, source: Similar},
		"of the runtime": {reason: "another size", before: history,
			change: func(wl *kueue.Workload) { wl.Spec.PodSets[0].Count = 4 }, want: 30 * minute, source: Runtime},
		"of the queue": {reason: "another runtime", before: history, change: func(wl *kueue.Workload) {
			wl.Spec.PodSets[0].Template.Spec.Containers[0].Image = "y"
		}, want: 30 * minute, source: All},
		"limit": {reason: "it can't take longer", change: func(wl *kueue.Workload) {
			wl.Spec.MaximumExecutionTimeSeconds = ptr.To[int32](2400)
		}, want: 30 * minute, source: Limit},
		"similar, limited": {reason: "it is stopped then", before: history, change: func(wl *kueue.Workload) {
			wl.Spec.MaximumExecutionTimeSeconds = ptr.To[int32](900)
		}, want: 15 * minute, source: Similar},
		"progress": {reason: "it says so itself", before: history, elapsed: 10 * minute, job: progress(50, nil),
			want: 20 * minute, source: Progress},
		"remaining time": {reason: "it says so itself", elapsed: 10 * minute, job: progress(50, ptr.To[int32](300)),
			want: 15 * minute, source: Progress},
		"little progress": {reason: "it shows nothing yet", elapsed: 10 * minute, job: progress(1, nil),
			want: time.Hour, source: Unknown},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			if c.before != nil {
				c.before(cluster)
			}
			wl := cluster.runs("it", "q", "a", 0, 2, 1)
			wl.Spec.PodSets[0].Template.Spec.Containers[0].Image = "x"
			if c.change != nil {
				c.change(wl)
			}
			var jobs []api.TrainJob
			now := noon.Add(c.elapsed)
			if c.job != nil {
				job := c.job.DeepCopy()
				job.UID = "job"
				job.Status.TrainerStatus.LastUpdatedTime = metav1.NewTime(now)
				wl.OwnerReferences = []metav1.OwnerReference{{UID: "job"}}
				jobs = append(jobs, *job)
			}
			length := NewEstimates(cluster.Workloads, jobs, now).Of(wl, noon)
			if length.Mid != c.want || length.Source != c.source || length.Low > length.Mid || length.High < length.Mid {
				t.Errorf("%s: got %+v, want %v by %s", c.reason, length, c.want, c.source)
			}
		})
	}
}

// progress is a TrainJob that reports how far it is.
func progress(percent int32, remaining *int32) *api.TrainJob {
	job := &api.TrainJob{}
	job.Status.TrainerStatus = &trainerapi.TrainerStatus{
		ProgressPercentage: &percent, EstimatedRemainingSeconds: remaining,
	}
	return job
}

func TestSure(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
	cluster.runs("it", "q", "a", 0, 2, 1)
	it := []types.NamespacedName{named("it")}
	if got := NewEstimates(cluster.Workloads, nil, noon).Sure(cluster, it); !strings.HasPrefix(got, "a guess") {
		t.Errorf("nothing is known: got %q", got)
	}
	for _, name := range []string{"a", "b", "c"} {
		cluster.took(name, "", 2, time.Hour)
	}
	e := NewEstimates(cluster.Workloads, nil, noon)
	if got := e.Sure(cluster, it); !strings.HasPrefix(got, "good") {
		t.Errorf("runs like it have finished: got %q", got)
	}
	if got := e.Sure(cluster, nil); got != "sure" {
		t.Errorf("it waits for nobody: got %q", got)
	}
	wl := cluster.Workload(named("it"))
	low, mid, high := e.Low()(wl, noon), e.Mid()(wl, noon), e.High()(wl, noon)
	if low.After(mid) || mid.After(high) {
		t.Errorf("got %v, %v, %v", low, mid, high)
	}
}
