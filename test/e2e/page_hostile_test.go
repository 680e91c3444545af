package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func hostilePageSpecs() {
	ginkgo.It("shows what others have written as text, and runs nothing of it", func(ctx context.Context) {
		g := scene(ctx)
		tj := get(ctx, g.trainJob("runs", "torch", 1))
		evil := "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b]0;owned\x07"
		gomega.Expect(admin.Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: g.namespace,
				Name:      "evil",
			},
			Reason:         evil,
			Message:        evil,
			Type:           "Normal",
			InvolvedObject: corev1.ObjectReference{Kind: "TrainJob", Namespace: g.namespace, Name: tj.Name, UID: tj.UID},
			FirstTimestamp: metav1.Now(),
			LastTimestamp:  metav1.Now(),
		})).To(gomega.Succeed())
		b := g.page(ctx, "user")
		b.opens("/trainjobs/" + g.namespace + "/runs")
		gomega.Expect(b.text()).To(gomega.ContainSubstring("<script>document.title='owned'</script>"))
		gomega.Expect(b.text()).NotTo(gomega.ContainSubstring("\x1b"))
		gomega.Expect(b.title()).To(gomega.Equal("TrainJob " + g.namespace + "/runs · Signalbox"))
		b.opens("/trainjobs?search=" + "%3Cscript%3Edocument.title%3D%27owned%27%3C%2Fscript%3E")
		gomega.Expect(b.title()).To(gomega.Equal("TrainJobs · Signalbox"))
		gomega.Expect(b.found()).To(gomega.BeEmpty(), "errors in the browser")
	})

	ginkgo.It("shows other users of the machine and other sites nothing", func(ctx context.Context) {
		g := scene(ctx)
		process, link := dashboard(cluster.kubeconfig("user"), "--namespace", g.namespace)
		_, secret, _ := strings.Cut(link, "#enter=")
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", process.Process.Pid))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(string(line)).NotTo(gomega.ContainSubstring(secret))
		b := enters(ctx, link)
		b.opens("/trainjobs?in=" + g.namespace)
		gomega.Expect(b.text()).To(gomega.ContainSubstring(g.namespace + "/runs"))
		// Another browser, of another user: the link doesn't work twice, and there is no other way in.
		other := chromium(ctx, false)
		other.do(chromedp.Navigate(link))
		gomega.Eventually(func() string { return evaluated[string](other, "document.body.innerText") }).
			Should(gomega.ContainSubstring("it works once"))
		for _, path := range []string{"/", "/trainjobs", "/teams.csv", "/changes"} {
			gomega.Expect(fetched(ctx, b.origin+path)).To(gomega.And(gomega.HavePrefix("401"),
				gomega.Not(gomega.ContainSubstring(g.namespace))), path)
		}
		// Another site in the same browser, on another port of the same address: it is sent cookies, and reads nothing.
		site := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<title>site</title>")
		}), Addr: "127.0.0.1:18427", ReadHeaderTimeout: time.Second}
		go func() { _ = site.ListenAndServe() }()
		ginkgo.DeferCleanup(site.Close)
		gomega.Eventually(
			func() string { return fetched(ctx, "http://127.0.0.1:18427/") },
		).Should(gomega.HavePrefix("200"))
		b.do(chromedp.Navigate("http://127.0.0.1:18427/"))
		tried := evaluated[string](b, fmt.Sprintf(`(() => { const r = new XMLHttpRequest();
			try { r.open("POST", %q, false); r.withCredentials = true; r.send(""); return r.status + r.responseText }
			catch (e) { return "refused" } })()`, b.origin+"/trainjobs/"+g.namespace+"/runs/stop"))
		gomega.Expect(tried).To(gomega.Equal("refused"))
		gomega.Expect(get(ctx, g.trainJob("runs", "torch", 1)).Annotations).NotTo(gomega.HaveKey(api.StopAnnotation))
	})

	ginkgo.It(
		"shows each user of the page in a cluster what the user's token may see, until it is no longer valid",
		func(
			ctx context.Context,
		) {
			g := scene(ctx)
			token := g.token(ctx, "reader")
			_, address := dashboard(cluster.kubeconfig("user"), "--tokens", "--listen", "127.0.0.1:18428", "--namespace",
				g.namespace)
			view := func(token string) func() string {
				return func() string {
					return fetched(ctx, address+"/trainjobs", "HX-Request: true", "Authorization: Bearer "+token)
				}
			}
			gomega.Expect(
				view(token)(),
			).To(
				gomega.And(gomega.HavePrefix("200"), gomega.ContainSubstring(g.namespace+"/runs"),
					gomega.ContainSubstring("list clusterqueues.kueue.x-k8s.io")),
			)
			gomega.Expect(view("forged")()).To(gomega.And(gomega.Not(gomega.HavePrefix("200")),
				gomega.Not(gomega.ContainSubstring(g.namespace+"/runs"))))
			gomega.Expect(fetched(ctx, address+"/trainjobs", "HX-Request: true")).To(gomega.HavePrefix("401"))
			stop := address + "/trainjobs/" + g.namespace + "/runs/stop"
			gomega.Expect(
				posted(ctx, stop, "Authorization: Bearer "+token),
			).To(gomega.ContainSubstring("doesn&#39;t change TrainJobs"))
			gomega.Expect(admin.Delete(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace,
				Name: "reader"}})).To(gomega.Succeed())
			gomega.Eventually(view(token), "60s", "2s").Should(gomega.And(gomega.HavePrefix("401"),
				gomega.Not(gomega.ContainSubstring(g.namespace+"/runs"))))
		},
	)
}

