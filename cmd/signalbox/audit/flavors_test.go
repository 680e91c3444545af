package audit

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// addFlavor assigns another flavor to the PodSet, for another resource.
func addFlavor(o *Objects, name string, nodeLabels map[string]string) {
	o.Flavors = append(o.Flavors, kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kueue.ResourceFlavorSpec{NodeLabels: nodeLabels}})
	a := &o.Workloads[0].Status.Admission.PodSetAssignments[0]
	a.Flavors[corev1.ResourceName("example.com/"+name)] = kueue.ResourceFlavorReference(name)
}

func TestOtherFlavor(t *testing.T) {
	const runs = "other-flavor: Pod ns/pod: it runs on node n0, and PodSet node was assigned other nodes: "
	cases := map[string]struct {
		reason string
		change func(*Objects)
		want   string
	}{
		"another value": {"the node is of another flavor", func(o *Objects) { o.Nodes[0].Labels["gpu"] = "h100" },
			runs + `label gpu is "h100", and ResourceFlavor a100 requires "a100"`},
		"no label": {"the node is of no flavor", func(o *Objects) { o.Nodes[0].Labels = nil },
			runs + `label gpu is missing, and ResourceFlavor a100 requires "a100"`},
		"no label, an empty value": {"a selector of an empty value needs the label", func(o *Objects) {
			addFlavor(o, "b", map[string]string{"fast": ""})
		}, runs + `label fast is missing, and ResourceFlavor b requires ""`},
		"an empty value": {"it is there", func(o *Objects) {
			addFlavor(o, "b", map[string]string{"fast": ""})
			o.Nodes[0].Labels["fast"] = ""
		}, ""},
		"two flavors": {"the node is of both", func(o *Objects) {
			addFlavor(o, "b", map[string]string{"zone": "z", "gpu": "a100"})
		}, ""},
		"two flavors, one value each": {"no node is of both; both are named", func(o *Objects) {
			addFlavor(o, "b", map[string]string{"gpu": "h100"})
		}, runs + `label gpu is "a100", and ResourceFlavor a100 requires "a100", ResourceFlavor b requires "h100"`},
		"two labels": {"a pod has one finding", func(o *Objects) {
			addFlavor(o, "b", map[string]string{"zone": "y"})
			o.Nodes[0].Labels["gpu"] = "h100"
		}, runs + `label gpu is "h100", and ResourceFlavor a100 requires "a100"; ` +
			`label zone is "z", and ResourceFlavor b requires "y"`},
		"a flavor for two resources": {"it is named once", func(o *Objects) {
			o.Workloads[0].Status.Admission.PodSetAssignments[0].Flavors["cpu"] = "a100"
			o.Nodes[0].Labels["gpu"] = "h100"
		}, runs + `label gpu is "h100", and ResourceFlavor a100 requires "a100"`},
		"a node that is gone": {"nothing runs there", func(o *Objects) { o.Nodes = nil }, ""},
		"a flavor that is gone": {"nobody knows its nodes", func(o *Objects) {
			o.Flavors, o.Nodes[0].Labels = nil, nil
		}, ""},
		"a flavor without labels": {"every node is of it", func(o *Objects) {
			o.Flavors[0].Spec.NodeLabels, o.Nodes[0].Labels = nil, nil
		}, ""},
		"the flavor of another PodSet": {"it says nothing of this one", func(o *Objects) {
			addFlavor(o, "b", map[string]string{"gpu": "h100"})
			assignments := &o.Workloads[0].Status.Admission.PodSetAssignments
			other := *(*assignments)[0].DeepCopy()
			other.Name = "launcher"
			delete((*assignments)[0].Flavors, "example.com/b")
			*assignments = append(*assignments, other)
		}, ""},
		"a pod without a node": {"it runs nowhere", func(o *Objects) {
			o.Pods[0].Spec.NodeName, o.Pods[0].Status.Phase = "", corev1.PodPending
			o.Nodes[0].Labels = nil
		}, ""},
		"a pod that has ended": {"it uses nothing", func(o *Objects) {
			ended := o.Pods[0].DeepCopy()
			ended.Name, ended.Status.Phase, ended.Spec.NodeName = "ended", corev1.PodFailed, "other"
			o.Pods = append(o.Pods, *ended)
			o.Nodes = append(o.Nodes, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
		}, ""},
		"a TrainJob without a queue": {"it was assigned nothing", func(o *Objects) {
			o.Workloads, o.TrainJobs[0].Labels, o.Nodes[0].Labels = nil, nil, nil
		}, ""},
		"no admission": {"nothing can be compared", func(o *Objects) {
			o.Workloads[0].Status.Admission, o.Nodes[0].Labels = nil, nil
		}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := healthy(t)
			c.change(o)
			got := ""
			for _, f := range Look(*o) {
				got += f.String()
			}
			if got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
		})
	}
}

// BenchmarkLook looks at a TrainJob of 10,000 pods on as many nodes.
func BenchmarkLook(b *testing.B) {
	o := healthy(b)
	pod, node := o.Pods[0], o.Nodes[0]
	o.Pods, o.Nodes = nil, nil
	for i := range 10000 {
		pod.Name, pod.Spec.NodeName = fmt.Sprintf("pod-%d", i), fmt.Sprintf("n-%d", i)
		node.Name = pod.Spec.NodeName
		o.Pods, o.Nodes = append(o.Pods, pod), append(o.Nodes, node)
	}
	for b.Loop() {
		if got := Look(*o); len(got) != 1 || got[0].Rule != Exceeds {
			b.Fatal(got)
		}
	}
}
