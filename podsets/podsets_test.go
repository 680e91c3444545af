package podsets

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
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
		"no pods": {
			reason: "a ReplicatedJob may be switched off by its parallelism",
			jobs:   []jobset.ReplicatedJob{replicatedJob("node", pods(0))},
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
	spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("own")}
	if !Equal(podSets, stored) {
		t.Error("Kueue 0.17 doesn't store it, and nothing that Kueue decides depends on it")
	}
	c.ImagePullPolicy = corev1.PullAlways
	if Equal(podSets, stored) {
		t.Error("what is not a default is a difference")
	}
}

// A field that Kueue 0.17 doesn't have would be pruned, and the Workload would fit no more.
func TestGroupsOfPodsAreLeftOut(t *testing.T) {
	rj := replicatedJob("node", func(rj *jobset.ReplicatedJob) {
		rj.Template.Spec.Template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("own")}
	})
	podSets, err := Of(effective(rj), Features{})
	if err != nil || podSets[0].Template.Spec.SchedulingGroup != nil {
		t.Errorf("got %v, %v", podSets, err)
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
	says := map[string]string{
		"name": "podSets are [node], not [other]", "count": "podSets[node].count is 1, not 2",
		"minCount": "podSets[node].minCount is 0, not 1", "topology": "podSets[node].topologyRequest differs",
		"image": ".template.spec.containers differs", "requests": ".template.spec.containers differs",
		"runtimeClass":  ".template.spec.runtimeClassName differs",
		"priorityClass": ".template.spec.priorityClassName differs",
	}
	for name, change := range differences {
		t.Run(name, func(t *testing.T) {
			other := base()
			change(&other)
			if Equal([]kueue.PodSet{base()}, []kueue.PodSet{other}) {
				t.Errorf("a Workload that waits must follow a change of %s", name)
			}
			want := cmp.Or(says[name], ".template.spec."+name+" differs")
			if got := Difference([]kueue.PodSet{base()}, []kueue.PodSet{other}); !strings.HasSuffix(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// BenchmarkDecode decodes a Workload that waits, as an API server sends it, in both encodings of custom resources: how
// much of the time in which a manager's caches are filled would CBOR save?
func BenchmarkDecode(b *testing.B) {
	scheme := runtime.NewScheme()
	if err := kueue.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	encodings := map[string]runtime.Serializer{
		"json": json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		"cbor": cbor.NewSerializer(scheme, scheme),
	}
	sent, err := os.ReadFile("testdata/workload.json")
	if err != nil {
		b.Fatal(err)
	}
	stored := &kueue.Workload{}
	if _, _, err := encodings["json"].Decode(sent, nil, stored); err != nil {
		b.Fatal(err)
	}
	for name, encoding := range encodings {
		b.Run(name, func(b *testing.B) {
			var data bytes.Buffer
			if err := encoding.Encode(stored, &data); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := encoding.Decode(data.Bytes(), nil, &kueue.Workload{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(data.Len()), "object-bytes")
		})
	}
}

func BenchmarkOf(b *testing.B) {
	e := effective(replicatedJob("dataset-initializer"), replicatedJob("node"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Of(e, Features{TopologyAware: true}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEqual(b *testing.B) {
	e := effective(replicatedJob("dataset-initializer"), replicatedJob("node"))
	computed, err := Of(e, Features{})
	if err != nil {
		b.Fatal(err)
	}
	stored, err := Of(e, Features{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if !Equal(computed, stored) {
			b.Fatal("they differ")
		}
	}
}
