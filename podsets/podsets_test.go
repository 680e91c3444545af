package podsets

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
)

// replicatedJob returns a ReplicatedJob of one pod, changed.
func replicatedJob(name string, change ...func(*jobset.ReplicatedJob)) jobset.ReplicatedJob {
	rj := jobset.ReplicatedJob{Name: name, Replicas: 1, Template: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "node",
			Image: "example.com/train:1"}}}},
	}}}
	for _, c := range change {
		c(&rj)
	}
	return rj
}

func effective(jobs ...jobset.ReplicatedJob) *overrides.Effective {
	return &overrides.Effective{ReplicatedJobs: jobs}
}

func TestOfCountsAndOrder(t *testing.T) {
	cases := map[string]struct {
		reason string
		jobs   []jobset.ReplicatedJob
		want   []string
	}{
		"nothing set": {
			reason: "a Job without parallelism runs one pod",
			jobs:   []jobset.ReplicatedJob{replicatedJob("node")},
			want:   []string{"node×1"},
		},
		"parallelism and replicas": {
			reason: "each replica is a Job of parallelism pods",
			jobs: []jobset.ReplicatedJob{replicatedJob("node", func(rj *jobset.ReplicatedJob) {
				rj.Replicas, rj.Template.Spec.Parallelism = 3, ptr.To[int32](4)
			})},
			want: []string{"node×12"},
		},
		"fewer completions than parallelism": {
			reason: "a Job runs no more pods than it needs completions",
			jobs: []jobset.ReplicatedJob{replicatedJob("node", func(rj *jobset.ReplicatedJob) {
				rj.Template.Spec.Parallelism, rj.Template.Spec.Completions = ptr.To[int32](4), ptr.To[int32](2)
			})},
			want: []string{"node×2"},
		},
		"order": {
			reason: "PodSets are in the order of the ReplicatedJobs, not of their names",
			jobs:   []jobset.ReplicatedJob{replicatedJob("node"), replicatedJob("launcher"), replicatedJob("a-third")},
			want:   []string{"node×1", "launcher×1", "a-third×1"},
		},
		"no replicas": {
			reason: "a ReplicatedJob may be switched off",
			jobs:   []jobset.ReplicatedJob{replicatedJob("node", func(rj *jobset.ReplicatedJob) { rj.Replicas = 0 })},
			want:   []string{"node×0"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Of(effective(c.jobs...), Features{})
			if err != nil {
				t.Fatal(err)
			}
			var shape []string
			for _, ps := range got {
				shape = append(shape, fmt.Sprintf("%s×%d", ps.Name, ps.Count))
				if ps.TopologyRequest != nil {
					t.Errorf("PodSet %s has a topology request without the feature", ps.Name)
				}
			}
			if !equality.Semantic.DeepEqual(shape, c.want) {
				t.Errorf("%s: got %v, want %v", c.reason, shape, c.want)
			}
		})
	}
}

func TestDefaultsAreNoDifference(t *testing.T) {
	rj := replicatedJob("node", func(rj *jobset.ReplicatedJob) {
		c := &rj.Template.Spec.Template.Spec.Containers[0]
		c.Ports = []corev1.ContainerPort{{ContainerPort: 29500}}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{}}}
		c.Env = []corev1.EnvVar{{Name: "POD",
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	})
	before := rj.DeepCopy()
	podSets, err := Of(effective(rj), Features{})
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(&rj, before) {
		t.Error("Of changed what it was given")
	}
	if !equality.Semantic.DeepEqual(podSets[0].Template, before.Template.Spec.Template) {
		t.Error("Kueue's own integration, which takes over what runs, compares the containers of the runtime as they stand")
	}
	stored := []kueue.PodSet{*podSets[0].DeepCopy()}
	spec := &stored[0].Template.Spec
	spec.RestartPolicy, spec.SchedulerName, spec.DNSPolicy,
		spec.TerminationGracePeriodSeconds = corev1.RestartPolicyOnFailure, corev1.DefaultSchedulerName,
		corev1.DNSClusterFirst, ptr.To[int64](30)
	c := &spec.Containers[0]
	c.Ports[0].Protocol = corev1.ProtocolTCP
	c.ReadinessProbe.HTTPGet.Scheme, c.ReadinessProbe.HTTPGet.Path = corev1.URISchemeHTTP, "/"
	c.ReadinessProbe.PeriodSeconds, c.ReadinessProbe.TimeoutSeconds, c.ReadinessProbe.SuccessThreshold,
		c.ReadinessProbe.FailureThreshold = 10, 1, 1, 3
	c.Env[0].ValueFrom.FieldRef.APIVersion = "v1"
	c.ImagePullPolicy, c.TerminationMessagePath, c.TerminationMessagePolicy = corev1.PullIfNotPresent,
		corev1.TerminationMessagePathDefault, corev1.TerminationMessageReadFile
	if !Equal(podSets, stored) || !Equal(stored, podSets) {
		t.Error("what the defaults say is the same as nothing")
	}
	c.ImagePullPolicy = corev1.PullAlways
	if Equal(podSets, stored) {
		t.Error("what is not a default is a difference")
	}
}

