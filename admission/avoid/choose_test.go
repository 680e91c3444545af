package avoid

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// nodeOf is a node with a label pool, so many GPUs, and maybe a taint.
func nodeOf(name, pool string, gpus int64, taints ...corev1.Taint) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool,
			corev1.LabelHostname: name + ".host"}},
		Spec: corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}},
	}
}

// named is the metadata of a node without a pool.
func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name + ".host"}}
}

// jobsOf is what a TrainJob runs: one ReplicatedJob for each pod spec.
func jobsOf(specs ...corev1.PodSpec) *overrides.Effective {
	e := &overrides.Effective{}
	for i, spec := range specs {
		rj := jobset.ReplicatedJob{Name: fmt.Sprintf("rj%d", i), Replicas: 1}
		rj.Template.Spec.Template.Spec = spec
		e.ReplicatedJobs = append(e.ReplicatedJobs, rj)
	}
	return e
}

// podsOf is what a TrainJob runs with one ReplicatedJob of so many pods.
func podsOf(n int32, spec corev1.PodSpec) *overrides.Effective {
	e := jobsOf(spec)
	e.ReplicatedJobs[0].Template.Spec.Parallelism = &n
	return e
}

func gpu(n int64) corev1.PodSpec {
	requests := corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}
	return corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}}
}

