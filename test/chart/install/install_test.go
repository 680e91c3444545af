// Package install installs the Helm chart on a real control plane with Helm itself, upgrades it, rolls it back and takes
// it away. Images aside: the Deployment's pods are simulated, and a manager runs beside them with what the chart has made
// for it: its ServiceAccount, its configuration and its Secret. `make test-chart` runs it.
package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
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
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/test/audit"
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
}

func newStand(t *testing.T) *stand {
	dir := os.Getenv("SIGNALBOX_CLUSTER")
	if dir == "" {
		t.Fatal("it runs on a control plane; start it with make test-chart")
	}
	s := &stand{T: t, dir: dir, helm: new(action.Configuration)}
	kubeconfig, space := filepath.Join(dir, "kubeconfig"), namespace
	var err error
	s.config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	s.must(err)
	s.clients, err = kubernetes.NewForConfig(s.config)
	s.must(err)
	s.objects, err = dynamic.NewForConfig(s.config)
	s.must(err)
	s.must(s.helm.Init(&genericclioptions.ConfigFlags{KubeConfig: &kubeconfig, Namespace: &space}, namespace, "secret", func(format string, v ...any) { t.Logf(format, v...) }))
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
	err := wait.PollUntilContextTimeout(s.Context(), 200*time.Millisecond, patience, true, func(context.Context) (ok bool, _ error) {
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
	return s.objects.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource}).Namespace(namespace).Get(s.Context(), name, metav1.GetOptions{})
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
	_, err = s.clients.CoreV1().ConfigMaps("kueue-system").Patch(s.Context(), "kueue-manager-config", types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
}

const external = "TrainJob.v1alpha1.trainer.kubeflow.org"

func TestChart(t *testing.T) {
	s := newStand(t)
	ctx := t.Context()
	before, err := s.clients.CoreV1().ConfigMaps("kueue-system").Get(ctx, "kueue-manager-config", metav1.GetOptions{})
	s.must(err)

	// In a namespace that takes restricted pods only.
	_, err = s.clients.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{})
	s.must(err)
	s.create(ground)

	// What can't work is refused, with the change to make.
	refused := func(text, want string) {
		t.Helper()
		if _, err := s.install(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want it to say %q", err, want)
		}
	}
	s.setKueue("batch/job, trainer.kubeflow.org/trainjob", "")
	refused("", `take "trainer.kubeflow.org/trainjob" out of integrations.frameworks`)
	s.setKueue("batch/job", "")
	refused("", `add "`+external+`" to integrations.externalFrameworks`)
	patch, err := json.Marshal(map[string]any{"data": before.Data})
	s.must(err)
	_, err = s.clients.CoreV1().ConfigMaps("kueue-system").Patch(ctx, "kueue-manager-config", types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
	refused("kueue: {configMap: elsewhere}", "ConfigMap kueue-system/elsewhere, which doesn't exist")
	refused("trainer: {enabled: false}", "Kubeflow Trainer is not installed here")
	s.create(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validator.trainer.kubeflow.org}
webhooks:
- {name: validator.trainjob.trainer.kubeflow.org, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://localhost:1"}}
`)
	refused("", "Kubeflow Trainer is installed here (ValidatingWebhookConfiguration validator.trainer.kubeflow.org)")
	s.must(s.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, "validator.trainer.kubeflow.org", metav1.DeleteOptions{}))

	// Installed.
	port := freePort(t)
	settings := fmt.Sprintf("webhook: {url: %q}\n", fmt.Sprintf("https://localhost:%d", port))
	from, err := audit.End(audit.Log(s.dir))
	s.must(err)
	r, err := s.install(settings)
	s.must(err)
	if r.Info.Status != release.StatusDeployed || !strings.Contains(r.Info.Notes, "rollout status deployment/signalbox") {
		t.Errorf("got %s, %q", r.Info.Status, r.Info.Notes)
	}
	s.run(port)
	s.train("first", "Complete")

	// Upgraded: what runs goes on, and the certificates stay.
	secret, err := s.clients.CoreV1().Secrets(namespace).Get(ctx, "signalbox-webhook-cert", metav1.GetOptions{})
	s.must(err)
	s.submit("runs", "forever")
	s.state("runs", "Running")
	u := action.NewUpgrade(s.helm)
	u.Namespace, u.Wait, u.Timeout = namespace, true, patience
	_, err = u.RunWithContext(ctx, "signalbox", s.chart, values(settings+"replicas: 3\nverbosity: 2\n"))
	s.must(err)
	d, err := s.clients.AppsV1().Deployments(namespace).Get(ctx, "signalbox", metav1.GetOptions{})
	s.must(err)
	if *d.Spec.Replicas != 3 {
		t.Errorf("got %d replicas", *d.Spec.Replicas)
	}
	again, err := s.clients.CoreV1().Secrets(namespace).Get(ctx, "signalbox-webhook-cert", metav1.GetOptions{})
	s.must(err)
	if string(again.Data["tls.crt"]) != string(secret.Data["tls.crt"]) || len(secret.Data["tls.crt"]) == 0 {
		t.Error("the upgrade has changed the certificate")
	}
	s.train("second", "Complete")

	// The certificates are made anew without a restart.
	_, err = s.clients.CoreV1().Secrets(namespace).Patch(ctx, "signalbox-webhook-cert", types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{})
	s.must(err)
	s.eventually("another certificate is served, and trusted", func() (string, bool) {
		now, err := s.clients.CoreV1().Secrets(namespace).Get(ctx, "signalbox-webhook-cert", metav1.GetOptions{})
		s.must(err)
		if len(now.Data["tls.crt"]) == 0 || string(now.Data["tls.crt"]) == string(secret.Data["tls.crt"]) {
			return "the Secret has no other", false
		}
		return s.trusted(port, now)
	})
	s.train("third", "Complete")

	// Rolled back.
	b := action.NewRollback(s.helm)
	b.Version, b.Wait, b.Timeout = 1, true, patience
	s.must(b.Run("signalbox"))
	d, err = s.clients.AppsV1().Deployments(namespace).Get(ctx, "signalbox", metav1.GetOptions{})
	s.must(err)
	if *d.Spec.Replicas != 2 {
		t.Errorf("got %d replicas after the rollback", *d.Spec.Replicas)
	}
	s.train("fourth", "Complete")
	s.state("runs", "Running")

	// The manager has been refused nothing that it has asked for.
	denied, err := audit.Since(audit.Log(s.dir), from, func(r audit.Request) bool {
		return r.User.Username == "system:serviceaccount:"+namespace+":signalbox" && r.ResponseStatus.Code == http.StatusForbidden
	})
	s.must(err)
	for _, r := range denied {
		t.Errorf("forbidden: %s %s/%s %s", r.Verb, r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ObjectRef.Name)
	}

	// Taken away: no TrainJob is lost.
	_, err = action.NewUninstall(s.helm).Run("signalbox")
	s.must(err)
	for _, name := range []string{"first", "runs"} {
		if _, err := s.get("trainer.kubeflow.org", "v1alpha1", "trainjobs", "team", name); err != nil {
			t.Errorf("TrainJob %s: %v", name, err)
		}
	}
	// The CRDs stay this release's, and are another's only if that is said.
	other := func(ownership bool, text string) error {
		i := action.NewInstall(s.helm)
		i.ReleaseName, i.Namespace, i.TakeOwnership = "other", namespace, ownership
		_, err := i.Run(s.chart, values(text))
		return err
	}
	if err := other(false, ""); err == nil || !strings.Contains(err.Error(), `is here already and not this release's (it is of release "signalbox"`) {
		t.Errorf("got %v", err)
	}
	s.must(other(true, "checks: {enabled: false}"))
	_, err = action.NewUninstall(s.helm).Run("other")
	s.must(err)
	s.must(func() error { _, err := s.get("trainer.kubeflow.org", "v1alpha1", "trainjobs", "team", "first"); return err }())

	left, err := s.clients.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, ours)
	s.must(err)
	if len(left.Items) != 0 {
		t.Errorf("webhooks are left that nobody answers: %d", len(left.Items))
	}
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
    flavors: [{name: a100, resources: [{name: cpu, nominalQuota: 8}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: team, name: training}
spec: {clusterQueue: team}
`

// submit creates a runtime whose pods run for so long, and a TrainJob of it.
func (s *stand) submit(name, duration string) {
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
          spec: {template: {metadata: {annotations: {sim.signalbox.dev/run-for: %[2]s}}, spec: {containers: [{name: node, image: "example.com/train:1", resources: {requests: {cpu: 1}}}]}}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {namespace: team, name: %[1]s, labels: {kueue.x-k8s.io/queue-name: training}}
spec: {suspend: true, runtimeRef: {kind: TrainingRuntime, name: %[1]s}}
`, name, duration))
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
	s.submit(name, "1s")
	s.state(name, want)
}

