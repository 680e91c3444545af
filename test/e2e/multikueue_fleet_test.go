package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// worker is a cluster that runs the TrainJobs of the one that the suite runs on.
type worker struct {
	plane
	name  string
	admin client.Client
}

// fleet are the worker clusters.
type fleet []worker

// newFleet connects to the worker clusters, and gives them the nodes and flavors of the manager cluster.
func newFleet(ctx context.Context) fleet {
	ginkgo.GinkgoHelper()
	var all fleet
	for i, dir := range filepath.SplitList(os.Getenv(workersVariable)) {
		w := worker{plane: plane{dir: dir}, name: fmt.Sprintf("worker-%d", i+1)}
		var err error
		w.admin, err = client.New(config(w.kubeconfig("")), client.Options{Scheme: admin.Scheme()})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for _, list := range []client.ObjectList{&corev1.NodeList{}, &kueue.ResourceFlavorList{}} {
			gomega.Expect(admin.List(ctx, list)).To(gomega.Succeed())
			gomega.Expect(apimeta.EachListItem(list, func(o runtimeObject) error {
				return w.copy(ctx, o.(client.Object))
			})).To(gomega.Succeed())
		}
		all = append(all, w)
	}
	return all
}

// copy creates an object of the manager cluster in a worker cluster.
func (w worker) copy(ctx context.Context, o client.Object) error {
	c := o.DeepCopyObject().(client.Object)
	c.SetUID("")
	c.SetResourceVersion("")
	c.SetManagedFields(nil)
	c.SetCreationTimestamp(metav1.Time{})
	c.SetFinalizers(nil)
	if err := w.admin.Create(ctx, c); err != nil {
		return ignoreExists(err)
	}
	if node, ok := c.(*corev1.Node); ok {
		node.Status = corev1.NodeStatus{
			Allocatable: o.(*corev1.Node).Status.Allocatable, Capacity: o.(*corev1.Node).Status.Capacity,
		}
		if err := w.admin.Status().Update(ctx, node); err != nil && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// join does what docs/multikueue.md says, with kubectl.
func (f fleet) join() {
	ginkgo.GinkgoHelper()
	merged := f.contexts("")
	here, err := os.Getwd()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	dir := ginkgo.GinkgoT().TempDir()
	gomega.Expect(os.Symlink(filepath.Join(here, "config"), filepath.Join(dir, "config"))).To(gomega.Succeed())
	gomega.Expect(clientcmd.WriteToFile(*merged, filepath.Join(dir, "kubeconfig"))).To(gomega.Succeed())
	page, err := os.ReadFile("docs/multikueue.md")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	blocks := strings.Split(string(page), "```bash\n")[1:]
	gomega.Expect(blocks).To(gomega.HaveLen(2), "commands of docs/multikueue.md")
	for _, block := range blocks {
		script, _, _ := strings.Cut(block, "```")
		command := exec.Command("bash", "-euo", "pipefail", "-c", script)
		command.Dir = dir
		command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"),
			"PATH="+filepath.Join(here, "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		gomega.Expect(err).NotTo(gomega.HaveOccurred(), "%s\n%s", script, out)
	}
}

// contexts returns a kubeconfig of all clusters as a user, "" for an admin, by the names that the documentation gives
// them.
func (f fleet) contexts(who string) *clientcmdapi.Config {
	ginkgo.GinkgoHelper()
	paths := map[string]string{"manager": cluster.kubeconfig(who)}
	for _, w := range f {
		paths[w.name] = w.kubeconfig(who)
	}
	merged := clientcmdapi.NewConfig()
	for name, path := range paths {
		one, err := clientcmd.LoadFromFile(path)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		context := one.Contexts[one.CurrentContext]
		merged.Clusters[name], merged.AuthInfos[name] = one.Clusters[context.Cluster], one.AuthInfos[context.AuthInfo]
		merged.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	return merged
}

// kubeconfig writes it to a file.
func (f fleet) kubeconfig(who string) string {
	ginkgo.GinkgoHelper()
	path := filepath.Join(ginkgo.GinkgoT().TempDir(), "kubeconfig")
	gomega.Expect(clientcmd.WriteToFile(*f.contexts(who), path)).To(gomega.Succeed())
	return path
}

// plugin runs a command of the plugin in the manager cluster, as a user who has contexts of the workers, too.
func (f fleet) plugin(ctx context.Context, g *ground, who string, args ...string) spoken {
	ginkgo.GinkgoHelper()
	return pluginWith(ctx, f.kubeconfig(who), append(args, "--context", "manager", "--namespace", g.namespace)...)
}

// hasLogs gives the node of a TrainJob's pod in the worker a kubelet for the running spec, which has a line of each
// container's log.
func (w worker) hasLogs(ctx context.Context, tj *api.TrainJob) {
	ginkgo.GinkgoHelper()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(out, "the log at", r.URL.Path)
	}))
	ginkgo.DeferCleanup(kubelet.Close)
	var pods corev1.PodList
	gomega.Expect(w.admin.List(ctx, &pods, client.InNamespace(tj.Namespace),
		client.MatchingLabels{jobset.JobSetNameKey: tj.Name})).To(gomega.Succeed())
	gomega.Expect(pods.Items).NotTo(gomega.BeEmpty())
	node := &corev1.Node{}
	gomega.Eventually(func() error {
		if err := w.admin.Get(ctx, client.ObjectKey{Name: pods.Items[0].Spec.NodeName}, node); err != nil {
			return err
		}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.Listener.Addr().(*net.TCPAddr).Port)
		return w.admin.Status().Update(ctx, node)
	}).Should(gomega.Succeed())
}

