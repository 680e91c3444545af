package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins"
	jobsetplugin "github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jobset"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/plainml"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// TestPluginsInOrder holds that all of Trainer's plugins run, in the same order each time.
func TestPluginsInOrder(t *testing.T) {
	registry := plugins.NewRegistry()
	for range 20 {
		all, err := NewPlugins(t.Context(), registry, nowhere{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != len(registry)-1 || all[len(all)-1].Name() != plainml.Name {
			t.Fatalf("%d plugins run of %d, %s last; want all but %s, and %s last", len(all), len(registry),
				all[len(all)-1].Name(), jobsetplugin.Name, plainml.Name)
		}
		for i, plugin := range all[:len(all)-1] {
			if i > 0 && plugin.Name() < all[i-1].Name() {
				t.Fatalf("%s runs after %s", plugin.Name(), all[i-1].Name())
			}
		}
	}
}

// TestPluginFails holds that a plugin that can't be made is named, and those in use stay.
func TestPluginFails(t *testing.T) {
	before := len(used)
	failing := plugins.Registry{"Failing": func(
		context.Context, client.Client, client.FieldIndexer, *trainerconfig.Configuration,
	) (framework.Plugin, error) {
		return nil, errors.New("no")
	}}
	if err := Use(failing, nil); err == nil || !strings.Contains(err.Error(), "Failing") || len(used) != before {
		t.Errorf("got %v and %d plugins, want the plugin's name and %d plugins", err, len(used), before)
	}
}

// TestOneGPU holds that GPUs are counted by the resources that are GPUs, however many others there are. Go walks
// through maps in random order, so that each case is tried several times.
func TestOneGPU(t *testing.T) {
	cases := map[string]int64{
		"{limits: {nvidia.com/gpu: 8, rdma/hca: 1, example.com/fpga: 2}}":                  8,
		"{limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 16000, nvidia.com/gpucores: 50}}": 2,
		"{limits: {nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}}":                  1,
		"{limits: {amd.com/gpu: 4}, requests: {amd.com/gpu: 4}}":                           4,
		"{requests: {amd.com/gpu: 4}}":                                                     4,
		"{limits: {nvidia.com/gpu: 2, amd.com/gpu: 3}}":                                    5,
		"{limits: {nvidia.com/gpu: 2}, requests: {amd.com/gpu: 3}}":                        5,
		"{limits: {nvidia.com/mig-1g.5gb: 2, cpu: 30}}":                                    2,
		"{limits: {gpu.intel.com/i915: 2, gpu.intel.com/memory.max: 99, gpu.intel.com/millicores: 500, " +
			"gpu.intel.com/i915_monitoring: 1}}": 2,
		"{limits: {volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 4096, volcano.sh/vgpu-cores: 40}}": 2,
		"{limits: {nvidia.com/gpu.shared: 3}}":                                                3,
		"{limits: {aliyun.com/gpu-mem: 12}}":                                                  1,
		"{limits: {aliyun.com/gpu-mem: 0}}":                                                   0,
		"{limits: {nvidia.com/gpu: 0}}":                                                       0,
		"{limits: {cpu: 8, memory: 1Gi, rdma/hca: 1, hugepages-2Mi: 2Mi, google.com/tpu: 4}}": 0,
	}
	for text, want := range cases {
		var resources corev1.ResourceRequirements
		if err := yaml.Unmarshal([]byte(text), &resources); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			counted := processors(resources).Requests[countedGPU]
			if got := counted.Value(); got != want {
				t.Fatalf("%s: got %d GPUs, want %d", text, got, want)
			}
		}
	}
}