// run starts a manager with what the chart has made for it, and does the kubelet's part.
func (s *stand) run(port int) {
	s.Helper()
	ctx, dir := s.Context(), s.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		s.must(os.WriteFile(path, content, 0o600))
		return path
	}
	seconds := int64(3600)
	token, err := s.clients.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "signalbox", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	s.must(err)
	account := clientcmdapi.NewConfig()
	account.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthority: s.config.CAFile, CertificateAuthorityData: s.config.CAData}
	account.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	account.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	account.CurrentContext = "x"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	s.must(clientcmd.WriteToFile(*account, kubeconfig))

	settings, err := s.clients.CoreV1().ConfigMaps(namespace).Get(ctx, "signalbox", metav1.GetOptions{})
	s.must(err)
	certs, health := filepath.Join(dir, "certs"), fmt.Sprintf("127.0.0.1:%d", freePort(s.T))
	s.must(os.Mkdir(certs, 0o700))
	// Where a container has paths and ports of its own, a process beside others has not.
	content := strings.NewReplacer("/etc/signalbox/certs", certs, "bindAddress: :8081", "bindAddress: "+health,
		"bindAddress: :8080", fmt.Sprintf("bindAddress: 127.0.0.1:%d", freePort(s.T)), "port: 9443", fmt.Sprintf("port: %d", port)).Replace(settings.Data["config.yaml"])
	config := file("config.yaml", []byte(content))

	log, err := os.Create(filepath.Join(s.dir, "log", "signalbox.log"))
	s.must(err)
	manager := exec.Command(filepath.Join(repository, "bin", "signalbox"), "--config", config)
	manager.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	manager.Stdout, manager.Stderr = log, log
	s.must(manager.Start())
	ended := make(chan error, 1)
	go func() { ended <- manager.Wait(); close(ended) }()
	mounting, stop := context.WithCancel(ctx)
	s.Cleanup(func() {
		stop()
		if err := manager.Process.Signal(syscall.SIGTERM); err != nil {
			s.Errorf("the manager had ended: %v", err)
		}
		<-ended
		log.Close()
	})
	go s.mount(mounting, certs)
	s.eventually("the manager is ready", func() (string, bool) {
		select {
		case err := <-ended:
			text, _ := os.ReadFile(log.Name())
			s.Fatalf("the manager has ended: %v\n%s", err, text)
		default:
		}
		response, err := http.Get("http://" + health + "/readyz")
		if err != nil {
			return err.Error(), false
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return string(text), response.StatusCode == http.StatusOK
	})
	s.eventually("the certificate is trusted", func() (string, bool) {
		secret, err := s.clients.CoreV1().Secrets(namespace).Get(ctx, "signalbox-webhook-cert", metav1.GetOptions{})
		s.must(err)
		return s.trusted(port, secret)
	})
}

