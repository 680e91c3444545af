package podsets

import (
	"maps"
	"slices"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func status(name string, ready, succeeded int32) trainerapi.JobStatus {
	return trainerapi.JobStatus{Name: name, Ready: &ready, Succeeded: &succeeded}
}

func TestReclaimable(t *testing.T) {
	staged := []jobset.ReplicatedJob{
		replicatedJob("dataset-initializer"),
		replicatedJob("node", func(rj *jobset.ReplicatedJob) { rj.Template.Spec.Parallelism = ptr.To[int32](4) }),
	}
	cases := map[string]struct {
		reason string
		jobs   []jobset.ReplicatedJob
		status []trainerapi.JobStatus
		want   []kueue.ReclaimablePod
	}{
		"nothing reported": {reason: "nothing is known to have succeeded", jobs: staged},
		"running": {reason: "a ready pod needs its quota", jobs: staged,
			status: []trainerapi.JobStatus{status("dataset-initializer", 1, 0)}},
		"initializer succeeded": {
			reason: "its quota is free, the trainer's is not",
			jobs:   staged, status: []trainerapi.JobStatus{status("dataset-initializer", 0, 1), status("node", 1, 0)},
			want: []kueue.ReclaimablePod{{Name: "dataset-initializer", Count: 1}},
		},
		"all succeeded": {
			reason: "the TrainJob is about to finish and gives everything back at once; another write would be wasted",
			jobs:   staged, status: []trainerapi.JobStatus{status("dataset-initializer", 0, 1), status("node", 0, 1)},
		},
		"some Jobs of several": {
			reason: "a succeeded Job gives the quota of its pods back",
			jobs: []jobset.ReplicatedJob{replicatedJob("node", func(rj *jobset.ReplicatedJob) {
				rj.Replicas, rj.Template.Spec.Parallelism = 3, ptr.To[int32](4)
			})},
			status: []trainerapi.JobStatus{status("node", 1, 2)},
			want:   []kueue.ReclaimablePod{{Name: "node", Count: 8}},
		},
		"more succeeded than there are": {
			reason: "a status of an earlier shape gives no more than there is",
			jobs:   staged, status: []trainerapi.JobStatus{status("dataset-initializer", 0, 7)},
			want: []kueue.ReclaimablePod{{Name: "dataset-initializer", Count: 1}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Reclaimable(c.jobs, c.jobs, c.status); !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		})
	}
}

func TestFinal(t *testing.T) {
	staged := []jobset.ReplicatedJob{replicatedJob("dataset-initializer"), replicatedJob("node")}
	cases := map[string]struct {
		reason  string
		policy  *jobset.FailurePolicy
		counted int32
		ttl     *int32
		want    int
	}{
		"no failure policy": {reason: "a failed Job fails the JobSet", want: 2},
		"no restarts":       {reason: "the same", policy: &jobset.FailurePolicy{}, want: 2},
		"a restart left": {reason: "it would run the initializer again, whose quota must not be another's",
			policy: &jobset.FailurePolicy{MaxRestarts: 2}, counted: 1},
		"all restarts used": {reason: "the next failure is the end", policy: &jobset.FailurePolicy{MaxRestarts: 2},
			counted: 2, want: 2},
		"a rule without bound": {reason: "it may restart for ever",
			policy: &jobset.FailurePolicy{Rules: []jobset.FailurePolicyRule{
				{Action: jobset.RestartJobSetAndIgnoreMaxRestarts},
			}}},
		"a rule for one Job": {reason: "it recreates a Job",
			policy: &jobset.FailurePolicy{Rules: []jobset.FailurePolicyRule{{Action: jobset.RestartJob}}}},
		"a rule that fails": {reason: "nothing is restarted",
			policy: &jobset.FailurePolicy{Rules: []jobset.FailurePolicyRule{{Action: jobset.FailJobSet}}}, want: 2},
		"a time to live": {reason: "JobSet replaces a Job that is deleted, however it ended", ttl: ptr.To[int32](0), want: 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			js := &jobset.JobSet{Spec: jobset.JobSetSpec{ReplicatedJobs: slices.Clone(staged), FailurePolicy: c.policy},
				Status: jobset.JobSetStatus{RestartsCountTowardsMax: c.counted}}
			js.Spec.ReplicatedJobs[0].Template.Spec.TTLSecondsAfterFinished = c.ttl
			if got := len(Final(js)); got != c.want {
				t.Errorf("%s: got %d, want %d", c.reason, got, c.want)
			}
		})
	}
}