// TestChoose holds that never more than half of the nodes that fit are avoided, whatever else there is.
func TestChoose(t *testing.T) {
	broken := corev1.Taint{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}
	slow := corev1.Taint{Key: "example.com/slow", Effect: corev1.TaintEffectNoSchedule}
	cordoned, anywhere, recent := nodeOf("c", "c", 8), gpu(1), nodeOf("a1", "a", 8)
	cordoned.Spec.Unschedulable = true
	anywhere.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	recent.CreationTimestamp = metav1.NewTime(now.Add(time.Second))
	twin := nodeOf("twin", "a", 8)
	twin.Labels[corev1.LabelHostname] = "a0.host"
	unnamed := nodeOf("x", "a", 8)
	delete(unnamed.Labels, corev1.LabelHostname)
	long := strings.Repeat("n", 64)
	selects := gpu(1)
	selects.NodeSelector = map[string]string{"pool": "a"}
	ofPool := func(pool string) kueue.ResourceFlavorSpec {
		return kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": pool}}
	}
	nodes := func(n int, pool string) (all []corev1.Node) {
		for i := range n {
			all = append(all, nodeOf(fmt.Sprintf("%s%d", pool, i), pool, 8))
		}
		return all
	}
	limits, huge := gpu(8), gpu(1)
	limits.Containers[0].Resources.Limits = limits.Containers[0].Resources.Requests
	limits.Containers[0].Resources.Requests = nil
	huge.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("2Ei")
	after := jobsOf(gpu(8), gpu(8))
	after.ReplicatedJobs[1].DependsOn = []jobset.DependsOn{{Name: "rj0", Status: jobset.DependencyComplete}}
	sized := append(nodes(1, "a"), nodeOf("a1", "a", 4))
	sized[1].Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
	for name, c := range map[string]struct {
		nodes   []corev1.Node
		flavors []kueue.ResourceFlavorSpec
		runs    *overrides.Effective
		counted []string
		kept    []string
		want    []string
		left    int
		fresh   int // those that are neither kept off nor tolerated
		fewer   map[string]int64
	}{
		"none is remembered": {nodes: nodes(4, "a"), runs: jobsOf(gpu(1)), kept: []string{"z"}, want: []string{"z"}},
		"one of four": {nodes: nodes(4, "a"), runs: jobsOf(gpu(1)), counted: []string{"a1"},
			want: []string{"a1.host"}},
		"three of four": {nodes: nodes(4, "a"), runs: jobsOf(gpu(1)), counted: []string{"a3", "a1", "a2"},
			want: []string{"a1.host", "a3.host"}, left: 1},
		"of two, one": {nodes: nodes(2, "a"), runs: jobsOf(gpu(1)), counted: []string{"a1", "a0"},
			want: []string{"a1.host"}, left: 1},
		"the only one": {nodes: nodes(1, "a"), runs: jobsOf(gpu(1)), counted: []string{"a0"}, left: 1},
		"one that is gone": {nodes: nodes(1, "a"), runs: jobsOf(gpu(1)), counted: []string{"gone"},
			want: []string{"gone"}},
		"one that isn't ready": {nodes: append(nodes(1, "a"), nodeOf("b", "b", 8, broken)), runs: jobsOf(gpu(1)),
			counted: []string{"b"}, want: []string{"b.host"}},
		"its pods need all": {nodes: nodes(2, "a"), runs: podsOf(2, gpu(8)), counted: []string{"a1"}, left: 1},
		"its pods need all but one": {nodes: nodes(4, "a"), runs: podsOf(6, gpu(4)), counted: []string{"a1", "a2"},
			want: []string{"a1.host"}, left: 1},
		"its pods don't fit at all": {nodes: nodes(2, "a"), runs: podsOf(3, gpu(8)), counted: []string{"a1", "a0"},
			want: []string{"a1.host"}, left: 1},
		"its pods need all, by their limits": {nodes: nodes(2, "a"), runs: podsOf(2, limits), counted: []string{"a1"},
			left: 1},
		"its pods need all, by their minimum fewer": {nodes: nodes(4, "a"), runs: podsOf(4, gpu(8)),
			counted: []string{"a1", "a2"}, fewer: map[string]int64{"rj0": 3}, want: []string{"a1.host"}, left: 1},
		"no node holds a pod": {nodes: nodes(2, "a"), runs: jobsOf(huge), counted: []string{"a1", "a0"},
			want: []string{"a0.host", "a1.host"}},
		"two steps need a node each": {nodes: nodes(2, "a"), runs: jobsOf(gpu(8), gpu(8)), counted: []string{"a1"}, left: 1},
		"two steps need a node in turn": {nodes: nodes(2, "a"), runs: after, counted: []string{"a1"},
			want: []string{"a1.host"}},
		"a step that fits a small node leaves the large one": {nodes: append(nodes(2, "a"), nodeOf("a2", "a", 1)),
			runs: jobsOf(gpu(1), gpu(8)), counted: []string{"a1"}, want: []string{"a1.host"}},
		"the large one is needed, and so the small": {nodes: []corev1.Node{nodeOf("small", "a", 4), nodeOf("large", "a", 8)},
			runs: jobsOf(gpu(4), gpu(8)), counted: []string{"small"}, left: 1},
		"pods that request nothing, on nodes that have nothing": {nodes: []corev1.Node{{ObjectMeta: named("a0")},
			{ObjectMeta: named("a1")}}, runs: jobsOf(gpu(0), gpu(0)), counted: []string{"a0"}, want: []string{"a0.host"}},
		"two steps share a node": {nodes: nodes(2, "a"), runs: jobsOf(gpu(4), gpu(4)), counted: []string{"a1"},
			want: []string{"a1.host"}},
		"two steps share no node by its number of pods": {nodes: sized, runs: jobsOf(gpu(2), gpu(2)),
			counted: []string{"a0"}, left: 1},
		"it has no hostname": {nodes: append(nodes(3, "a"), unnamed), runs: jobsOf(gpu(1)), counted: []string{"x"}, left: 1},
		"others have no GPU": {nodes: append(nodes(2, "a"), nodeOf("c", "c", 0), nodeOf("d", "d", 0)),
			runs: jobsOf(gpu(1)), counted: []string{"a1", "a0"}, want: []string{"a1.host"}, left: 1},
		"others aren't ready": {nodes: append(nodes(2, "a"), nodeOf("c", "c", 8, broken)), runs: jobsOf(gpu(1)),
			counted: []string{"a1", "a0"}, want: []string{"a1.host"}, left: 1},
		"others are cordoned": {nodes: append(nodes(2, "a"), cordoned), runs: jobsOf(gpu(1)),
			counted: []string{"a1", "a0"}, want: []string{"a1.host"}, left: 1},
		"others aren't ready, and pods tolerate all": {nodes: append(nodes(2, "a"), nodeOf("c", "c", 8, broken)),
			runs: jobsOf(anywhere), counted: []string{"a1", "a0"}, want: []string{"a1.host"}, left: 1},
		"one that isn't ready, and pods tolerate all": {nodes: append(nodes(2, "a"), nodeOf("c", "c", 8, broken)),
			runs: jobsOf(anywhere), counted: []string{"c", "a0"}, want: []string{"a0.host", "c.host"}},
		"one that was created since": {nodes: append(nodes(1, "a"), recent), runs: jobsOf(gpu(1)),
			counted: []string{"a1"}, fresh: 1},
		"one that is gone, and no label can name": {nodes: nodes(2, "a"), runs: jobsOf(gpu(1)), counted: []string{long},
			fresh: 1},
		"two nodes with one hostname": {nodes: append(nodes(2, "a"), twin), runs: jobsOf(gpu(1)),
			counted: []string{"a0"}, left: 1},
		"others aren't selected": {nodes: append(nodes(2, "a"), nodes(9, "b")...), runs: jobsOf(selects),
			counted: []string{"a1", "a0"}, want: []string{"a1.host"}, left: 1},
		"of another flavor": {nodes: append(nodes(2, "a"), nodes(9, "b")...),
			flavors: []kueue.ResourceFlavorSpec{ofPool("a"), ofPool("b")}, runs: jobsOf(gpu(1)),
			counted: []string{"a1", "a0", "b0"}, want: []string{"a1.host", "b0.host"}, left: 1},
		"another step needs it": {nodes: append(nodes(2, "a"), nodes(9, "b")...), runs: jobsOf(gpu(1), selects),
			counted: []string{"a1", "a0"}, want: []string{"a1.host"}, left: 1},
		"one is kept off": {nodes: nodes(4, "a"), runs: jobsOf(gpu(1)), counted: []string{"a2", "a1"},
			kept: []string{"a0.host"}, want: []string{"a0.host", "a2.host"}, left: 1},
		"it is kept off already": {nodes: nodes(2, "a"), runs: jobsOf(gpu(1)), counted: []string{"a0"},
			kept: []string{"a0.host"}, want: []string{"a0.host"}},
		"more than half are kept": {nodes: nodes(2, "a"), runs: jobsOf(gpu(1)), counted: []string{"a1", "a0"},
			kept: []string{"a0.host", "a1.host"}, want: []string{"a0.host", "a1.host"}},
		"kept, in whatever order": {nodes: nodes(4, "a"), runs: jobsOf(gpu(1)), counted: []string{"a0"},
			kept: []string{"z", "a0.host"}, want: []string{"z", "a0.host"}},
		"a tolerated taint": {nodes: []corev1.Node{nodeOf("a", "a", 8, slow), nodeOf("b", "a", 8, slow)},
			flavors: []kueue.ResourceFlavorSpec{{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}},
			runs:    jobsOf(gpu(1)), counted: []string{"a", "b"}, want: []string{"a.host"}, left: 1},
		"a flavor without any node": {nodes: nodes(2, "a"), flavors: []kueue.ResourceFlavorSpec{ofPool("z")},
			runs: jobsOf(gpu(1)), counted: []string{"a0"}, want: []string{"a0.host"}},
	} {
		t.Run(name, func(t *testing.T) {
			var counted []api.AvoidedNode
			for _, n := range c.counted {
				counted = append(counted, remembered(n, Lost, 0))
			}
			got := Cluster{Nodes: c.nodes, Flavors: c.flavors, Fewer: c.fewer}.Choose(c.runs, counted, c.kept)
			if !slices.Equal(got.Hosts, c.want) || len(got.Tolerated) != c.left ||
				len(got.Avoided) != len(counted)-c.left-c.fresh {
				t.Errorf("got %v, %d are tolerated; want %v, %d", got.Hosts, len(got.Tolerated), c.want, c.left)
			}
		})
	}
}

