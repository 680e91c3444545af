package install

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

const (
	namespace  = "signalbox-system"
	repository = "." // where make runs it
	patience   = time.Minute
)

// stand is the control plane, and Helm on it.
type stand struct {
	*testing.T
	dir     string
	config  *rest.Config
	clients kubernetes.Interface
	objects dynamic.Interface
	helm    *action.Configuration
	chart   *chart.Chart
	service *service
	token   string // prometheus'
}

func newStand(t *testing.T) *stand {
	dir := os.Getenv("SIGNALBOX_CLUSTER")
	if dir == "" {
		t.Fatal("it runs on a control plane; start it with make test-chart")
	}
	s := &stand{T: t, dir: dir, helm: new(action.Configuration), service: newService(t)}
	kubeconfig, space := filepath.Join(dir, "kubeconfig"), namespace
	var err error
	s.config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	s.must(err)
	s.clients, err = kubernetes.NewForConfig(s.config)
	s.must(err)
	s.objects, err = dynamic.NewForConfig(s.config)
	s.must(err)
	s.must(s.helm.Init(&genericclioptions.ConfigFlags{KubeConfig: &kubeconfig, Namespace: &space}, namespace, "secret",
		func(format string, v ...any) { t.Logf(format, v...) }))
	s.chart, err = loader.Load(filepath.Join(repository, "charts", "signalbox"))
	s.must(err)
	return s
}

func (s *stand) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// eventually waits for a condition.
func (s *stand) eventually(what string, holds func() (string, bool)) {
	s.Helper()
	said := ""
	err := wait.PollUntilContextTimeout(s.Context(), 200*time.Millisecond, patience, true,
		func(context.Context) (ok bool, _ error) {
			said, ok = holds()
			return ok, nil
		})
	if err != nil {
		s.Fatalf("%s: %v; last: %s", what, err, said)
	}
}

// create makes the objects of a YAML text.
func (s *stand) create(text string) {
	s.Helper()
	list, err := s.helm.KubeClient.Build(strings.NewReader(text), false)
	s.must(err)
	_, err = s.helm.KubeClient.Create(list)
	s.must(err)
}

func (s *stand) get(group, version, resource, namespace, name string) (*unstructured.Unstructured, error) {
	return s.objects.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource}).Namespace(
		namespace).Get(s.Context(), name, metav1.GetOptions{})
}

func values(text string) map[string]any {
	var v map[string]any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		panic(err) // the text is a constant
	}
	return v
}

func (s *stand) install(text string) (*release.Release, error) {
	i := action.NewInstall(s.helm)
	i.ReleaseName, i.Namespace, i.Wait, i.Timeout = "signalbox", namespace, true, patience
	return i.Run(s.chart, values(text))
}

// setKueue writes the configuration of an installed Kueue.
func (s *stand) setKueue(frameworks, external string) {
	s.Helper()
	data := fmt.Sprintf("integrations:\n  frameworks: [%s]\n  externalFrameworks: [%s]\n", frameworks, external)
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"controller_manager_config.yaml": data}})
	s.must(err)
	_, err = s.clients.CoreV1().ConfigMaps("kueue-system").Patch(s.Context(), "kueue-manager-config", types.MergePatchType,
		patch, metav1.PatchOptions{})
	s.must(err)
}

// ground is a node and a queue, in a namespace of a team.
const ground = `
apiVersion: v1
kind: Node
metadata: {name: gpu-0, labels: {gpu: a100}}
status: {capacity: {cpu: 64, memory: 64Gi, pods: 100}, allocatable: {cpu: 64, memory: 64Gi, pods: 100}}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: a100}
spec: {nodeLabels: {gpu: a100}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: a100, resources: [{name: cpu, nominalQuota: 16}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: team, name: training}
spec: {clusterQueue: team}
`

// runtime creates one whose pods run for so long.
func (s *stand) runtime(name, duration string, cpus int) {
	s.Helper()
	s.create(fmt.Sprintf(`
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {namespace: team, name: %[1]s, labels: {trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {metadata: {annotations: {sim.signalbox.dev/run-for: %[2]s}}, spec: {containers: [{name: node, image: "example.com/train:1", resources: {requests: {cpu: %[3]d}}}]}}}
`, name, duration, cpus))
}

// submit creates a TrainJob of a runtime of its own.
func (s *stand) submit(name, duration string, cpus int) {
	s.Helper()
	s.runtime(name, duration, cpus)
	s.create(fmt.Sprintf(`
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {namespace: team, name: %[1]s, labels: {kueue.x-k8s.io/queue-name: training}}
spec: {suspend: true, runtimeRef: {kind: TrainingRuntime, name: %[1]s}}
`, name))
}

func (s *stand) state(name, want string) {
	s.Helper()
	s.eventually("TrainJob "+name+" is "+want, func() (string, bool) {
		tj, err := s.get("trainer.kubeflow.org", "v1alpha1", "trainjobs", "team", name)
		s.must(err)
		state, _, err := unstructured.NestedString(tj.Object, "status", "state")
		s.must(err)
		return state, state == want
	})
}

func (s *stand) train(name, want string) {
	s.Helper()
	s.submit(name, "1s", 1)
	s.state(name, want)
}
