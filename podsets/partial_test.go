package podsets

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func pods(count int32) func(*jobset.ReplicatedJob) {
	return func(rj *jobset.ReplicatedJob) { rj.Template.Spec.Parallelism = &count }
}

func TestSetMinCount(t *testing.T) {
	all := effective(replicatedJob("initializer"), replicatedJob("node", pods(8)), replicatedJob("cache", pods(4)))
	cases := map[string]struct {
		reason  string
		least   []jobset.ReplicatedJob
		want    *int32
		refused string
	}{
		"nodes": {"they alone are fewer", []jobset.ReplicatedJob{replicatedJob("initializer"),
			replicatedJob("node", pods(2)), replicatedJob("cache", pods(4))}, ptr.To[int32](2), ""},
		"nothing": {"fewer nodes are no fewer pods", all.ReplicatedJobs, nil, ""},
		"two": {"Kueue takes one", []jobset.ReplicatedJob{replicatedJob("initializer"),
			replicatedJob("node", pods(2)), replicatedJob("cache", pods(2))}, ptr.To[int32](2), "node and cache"},
		"another shape": {"what is admitted would not be what runs", []jobset.ReplicatedJob{replicatedJob("node", pods(2))},
			nil, "initializer is missing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			podSets, err := Of(all, Features{})
			if err != nil {
				t.Fatal(err)
			}
			err = SetMinCount(podSets, effective(c.least...))
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Fatalf("%s: got %v, want %q", c.reason, err, c.refused)
			}
			if !ptr.Equal(podSets[1].MinCount, c.want) || podSets[0].MinCount != nil || podSets[2].MinCount != nil {
				t.Errorf("%s: got %v", c.reason, podSets)
			}
		})
	}
}

func TestPartiallyAdmitted(t *testing.T) {
	admitted := func(least *int32, count *int32) *kueue.Workload {
		wl := &kueue.Workload{}
		wl.Spec.PodSets = []kueue.PodSet{{Name: "initializer", Count: 1}, {Name: "node", Count: 8, MinCount: least}}
		wl.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{
			{Name: "initializer", Count: ptr.To[int32](0)}, {Name: "node", Count: count},
		}}
		return wl
	}
	cases := map[string]struct {
		reason    string
		workload  *kueue.Workload
		fewer     int32
		reclaimed int32 // of one pod that is
	}{
		"in part":         {"five of eight", admitted(ptr.To[int32](2), ptr.To[int32](5)), 3, 4},
		"whole":           {"there was quota for all", admitted(ptr.To[int32](2), ptr.To[int32](8)), 0, 1},
		"not said":        {"it is the PodSet's", admitted(ptr.To[int32](2), nil), 0, 1},
		"without minimum": {"they have been reclaimed", admitted(nil, ptr.To[int32](5)), 0, 1},
		"waiting":         {"nothing is admitted", &kueue.Workload{}, 0, 1},
		"no Workload":     {"nothing is queued", nil, 0, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			podSet, fewer := PartiallyAdmitted(c.workload)
			if fewer != c.fewer || (podSet != nil) != (fewer > 0) || podSet != nil && podSet.Name != "node" {
				t.Errorf("%s: got %v, %d", c.reason, podSet, fewer)
			}
			given := []kueue.ReclaimablePod{{Name: "initializer", Count: 1}, {Name: "node", Count: 1}}
			got := AddNotAdmitted(given, c.workload)
			if want := []kueue.ReclaimablePod{{Name: "initializer", Count: 1}, {Name: "node", Count: c.reclaimed}}; !equality.
				Semantic.DeepEqual(got, want) {
				t.Errorf("%s: got %v", c.reason, got)
			}
			if given[1].Count != 1 {
				t.Error("what was given has changed")
			}
		})
	}
}

func TestFlavors(t *testing.T) {
	wl := &kueue.Workload{
		Status: kueue.WorkloadStatus{Admission: &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{
			{
				Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": "b", "nvidia.com/gpu": "a"},
			}, {Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": "b"}},
		}}},
	}
	if got := Flavors(wl); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("each flavor once, in order: got %q", got)
	}
	if Flavors(nil) != nil || Flavors(&kueue.Workload{}) != nil {
		t.Error("what is not admitted has no flavor")
	}
}