// TestTerm holds that each term that can match a node keeps off the hosts, that adding them twice changes nothing, and
// that what is in PodSets is found again.
func TestTerm(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	notIn := keepsOff
	required := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	term := func(all ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: all}
	}
	fields := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "n7")}}
	withFields := fields
	withFields.MatchExpressions = []corev1.NodeSelectorRequirement{notIn([]string{"a", "b"})}
	preferred := &corev1.Affinity{

		NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 1, Preference: term(in("zone", "x"))}}},
		PodAntiAffinity: &corev1.PodAntiAffinity{},
	}
	both := preferred.DeepCopy()
	both.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{term(notIn([]string{"a", "b"}))}}
	hosts := []string{"a", "b"}
	for name, c := range map[string]struct {
		affinity, want *corev1.Affinity
	}{
		"none":            {nil, required(term(notIn(hosts)))},
		"others are kept": {preferred, both},
		"two terms": {required(term(in("zone", "x")), term(in("zone", "y"))),
			required(term(in("zone", "x"), notIn(hosts)), term(in("zone", "y"), notIn(hosts)))},
		"a term of fields": {required(fields), required(withFields)},
		"a term that is empty": {required(term(), term(in("zone", "x"))),
			required(term(), term(in("zone", "x"), notIn(hosts)))},
		"the runtime's own": {required(term(notIn([]string{"c"}))), required(term(notIn([]string{"c"}), notIn(hosts)))},
		"the same":          {required(term(notIn(hosts))), required(term(notIn(hosts)))},
		"the same, and not last": {required(term(notIn(hosts), in("zone", "x"))),
			required(term(notIn(hosts), in("zone", "x"), notIn(hosts)))},
		"no term": {required(), required()},
		"the same in one": {required(term(notIn(hosts)), term(in("zone", "x"))),
			required(term(notIn(hosts)), term(in("zone", "x"), notIn(hosts)))},
	} {
		t.Run(name, func(t *testing.T) {
			runs := jobsOf(corev1.PodSpec{Affinity: c.affinity}, corev1.PodSpec{})
			before := jobsOf(corev1.PodSpec{Affinity: c.affinity.DeepCopy()}, corev1.PodSpec{})
			got := Apply(runs, hosts)
			first := got.ReplicatedJobs[0].Template.Spec.Template.Spec.Affinity
			if !reflect.DeepEqual(first, c.want) || !reflect.DeepEqual(runs, before) {
				t.Errorf("got %+v, want %+v; what it is made of is %+v", first, c.want, runs)
			}
			if again := Apply(got, hosts); !reflect.DeepEqual(again, got) || !Has(first, hosts) {
				t.Errorf("again: got %+v", again)
			}
			podSets := []kueue.PodSet{{Template: got.ReplicatedJobs[0].Template.Spec.Template},
				{Template: got.ReplicatedJobs[1].Template.Spec.Template}}
			if written := Written(podSets); !slices.Equal(written, hosts) {
				t.Errorf("written: got %v", written)
			}
			if kept := Kept(runs, podSets); !slices.Equal(kept, hosts) || Kept(got, podSets) != nil {
				t.Errorf("kept: got %v; and what it does by itself isn't", kept)
			}
		})
	}
	if Has(nil, hosts) || Has(required(term(in("zone", "x"))), hosts) {
		t.Error("it has none")
	}
	of := func(all ...*corev1.Affinity) (podSets []kueue.PodSet) {
		for _, a := range all {
			podSets = append(podSets, kueue.PodSet{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Affinity: a}}})
		}
		return podSets
	}
	for name, podSets := range map[string][]kueue.PodSet{
		"nothing": of(nil), "one of two": of(required(term(notIn(hosts))), nil),
		"others":          of(required(term(in("zone", "x")))),
		"two that differ": of(required(term(notIn(hosts))), required(term(notIn([]string{"c"})))),
		"fields":          of(required(fields)),
	} {
		if got := Written(podSets); got != nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestFreed holds which of the hosts that started pods keep off don't count any more and would take one of them.
func TestFreed(t *testing.T) {
	recent, cordoned := nodeOf("n3", "a", 8), nodeOf("n4", "a", 8)
	recent.CreationTimestamp, cordoned.Spec.Unschedulable = metav1.NewTime(now.Add(time.Second)), true
	cluster := Cluster{Nodes: []corev1.Node{nodeOf("n1", "a", 8), nodeOf("n2", "a", 8), recent, cordoned,
		nodeOf("n5", "b", 8), nodeOf("n6", "a", 1)}}
	hosts := []string{"gone", "n1.host", "n2.host", "n3.host", "n4.host", "n5.host", "n6.host"}
	pod := gpu(2)
	pod.NodeSelector = map[string]string{"pool": "a"}
	pod.Affinity = With(nil, hosts)
	runs := jobsOf(pod)
	known := []api.AvoidedNode{remembered("n1", Lost, 0), remembered("n3", Lost, 0)}
	if got := cluster.Freed(runs.ReplicatedJobs, hosts, known); !slices.Equal(got, []string{"n2.host", "n3.host"}) {
		t.Errorf("got %v", got)
	}
	if !Has(runs.ReplicatedJobs[0].Template.Spec.Template.Spec.Affinity, hosts) {
		t.Error("what it is given stays")
	}
	pod.Affinity = With(With(nil, []string{"n2.host"}), hosts) // its runtime keeps off one by itself
	got := cluster.Freed(jobsOf(pod).ReplicatedJobs, hosts, known)
	if !slices.Equal(got, []string{"n3.host"}) || Beyond(jobsOf(pod), hosts) != nil {
		t.Errorf("got %v", got)
	}
}
