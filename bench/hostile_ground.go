package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const (
	// hostileNamespace is where the hostile user may write TrainJobs.
	hostileNamespace = "hostile"
	hostileUser      = "hostile"
)

// hostileGround is a ground with a hostile user, an honest user, pods without credentials and managers that are pods.
type hostileGround struct {
	*ground
	say func(string, ...any)
	// clients of users.
	honest, hostile client.Client
	// sender sends what the hostile user's client wouldn't encode, to the host.
	sender *http.Client
	host   string
	// attackers send from a pod each.
	attackers []*http.Client
	managers  *managers
	webhooks  []unstructured.Unstructured // configurations of Signalbox
	// unregistered is set while they are unregistered.
	unregistered bool
	measured     int
}

func newHostileGround(ctx context.Context, cluster string) (*hostileGround, error) {
	plain, err := newLoadGround(ctx, cluster, 1)
	if err != nil {
		return nil, err
	}
	g := &hostileGround{ground: plain, say: teller("hostile")}
	if err := g.connectUsers(cluster); err != nil {
		return nil, err
	}
	if err := g.addHostile(ctx); err != nil {
		return nil, err
	}
	paths, err := g.findWebhooks(ctx)
	if err != nil {
		return nil, err
	}
	if g.managers, err = findManagers(ctx, g.client, paths); err != nil {
		return nil, err
	}
	for i := range attackerPods {
		if err := g.addAttacker(ctx, i); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *hostileGround) connectUsers(cluster string) error {
	configs := map[string]*rest.Config{}
	for _, name := range []string{"kubeconfig", "user.kubeconfig"} {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(cluster, name))
		if err != nil {
			return err
		}
		config.QPS, configs[name] = -1, config
	}
	as := configs["kubeconfig"]
	as.Impersonate.UserName, g.host = hostileUser, as.Host
	var err error
	if g.hostile, err = client.New(as, client.Options{Scheme: g.client.Scheme()}); err != nil {
		return err
	}
	if g.sender, err = rest.HTTPClientFor(as); err != nil {
		return err
	}
	g.honest, err = client.New(configs["user.kubeconfig"], client.Options{Scheme: g.client.Scheme()})
	return err
}

// addHostile creates what the hostile user may use: a namespace, a queue of eight GPUs, and runtimes whose pods run
// until they are deleted.
func (g *hostileGround) addHostile(ctx context.Context) error {
	here := metav1.ObjectMeta{Namespace: hostileNamespace, Name: hostileNamespace}
	forever := strings.NewReplacer("namespace: bench", "namespace: "+hostileNamespace, "run-for: 1s", "run-for: 24h").
		Replace(runtimeManifest)
	single := new(api.TrainingRuntime)
	if err := yaml.UnmarshalStrict([]byte(forever), single); err != nil {
		return err
	}
	many := single.DeepCopy()
	many.Name = manyJobs
	for i := range manyJobsOf - 1 {
		job := single.Spec.Template.Spec.ReplicatedJobs[0].DeepCopy()
		job.Name, job.Template.Labels = fmt.Sprintf("n-%d", i), nil
		many.Spec.Template.Spec.ReplicatedJobs = append(many.Spec.Template.Spec.ReplicatedJobs, *job)
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostileNamespace}},
		&rbacv1.RoleBinding{ObjectMeta: here,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "test-user"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: hostileUser}}},
		&kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: hostileNamespace}, Spec: kueue.ClusterQueueSpec{
			NamespaceSelector: &metav1.LabelSelector{},
			ResourceGroups: []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{gpu},
				Flavors: []kueue.FlavorQuotas{quota("a100", 8)}}}}},
		&kueue.LocalQueue{ObjectMeta: here, Spec: kueue.LocalQueueSpec{ClusterQueue: hostileNamespace}},
		single, many,
	} {
		if err := g.client.Create(ctx, o); err != nil {
			return fmt.Errorf("%T %s: %w", o, o.GetName(), err)
		}
	}
	return g.until(ctx, "the ClusterQueues are active", func() (bool, error) { return g.active(ctx) })
}

// attackerPods is how many pods attack, on both nodes.
const attackerPods = 4

// addAttacker starts a pod without credentials that passes on what a client sends.
func (g *hostileGround) addAttacker(ctx context.Context, n int) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("attacker-%d", n)},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%d", n%2+1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "relay", Image: "signalbox.test/peer:1", ImagePullPolicy: corev1.PullNever,
				Command: []string{"/peer", "relay", ":8080"}}},
		},
	}
	if err := g.client.Create(ctx, pod); err != nil {
		return fmt.Errorf("an attacker's pod: %w", err)
	}
	address := ""
	if err := g.until(ctx, pod.Name+" listens", func() (bool, error) {
		if err := g.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return false, err
		}
		address = net.JoinHostPort(pod.Status.PodIP, "8080")
		listens, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return false, nil // not yet
		}
		return true, listens.Close()
	}); err != nil {
		return err
	}
	g.attackers = append(g.attackers, &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: address}), MaxIdleConnsPerHost: hostileClients,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}})
	return nil
}

