// Package e2e tests Signalbox on a real control plane: API server, scheduler, Kueue, JobSet and Kubeflow Trainer, with
// simulated nodes. `make test-e2e` starts one and runs the suite on it.
package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	"sigs.k8s.io/yaml"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	detect "github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func TestE2E(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	gomega.SetDefaultEventuallyTimeout(time.Minute)
	gomega.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	gomega.SetDefaultConsistentlyDuration(2 * time.Second)
	gomega.SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)
	ginkgo.RunSpecs(t, "Signalbox on a real control plane")
}

// waitsForTime is the label of specs that use the processors little: in CI, they run beside the others.
var waitsForTime = ginkgo.Label("waits")

var (
	cluster = plane{dir: os.Getenv("SIGNALBOX_CLUSTER")}
	admin   client.WithWatch // may do everything
	user    client.Client    // an ordinary user, who submits TrainJobs
	watched *invariants      // looks at every version of every TrainJob and pod
	audited *auditor         // compares what runs with what was admitted
)

var _ = ginkgo.BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(zap.New(zap.WriteTo(ginkgo.GinkgoWriter)))
	gomega.Expect(cluster.dir).NotTo(gomega.BeEmpty(), "the suite runs on a control plane; start it with make test-e2e")
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme,
		coscheduling.AddToScheme, volcano.AddToScheme, usageapi.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	var err error
	admin, err = client.NewWithWatch(config(cluster.kubeconfig("")), client.Options{Scheme: scheme})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	user, err = client.New(config(cluster.kubeconfig("user")), client.Options{Scheme: scheme})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	learnDialect(ctx)
	makeNodes(ctx)
	makeFlavors(ctx)
	if gates := os.Getenv("SIGNALBOX_KUEUE_GATES"); gates != "" {
		_, ofKueue := cluster.edited("kueue", func(c map[string]any) {
			set, _ := c["featureGates"].(map[string]any)
			turnOn(slices.DeleteFunc(strings.Split(gates, ","), func(name string) bool {
				_, off := set[name] // the control plane lacks what it needs, such as a visibility server's certificate
				return off
			})...)(c)
		})
		_, ofSignalbox := cluster.edited("signalbox", func(map[string]any) {})
		cluster.install(ofKueue, ofSignalbox)
	}
	watched = watchInvariants()
	audited = runAudit(scheme)
})

var _ = ginkgo.AfterSuite(func() {
	if watched != nil {
		watched.stop()
	}
	if audited != nil {
		audited.stop()
	}
})

// The objects of a failed spec are deleted before its report is read; so they are printed.
var _ = ginkgo.JustAfterEach(func(ctx context.Context) {
	if !ginkgo.CurrentSpecReport().Failed() {
		return
	}
	var namespaces corev1.NamespaceList
	if err := admin.List(ctx, &namespaces); err != nil {
		ginkgo.AddReportEntry("what was there can't be listed", err.Error())
		return
	}
	left := slices.DeleteFunc(namespaces.Items, func(n corev1.Namespace) bool {
		return !strings.HasPrefix(n.Name, "e2e-") || !n.DeletionTimestamp.IsZero()
	})
	if len(left) > 10 {
		return // of the table of namespaces, which says itself what is wrong with which
	}
	for _, n := range left {
		for _, list := range []client.ObjectList{
			&api.TrainJobList{}, &kueue.WorkloadList{}, &jobset.JobSetList{}, &batchv1.JobList{}, &corev1.PodList{},
		} {
			if err := admin.List(ctx, list, client.InNamespace(n.Name)); err != nil ||
				apimeta.LenList(list) == 0 || apimeta.LenList(list) > 10 {
				continue
			}
			if err := apimeta.EachListItem(list, func(o runtime.Object) error {
				o.(client.Object).SetManagedFields(nil)
				return nil
			}); err != nil {
				continue
			}
			if text, err := yaml.Marshal(list); err == nil {
				ginkgo.AddReportEntry(fmt.Sprintf("%T in %s", list, n.Name), string(text))
			}
		}
	}
})

var _ = ginkgo.AfterEach(func() {
	gomega.Expect(watched.violations()).To(gomega.BeEmpty(), "invariants of TrainJobs and their pods")
	gomega.Expect(audited.afterSpec()).To(gomega.BeEmpty(), "signalbox audit")
})

// The log of a suite is long; why specs failed stands at its end again.
var _ = ginkgo.ReportAfterSuite("why specs failed", func(report ginkgo.Report) {
	for _, spec := range report.SpecReports {
		if spec.Failed() {
			fmt.Printf("%s\n%s\n", spec.FullText(), spec.FailureMessage())
		}
	}
})

var installed atomic.Pointer[*dialect.Dialect]

// current is how the Trainer of the control plane takes overrides.
func current() *dialect.Dialect { return *installed.Load() }

func learnDialect(ctx context.Context) {
	ginkgo.GinkgoHelper()
	d := dialect.Bundled
	if !cluster.bundled() {
		var err error
		d, err = detect.FindTrainer(ctx, admin)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
	}
	installed.Store(&d)
}

func config(path string) *rest.Config {
	c, err := clientcmd.BuildConfigFromFlags("", path)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	c.QPS, c.Burst = 200, 400
	return c
}
