package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins"
	jobsetplugin "github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jobset"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/plainml"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Plugins are Trainer's own, all but its JobSet plugin, in one order. What is queued and what is built come from the
// same, so no pod runs that wasn't queued. A plugin that a later Trainer registers is one of them.
type Plugins []framework.Plugin

// NewPlugins returns the plugins of a registry. c and config are what they read. Trainer runs them in Go's random order
// of maps; here they run by name, and the one of no ML policy last: it acts on the runtimes of XGBoost and Flux too.
func NewPlugins(
	ctx context.Context, registry plugins.Registry, c client.Client, config *trainerconfig.Configuration,
) (Plugins, error) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(registry)), func(name string) bool {
		return name == jobsetplugin.Name || name == plainml.Name
	})
	if registry[plainml.Name] != nil {
		names = append(names, plainml.Name)
	}
	all := make(Plugins, 0, len(names))
	for _, name := range names {
		plugin, err := registry[name](ctx, c, nil, config)
		if err != nil {
			return nil, fmt.Errorf("setting up Trainer's plugin %s: %w", name, err)
		}
		all = append(all, plugin)
	}
	return all, nil
}

// EachPlugin calls a function with each plugin of a kind, in their order, until one returns an error.
func EachPlugin[Kind framework.Plugin](all Plugins, call func(Kind) error) error {
	for _, plugin := range all {
		if p, ok := plugin.(Kind); ok {
			if err := call(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// used are the plugins that make the pods of all TrainJobs of this process.
var used = func() Plugins {
	standard, err := NewPlugins(
		context.Background(), plugins.NewRegistry(), nowhere{}, &trainerconfig.Configuration{})
	if err != nil {
		panic(err) // none of them reads anything when it is made
	}
	return standard
}()

// Use has the pods of all TrainJobs made by a registry's plugins with Trainer's configuration. Like Trainer's feature
// gates, plugins are a process's, and are set before it computes anything.
func Use(registry plugins.Registry, config *trainerconfig.Configuration) error {
	others, err := NewPlugins(context.Background(), registry, nowhere{}, config)
	if err == nil {
		used = others
	}
	return err
}

// nowhere is a client of no cluster: what a plugin makes of pods is decided by what it is given alone. Plugins take the
// scheme and the mapper of a client when they are made.
type nowhere struct{ client.Client }

// Scheme implements client.Client.
func (nowhere) Scheme() *runtime.Scheme { return nil }

// RESTMapper implements client.Client.
func (nowhere) RESTMapper() meta.RESTMapper { return nil }