// findWebhooks finds the configurations of Signalbox's webhooks, and returns their paths. It removes Kueue's webhooks
// for TrainJobs: with its integration off they do nothing, but Kueue v0.19.2 decodes each TrainJob for them before
// Signalbox's webhook is called, so that the starts would depend on Kueue's memory.
func (g *hostileGround) findWebhooks(ctx context.Context) (paths []string, err error) {
	for _, kind := range []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} {
		list := new(unstructured.UnstructuredList)
		list.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := g.client.List(ctx, list); err != nil {
			return nil, err
		}
		for _, c := range list.Items {
			hooks, _, err := unstructured.NestedSlice(c.Object, "webhooks")
			if err != nil {
				return nil, err
			}
			if labels.Set(ofSignalbox).AsSelector().Matches(labels.Set(c.GetLabels())) {
				g.webhooks = append(g.webhooks, c)
				for _, hook := range hooks {
					path, _, err := unstructured.NestedString(hook.(map[string]any), "clientConfig", "service", "path")
					if err != nil {
						return nil, err
					}
					paths = append(paths, path)
				}
				continue
			}
			others := slices.DeleteFunc(slices.Clone(hooks), func(hook any) bool {
				name, _ := hook.(map[string]any)["name"].(string)
				return strings.HasSuffix(name, "trainjob.kb.io")
			})
			if len(others) == len(hooks) {
				continue
			}
			if err := g.setWebhooks(ctx, c, others); err != nil {
				return nil, err
			}
		}
	}
	return paths, nil
}

func (g *hostileGround) setWebhooks(ctx context.Context, c unstructured.Unstructured, webhooks any) error {
	patch, err := json.Marshal(map[string]any{"webhooks": webhooks})
	if err != nil {
		return err
	}
	return g.client.Patch(ctx, c.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

// register registers Signalbox's webhooks, or unregisters them, and returns when the API server has noticed.
func (g *hostileGround) register(ctx context.Context, registered bool) error {
	if registered != g.unregistered {
		return nil
	}
	what := "the webhooks are registered"
	for _, c := range g.webhooks {
		webhooks := c.Object["webhooks"]
		if !registered {
			what, webhooks = "the webhooks are unregistered", []any{}
		}
		if err := g.setWebhooks(ctx, c, webhooks); err != nil {
			return err
		}
	}
	g.unregistered = !registered
	return g.until(ctx, what, func() (bool, error) {
		running := loadJob("asks", namespace)
		running.Spec.Suspend = ptr.To(false)
		err := g.honest.Create(ctx, running, client.DryRunAll)
		return err == nil && *running.Spec.Suspend == registered, nil // the webhook suspends it
	})
}

// measure submits honest TrainJobs while requests of a kind are sent, and removes what they leave.
func (g *hostileGround) measure(ctx context.Context, k hostileKind) (*hostileMeasure, error) {
	g.measured++
	prefix := fmt.Sprintf("honest-%d-", g.measured)
	seen := follow(ctx, g.client)
	defer seen.end()
	m := &hostileMeasure{Way: k.way, Kind: k.name, Refused: map[string]int{}}
	use, err := g.managers.watch(ctx)
	if err != nil {
		return nil, err
	}
	var sending sync.WaitGroup
	sending.Go(func() { m.Answers, m.Seconds = k.send(ctx, hostileTime) })
	created, err := g.submitHonest(ctx, prefix, m.Refused)
	sending.Wait()
	if err != nil {
		return nil, err
	}
	if err := g.until(ctx, "all honest TrainJobs are started", func() (bool, error) {
		return seen.countOf(prefix, started) == honestJobs, nil
	}); err != nil {
		return nil, err
	}
	if m.Manager, err = use(); err != nil {
		return nil, err
	}
	durations := map[string][]time.Duration{}
	for name, at := range created {
		durations[""] = append(durations[""], seen.at(name, started).Sub(at))
	}
	m.StartMs = milliseconds(durations)[""]
	for _, where := range []string{hostileNamespace, namespace} {
		if err := g.clearIn(ctx, where, honestJobs); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// submitHonest creates honest TrainJobs at a steady pace, and returns when it first tried to create each. One that is
// refused is tried again, because its user would.
func (g *hostileGround) submitHonest(ctx context.Context, prefix string, refused map[string]int) (
	map[string]time.Time, error) {
	created := map[string]time.Time{}
	var mu sync.Mutex
	var tries errgroup.Group
	pace := time.NewTicker(hostileTime / honestJobs)
	defer pace.Stop()
	for i := range honestJobs {
		job := loadJob(fmt.Sprintf("%s%03d", prefix, i), g.queues.of(i))
		created[job.Name] = time.Now()
		tries.Go(func() error {
			return g.until(ctx, "an honest TrainJob is created", func() (bool, error) {
				err := g.honest.Create(ctx, job.DeepCopy())
				if err == nil || apierrors.IsAlreadyExists(err) {
					return true, nil
				}
				mu.Lock()
				defer mu.Unlock()
				refused[fmt.Sprintf("%.120s", err)]++
				return false, ctx.Err()
			})
		})
		<-pace.C
	}
	return created, tries.Wait()
}
