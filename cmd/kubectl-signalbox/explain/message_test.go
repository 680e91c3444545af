package explain

import (
	"testing"

	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestRead holds what Kueue's messages mean without a simulation.
func TestRead(t *testing.T) {
	const (
		large = "insufficient quota for nvidia.com/gpu in flavor a100, previously considered podsets requests (0) + " +
			"current podset request (32) > maximum capacity (16)"
		unused = "insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed"
		to     = "couldn't assign flavors to pod set "
		flat   = `Flavor "a100" does not support TopologyAwareScheduling`
		other  = "flavor a100 doesn't match node affinity"
		spot   = "untolerated taint {spot yes NoSchedule <nil>} in flavor a100"
	)
	fewer := &kueue.Workload{}
	fewer.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 8, MinCount: ptr.To[int32](4)}}
	for name, c := range map[string]struct {
		message string
		wl      *kueue.Workload
		code    Code
		flavor  string
	}{
		"too large":                    {to + "node: " + large, nil, CodeTooLarge, "a100"},
		"fewer nodes fit":              {to + "node: " + large, fewer, CodeShort, ""},
		"another flavor is used":       {to + "node: " + large + ", " + unused, nil, CodeShort, "h100"},
		"the last PodSet":              {to + "a: " + unused + "; " + to + "node: " + large, nil, CodeTooLarge, "a100"},
		"no flavor":                    {to + "node: " + other, nil, CodeNoFlavor, ""},
		"one flavor of two":            {to + "node: " + other + ", " + unused, nil, CodeShort, "h100"},
		"a taint":                      {to + "node: " + spot, nil, CodeNoFlavor, ""},
		"no topology":                  {to + "node: " + flat, nil, CodeNoFlavor, ""},
		"no topology, and another":     {to + "node: " + flat + ", " + unused, nil, CodeShort, "h100"},
		"no rack":                      {to + `node: topology "racks" doesn't allow to fit any of 2 pod(s)`, nil, CodeTopology, ""},
		"pending preemption":           {unused + ". Pending the preemption of 1 workload(s)", nil, CodePreempting, ""},
		"a resource":                   {to + "node: resource memory unavailable in ClusterQueue", nil, CodeNoResource, ""},
		"something of another release": {"nobody knows", nil, CodeUnknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if r := read(c.message, c.wl); r.Code != c.code || r.flavor != c.flavor {
				t.Errorf("got %s of %q, want %s of %q", r.Code, r.flavor, c.code, c.flavor)
			}
		})
	}
}
