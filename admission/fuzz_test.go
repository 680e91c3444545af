package admission

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	gomodules "gomodules.xyz/jsonpatch/v2"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
)

// choices turns the fuzzer's bytes into choices; without bytes left, it takes the first.
type choices struct{ data []byte }

func (c *choices) of(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	choice := int(c.data[0]) % n
	c.data = c.data[1:]
	return choice
}

func choose[T any](c *choices, from ...T) T { return from[c.of(len(from))] }

const fuzzGPU = corev1.ResourceName("nvidia.com/gpu")

func (c *choices) pairs() map[string]string {
	pairs := map[string]string{}
	for range c.of(3) {
		pairs[choose(c, "gpu", "pool", "disk")] = choose(c, "a100", "cpu", "fast", "")
	}
	return pairs
}

func (c *choices) podSpec(spec *corev1.PodSpec) {
	spec.NodeSelector = c.pairs()
	for range c.of(3) {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key:      choose(c, "gpu", "spot"),
			Value:    choose(c, "", "a100"),
			Operator: choose(c, "", corev1.TolerationOpExists),
		})
	}
	for range c.of(2) {
		gate := corev1.PodSchedulingGate{Name: choose(c, "example.com/mine", kueue.TopologySchedulingGate)}
		spec.SchedulingGates = append(spec.SchedulingGates, gate)
	}
}

func (c *choices) resources() corev1.ResourceList {
	list := corev1.ResourceList{}
	for range c.of(3) {
		list[choose(c, fuzzGPU, corev1.ResourceCPU)] = *resource.NewQuantity(int64(c.of(4)), resource.DecimalSI)
	}
	return list
}

func (c *choices) runtime() *trainerapi.TrainingRuntimeSpec {
	spec := &trainerapi.TrainingRuntimeSpec{}
	for _, name := range []string{"node", "launcher"}[:1+c.of(2)] {
		rj := jobset.ReplicatedJob{Name: name, Replicas: int32(1 + c.of(3))}
		rj.Template.Spec.Parallelism = ptr.To(int32(1 + c.of(3)))
		rj.Template.Spec.Template.Labels = c.pairs()
		pod := &rj.Template.Spec.Template.Spec
		pod.Containers = []corev1.Container{{Name: "node", Resources: corev1.ResourceRequirements{Requests: c.resources()}}}
		c.podSpec(pod)
		spec.Template.Spec.ReplicatedJobs = append(spec.Template.Spec.ReplicatedJobs, rj)
	}
	return spec
}

func (c *choices) entries() []trainerapi.RuntimePatch {
	var entries []trainerapi.RuntimePatch
	for _, manager := range []string{"a.com/a", overrides.Manager, "b.com/b"} {
		if c.of(2) == 0 {
			continue
		}
		var pod corev1.PodSpec
		c.podSpec(&pod)
		patch := trainerapi.PodSpecPatch{
			NodeSelector:    pod.NodeSelector,
			Tolerations:     pod.Tolerations,
			SchedulingGates: pod.SchedulingGates,
		}
		meta := &metav1.ObjectMeta{Labels: c.pairs(), Annotations: c.pairs()}
		one := podPatch(choose(c, "node", "launcher"), meta, &patch)
		entries = append(entries, entry([]trainerapi.ReplicatedJobPatch{one}, nil))
		entries[len(entries)-1].Manager = manager
	}
	return entries
}

// workload returns a Workload that is admitted for the PodSets, or for something that differs from them.
func (c *choices) workload(computed []kueue.PodSet) *kueue.Workload {
	wl := &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: "wl", UID: "wl"},
		Spec:       kueue.WorkloadSpec{QueueName: "local"},
		Status:     kueue.WorkloadStatus{Admission: &kueue.Admission{ClusterQueue: "gpus"}},
	}
	for i := range computed {
		podSet := computed[i].DeepCopy()
		a := kueue.PodSetAssignment{
			Name:          podSet.Name,
			Count:         ptr.To(podSet.Count),
			Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{},
			ResourceUsage: corev1.ResourceList{},
		}
		for name, quantity := range (podsets.Counting{}).Pod(&podSet.Template.Spec) {
			a.Flavors[name] = choose(c, kueue.ResourceFlavorReference("a100"), "cpu")
			quantity.Mul(int64(podSet.Count))
			a.ResourceUsage[name] = quantity
		}
		switch c.of(12) {
		case 1:
			podSet.Count--
		case 2:
			a.Count = ptr.To(podSet.Count - 1)
		case 3:
			a.ResourceUsage = c.resources()
		case 4:
			a.Name = choose(c, kueue.PodSetReference("other"), "node")
		case 5:
			podSet.Template.Spec.Containers[0].Resources.Requests = c.resources()
		case 6:
			continue
		case 7:
			a.TopologyAssignment = &kueue.TopologyAssignment{Levels: []string{"host"}}
		}
		wl.Spec.PodSets = append(wl.Spec.PodSets, *podSet)
		wl.Status.Admission.PodSetAssignments = append(wl.Status.Admission.PodSetAssignments, a)
	}
	if c.of(4) == 1 {
		update := kueue.PodSetUpdate{
			Name:         choose(c, kueue.PodSetReference("node"), "launcher"),
			NodeSelector: c.pairs(),
			Labels:       c.pairs(),
			Annotations:  c.pairs(),
		}
		wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{
			{Name: "check", State: kueue.CheckStateReady, PodSetUpdates: []kueue.PodSetUpdate{update}},
		}
	}
	return wl
}

