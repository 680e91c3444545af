package explain

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// many returns TrainJobs that wait in ten queues, and the facts of each.
func many(n int) (jobs []*Facts, queues *Queues) {
	f := &Facts{Queues: &Queues{}}
	for i := range 10 {
		addQueue(f, fmt.Sprintf("queue-%d", i), "", 8)
	}
	c := f.Queues.Cluster
	for i := range n {
		name := fmt.Sprintf("job-%d", i)
		wl := workloadOf(name, fmt.Sprintf("queue-%d", i%10), 8, int32(i*7919%97))
		wl.OwnerReferences[0].UID = types.UID("owner-" + name)
		says(&Facts{Workload: wl}, "insufficient unused quota for nvidia.com/gpu in flavor a100, 8 more needed")
		c.Workloads = append(c.Workloads, *wl)
	}
	queues = NewQueues(c)
	for i := range n {
		name := fmt.Sprintf("job-%d", i)
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("owner-" + name)}}
		job.Spec.Suspend = ptr.To(true)
		jobs = append(jobs, &Facts{Now: noon, Job: job, Workload: queues.WorkloadOf(job), Queues: queues,
			Read: Read{QueuesRead: true, ClusterQueuesRead: true, OwnRead: true, OthersRead: true}})
	}
	return jobs, queues
}

// TestManyBrief holds that a row of a list is read from the index, which is computed once: no row goes through all
// Workloads.
func TestManyBrief(t *testing.T) {
	const n = 1000
	jobs, queues := many(n)
	var before []*Explanation
	for _, f := range jobs {
		before = append(before, Brief(f))
	}
	queues.Cluster = simulate.Cluster{}
	for i, f := range jobs {
		if after := Brief(f); !reflect.DeepEqual(before[i], after) {
			t.Fatalf("%s reads all Workloads: %+v, and without them %+v", f.Job.Name, before[i], after)
		}
	}
	if last := before[n-1]; last.Cause.Code != CodeShort || last.Waiting != n/10 || last.Place == 0 {
		t.Errorf("got %+v", last)
	}
}

// TestTimelineBound holds that a timeline has an end, and shows the first moment and the last.
func TestTimelineBound(t *testing.T) {
	f := facts(func(f *Facts) {
		for i := range 5000 {
			f.Events = append(f.Events, corev1.Event{Reason: "Failed", Message: fmt.Sprint(i),
				LastTimestamp: ago(5*time.Minute - time.Duration(i)*time.Millisecond)})
		}
	})
	timeline := Explain(f).Timeline
	if len(timeline) != mostMoments+1 || timeline[0].Text != "submitted" || timeline[mostMoments].Text != "Failed: 4999" {
		t.Errorf("got %d lines, from %q to %q", len(timeline), timeline[0].Text, timeline[len(timeline)-1].Text)
	}
	if between := timeline[1]; between.Text != "4953 more until then are left out" {
		t.Errorf("got %q", between.Text)
	}
}

// TestMovedQueue holds that a TrainJob runs in the ClusterQueue that has admitted it, wherever its LocalQueue leads.
func TestMovedQueue(t *testing.T) {
	f := facts(runs, func(f *Facts) {
		addQueue(f, "new", "", 8)
		f.Queues.LocalQueues[0].Spec.ClusterQueue = "new"
	})
	if e := Explain(f); e.ClusterQueue != "queue" {
		t.Errorf("got %q", e.ClusterQueue)
	}
}