func lostPageSpecs() {
	ginkgo.It(
		"says since when the API server doesn't answer, and goes on when it does",
		ginkgo.Serial,
		func(ctx context.Context) {
			g := scene(ctx)
			b := g.page(ctx, "user")
			b.opens("/trainjobs?in=" + g.namespace)
			cluster.mustAct("stop", "kube-apiserver")
			ginkgo.DeferCleanup(func() { gomega.Expect(cluster.ensure("kube-apiserver")).To(gomega.Succeed()) })
			gomega.Eventually(b.text, "90s", "1s").Should(gomega.ContainSubstring("The API server has not answered since"))
			gomega.Expect(b.text()).To(gomega.ContainSubstring(g.namespace + "/runs"))
			gomega.Expect(cluster.ensure("kube-apiserver")).To(gomega.Succeed())
			gomega.Eventually(b.text, "90s", "1s").ShouldNot(gomega.ContainSubstring("has not answered"))
			later := g.submit(ctx, g.trainJob("later", "torch", 1))
			gomega.Eventually(state(ctx, later)).Should(gomega.Equal(api.StateQueued))
			gomega.Eventually(b.text, "30s").Should(gomega.ContainSubstring(g.namespace + "/later"))
		},
	)
}

// token returns one of a ServiceAccount that may view the namespace.
func (g *ground) token(ctx context.Context, name string) string {
	ginkgo.GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	gomega.Expect(admin.Create(ctx, account)).To(gomega.Succeed())
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"},
	}}}
	gomega.Expect(admin.Create(ctx, role)).To(gomega.Succeed())
	gomega.Expect(admin.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: g.namespace, Name: name}},
	})).To(gomega.Succeed())
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(3600))},
	}
	gomega.Expect(admin.SubResource("token").Create(ctx, account, request)).To(gomega.Succeed())
	return request.Status.Token
}

// fetched returns the status and the text of a page that is requested with headers.
func fetched(ctx context.Context, url string, headers ...string) string {
	return requested(ctx, http.MethodGet, url, headers...)
}

func posted(ctx context.Context, url string, headers ...string) string {
	return requested(ctx, http.MethodPost, url, headers...)
}

func requested(ctx context.Context, method, url string, headers ...string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err.Error()
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", response.StatusCode, text)
}
