package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/hostile"
)

// outage makes the API server fail for one kind in each of some namespaces, as the manager sees it.
type outage struct {
	mu     sync.Mutex
	kinds  map[string]string // by namespace
	status int               // 0 for no answer
	seen   map[string]bool   // kinds that were asked for in namespaces of specs
	over   chan struct{}
}

// wrap returns a handler that fails for what is out, and passes on the rest.
func (o *outage) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, over, out := o.concerns(r.URL.Path)
		if !out {
			next.ServeHTTP(w, r)
			return
		}
		if status == 0 {
			select {
			case <-r.Context().Done():
			case <-over:
			}
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		if status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"out of order","code":%d}`, status)
	})
}

// concerns reports whether a path is of a kind that is out in its namespace, and with which status.
func (o *outage) concerns(path string) (status int, over <-chan struct{}, out bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, rest, found := strings.Cut(path, "/namespaces/e2e-")
	parts := strings.Split(rest, "/")
	if !found || len(parts) < 2 {
		return 0, nil, false
	}
	kind := parts[1]
	o.seen[kind] = true
	return o.status, o.over, o.kinds["e2e-"+parts[0]] == kind
}

// askedFor returns the kinds that were asked for, and others.
func (o *outage) askedFor(others ...string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	kinds := maps.Clone(o.seen)
	for _, kind := range others {
		kinds[kind] = true
	}
	return slices.Sorted(maps.Keys(kinds))
}

func (o *outage) begin(kinds map[string]string, status int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kinds, o.status, o.over = kinds, status, make(chan struct{})
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kinds != nil {
		close(o.over)
		o.kinds = nil
	}
}

var _ = ginkgo.Describe("Nobody waits for what others ask for", waitsForTime, func() {
	madeUp := func(tj *api.TrainJob) {
		tj.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "any", UID: "any", Controller: new(true),
		}}
	}

	ginkgo.It("as an owner that never existed", func(ctx context.Context) {
		bad, good := newGround(ctx, map[string]int64{"a100": 8}), newGround(ctx, map[string]int64{"a100": 8})
		bad.runtime(ctx, "torch", "300ms")
		good.runtime(ctx, "torch", "300ms")
		for i := range 16 {
			tj := bad.submit(ctx, bad.trainJob(fmt.Sprintf("unqueued-%d", i), "torch", 1, func(tj *api.TrainJob) {
				tj.Labels = nil
			}))
			owned := tj.DeepCopy()
			madeUp(owned)
			// Whether it may be set afterwards is another spec's to hold.
			_ = user.Patch(ctx, owned, client.MergeFrom(tj))
			_ = user.Create(ctx, bad.trainJob(fmt.Sprintf("created-%d", i), "torch", 1, madeUp))
		}
		tj := good.submit(ctx, good.trainJob("honest", "torch", 1))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
	})

	ginkgo.It("when the API server fails for a kind of object in a namespace, also for a manager that starts meanwhile",
		func(ctx context.Context) {
			o := &outage{seen: map[string]bool{}}
			audited.ofBurst() // what is admitted meanwhile can't be started
			through(cluster, func(proxy *httputil.ReverseProxy) http.Handler { return o.wrap(proxy) })
			ginkgo.DeferCleanup(o.end)
			good := newGround(ctx, map[string]int64{"a100": 16})
			good.runtime(ctx, "torch", "300ms")
			// Everything that happens to TrainJobs shows which kinds the manager asks for in their namespaces.
			life := func(g *ground, round int) {
				ginkgo.GinkgoHelper()
				name := func(of string) string { return fmt.Sprintf("%s-%d", of, round) }
				for _, of := range []string{"deleted", "stopped", "first", "second"} {
					gomega.Expect(user.Create(ctx, g.trainJob(name(of), "torch", 1))).To(gomega.Succeed())
				}
				gomega.Expect(user.Delete(ctx, g.trainJob(name("deleted"), "torch", 1))).To(gomega.Succeed())
				stop := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, api.StopAnnotation)
				gomega.Expect(user.Patch(ctx, g.trainJob(name("stopped"), "torch", 1),
					client.RawPatch("application/merge-patch+json", stop))).To(gomega.Succeed())
			}
			life(good, 0)
			gomega.Eventually(good.finished(ctx)).Should(gomega.BeNumerically(">=", 2))
			kinds := o.askedFor("events", "jobs", "jobsets", "pods", "replicasets", "trainingruntimes") // rarely
			gomega.Expect(kinds).To(gomega.ContainElements("trainjobs", "workloads"))
			bad := map[string]*ground{}
			out := map[string]string{}
			for _, kind := range kinds {
				g := newGround(ctx, map[string]int64{"h100": 16})
				g.runtime(ctx, "torch", "300ms")
				bad[g.namespace], out[g.namespace] = g, kind
			}
			statuses := []int{0, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests,
				http.StatusInternalServerError}
			for round, status := range statuses {
				o.begin(out, status)
				for _, g := range bad {
					life(g, round)
				}
				if status == 0 {
					cluster.mustAct("restart", "signalbox")
				}
				honest := good.submit(ctx, good.trainJob(fmt.Sprintf("honest-%d", round), "torch", 1))
				gomega.Eventually(complete(ctx, honest)).Should(gomega.BeTrue(), "status %d for %v", status, kinds)
				o.end()
			}
			for _, g := range bad {
				for round := range statuses {
					for _, of := range []string{"first", "second"} {
						tj := g.trainJob(fmt.Sprintf("%s-%d", of, round), "torch", 1)
						gomega.Eventually(complete(ctx, tj), "3m").Should(gomega.BeTrue(), "it answers again for %s", out[g.namespace])
					}
				}
				gomega.Eventually(g.used(ctx), "3m").Should(gomega.BeZero(), out[g.namespace])
			}
			ginkgo.AddReportEntry(fmt.Sprintf("outages: %v of each of %v", statuses, kinds))
		})

	ginkgo.It("and no request costs the manager more than its bytes", func(ctx context.Context) {
		bad, good := newGround(ctx, map[string]int64{"a100": 8}), newGround(ctx, map[string]int64{"h100": 16})
		bad.runtime(ctx, "torch", "300ms")
		good.runtime(ctx, "torch", "300ms")
		before := gauge("process_start_time_seconds")
		trainJobs := hostile.TrainJobs(bad.namespace, "torch")
		users := config(cluster.kubeconfig("user"))
		submitter, err := rest.HTTPClientFor(users)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		anybody := strangers()
		var senders sync.WaitGroup
		senders.Go(func() {
			defer ginkgo.GinkgoRecover()
			url := users.Host + "/apis/trainer.kubeflow.org/v1alpha1/namespaces/" + bad.namespace + "/trainjobs?dryRun=All"
			for _, job := range trainJobs {
				answer, err := post(ctx, submitter, url, job.JSON)
				gomega.Expect(err).NotTo(gomega.HaveOccurred(), job.Kind)
				gomega.Expect(answer).NotTo(gomega.ContainSubstring("failed calling webhook"), job.Kind)
			}
		})
		reviews := hostile.Reviews(trainJobs, "signalbox")
		senders.Go(func() {
			defer ginkgo.GinkgoRecover()
			for _, url := range webhookURLs(ctx) {
				for kind, review := range reviews {
					_, err := post(ctx, anybody, url, review)
					gomega.Expect(err).NotTo(gomega.HaveOccurred(), "%s to %s", kind, url)
				}
			}
		})
		sent := make(chan struct{})
		go func() {
			senders.Wait()
			close(sent)
		}()
		for i := range 10 {
			good.submit(ctx, good.trainJob(fmt.Sprintf("honest-%d", i), "torch", 1))
		}
		most := 0.0
		gomega.Eventually(func() int {
			most = max(most, gauge("process_resident_memory_bytes"))
			return good.finished(ctx)()
		}).Should(gomega.Equal(10))
		gomega.Eventually(func() bool {
			most = max(most, gauge("process_resident_memory_bytes"))
			select {
			case <-sent:
				return true
			default:
				return false
			}
		}, "2m").Should(gomega.BeTrue())
		gomega.Expect(most).To(gomega.BeNumerically("<", 512<<20), "the chart's limit")
		gomega.Expect(gauge("process_start_time_seconds")).To(gomega.Equal(before), "the manager was started again")
		ginkgo.AddReportEntry(fmt.Sprintf("hostile requests: %d kinds by users, %d by anybody; at most %.0f MiB",
			len(trainJobs), len(reviews), most/(1<<20)))
	})

	ginkgo.It("where the webhooks ask the API server for its certificate", func(ctx context.Context) {
		bundle, err := os.ReadFile(filepath.Join(cluster.dir, "pki", "ca.crt"))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		cluster.configure(func(map[string]any) {}, func(c map[string]any) {
			c["webhook"].(map[string]any)["clientCABundle"] = string(bundle)
		})
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "300ms")
		tj := g.submit(ctx, g.trainJob("job", "torch", 1))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		anybody := strangers()
		for _, url := range webhookURLs(ctx) {
			_, err := post(ctx, anybody, url, []byte("{}"))
			gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("certificate")), url)
		}
	})
})

// post sends a body, and returns the answer's.
func post(ctx context.Context, by *http.Client, url string, body []byte) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := by.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return string(answer), err
}

// strangers is a client without credentials, of any server.
func strangers() *http.Client {
	return &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// gauge is the value of one of the manager's metrics without labels.
func gauge(name string) float64 {
	ginkgo.GinkgoHelper()
	text, err := cluster.metrics()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	_, rest, found := strings.Cut(text, "\n"+name+" ")
	gomega.Expect(found).To(gomega.BeTrue(), name)
	value, _, _ := strings.Cut(rest, "\n")
	number, err := strconv.ParseFloat(value, 64)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return number
}

// webhookURLs are those of Signalbox's webhooks.
func webhookURLs(ctx context.Context) []string {
	ginkgo.GinkgoHelper()
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	gomega.Expect(admin.List(ctx, &mutating)).To(gomega.Succeed())
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	gomega.Expect(admin.List(ctx, &validating)).To(gomega.Succeed())
	urls := map[string]bool{}
	add := func(of string, c admissionregistrationv1.WebhookClientConfig) {
		if strings.HasPrefix(of, "signalbox") && c.URL != nil {
			urls[*c.URL] = true
		}
	}
	for _, c := range mutating.Items {
		for _, hook := range c.Webhooks {
			add(c.Name, hook.ClientConfig)
		}
	}
	for _, c := range validating.Items {
		for _, hook := range c.Webhooks {
			add(c.Name, hook.ClientConfig)
		}
	}
	gomega.Expect(len(urls)).To(gomega.BeNumerically(">=", 4))
	return slices.Sorted(maps.Keys(urls))
}