// trusted tells whether what is served is the Secret's certificate, and every webhook is told its CA.
func (s *stand) trusted(port int, secret *corev1.Secret) (string, bool) {
	c, err := tls.Dial("tcp", fmt.Sprintf("localhost:%d", port), &tls.Config{InsecureSkipVerify: true}) // it is compared
	if err != nil {
		return err.Error(), false
	}
	defer c.Close()
	served := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.ConnectionState().PeerCertificates[0].Raw})
	if !bytes.Equal(bytes.TrimSpace(served), bytes.TrimSpace(secret.Data["tls.crt"])) {
		return "another certificate is served", false
	}
	mutating, err := s.clients.AdmissionregistrationV1().MutatingWebhookConfigurations().List(s.Context(), ours)
	s.must(err)
	validating, err := s.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(s.Context(), ours)
	s.must(err)
	var told [][]byte
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			told = append(told, w.ClientConfig.CABundle)
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			told = append(told, w.ClientConfig.CABundle)
		}
	}
	for _, ca := range told {
		if !bytes.Equal(ca, secret.Data["ca.crt"]) {
			return "a webhook is told another CA", false
		}
	}
	return "no webhook is there", len(told) > 0
}

var ours = metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=signalbox"}

// mount brings the Secret into the folder whenever it changes, as a kubelet does.
func (s *stand) mount(ctx context.Context, folder string) {
	for ctx.Err() == nil {
		events, err := s.clients.CoreV1().Secrets(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=signalbox-webhook-cert"})
		if err != nil {
			continue
		}
		for e := range events.ResultChan() {
			secret, ok := e.Object.(*corev1.Secret)
			if !ok {
				continue
			}
			for name, content := range secret.Data {
				path := filepath.Join(folder, name)
				if os.WriteFile(path+".new", content, 0o600) != nil || os.Rename(path+".new", path) != nil {
					return // the test has ended
				}
			}
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
