package integration

import (
	"errors"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/podset"

	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store/events"
)

func TestFinalError(t *testing.T) {
	cause := errors.New("cause")
	err := error(&finalError{cause})
	if !podset.IsPermanent(err) || !errors.Is(err, cause) || err.Error() != "cause" {
		t.Errorf("jobframework must take it as permanent, and the user must read the cause alone: got %v", err)
	}
}

func TestJobNotComposed(t *testing.T) {
	o := observation(dialect.Bundled, runs)
	j := &job{o: o, asked: &asked{}, shown: shownOf(o.observed)}
	if err := j.RunWithPodSetsInfo(t.Context(), nil, nil); !errors.Is(err, errNotComposed) {
		t.Errorf("Run starts it: got %v", err)
	}
	if j.RestorePodSetsInfo(t.Context(), nil) {
		t.Error("Stop stops it")
	}
	if j.PodLabelSelector() != "jobset.sigs.k8s.io/jobset-name=job" {
		t.Errorf("got %q", j.PodLabelSelector())
	}
	if j.PodsReady(t.Context(), nil) {
		t.Error("it has no pods")
	}
	if j.Suspend(); !j.IsSuspended() {
		t.Error("it is suspended")
	}
	j.ForEach(func(o runtime.Object) {
		if o != j.Object() {
			t.Error("it is its only member")
		}
	})
}

func TestJobPodSets(t *testing.T) {
	o := observation(dialect.Bundled)
	j := &job{o: o, asked: &asked{}}
	if got, err := j.PodSets(t.Context(), nil); err != nil || !reflect.DeepEqual(got, o.queue.podSets) {
		t.Errorf("what waits is queued for what it would run: got %v, %v", got, err)
	}
	runs(o.observed)
	o.queue.podSets = nil
	if got, err := j.PodSets(t.Context(), nil); err != nil || !reflect.DeepEqual(got, o.workloads.own[0].Spec.PodSets) {
		t.Errorf("what runs keeps what it was admitted for: got %v, %v", got, err)
	}
	blockedBy("X")(o.observed)
	if _, err := j.PodSets(t.Context(), nil); !errors.Is(err, o.queue.blocked) {
		t.Errorf("what is blocked is not queued: got %v", err)
	}
	fits, err := j.EquivalentToWorkload(t.Context(), nil, o.workloads.own[0])
	if err != nil || !fits {
		t.Errorf("and keeps its Workload: got %t, %v", fits, err)
	}
}

func TestJobWorkloads(t *testing.T) {
	o := observation(dialect.Bundled, earlier)
	second := o.workloads.own[0].DeepCopy()
	second.Name = "second"
	o.workloads.own = append(o.workloads.own, second)
	j := &job{o: o, asked: &asked{}}
	names := func(list []*kueue.Workload) (all []string) {
		for _, wl := range list {
			all = append(all, wl.Name)
		}
		return all
	}
	match, toDelete, err := j.FindMatchingWorkloads(t.Context(), nil, nil)
	if err != nil || match.Name != "wl" || !reflect.DeepEqual(names(toDelete), []string{"second", "earlier"}) {
		t.Errorf("one stands for the TrainJob: got %v, %v", names(toDelete), err)
	}
	o.workloads.earlierRuns = true
	_, toDelete, _ = j.FindMatchingWorkloads(t.Context(), nil, nil)
	if !reflect.DeepEqual(names(toDelete), []string{"second"}) {
		t.Errorf("the quota of an earlier TrainJob that runs is in use: got %v", names(toDelete))
	}
}

func TestJobStop(t *testing.T) {
	pod := func(o *observed) { o.left.pods = []corev1.Pod{{}} }
	cases := map[string]struct {
		reason string
		o      *situation
		why    jobframework.StopReason
		want   *stop
		err    error
	}{
		"runs": {"it is suspended", observation(dialect.Bundled, runs), jobframework.StopReasonNoMatchingWorkload,
			&stop{suspend{"m", "NoMatchingWorkload"}, ptr.To(events.Stopped.Of("m"))}, nil},
		"runs, Workload deleted": {"its quota is kept", observation(dialect.Bundled, runs),
			jobframework.StopReasonWorkloadDeleted,
			&stop{suspend{"m", "WorkloadDeleted"}, ptr.To(events.Stopped.Of("m"))}, errStillRunning},
		"stops": {"its quota is kept", observation(dialect.Bundled, pod), jobframework.StopReasonWorkloadDeleted, nil,
			errStillRunning},
		"waits": {"nothing runs", observation(dialect.Bundled), jobframework.StopReasonWorkloadDeleted, nil, nil},
		"ended": {"nothing is to be stopped", observation(dialect.Bundled, ends),
			jobframework.StopReasonWorkloadEvicted, nil, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			j := &job{o: c.o, asked: &asked{}}
			_, err := j.Stop(t.Context(), nil, nil, c.why, "m")
			if !errors.Is(err, c.err) || !reflect.DeepEqual(j.asked.stop, c.want) {
				t.Errorf("%s: got %+v, %v", c.reason, j.asked.stop, err)
			}
		})
	}
}

func TestJobFinalize(t *testing.T) {
	finished := func(o *observed) {
		o.workloads.own[0].Status.Conditions = []metav1.Condition{is(kueue.WorkloadFinished, 0)}
	}
	finalize := func(change ...func(*observed)) *asked {
		j := &job{o: observation(dialect.Kubeflow23, change...), asked: &asked{}}
		if err := j.Finalize(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		return j.asked
	}
	want := &stop{suspend: suspend{reason: "its Workload is finished"}}
	if got := finalize(runs, finished); !reflect.DeepEqual(got.stop, want) {
		t.Errorf("Trainer v2.3.0 runs a failed TrainJob again: got %+v", got.stop)
	}
	if got := finalize(finished); got.stop != nil {
		t.Errorf("it doesn't run: got %+v", got.stop)
	}
	completed := func(o *observed) {
		o.jobSet = &jobset.JobSet{Status: jobset.JobSetStatus{
			Conditions: []metav1.Condition{is(string(jobset.JobSetCompleted), time.Hour)},
		}}
	}
	if got := finalize(runs, finished, completed); got.stop != nil {
		t.Errorf("its JobSet has ended, and only its status doesn't say so: got %+v", got.stop)
	}
}