// FuzzDecide checks starts of whole TrainJobs, runtimes and admissions. What Covers accepts uses no more than was
// counted. A start by Decide clears suspend and keeps the other entries; every pod has the node labels and tolerations
// of the admitted flavors.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 2, 1, 0, 1, 2, 3, 1, 1, 1, 0, 2, 1, 0, 1, 1, 0, 1, 2, 1, 0, 0, 1, 1, 1, 0, 2, 3, 1})
	f.Add([]byte("signalbox starts a TrainJob in one write"))
	flavors := map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec{
		"a100": {NodeLabels: map[string]string{"gpu": "a100"}, Tolerations: []corev1.Toleration{{Key: "gpu", Value: "a100"}}},
		"cpu":  {NodeLabels: map[string]string{"pool": "cpu"}},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if says := decideOn(&choices{data}, flavors); says != "" {
			t.Fatal(says)
		}
	})
}

// decideOn decides a start, and describes what is wrong with it; "" if nothing is.
func decideOn(c *choices, flavors map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec) string {
	runtime := c.runtime()
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid", ResourceVersion: "7"}}
	job.Spec.RuntimePatches, job.Spec.Suspend = c.entries(), ptr.To(true)
	effective, err := dialect.Bundled.Compute(job, runtime, dialect.Bundled.Others(job))
	if err != nil {
		return ""
	}
	computed, err := podsets.Of(effective, podsets.Features{})
	if err != nil {
		return ""
	}
	wl := c.workload(computed)
	_, mismatch := Covers(wl, computed, nil, podsets.Counting{})
	if mismatch == nil {
		if says := overuses(wl, effective); says != "" {
			return "covered, but " + says
		}
	}
	start, err := Decide(
		Input{Job: job, Runtime: runtime, Dialect: dialect.Bundled, Workload: wl, Flavors: flavors, Now: now},
	)
	if err != nil || mismatch != nil {
		return ""
	}
	return runsRight(job, start, runtime, wl, flavors)
}

// overuses describes a resource that would be used beyond what was counted; "" if there is none.
func overuses(wl *kueue.Workload, effective *overrides.Effective) string {
	for i := range effective.ReplicatedJobs {
		rj := &effective.ReplicatedJobs[i]
		pods := int64(rj.Replicas) * int64(overrides.PodsPerJob(rj))
		var counted corev1.ResourceList
		for _, a := range wl.Status.Admission.PodSetAssignments {
			if string(a.Name) == rj.Name {
				counted = a.ResourceUsage
			}
		}
		for name, each := range rj.Template.Spec.Template.Spec.Containers[0].Resources.Requests {
			each.Mul(pods)
			if had, found := counted[name]; found && each.Cmp(had) > 0 {
				return fmt.Sprintf("%s uses %s of %s, and %s was counted", rj.Name, each.String(), name, had.String())
			}
		}
	}
	return ""
}

// operationsOf returns what writes a start, by Start.At and Start.Others.
func operationsOf(start *Start) []gomodules.Operation {
	const list = "/spec/" + overrides.RuntimePatches
	entry := gomodules.Operation{Operation: "add", Path: list, Value: []any{start.Entry}}
	if start.At >= 0 {
		entry = gomodules.Operation{Operation: "replace", Path: fmt.Sprintf("%s/%d", list, start.At), Value: start.Entry}
	} else if start.Others {
		entry = gomodules.Operation{Operation: "add", Path: list + "/-", Value: start.Entry}
	}
	return []gomodules.Operation{
		{Operation: "test", Path: "/metadata/uid", Value: start.UID},
		{Operation: "replace", Path: "/metadata/resourceVersion", Value: start.ResourceVersion},
		entry,
		{Operation: "replace", Path: "/spec/suspend", Value: false},
	}
}

// runsRight applies a start like the API server, and describes what is wrong with the pods; "" if nothing is.
func runsRight(
	job *api.TrainJob,
	start *Start,
	runtime *trainerapi.TrainingRuntimeSpec,
	wl *kueue.Workload,
	flavors map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec,
) string {
	before, err := json.Marshal(job)
	if err != nil {
		return err.Error()
	}
	operations, err := json.Marshal(operationsOf(start))
	if err != nil {
		return err.Error()
	}
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return err.Error()
	}
	data, err := patch.Apply(before)
	if err != nil {
		return "the start can't be written: " + err.Error()
	}
	after := &api.TrainJob{}
	if err := json.Unmarshal(data, after); err != nil {
		return err.Error()
	}
	if ptr.Deref(after.Spec.Suspend, true) {
		return "suspend is not cleared"
	}
	if len(dialect.Bundled.Others(job)) != len(dialect.Bundled.Others(after)) {
		return "the number of other entries changed"
	}
	result, err := dialect.Bundled.Compute(after, runtime, dialect.Bundled.Entries(after))
	if err != nil {
		return err.Error()
	}
	for _, a := range wl.Status.Admission.PodSetAssignments {
		rj := result.ReplicatedJob(string(a.Name))
		if rj == nil {
			return "no ReplicatedJob for PodSet " + string(a.Name)
		}
		pod := rj.Template.Spec.Template.Spec
		for _, flavor := range a.Flavors {
			for key, value := range flavors[flavor].NodeLabels {
				if pod.NodeSelector[key] != value {
					return fmt.Sprintf("pods of %s have %s=%q, and flavor %s has %q",
						a.Name, key, pod.NodeSelector[key], flavor, value)
				}
			}
			more := tolerate(slices.Clone(pod.Tolerations), flavors[flavor].Tolerations)
			if len(more) != len(pod.Tolerations) {
				return fmt.Sprintf("pods of %s don't tolerate what flavor %s does", a.Name, flavor)
			}
		}
	}
	return ""
}