func TestOfRefusesTooMany(t *testing.T) {
	var jobs []jobset.ReplicatedJob
	for i := range Max + 1 {
		jobs = append(jobs, replicatedJob(fmt.Sprintf("job-%d", i)))
	}
	if _, err := Of(effective(jobs[:Max]...), Features{}); err != nil {
		t.Errorf("%d PodSets fit a Workload: %v", Max, err)
	}
	var invalid *field.Error
	if _, err := Of(effective(jobs...), Features{}); !errors.As(err, &invalid) || invalid.Type != field.ErrorTypeTooMany {
		t.Errorf("%d PodSets don't fit a Workload; got %v", Max+1, err)
	}
}

func TestTopologyRequest(t *testing.T) {
	index, group := batchv1.JobCompletionIndexAnnotation, jobset.JobIndexKey
	base := func(change func(*kueue.PodSetTopologyRequest)) *kueue.PodSetTopologyRequest {
		r := &kueue.PodSetTopologyRequest{PodIndexLabel: &index, SubGroupIndexLabel: &group, SubGroupCount: ptr.To[int32](2)}
		change(r)
		return r
	}
	all := Features{TopologyAware: true, MultiLayerTopology: true}
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		features    Features
		want        *kueue.PodSetTopologyRequest
		invalid     string
	}{
		"none": {
			reason: "pods of a JobSet are ranked even where no topology is asked for",
			want:   base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"required": {
			reason:      "the annotation names the level",
			annotations: map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"},
			want:        base(func(r *kueue.PodSetTopologyRequest) { r.Required = ptr.To("rack") }),
		},
		"preferred": {
			reason:      "the annotation names the level",
			annotations: map[string]string{kueue.PodSetPreferredTopologyAnnotation: "block"},
			want:        base(func(r *kueue.PodSetTopologyRequest) { r.Preferred = ptr.To("block") }),
		},
		"required before preferred": {
			reason: "Kueue takes the first of the three",
			annotations: map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack",
				kueue.PodSetPreferredTopologyAnnotation: "block"},
			want: base(func(r *kueue.PodSetTopologyRequest) { r.Required = ptr.To("rack") }),
		},
		"unconstrained": {
			reason:      "the annotation is a boolean",
			annotations: map[string]string{kueue.PodSetUnconstrainedTopologyAnnotation: "true"},
			want:        base(func(r *kueue.PodSetTopologyRequest) { r.Unconstrained = ptr.To(true) }),
		},
		"unconstrained, no boolean": {
			reason:      "the error names the annotation",
			annotations: map[string]string{kueue.PodSetUnconstrainedTopologyAnnotation: "perhaps"},
			invalid:     kueue.PodSetUnconstrainedTopologyAnnotation,
		},
		"group": {
			reason:      "a group needs a level",
			annotations: map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack", kueue.PodSetGroupName: "all"},
			want: base(func(r *kueue.PodSetTopologyRequest) {
				r.Required, r.PodSetGroupName = ptr.To("rack"), ptr.To("all")
			}),
		},
		"group without a level": {
			reason:      "Kueue takes no group without a level",
			annotations: map[string]string{kueue.PodSetGroupName: "all"},
			want:        base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"slices": {
			reason: "a slice needs its size",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "host",
				kueue.PodSetSliceSizeAnnotation: "4"},
			want: base(func(r *kueue.PodSetTopologyRequest) {
				r.PodSetSliceRequiredTopology, r.PodSetSliceSize = ptr.To("host"), ptr.To[int32](4)
			}),
		},
		"slices of no size": {
			reason:      "half of the pair says nothing",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "host"},
			want:        base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"slices of a wrong size": {
			reason: "the error names the annotation",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "host",
				kueue.PodSetSliceSizeAnnotation: "four"},
			invalid: kueue.PodSetSliceSizeAnnotation,
		},
		"layers": {
			reason: "several layers are a JSON list",
			annotations: map[string]string{
				kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `[{"topology":"rack","size":8},` +
					`{"topology":"host","size":4}]`,
			},
			want: base(func(r *kueue.PodSetTopologyRequest) {
				r.PodsetSliceRequiredTopologyConstraints = []kueue.PodsetSliceRequiredTopologyConstraint{
					{Topology: "rack", Size: 8}, {Topology: "host", Size: 4},
				}
			}),
		},
		"layers without their feature": {
			reason: "Kueue doesn't read them then either",
			annotations: map[string]string{
				kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `[{"topology":"rack","size":8}]`,
			},
			features: Features{TopologyAware: true},
			want:     base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"layers that are no list": {
			reason:      "the error names the annotation",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `{}`},
			invalid:     kueue.PodSetSliceRequiredTopologyConstraintsAnnotation,
		},
		"too many layers": {
			reason:      "Kueue takes three",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `[{},{},{},{}]`},
			invalid:     kueue.PodSetSliceRequiredTopologyConstraintsAnnotation,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			features := c.features
			if features == (Features{}) {
				features = all
			}
			podSets, err := Of(effective(replicatedJob("node", func(rj *jobset.ReplicatedJob) {
				rj.Replicas, rj.Template.Spec.Template.Annotations = 2, c.annotations
			})), features)
			if c.invalid != "" {
				var invalid *field.Error
				if !errors.As(err, &invalid) || invalid.Field != "template.spec.template.metadata.annotations["+c.invalid+"]" {
					t.Errorf("%s: got %v", c.reason, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(podSets[0].TopologyRequest, c.want) {
				t.Errorf("%s: got %+v, want %+v", c.reason, podSets[0].TopologyRequest, c.want)
			}
		})
	}
}

