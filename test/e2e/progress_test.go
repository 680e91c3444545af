package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/statusserver"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func progressSpecs() {
	ginkgo.It("lets a training process report its progress, and nobody else", func(ctx context.Context) {
		r := newReporter(ctx, unchanged, map[string]any{})
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("reports", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		env := podsOf(ctx, tj)[0].Spec.Containers[0].Env
		gomega.Expect(env).To(gomega.ContainElement(corev1.EnvVar{Name: "KUBEFLOW_TRAINER_SERVER_URL",
			Value: fmt.Sprintf("https://signalbox-webhook.%s.svc:%d%s", r.namespace, r.port,
				statusserver.StatusUrl(tj.Namespace, tj.Name))}))
		half := trainerapi.TrainerStatus{ProgressPercentage: ptr.To[int32](42)}
		gomega.Expect(r.report(ctx, tj, "somebody-else", half)).To(gomega.Equal(http.StatusForbidden))
		r.reports(ctx, tj, half)
		progress := func() *int32 {
			if s := get(ctx, tj).Status.TrainerStatus; s != nil {
				return s.ProgressPercentage
			}
			return nil
		}
		gomega.Eventually(progress).Should(gomega.HaveValue(gomega.BeEquivalentTo(42)))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(progress()).To(gomega.HaveValue(gomega.BeEquivalentTo(42)), "the status that we write leaves it")
	})

	ginkgo.It("lets a preempted TrainJob save its work first, in time", func(ctx context.Context) {
		r := newReporter(ctx, unchanged, map[string]any{"preemption": map[string]any{"checkpointWithin": "15s"}})
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			metav1.SetMetaDataAnnotation(&rt.ObjectMeta, api.CheckpointMetricAnnotation, "saved")
		})
		g.runtime(ctx, "short", "1s")
		saves := g.submit(ctx, g.trainJob("saves", "torch", 1, priority(low)))
		gomega.Eventually(state(ctx, saves)).Should(gomega.Equal(api.StateRunning))
		saved := func(step string) {
			ginkgo.GinkgoHelper()
			r.reports(ctx, saves, trainerapi.TrainerStatus{Metrics: []trainerapi.Metric{{Name: "saved", Value: step}}})
			gomega.Eventually(func() *api.Checkpoint { return get(ctx, saves).Status.Checkpoint }).Should(
				gomega.HaveField("Value", step))
		}
		saved("100")
		gomega.Eventually(func() time.Duration { return time.Since(get(ctx, saves).Status.Checkpoint.Time.Time) }).
			Should(gomega.BeNumerically(">", time.Second), "one that is preempted in that second has nothing to save")
		first := g.submit(ctx, g.trainJob("first", "short", 1, priority(high)))
		gomega.Eventually(eventsOf(ctx, saves)).Should(gomega.ContainElement(gomega.HavePrefix("AwaitsCheckpoint: ")))
		gomega.Consistently(bound(ctx, saves), "1s").Should(gomega.Equal(1), "it runs on, on its quota")
		gomega.Expect(g.plugin(ctx, "", "explain", "first").out).To(gomega.ContainSubstring(
			"for a checkpoint of " + g.namespace + "/saves"))
		gomega.Expect(g.plugin(ctx, "", "explain", "saves").out).To(gomega.ContainSubstring("until its next checkpoint"))
		saved("200")
		gomega.Eventually(complete(ctx, first)).Should(gomega.BeTrue())

		gomega.Eventually(state(ctx, saves)).Should(gomega.Equal(api.StateRunning), "it runs again")
		second := g.submit(ctx, g.trainJob("second", "short", 1, priority(high)))
		gomega.Eventually(running(ctx, saves), "30s").Should(gomega.BeFalse(), "it saves nothing more, and its time is over")
		gomega.Eventually(complete(ctx, second)).Should(gomega.BeTrue())
		gomega.Expect(get(ctx, saves).Status.Checkpoint.Value).To(gomega.Equal("200"))
	})
}

