package audit

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"
)

// healthy is a TrainJob of one pod of 8 GPUs, on an admission of 8.
func healthy(t testing.TB) *Objects {
	t.Helper()
	var o Objects
	if err := yaml.UnmarshalStrict([]byte(`
TrainJobs:
- metadata: {namespace: ns, name: tj, uid: tj, labels: {kueue.x-k8s.io/queue-name: q}}
  spec: {runtimeRef: {name: r}}
Workloads:
- metadata:
    namespace: ns
    name: wl
    uid: wl
    ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: tj, uid: tj, controller: true}]
  spec: {podSets: []}
  status:
    conditions:
    - {type: QuotaReserved, status: "True", reason: r, message: "", lastTransitionTime: null}
    - {type: Admitted, status: "True", reason: r, message: "", lastTransitionTime: null}
    admission: {clusterQueue: q, podSetAssignments: [{name: node, count: 1, flavors: {nvidia.com/gpu: a100},
      resourceUsage: {nvidia.com/gpu: "8"}}]}
JobSets:
- metadata:
    namespace: ns
    name: tj
    uid: js
    ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: tj, uid: tj, controller: true}]
  spec:
    replicatedJobs:
    - name: node
      replicas: 1
      template: {spec: {parallelism: 1, completions: 1, template: {spec: {containers: []}}}}
Jobs:
- metadata:
    namespace: ns
    name: tj-node-0
    uid: job
    labels: {jobset.sigs.k8s.io/replicatedjob-name: node}
    ownerReferences: [{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, name: tj, uid: js, controller: true}]
  spec: {parallelism: 1, completions: 1, template: {spec: {containers: []}}}
Pods:
- metadata:
    namespace: ns
    name: pod
    uid: pod
    labels:
      jobset.sigs.k8s.io/jobset-name: tj
      jobset.sigs.k8s.io/jobset-uid: js
      jobset.sigs.k8s.io/replicatedjob-name: node
      kueue.x-k8s.io/podset: node
    ownerReferences: [{apiVersion: batch/v1, kind: Job, name: tj-node-0, uid: job, controller: true}]
  spec: {nodeName: n0, containers: [{name: node, resources: {requests: {nvidia.com/gpu: "8"}}}]}
  status: {phase: Running}
Flavors:
- metadata: {name: a100}
  spec: {nodeLabels: {gpu: a100}}
Nodes:
- metadata: {name: n0, labels: {gpu: a100, zone: z}}
`), &o); err != nil {
		t.Fatal(err)
	}
	return &o
}

func TestLook(t *testing.T) {
	again := func(o *Objects) {
		pod := o.Pods[0].DeepCopy()
		pod.Name = "again"
		o.Pods = append(o.Pods, *pod)
	}
	cases := map[string]struct {
		reason string
		change func(*Objects)
		want   []Rule
	}{
		"healthy": {reason: "what runs is what was admitted", change: func(*Objects) {}},
		"no Workload": {reason: "a queued TrainJob runs on quota",
			change: func(o *Objects) { o.Workloads = nil }, want: []Rule{Unquoted}},
		"a finished Workload": {reason: "Kueue has given its quota away",
			change: func(o *Objects) { finish(&o.Workloads[0]) }, want: []Rule{Unquoted}},
		"an inactive Workload": {reason: "Kueue counts nothing of it",
			change: func(o *Objects) { o.Workloads[0].Spec.Active = ptr.To(false) }, want: []Rule{Unquoted}},
		"a TrainJob without a queue": {reason: "it needs no quota",
			change: func(o *Objects) { o.Workloads, o.TrainJobs[0].Labels = nil, nil }},
		"a TrainJob that is gone": {reason: "its pods still need their quota",
			change: func(o *Objects) { o.TrainJobs = nil }},
		"a pod that has ended": {reason: "it uses nothing",
			change: func(o *Objects) { o.Pods[0].Status.Phase = corev1.PodSucceeded; o.Workloads = nil }},
		"one pod more than was counted": {reason: "more runs than was admitted", change: again, want: []Rule{Exceeds}},
		"a larger pod": {reason: "more runs than was admitted", change: func(o *Objects) {
			o.Pods[0].Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("16")
		}, want: []Rule{Exceeds}},
		"a resource that Kueue leaves out": {reason: "its configuration may exclude it", change: func(o *Objects) {
			o.Pods[0].Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("1Gi")
		}},
		"an orphan without quota": {reason: "no quota is held for it",
			change: func(o *Objects) { o.Jobs, o.JobSets, o.TrainJobs, o.Workloads = nil, nil, nil, nil },
			want:   []Rule{Unquoted}},
		"an orphan whose Workload still has": {reason: "its quota is held until it has ended",
			change: func(o *Objects) { o.Jobs, o.JobSets, o.TrainJobs = nil, nil, nil }},
		"quota for nothing": {reason: "others could use it",
			change: func(o *Objects) { o.Jobs, o.JobSets, o.Pods = nil, nil, nil }, want: []Rule{Idle}},
		"runs in another cluster": {reason: "its pods are there", change: func(o *Objects) {
			o.Jobs, o.JobSets, o.Pods = nil, nil, nil
			o.TrainJobs[0].Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
		}},
		"quota for a JobSet without pods": {reason: "nothing of it runs, or is about to",
			change: func(o *Objects) { o.Jobs, o.Pods = nil, nil }, want: []Rule{Idle}},
		"quota for pods behind a gate": {reason: "the gate may never be removed", change: func(o *Objects) {
			o.Pods[0].Spec.NodeName, o.Pods[0].Spec.SchedulingGates, o.Pods[0].Status.Phase = "",
				[]corev1.PodSchedulingGate{{Name: "example.com/never"}}, corev1.PodPending
		}, want: []Rule{Idle}},
		"a pod that waits for a node": {reason: "its quota is for the place that it waits for",
			change: func(o *Objects) { o.Pods[0].Spec.NodeName, o.Pods[0].Status.Phase = "", corev1.PodPending }},
		"a pod that was reclaimed": {reason: "Kueue counts nothing of it any more", change: func(o *Objects) {
			o.Workloads[0].Status.ReclaimablePods = []kueue.ReclaimablePod{{Name: "node", Count: 1}}
		}, want: []Rule{Exceeds}},
		"a Job of larger pods": {reason: "more would run than was built", change: func(o *Objects) {
			o.Jobs[0].Spec.Template.Spec.Containers = o.Pods[0].Spec.Containers
		}, want: []Rule{Altered}},
		"a Job of other parallelism": {reason: "more would run than was built",
			change: func(o *Objects) { o.Jobs[0].Spec.Parallelism = ptr.To[int32](8) }, want: []Rule{Altered}},
		"two Workloads": {reason: "quota is held twice",
			change: func(o *Objects) { o.Workloads = append(o.Workloads, *o.Workloads[0].DeepCopy()) }, want: []Rule{Doubled}},
		"two JobSets": {reason: "it runs twice", change: func(o *Objects) {
			js := o.JobSets[0].DeepCopy()
			js.Name, js.UID = "other", "other"
			o.JobSets = append(o.JobSets, *js)
		}, want: []Rule{Doubled}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := healthy(t)
			c.change(o)
			var got []Rule
			for _, f := range Look(*o) {
				got = append(got, f.Rule)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.reason, Look(*o), c.want)
			}
		})
	}
}

