package podsets

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"
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

// resourcesOf reads a resource list.
func resourcesOf(t *testing.T, text string) corev1.ResourceList {
	t.Helper()
	list := corev1.ResourceList{}
	if err := yaml.UnmarshalStrict([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestCounting holds that what Kueue counts of a pod is what the API server makes of it.
func TestCounting(t *testing.T) {
	const gpu = "nvidia.com/gpu"
	limitRange := func(item string) Counting {
		var l corev1.LimitRangeItem
		if err := yaml.UnmarshalStrict([]byte(item), &l); err != nil {
			t.Fatal(err)
		}
		return Counting{LimitRanges: []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{l}}}}}
	}
	credits := Counting{Resources: &kueueconfig.Resources{
		ExcludeResourcePrefixes: []string{"example.com/"},
		Transformations: []kueueconfig.ResourceTransformation{{
			Input: "nvidia.com/mig-1g.5gb", Strategy: ptr.To(kueueconfig.Replace),
			Outputs: corev1.ResourceList{"credits": resource.MustParse("5")},
		}},
	}}
	overhead := Counting{RuntimeClasses: []nodev1.RuntimeClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "kata"},
		Overhead:   &nodev1.Overhead{PodFixed: resourcesOf(t, "{cpu: 250m}")},
	}}}
	for name, c := range map[string]struct {
		reason   string
		counting Counting
		spec     string
		want     string
	}{
		"nothing": {"a pod may request nothing", Counting{}, "containers: [{name: a}]", "{}"},
		"limits only": {"a limit is requested", Counting{}, "containers: [{name: a, resources: {limits: {cpu: 4}}}]",
			"{cpu: 4}"},
		"a limit above the request": {"the request counts, and the missing one is added", Counting{},
			"containers: [{name: a, resources: {requests: {cpu: 1}, limits: {cpu: 4, " + gpu + ": 8}}}]",
			"{cpu: 1, " + gpu + ": 8}"},
		"two containers": {"they run at the same time", Counting{},
			"containers: [{name: a, resources: {requests: {cpu: 1}}}, {name: b, resources: {requests: {cpu: 2}}}]",
			"{cpu: 3}"},
		"an init container": {"it runs before the others", Counting{},
			"initContainers: [{name: a, resources: {limits: {cpu: 6}}}]\n" +
				"containers: [{name: b, resources: {requests: {cpu: 4}}}]",
			"{cpu: 6}"},
		"a sidecar": {"it runs beside the others", Counting{}, "initContainers: [{name: a, restartPolicy: Always, " +
			"resources: {requests: {cpu: 2}}}]\ncontainers: [{name: b, resources: {requests: {cpu: 4}}}]", "{cpu: 6}"},
		"a LimitRange, limits only": {"a pod takes its limits first",
			limitRange("{type: Container, defaultRequest: {cpu: 100m}}"),
			"containers: [{name: a, resources: {limits: {cpu: 4}}}]", "{cpu: 4}"},
		"a LimitRange, nothing": {"its default is requested", limitRange("{type: Container, defaultRequest: {cpu: 100m}, " +
			"default: {cpu: 1, memory: 1Gi}}"), "containers: [{name: a}]", "{cpu: 100m, memory: 1Gi}"},
		"a LimitRange of claims": {"it isn't about pods", limitRange("{type: PersistentVolumeClaim, max: {storage: 1Gi}}"),
			"containers: [{name: a}]", "{}"},
		"a RuntimeClass": {"it has an overhead", overhead,
			"runtimeClassName: kata\ncontainers: [{name: a, resources: {requests: {cpu: 1}}}]", "{cpu: 1250m}"},
		"another RuntimeClass": {"it doesn't exist, and neither will the pods", overhead,
			"runtimeClassName: other\ncontainers: [{name: a, resources: {requests: {cpu: 1}}}]", "{cpu: 1}"},
		"transformed": {"Kueue's configuration says what counts", credits, "containers: [{name: a, resources: {limits: " +
			"{nvidia.com/mig-1g.5gb: 2, example.com/nic: 1, cpu: 1}}}]", "{cpu: 1, credits: 10}"},
	} {
		t.Run(name, func(t *testing.T) {
			var spec corev1.PodSpec
			if err := yaml.UnmarshalStrict([]byte(c.spec), &spec); err != nil {
				t.Fatal(err)
			}
			before := spec.DeepCopy()
			want := resourcesOf(t, c.want)
			if got := c.counting.Pod(&spec); !equality.Semantic.DeepEqual(got, want) && len(got)+len(want) > 0 {
				t.Errorf("%s: got %v, want %v", c.reason, got, want)
			}
			if !equality.Semantic.DeepEqual(before, &spec) {
				t.Error("the pod was changed")
			}
			for name := range want {
				q := want[name]
				q.Mul(3)
				want[name] = q
			}
			wl := &kueue.Workload{Spec: kueue.WorkloadSpec{PodSets: []kueue.PodSet{
				{Name: "a", Count: 2, Template: corev1.PodTemplateSpec{Spec: spec}},
				{Name: "b", Count: 1, Template: corev1.PodTemplateSpec{Spec: spec}}}}}
			if got := c.counting.Total(wl); !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("%s: three got %v, want %v", c.reason, got, want)
			}
		})
	}
}

// TestTotal holds that what Kueue says of a Workload is taken before what it would say.
func TestTotal(t *testing.T) {
	wl := &kueue.Workload{Spec: kueue.WorkloadSpec{PodSets: []kueue.PodSet{{Count: 1}}}}
	wl.Status.ResourceRequests = []kueue.PodSetRequest{{Resources: resourcesOf(t, "{cpu: 2}")},
		{Resources: resourcesOf(t, "{cpu: 1}")}}
	if got, want := (Counting{}).Total(wl), resourcesOf(t, "{cpu: 3}"); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("waiting: got %v", got)
	}
	wl.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{
		{ResourceUsage: resourcesOf(t, "{credits: 7}")}}}
	if got, want := (Counting{}).Total(wl), resourcesOf(t, "{credits: 7}"); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("admitted: got %v", got)
	}
}
