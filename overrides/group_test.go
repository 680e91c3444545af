package overrides

import (
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
)

func TestNodeGroup(t *testing.T) {
	cases := map[string]struct {
		reason, runtime string
		want            []string
	}{
		"launcher as a node": {"both are nodes", mpiRuntime, []string{"launcher", "node"}},
		"launcher apart": {"it is no node",
			strings.Replace(mpiRuntime, "runLauncherAsNode: true", "runLauncherAsNode: false", 1), nil},
		"no workers": {"there is one ReplicatedJob",
			strings.Replace(mpiRuntime, "name: node\n      replicas", "name: w\n      replicas", 1), nil},
		"torch":     {"one ReplicatedJob has all nodes", torchRuntime, nil},
		"no policy": {"there are no nodes", plainRuntime(""), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rt := must[trainerapi.TrainingRuntimeSpec](t, c.runtime)
			e, err := Bundled.Compute(jobOf(t, "{}"), &rt, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(e.NodeGroup, c.want) {
				t.Errorf("%s: got %v", c.reason, e.NodeGroup)
			}
		})
	}
}