func finish(wl *kueue.Workload) {
	wl.Status.Conditions = append(wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadFinished,
		Status: metav1.ConditionTrue})
}

func TestWorkloadsAreSorted(t *testing.T) {
	for _, names := range [][]string{{"a", "b", "c"}, {"c", "a", "b"}, {"b", "c", "a"}} {
		o := healthy(t)
		wl := o.Workloads[0]
		o.Workloads = nil
		for _, name := range names {
			wl.Name = name
			o.Workloads = append(o.Workloads, *wl.DeepCopy())
		}
		want := "doubled: Workload ns/b: another Workload of the same TrainJob holds quota: a"
		if got := Look(*o); len(got) != 1 || got[0].String() != want {
			t.Errorf("the cache's order doesn't show: got %v for %v, want %s", got, names, want)
		}
	}
}

func TestSays(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*Objects)
		want   string
	}{
		"requests": {"resources are sorted by name", func(o *Objects) {
			o.Jobs[0].Spec.Template.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"memory": resource.MustParse("1Gi"), "cpu": resource.MustParse("2")},
			}}}
		}, "altered-child: Job ns/tj-node-0: its pods ask for 2 of cpu, 1Gi of memory, and those of its JobSet for nothing"},
		"an unknown ReplicatedJob": {"nothing was admitted for it", func(o *Objects) {
			o.JobSets[0].Spec.ReplicatedJobs[0].Name = "other"
		}, `altered-child: Job ns/tj-node-0: JobSet tj has no replicatedJob "node"`},
		"an unknown PodSet": {"nothing was counted for it", func(o *Objects) {
			o.Workloads[0].Status.Admission.PodSetAssignments[0].Name = "other"
		}, "exceeds-admission: Workload ns/wl: the pods of PodSet node use 8 of nvidia.com/gpu, and 0 was counted"},
		"no admission": {"nothing can be compared", func(o *Objects) { o.Workloads[0].Status.Admission = nil }, ""},
		"a foreign Workload": {"it is not a TrainJob's", func(o *Objects) {
			wl := o.Workloads[0].DeepCopy()
			wl.OwnerReferences = nil
			o.Workloads = append(o.Workloads, *wl)
		}, ""},
		"an abandoned pod of a TrainJob": {"its quota is in use", func(o *Objects) { o.Jobs, o.JobSets = nil, nil }, ""},
		"a Job without its JobSet": {"its pod is not the TrainJob's any more", func(o *Objects) { o.JobSets = nil },
			"quota-for-nothing: Workload ns/wl: it is admitted, and its TrainJob has no pod that runs or can be scheduled"},
		"a reclaimed PodSet of another name": {"only its own pods are not counted", func(o *Objects) {
			o.Workloads[0].Status.ReclaimablePods = []kueue.ReclaimablePod{{Name: "other", Count: 1}}
		}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := healthy(t)
			c.change(o)
			var all []string
			for _, f := range Look(*o) {
				all = append(all, f.String())
			}
			if got := strings.Join(all, "\n"); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
		})
	}
}