func TestReady(t *testing.T) {
	jobs := []jobset.ReplicatedJob{replicatedJob("dataset-initializer"), replicatedJob("node")}
	cases := map[string]struct {
		reason string
		jobs   []jobset.ReplicatedJob
		status []trainerapi.JobStatus
		want   bool
	}{
		"nothing reported": {reason: "unknown is not ready", jobs: jobs},
		"no Jobs": {reason: "what has no pods is not ready",
			status: []trainerapi.JobStatus{status("node", 1, 0)}},
		"one of two": {reason: "the other is missing", jobs: jobs,
			status: []trainerapi.JobStatus{status("dataset-initializer", 1, 0)}},
		"succeeded and ready": {reason: "a succeeded Job counts as ready", jobs: jobs,
			status: []trainerapi.JobStatus{status("dataset-initializer", 0, 1), status("node", 1, 0)}, want: true},
		"twice ready for one": {reason: "one ReplicatedJob can't make up for another", jobs: jobs,
			status: []trainerapi.JobStatus{status("dataset-initializer", 2, 0)}},
		"of an unknown job too": {reason: "what isn't asked for doesn't matter", jobs: jobs[1:],
			status: []trainerapi.JobStatus{status("node", 1, 0), status("gone", 0, 0)}, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Ready(c.jobs, c.status); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}

func TestReadyAsAdmitted(t *testing.T) {
	starts := status("node", 1, 0)
	starts.Active = new(int32(2))
	two := []kueue.PodSet{{Name: "dataset-initializer"}, {Name: "node"}}
	cases := map[string]struct {
		reason   string
		admitted []kueue.PodSet
		status   []trainerapi.JobStatus
		want     bool
	}{
		"nothing reported": {reason: "unknown is not ready", admitted: two},
		"no PodSets":       {reason: "what has no pods is not ready", status: []trainerapi.JobStatus{status("node", 1, 0)}},
		"one of two":       {"the other is missing", two, []trainerapi.JobStatus{status("node", 1, 0)}, false},
		"succeeded and ready": {"a succeeded Job counts as ready", two,
			[]trainerapi.JobStatus{status("dataset-initializer", 0, 1), status("node", 1, 0)}, true},
		"a Job that starts": {"one of its Jobs isn't ready", two[1:], []trainerapi.JobStatus{starts}, false},
		"one that failed":   {"nothing of it runs", two[1:], []trainerapi.JobStatus{status("node", 0, 0)}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := ReadyAsAdmitted(c.admitted, c.status); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}

func TestAtLeast(t *testing.T) {
	pod := func(name kueue.PodSetReference, count int32) kueue.ReclaimablePod {
		return kueue.ReclaimablePod{Name: name, Count: count}
	}
	cases := map[string]struct {
		reason                 string
		computed, stored, want []kueue.ReclaimablePod
	}{
		"more": {"progress is reported", []kueue.ReclaimablePod{pod("a", 2)}, []kueue.ReclaimablePod{pod("a", 1)},
			[]kueue.ReclaimablePod{pod("a", 2)}},
		"fewer": {"Kueue refuses a smaller count", []kueue.ReclaimablePod{pod("a", 1)}, []kueue.ReclaimablePod{pod("a", 2)},
			[]kueue.ReclaimablePod{pod("a", 2)}},
		"none": {"Kueue refuses to remove one", nil, []kueue.ReclaimablePod{pod("a", 2)},
			[]kueue.ReclaimablePod{pod("a", 2)}},
		"another": {"both stay", []kueue.ReclaimablePod{pod("b", 1)}, []kueue.ReclaimablePod{pod("a", 2)},
			[]kueue.ReclaimablePod{pod("b", 1), pod("a", 2)}},
		"first": {"nothing is stored yet", []kueue.ReclaimablePod{pod("a", 1)}, nil, []kueue.ReclaimablePod{pod("a", 1)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := AtLeast(c.computed, c.stored); !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	js := &jobset.JobSet{Status: jobset.JobSetStatus{ReplicatedJobsStatus: []jobset.ReplicatedJobStatus{
		{Name: "node", Ready: 1, Succeeded: 2, Failed: 3, Active: 4, Suspended: 5},
		{Name: "launcher"},
	}}}
	want := []trainerapi.JobStatus{
		{Name: "node", Ready: ptr.To[int32](1), Succeeded: ptr.To[int32](2), Failed: ptr.To[int32](3),
			Active: ptr.To[int32](4), Suspended: ptr.To[int32](5)},
		{Name: "launcher", Ready: ptr.To[int32](0), Succeeded: ptr.To[int32](0), Failed: ptr.To[int32](0),
			Active: ptr.To[int32](0), Suspended: ptr.To[int32](0)},
	}
	if got := Statuses(js); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOutlived(t *testing.T) {
	spec := &jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{
		replicatedJob("dataset-initializer", func(rj *jobset.ReplicatedJob) {
			spec := &rj.Template.Spec.Template.Spec
			spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
			spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}),
		replicatedJob("node", func(rj *jobset.ReplicatedJob) {
			rj.DependsOn = []jobset.DependsOn{{Name: "dataset-initializer", Status: jobset.DependencyComplete}}
		}),
	}}
	cases := map[string]struct {
		reason string
		status []trainerapi.JobStatus
		want   []kueue.ReclaimablePod
	}{
		"running": {"it runs again", []trainerapi.JobStatus{status("dataset-initializer", 1, 0)}, nil},
		"succeeded": {"its work outlives the JobSet",
			[]trainerapi.JobStatus{status("dataset-initializer", 0, 1), status("node", 1, 0)},
			[]kueue.ReclaimablePod{{Name: "dataset-initializer", Count: 1}}},
		"all succeeded": {"only what others wait for outlives it",
			[]trainerapi.JobStatus{status("dataset-initializer", 0, 1), status("node", 0, 1)},
			[]kueue.ReclaimablePod{{Name: "dataset-initializer", Count: 1}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Outlived(spec, c.status); !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		})
	}
}

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