// stallSpecs run for more than a minute: nothing stalls earlier.
func stallSpecs() {
	ginkgo.It("stops or restarts a TrainJob that reports nothing, and no other", func(ctx context.Context) {
		r := newReporter(ctx, unchanged, map[string]any{})
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			metav1.SetMetaDataAnnotation(&rt.ObjectMeta, api.StalledAfterAnnotation, "1m,stop")
		})
		submit := func(name string, change ...func(*api.TrainJob)) *api.TrainJob {
			tj := g.submit(ctx, g.trainJob(name, "torch", 1, change...))
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
			return tj
		}
		begun := time.Now()
		reports, silent := submit("reports"), submit("silent")
		hangs := submit("hangs", func(tj *api.TrainJob) {
			metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.StalledAfterAnnotation, "1m,restart")
		})
		jobSet := func() types.UID {
			js := &jobset.JobSet{}
			gomega.Expect(client.IgnoreNotFound(admin.Get(ctx, client.ObjectKeyFromObject(hangs), js))).To(gomega.Succeed())
			return js.UID
		}
		first := jobSet()
		goesOn := func() {
			ginkgo.GinkgoHelper()
			r.reports(ctx, reports, trainerapi.TrainerStatus{})
		}
		goesOn()
		gomega.Eventually(func() time.Time { return get(ctx, reports).Status.TrainerStatus.LastUpdatedTime.Time }).Should(
			gomega.BeTemporally("<", time.Now().Add(time.Minute)), "the time of a report is when it arrived")
		cluster.mustAct("restart", "signalbox") // since when they are silent isn't forgotten
		gomega.Eventually(r.listens).Should(gomega.Succeed())
		gomega.Eventually(func(now gomega.Gomega) {
			goesOn()
			now.Expect(eventsOf(ctx, silent)()).To(gomega.ContainElement(gomega.HavePrefix("StalledStopped: It is stopped")))
			now.Expect(eventsOf(ctx, hangs)()).To(gomega.ContainElement(gomega.HavePrefix("StalledRestarting: ")))
		}, "150s", "2s").Should(gomega.Succeed())
		gomega.Expect(time.Since(begun)).To(gomega.BeNumerically(">", time.Minute))
		gomega.Expect(eventsOf(ctx, silent)()).To(gomega.ContainElement(gomega.HavePrefix("Stalled: its training process")))
		gomega.Eventually(bound(ctx, silent)).Should(gomega.Equal(0))
		gomega.Eventually(func() string { return g.plugin(ctx, "", "explain", "silent").out }).Should(
			gomega.ContainSubstring("it had stalled"))
		gomega.Eventually(func(now gomega.Gomega) {
			goesOn()
			now.Expect(get(ctx, hangs).Status.Lost).To(gomega.HaveField("Restarts", gomega.BeEquivalentTo(1)))
			now.Expect(state(ctx, hangs)()).To(gomega.Equal(api.StateRunning))
			now.Expect(jobSet()).NotTo(gomega.Or(gomega.Equal(first), gomega.BeEmpty()))
		}, "30s", "1s").Should(gomega.Succeed())
		gomega.Expect(eventsOf(ctx, reports)()).NotTo(gomega.ContainElement(gomega.HavePrefix("Stalled")))
		gomega.Expect(g.plugin(ctx, "", "resume", "silent").out).To(gomega.ContainSubstring("is queued again"))
		gomega.Eventually(state(ctx, silent)).Should(gomega.Equal(api.StateRunning))
	})
}

// reporter reports as a training process does.
type reporter struct {
	namespace string // of the manager
	port      int
}

// unchanged changes nothing of a configuration.
func unchanged(map[string]any) {}

