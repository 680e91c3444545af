// Package node tests Signalbox on real nodes: kubelets and containers, with Kueue, JobSet and Signalbox installed by
// Helm as users install them. `make test-node` starts them and runs the suite there.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestNode(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	gomega.SetDefaultEventuallyTimeout(90 * time.Second)
	gomega.SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	gomega.SetDefaultConsistentlyDuration(3 * time.Second)
	gomega.SetDefaultConsistentlyPollingInterval(200 * time.Millisecond)
	ginkgo.RunSpecs(t, "Signalbox on real nodes")
}

var (
	dir   = os.Getenv("SIGNALBOX_CLUSTER")
	admin client.WithWatch // may do everything
	user  client.Client    // an ordinary user, who submits TrainJobs
)

// bundled reports whether Signalbox is the Trainer here; else Kubeflow Trainer runs beside it.
func bundled() bool { return os.Getenv("SIGNALBOX_PROFILE") == "node" }

var _ = ginkgo.BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(zap.New(zap.WriteTo(ginkgo.GinkgoWriter)))
	gomega.Expect(dir).NotTo(gomega.BeEmpty(), "the suite runs on real nodes; start it with make test-node")
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	connect := func(name string) client.WithWatch {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, name))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		config.QPS, config.Burst = 200, 400
		c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		return c
	}
	admin, user = connect("kubeconfig"), connect("user.kubeconfig")
	makeFlavor(ctx)
	startAudit(scheme)
})

var _ = ginkgo.AfterSuite(func() { stopAudit() })

var _ = ginkgo.AfterEach(func() {
	gomega.Expect(findings()).To(gomega.BeEmpty(), "signalbox audit")
})

// The objects of a failed spec are deleted before its report is read; so they are printed.
var _ = ginkgo.JustAfterEach(func() {
	if !ginkgo.CurrentSpecReport().Failed() {
		return
	}
	for _, args := range [][]string{
		{"get", "nodes,trainjobs,workloads.kueue.x-k8s.io,jobsets,jobs,pods", "-A", "-o", "wide"},
		{"get", "trainjobs", "-A", "-o", "yaml"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", "signalbox-system", "logs", "-l", "app.kubernetes.io/name=signalbox", "--prefix", "--tail=60"},
	} {
		report(args...)
	}
	namespaces, err := tryKubectl("get", "namespaces", "-o", "name")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for name := range strings.FieldsSeq(namespaces) {
		if name = strings.TrimPrefix(name, "namespace/"); strings.HasPrefix(name, "node-") {
			report("-n", name, "logs", "-l", "jobset.sigs.k8s.io/jobset-name", "--all-containers", "--prefix", "--tail=40")
		}
	}
})

func report(args ...string) {
	text, err := tryKubectl(args...)
	if err != nil {
		text = err.Error()
	}
	ginkgo.AddReportEntry("kubectl "+strings.Join(args, " "), text)
}

// kubectl is what users have; its answer is the text that they see.
func kubectl(args ...string) string {
	ginkgo.GinkgoHelper()
	text, err := tryKubectl(args...)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return text
}

func tryKubectl(args ...string) (string, error) { return command("kubectl", args...) }

func command(name string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join("bin", name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "HELM_CACHE_HOME="+dir+"/data/helm",
		"HELM_CONFIG_HOME="+dir+"/data/helm", "HELM_DATA_HOME="+dir+"/data/helm")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// act acts on a component of the control plane or of a node, such as kill kubelet-1, and returns when that is done.
func act(action, component string) {
	ginkgo.GinkgoHelper()
	gomega.Expect(tryAct(action, component)).To(gomega.Succeed())
}

func tryAct(action, component string) error {
	c := &http.Client{Timeout: 2 * time.Minute,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "control.sock"))
		}}}
	response, err := c.Post("http://cluster/"+action+"/"+component, "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, err := io.ReadAll(response.Body)
		return errors.Join(fmt.Errorf("%s %s: %s", action, component, strings.TrimSpace(string(message))), err)
	}
	return nil
}

func get[T client.Object](ctx context.Context, o T) T {
	ginkgo.GinkgoHelper()
	gomega.Expect(admin.Get(ctx, client.ObjectKeyFromObject(o), o)).To(gomega.Succeed())
	return o
}

func pods(ctx context.Context, options ...client.ListOption) []corev1.Pod {
	ginkgo.GinkgoHelper()
	var list corev1.PodList
	gomega.Expect(admin.List(ctx, &list, options...)).To(gomega.Succeed())
	return list.Items
}
