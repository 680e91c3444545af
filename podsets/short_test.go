package podsets

import (
	"maps"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// TestPodsOf holds that what the status of a Job counts is a pod that needn't be made.
func TestPodsOf(t *testing.T) {
	job := func(step string, status batchv1.JobStatus) batchv1.Job {
		return batchv1.Job{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{jobset.ReplicatedJobNameKey: step}},
			Status: status}
	}
	got := PodsOf([]batchv1.Job{
		job("a", batchv1.JobStatus{Active: 2, Terminating: ptr.To[int32](1)}),
		job("b", batchv1.JobStatus{Active: 1, Succeeded: 3, Failed: 7, FailedIndexes: ptr.To("1,3-5,9")}),
		job("a", batchv1.JobStatus{Succeeded: 4}),
		job("c", batchv1.JobStatus{Failed: 1, FailedIndexes: ptr.To("x,2-y,9-2,-1")}),
		job("d", batchv1.JobStatus{FailedIndexes: ptr.To("0-2147483647,0-2147483647")}),
	})
	if want := map[string]Pods{"a": {3, 4}, "b": {1, 8}, "c": {}, "d": {0, mostIndexes}}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestShort holds which ReplicatedJob of a running JobSet has fewer pods than it needs.
func TestShort(t *testing.T) {
	after := func(status jobset.DependsOnStatus) func(*jobset.JobSet) {
		return func(js *jobset.JobSet) {
			js.Spec.ReplicatedJobs[1].DependsOn = []jobset.DependsOn{{Name: "a", Status: status}}
		}
	}
	reached := func(s jobset.ReplicatedJobStatus) func(*jobset.JobSet) {
		return func(js *jobset.JobSet) {
			s.Name = "a"
			js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{s}
		}
	}
	inOrder := func(js *jobset.JobSet) {
		js.Spec.StartupPolicy = &jobset.StartupPolicy{StartupPolicyOrder: jobset.InOrder}
	}
	all := map[string]Pods{"a": {2, 0}, "b": {2, 0}}
	for name, c := range map[string]struct {
		reason  string
		pods    map[string]Pods
		changes []func(*jobset.JobSet)
		want    *Shortage
	}{
		"all":    {"none is missing", all, nil, nil},
		"none":   {"the first is named", nil, nil, &Shortage{"a", 0, 2}},
		"second": {"a step has its own", map[string]Pods{"a": {2, 0}, "b": {1, 0}}, nil, &Shortage{"b", 1, 2}},
		"succeeded": {"those that have succeeded aren't made again", map[string]Pods{"a": {1, 1}, "b": {0, 2}},
			nil, nil},
		"Jobs succeeded": {"pods of Jobs that have are none of those that run", map[string]Pods{"a": {0, 1}, "b": {2, 0}},
			[]func(*jobset.JobSet){reached(jobset.ReplicatedJobStatus{Succeeded: 1})}, &Shortage{"a", 0, 1}},
		"Jobs ended": {"they need none", map[string]Pods{"b": {2, 0}},
			[]func(*jobset.JobSet){reached(jobset.ReplicatedJobStatus{Succeeded: 1, Failed: 1})}, nil},
		"suspended": {"it is to have none", nil,
			[]func(*jobset.JobSet){func(js *jobset.JobSet) { js.Spec.Suspend = ptr.To(true) }}, nil},
		"deleted": {"it is to have none", nil,
			[]func(*jobset.JobSet){func(js *jobset.JobSet) { js.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }}, nil},
		"at its end": {"it is to have none", nil,
			[]func(*jobset.JobSet){func(js *jobset.JobSet) { js.Status.TerminalState = "Completed" }}, nil},
		"waits for the end": {"it is to have none yet", map[string]Pods{"a": {2, 0}},
			[]func(*jobset.JobSet){after(jobset.DependencyComplete), reached(jobset.ReplicatedJobStatus{Ready: 2})}, nil},
		"waits no more": {"it needs its own", map[string]Pods{"a": {2, 0}},
			[]func(*jobset.JobSet){after(jobset.DependencyReady), reached(jobset.ReplicatedJobStatus{Ready: 2})},
			&Shortage{"b", 0, 2}},
		"waits by order": {"it is to have none yet", map[string]Pods{"a": {2, 0}},
			[]func(*jobset.JobSet){inOrder, reached(jobset.ReplicatedJobStatus{Ready: 1})}, nil},
		"first by order": {"it waits for none", nil, []func(*jobset.JobSet){inOrder}, &Shortage{"a", 0, 2}},
		"waits for none there is": {"it needs its own", map[string]Pods{"a": {2, 0}},
			[]func(*jobset.JobSet){after(jobset.DependencyReady), func(js *jobset.JobSet) {
				js.Spec.ReplicatedJobs[1].DependsOn[0].Name = "c"
			}}, &Shortage{"b", 0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			js := &jobset.JobSet{}
			js.Spec.ReplicatedJobs = []jobset.ReplicatedJob{{Name: "a", Replicas: 2}, {Name: "b", Replicas: 2}}
			for _, change := range c.changes {
				change(js)
			}
			if got := Short(js, c.pods); !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("%s: got %+v, want %+v", c.reason, got, c.want)
			}
		})
	}
}
