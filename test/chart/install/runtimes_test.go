package install

import (
	"fmt"
	"path/filepath"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// stock installs chart signalbox-runtimes as docs/python-sdk.md does, reads what the Kubeflow SDK reads with the rights
// of an ordinary user, and runs a TrainJob of each runtime. It returns how many there are.
func (s *stand) stock() int {
	s.Helper()
	loaded, err := loader.Load(filepath.Join(repository, "charts", "signalbox-runtimes"))
	s.must(err)
	i := action.NewInstall(s.helm)
	i.ReleaseName, i.Namespace, i.CreateNamespace = "signalbox-runtimes", "kubeflow-system", true
	_, err = i.Run(loaded, nil)
	s.must(err)

	asUser := rest.CopyConfig(s.config)
	asUser.Impersonate = rest.ImpersonationConfig{UserName: "alice", Groups: []string{"system:authenticated"}}
	clients, err := kubernetes.NewForConfig(asUser)
	s.must(err)
	public, err := clients.CoreV1().ConfigMaps("kubeflow-system").Get(s.Context(), "kubeflow-trainer-public",
		metav1.GetOptions{})
	s.must(err)
	if public.Data["kubeflow_trainer_version"] == "" {
		s.Errorf("ConfigMap %s has no kubeflow_trainer_version: %v", public.Name, public.Data)
	}
	objects, err := dynamic.NewForConfig(asUser)
	s.must(err)
	runtimes, err := objects.Resource(schema.GroupVersionResource{
		Group: "trainer.kubeflow.org", Version: "v1alpha1", Resource: "clustertrainingruntimes",
	}).List(s.Context(), metav1.ListOptions{})
	s.must(err)
	for _, runtime := range runtimes.Items {
		s.create(fmt.Sprintf(`
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {namespace: team, name: %[1]s, labels: {kueue.x-k8s.io/queue-name: training}}
spec:
  suspend: true
  runtimeRef: {name: %[1]s}
  trainer: {numNodes: 2, resourcesPerNode: {requests: {cpu: 1}}}
`, runtime.GetName()))
		s.state(runtime.GetName(), "Complete")
	}
	return len(runtimes.Items)
}