func TestEqual(t *testing.T) {
	base := func() kueue.PodSet {
		podSets, err := Of(effective(replicatedJob("node")), Features{TopologyAware: true})
		if err != nil {
			t.Fatal(err)
		}
		return podSets[0]
	}
	if !Equal([]kueue.PodSet{base()}, []kueue.PodSet{base()}) {
		t.Error("what was computed twice is equal")
	}
	if Equal([]kueue.PodSet{base()}, []kueue.PodSet{base(), base()}) {
		t.Error("another number of PodSets is a difference")
	}
	equivalent := base()
	equivalent.Template.Spec.NodeSelector = map[string]string{}
	if !Equal([]kueue.PodSet{base()}, []kueue.PodSet{equivalent}) {
		t.Error("an empty map is as good as none: the API server stores none")
	}
	differences := map[string]func(*kueue.PodSet){
		"name":           func(p *kueue.PodSet) { p.Name = "other" },
		"count":          func(p *kueue.PodSet) { p.Count++ },
		"minCount":       func(p *kueue.PodSet) { p.MinCount = ptr.To[int32](1) },
		"topology":       func(p *kueue.PodSet) { p.TopologyRequest.Required = ptr.To("rack") },
		"image":          func(p *kueue.PodSet) { p.Template.Spec.Containers[0].Image = "example.com/train:2" },
		"initContainers": func(p *kueue.PodSet) { p.Template.Spec.InitContainers = []corev1.Container{{Name: "init"}} },
		"requests": func(p *kueue.PodSet) {
			p.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		},
		"nodeSelector": func(p *kueue.PodSet) { p.Template.Spec.NodeSelector = map[string]string{"gpu": "a100"} },
		"affinity": func(p *kueue.PodSet) {
			p.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		},
		"tolerations": func(p *kueue.PodSet) {
			p.Template.Spec.Tolerations = []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}
		},
		"overhead": func(p *kueue.PodSet) {
			p.Template.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		},
		"runtimeClass":  func(p *kueue.PodSet) { p.Template.Spec.RuntimeClassName = ptr.To("nvidia") },
		"priorityClass": func(p *kueue.PodSet) { p.Template.Spec.PriorityClassName = "high" },
	}
	for name, change := range differences {
		t.Run(name, func(t *testing.T) {
			other := base()
			change(&other)
			if Equal([]kueue.PodSet{base()}, []kueue.PodSet{other}) {
				t.Errorf("a Workload that waits must follow a change of %s", name)
			}
		})
	}
}

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

func TestRequests(t *testing.T) {
	list := func(gpus, cpus string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if gpus != "" {
			l["nvidia.com/gpu"] = resource.MustParse(gpus)
		}
		if cpus != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpus)
		}
		return l
	}
	container := func(requests, limits corev1.ResourceList) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
	}
	cases := map[string]struct {
		reason string
		spec   corev1.PodSpec
		want   corev1.ResourceList
	}{
		"nothing": {"a pod may request nothing", corev1.PodSpec{Containers: []corev1.Container{{}}}, list("", "")},
		"limits only": {"a limit counts as the request",
			corev1.PodSpec{Containers: []corev1.Container{container(nil, list("8", "4"))}}, list("8", "4")},
		"a limit above the request": {"the request counts, and the missing one is added",
			corev1.PodSpec{Containers: []corev1.Container{container(list("", "1"), list("8", "4"))}}, list("8", "1")},
		"two containers": {"they run at the same time", corev1.PodSpec{Containers: []corev1.Container{
			container(list("1", "1"), nil), container(list("2", "1"), nil)}}, list("3", "2")},
		"an init container": {"it runs before the others", corev1.PodSpec{
			InitContainers: []corev1.Container{container(nil, list("", "6"))},
			Containers:     []corev1.Container{container(list("8", "4"), nil)}}, list("8", "6")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := c.spec.DeepCopy()
			got := Requests(&corev1.PodTemplateSpec{Spec: c.spec})
			if !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
			if !equality.Semantic.DeepEqual(before, &c.spec) {
				t.Error("Requests changed its argument")
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