// newReporter starts the manager with the status server and with further settings for the running spec.
func newReporter(ctx context.Context, ofKueue change, settings map[string]any) reporter {
	ginkgo.GinkgoHelper()
	r := reporter{"kubeflow-system", freePort()} // the namespace of a manager that runs in no cluster
	gomega.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}})).To(
		gomega.Or(gomega.Succeed(), gomega.MatchError(apierrors.IsAlreadyExists, "IsAlreadyExists")))
	ca, err := os.ReadFile(filepath.Join(cluster.dir, "pki", "ca.crt"))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "signalbox-webhook-cert"},
		Data: map[string][]byte{"ca.crt": ca}}
	gomega.Expect(admin.Create(ctx, secret)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, secret)).To(gomega.Succeed()) })
	cluster.configure(ofKueue, func(c map[string]any) {
		c["trainer"] = map[string]any{"enabled": true, "progress": map[string]any{"enabled": true, "port": r.port}}
		maps.Copy(c, settings)
	})
	return r
}

// listens returns an error if nothing takes reports.
func (r reporter) listens() error {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.port))
	if err != nil {
		return err
	}
	return connection.Close()
}

// reports reports by the token of the TrainJob's own pods.
func (r reporter) reports(ctx context.Context, tj *api.TrainJob, status trainerapi.TrainerStatus) {
	ginkgo.GinkgoHelper()
	gomega.Expect(r.report(ctx, tj, statusserver.TokenAudience(tj.Namespace, tj.Name), status)).To(
		gomega.Equal(http.StatusOK))
}

// report reports by a token for an audience, and returns the answer.
func (r reporter) report(
	ctx context.Context, tj *api.TrainJob, audience string, status trainerapi.TrainerStatus,
) int {
	ginkgo.GinkgoHelper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	account := get(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: "default"}})
	gomega.Expect(admin.SubResource("token").Create(ctx, account, request)).To(gomega.Succeed())
	status.LastUpdatedTime = metav1.NewTime(time.Now().Add(time.Hour)) // it may say what it likes
	body, err := json.Marshal(trainerapi.UpdateTrainJobStatusRequest{TrainerStatus: &status})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	post, err := http.NewRequestWithContext(ctx, http.MethodPost,
		fmt.Sprintf("https://127.0.0.1:%d%s", r.port, statusserver.StatusUrl(tj.Namespace, tj.Name)), bytes.NewReader(body))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	post.Header.Set("Authorization", "Bearer "+request.Status.Token)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // it is on loopback
	response, err := (&http.Client{Transport: transport}).Do(post)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	gomega.Expect(response.Body.Close()).To(gomega.Succeed())
	return response.StatusCode
}

// through has the manager of a cluster reach the API server by a proxy for the running spec, and starts it again.
// handler is the proxy's, which it may change or wrap.
func through(of plane, handler func(*httputil.ReverseProxy) http.Handler) {
	ginkgo.GinkgoHelper()
	path := of.kubeconfig("signalbox")
	before, err := os.ReadFile(path)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	real := config(path)
	transport, err := rest.TransportFor(real)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	target, err := url.Parse(real.Host)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	server := &http.Server{Handler: handler(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	})}
	go server.Serve(listener) //nolint:errcheck // it ends with the spec
	proxied := clientcmdapi.NewConfig()
	proxied.Clusters["proxy"] = &clientcmdapi.Cluster{Server: "http://" + listener.Addr().String()}
	proxied.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy"}
	proxied.CurrentContext = "proxy"
	gomega.Expect(clientcmd.WriteToFile(*proxied, path)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func() {
		gomega.Expect(os.WriteFile(path, before, 0o600)).To(gomega.Succeed())
		if of.act("stop", "signalbox") != nil {
			ginkgo.GinkgoLogr.Info("the manager was dead at the end of the spec")
		}
		of.mustAct("start", "signalbox")
		gomega.Expect(server.Close()).To(gomega.Succeed())
	})
	of.mustAct("restart", "signalbox")
}