// ground is a ground whose queue leads to the workers. quota is GPUs in each of them.
func (f fleet) ground(ctx context.Context, quota int64) *ground {
	ginkgo.GinkgoHelper()
	g := newGround(ctx, map[string]int64{"a100": quota * int64(len(f))}, func(cq *kueue.ClusterQueue) {
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{
			AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: "multikueue"}},
		}
	})
	for _, w := range f {
		gomega.Expect(w.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: g.namespace}})).To(
			gomega.Succeed())
		cq := get(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.queue}})
		cq.Spec.AdmissionChecksStrategy = nil
		for i := range cq.Spec.ResourceGroups[0].Flavors {
			for j := range cq.Spec.ResourceGroups[0].Flavors[i].Resources {
				if r := &cq.Spec.ResourceGroups[0].Flavors[i].Resources[j]; r.Name == gpu {
					r.NominalQuota.Set(quota)
				}
			}
		}
		gomega.Expect(w.copy(ctx, cq)).To(gomega.Succeed())
		gomega.Expect(w.copy(ctx, get(ctx, &kueue.LocalQueue{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: localQueue}}))).To(gomega.Succeed())
	}
	return g
}

// runtime makes a runtime in all clusters.
func (f fleet) runtime(ctx context.Context, g *ground, name, duration string, change ...func(*api.TrainingRuntime)) {
	ginkgo.GinkgoHelper()
	rt := g.runtime(ctx, name, duration, change...)
	for _, w := range f {
		gomega.Expect(w.copy(ctx, rt)).To(gomega.Succeed())
	}
}

// priorities makes two priority classes in all clusters.
func (f fleet) priorities(ctx context.Context) (low, high string) {
	ginkgo.GinkgoHelper()
	low, high = makePriorities(ctx)
	for _, w := range f {
		for _, name := range []string{low, high} {
			class := &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
			gomega.Expect(w.copy(ctx, get(ctx, class))).To(gomega.Succeed())
		}
	}
	return low, high
}

// setImage changes the image of a runtime in this worker alone.
func (w worker) setImage(ctx context.Context, g *ground, runtime, image string) {
	ginkgo.GinkgoHelper()
	rt := &api.TrainingRuntime{}
	gomega.Expect(w.admin.Get(ctx, client.ObjectKey{Namespace: g.namespace, Name: runtime}, rt)).To(gomega.Succeed())
	rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = image
	gomega.Expect(w.admin.Update(ctx, rt)).To(gomega.Succeed())
}

// pods are the pods of a TrainJob by worker, but for those that have ended.
func (f fleet) pods(ctx context.Context, tj *api.TrainJob) map[string][]corev1.Pod {
	ginkgo.GinkgoHelper()
	found := map[string][]corev1.Pod{}
	for _, w := range f {
		var pods corev1.PodList
		gomega.Expect(w.admin.List(ctx, &pods, client.InNamespace(tj.Namespace),
			client.MatchingLabels{jobset.JobSetNameKey: tj.Name})).To(gomega.Succeed())
		for _, p := range pods.Items {
			if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				found[w.name] = append(found[w.name], p)
			}
		}
	}
	return found
}

// ready reports whether the status of a TrainJob here shows a pod that is ready in a worker. It has no state where the
// manager cluster has Kubeflow Trainer's CRDs.
func ready(ctx context.Context, tj *api.TrainJob) func() bool {
	return func() bool {
		ginkgo.GinkgoHelper()
		return slices.ContainsFunc(get(ctx, tj).Status.JobsStatus, func(s trainerapi.JobStatus) bool {
			return ptr.Deref(s.Ready, 0) > 0
		})
	}
}

// runsIn returns the workers in which pods of a TrainJob run.
func (f fleet) runsIn(ctx context.Context, tj *api.TrainJob) func() []string {
	return func() []string { return slices.Sorted(maps.Keys(f.pods(ctx, tj))) }
}

// awaitRun waits until a TrainJob runs in one worker, and returns that.
func (f fleet) awaitRun(ctx context.Context, tj *api.TrainJob) worker {
	ginkgo.GinkgoHelper()
	gomega.Eventually(f.runsIn(ctx, tj)).Should(gomega.HaveLen(1))
	return f.named(f.runsIn(ctx, tj)()[0])
}

func (f fleet) named(name string) worker {
	return f[slices.IndexFunc(f, func(w worker) bool { return w.name == name })]
}

// used are the GPUs that a ground's quota has given away in a worker.
func (w worker) used(ctx context.Context, g *ground) func() int64 {
	return func() int64 {
		ginkgo.GinkgoHelper()
		cq := &kueue.ClusterQueue{}
		gomega.Expect(w.admin.Get(ctx, client.ObjectKey{Name: g.queue}, cq)).To(gomega.Succeed())
		var sum int64
		for _, f := range cq.Status.FlavorsReservation {
			for _, r := range f.Resources {
				if r.Name == gpu {
					sum += r.Total.Value()
				}
			}
		}
		return sum
	}
}

// trainJob returns a worker's TrainJob; nil if it has none.
func (w worker) trainJob(ctx context.Context, tj *api.TrainJob) *api.TrainJob {
	ginkgo.GinkgoHelper()
	remote := &api.TrainJob{}
	err := w.admin.Get(ctx, client.ObjectKeyFromObject(tj), remote)
	gomega.Expect(ignoreNotFound(err)).To(gomega.Succeed())
	if err != nil {
		return nil
	}
	return remote
}

// follow returns a function that says in which workers each TrainJob of a namespace has had a pod bound since.
func (f fleet) follow(g *ground) func() map[string][]string {
	ginkgo.GinkgoHelper()
	from := map[string]int64{}
	for _, w := range f {
		from[w.name] = w.auditEnd()
	}
	return func() map[string][]string {
		ginkgo.GinkgoHelper()
		ran := map[string][]string{}
		for _, w := range f {
			for _, r := range w.requests(from[w.name], func(r request) bool {
				return r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource == "binding" &&
					r.ObjectRef.Namespace == g.namespace && r.ResponseStatus.Code < 300
			}) {
				job, _, _ := strings.Cut(r.ObjectRef.Name, "-node-")
				if !slices.Contains(ran[job], w.name) {
					ran[job] = append(ran[job], w.name)
				}
			}
		}
		return ran
	}
}

// gone reports whether nothing of a namespace is left in any worker, and no quota used.
func (f fleet) gone(ctx context.Context, g *ground) func(gomega.Gomega) {
	return func(e gomega.Gomega) {
		for _, w := range f {
			for _, list := range []client.ObjectList{&api.TrainJobList{}, &kueue.WorkloadList{}, &corev1.PodList{}} {
				e.Expect(w.admin.List(ctx, list, client.InNamespace(g.namespace))).To(gomega.Succeed())
				e.Expect(apimeta.LenList(list)).To(gomega.BeZero(), "%T in %s", list, w.name)
			}
			e.Expect(w.used(ctx, g)()).To(gomega.BeZero(), w.name)
		}
	}
}

// control acts on all that a worker needs to run TrainJobs.
func (w worker) control(action func(string) error) {
	ginkgo.GinkgoHelper()
	for _, component := range []string{"kube-apiserver", "kueue", "signalbox"} {
		gomega.Expect(action(component)).To(gomega.Succeed(), component)
	}
}

func (w worker) kill() { w.control(func(c string) error { return w.act("kill", c) }) }

func (w worker) revive() { w.control(w.ensure) }
