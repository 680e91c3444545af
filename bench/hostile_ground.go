package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/hostile"
)

const (
	// hostileNamespace is where a hostile user may write TrainJobs, and attackers where pods without credentials run.
	hostileNamespace, attackers = "hostile", "attackers"
	// signalboxNamespace is where the managers run.
	signalboxNamespace = "signalbox-system"
	hostileUser        = "hostile"
)

// ofSignalbox selects the chart's objects.
var ofSignalbox = client.MatchingLabels{"app.kubernetes.io/name": "signalbox"}

// hostileGround is a ground with a hostile user, an honest user, pods without credentials and managers that are pods.
type hostileGround struct {
	*ground
	options hostileOptions
	say     func(string, ...any)
	// clients of users.
	honest, hostile client.Client
	// sender sends what the hostile user's client wouldn't encode.
	sender   *http.Client
	host     string
	pods     kubernetes.Interface
	managers *managers
	attack   *attack
	// unregistered are the webhooks while they are unregistered.
	unregistered []client.Object
	measured     int
}

func newHostileGround(ctx context.Context, o hostileOptions) (*hostileGround, error) {
	plain, err := newLoadGround(ctx, o.cluster, 1)
	if err != nil {
		return nil, err
	}
	g := &hostileGround{ground: plain, options: o, say: teller("hostile")}
	users := map[string]*rest.Config{"kubeconfig": nil, "user.kubeconfig": nil}
	for name := range users {
		if users[name], err = clientcmd.BuildConfigFromFlags("", filepath.Join(o.cluster, name)); err != nil {
			return nil, err
		}
		users[name].QPS = -1
	}
	if g.honest, err = client.New(users["user.kubeconfig"], client.Options{Scheme: g.client.Scheme()}); err != nil {
		return nil, err
	}
	if g.pods, err = kubernetes.NewForConfig(users["kubeconfig"]); err != nil {
		return nil, err
	}
	as := rest.CopyConfig(users["kubeconfig"])
	as.Impersonate.UserName, g.host = hostileUser, as.Host
	if g.hostile, err = client.New(as, client.Options{Scheme: g.client.Scheme()}); err != nil {
		return nil, err
	}
	if g.sender, err = rest.HTTPClientFor(as); err != nil {
		return nil, err
	}
	if err := g.addHostile(ctx); err != nil {
		return nil, err
	}
	if err := g.dropKueue(ctx); err != nil {
		return nil, err
	}
	if g.managers, err = findManagers(ctx, g.client, g.pods); err != nil {
		return nil, err
	}
	g.attack, err = newAttack(ctx, g)
	return g, err
}

// addHostile creates what a hostile user may use: a namespace, a queue of eight GPUs, and runtimes whose pods run until
// they are deleted.
func (g *hostileGround) addHostile(ctx context.Context) error {
	here := metav1.ObjectMeta{Namespace: hostileNamespace, Name: hostileNamespace}
	forever := strings.NewReplacer("namespace: bench", "namespace: "+hostileNamespace, "run-for: 1s", "run-for: 24h").
		Replace(runtimeManifest)
	many := new(api.TrainingRuntime)
	if err := yaml.UnmarshalStrict([]byte(forever), many); err != nil {
		return err
	}
	single := many.DeepCopy()
	many.Name = manyJobs
	for i := range manyJobsOf - 1 {
		job := single.Spec.Template.Spec.ReplicatedJobs[0].DeepCopy()
		job.Name, job.Template.Labels = fmt.Sprintf("n-%d", i), nil
		many.Spec.Template.Spec.ReplicatedJobs = append(many.Spec.Template.Spec.ReplicatedJobs, *job)
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostileNamespace}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: attackers}},
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

// dropKueue removes Kueue's webhooks for TrainJobs. With its integration off they do nothing, but Kueue v0.19.2 decodes
// each TrainJob for them, before Signalbox's webhook sees it: one dry run of 2.7 MB is the end of a Kueue of 512 MiB,
// and nothing starts any more, with Signalbox's webhooks or without.
func (g *hostileGround) dropKueue(ctx context.Context) error {
	named := client.ObjectKey{Name: "kueue-mutating-webhook-configuration"}
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	if err := g.client.Get(ctx, named, &mutating); err != nil {
		return err
	}
	mutating.Webhooks = slices.DeleteFunc(mutating.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return w.Name == "mtrainjob.kb.io"
	})
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	named.Name = "kueue-validating-webhook-configuration"
	if err := g.client.Get(ctx, named, &validating); err != nil {
		return err
	}
	validating.Webhooks = slices.DeleteFunc(validating.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
		return w.Name == "vtrainjob.kb.io"
	})
	return errors.Join(g.client.Update(ctx, &mutating), g.client.Update(ctx, &validating))
}

// measure submits honest TrainJobs while requests of a kind are sent, and removes what they leave.
func (g *hostileGround) measure(ctx context.Context, k hostileKind) (*hostileMeasure, error) {
	g.measured++
	prefix := fmt.Sprintf("honest-%d", g.measured)
	seen := follow(ctx, g.client)
	defer seen.end()
	m := &hostileMeasure{Kind: k.name, Way: k.way, Refused: map[string]int{}}
	use, err := g.managers.watch(ctx)
	if err != nil {
		return nil, err
	}
	var sent sync.WaitGroup
	var sending error
	sent.Go(func() { m.Hostile, sending = k.send(ctx, g.load()) })
	created, err := g.submitHonest(ctx, prefix, m.Refused)
	if err != nil {
		return nil, err
	}
	if err := g.until(ctx, "all honest TrainJobs are started", func() (bool, error) {
		return seen.countOf(prefix, started) == g.options.jobs, nil
	}); err != nil {
		return nil, err
	}
	sent.Wait()
	if sending != nil {
		return nil, sending
	}
	if m.Manager, err = use(); err != nil {
		return nil, err
	}
	durations := map[string][]time.Duration{}
	for name, at := range created {
		durations[""] = append(durations[""], seen.at(name, started).Sub(at))
	}
	m.StartMs, m.Faults = milliseconds(durations)[""], seen.takeFaults()
	return m, g.clearAll(ctx)
}

// load is how hostile requests are sent.
func (g *hostileGround) load() hostile.Load {
	return hostile.Load{Requests: g.options.requests, Clients: g.options.clients,
		Interval: g.options.over / time.Duration(g.options.requests)}
}

// submitHonest creates honest TrainJobs at a steady pace, and returns when it first tried to create each. One that is
// refused is tried again, because its user would.
func (g *hostileGround) submitHonest(ctx context.Context, prefix string, refused map[string]int) (
	map[string]time.Time, error) {
	created := map[string]time.Time{}
	var (
		mu    sync.Mutex
		tries sync.WaitGroup
		lost  error
	)
	pace := time.NewTicker(g.options.over / time.Duration(g.options.jobs))
	defer pace.Stop()
	for i := range g.options.jobs {
		job := loadJob(fmt.Sprintf("%s-%03d", prefix, i), g.queues.of(i))
		created[job.Name] = time.Now()
		tries.Go(func() {
			err := g.until(ctx, "an honest TrainJob is created", func() (bool, error) {
				err := g.honest.Create(ctx, job.DeepCopy())
				if err == nil || apierrors.IsAlreadyExists(err) {
					return true, nil
				}
				mu.Lock()
				defer mu.Unlock()
				refused[fmt.Sprintf("%.120s", err)]++
				return false, ctx.Err()
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				lost = err
			}
		})
		<-pace.C
	}
	tries.Wait()
	return created, lost
}

// clearAll deletes all TrainJobs, and waits until nothing of them is left.
func (g *hostileGround) clearAll(ctx context.Context) error {
	for _, where := range []string{hostileNamespace, namespace} {
		if err := g.clearIn(ctx, where, g.options.jobs); err != nil {
			return err
		}
	}
	return nil
}

// register registers the chart's webhooks, or unregisters them, and returns when the API server has noticed.
func (g *hostileGround) register(ctx context.Context, registered bool) error {
	if registered == (g.unregistered == nil) {
		return nil
	}
	if registered {
		for _, o := range g.unregistered {
			if err := g.client.Create(ctx, o); err != nil {
				return fmt.Errorf("registering %s: %w", o.GetName(), err)
			}
		}
		g.unregistered = nil
	} else if err := g.unregister(ctx); err != nil {
		return err
	}
	what := map[bool]string{true: "the webhooks are registered", false: "the webhooks are unregistered"}[registered]
	return g.until(ctx, what, func() (bool, error) {
		running := loadJob("asks", namespace)
		running.Spec.Suspend = ptr.To(false)
		// The webhook suspends it.
		if err := g.honest.Create(ctx, running, client.DryRunAll); err != nil {
			return false, nil
		}
		return ptr.Deref(running.Spec.Suspend, false) == registered, nil
	})
}

func (g *hostileGround) unregister(ctx context.Context) error {
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	for _, list := range []client.ObjectList{&mutating, &validating} {
		if err := g.client.List(ctx, list, ofSignalbox); err != nil {
			return err
		}
	}
	for i := range mutating.Items {
		g.unregistered = append(g.unregistered, &mutating.Items[i])
	}
	for i := range validating.Items {
		g.unregistered = append(g.unregistered, &validating.Items[i])
	}
	if len(g.unregistered) == 0 {
		return fmt.Errorf("there are no webhook configurations with the labels %v", ofSignalbox)
	}
	for _, o := range g.unregistered {
		if err := g.client.Delete(ctx, o); err != nil {
			return err
		}
		o.SetResourceVersion("")
		o.SetUID("")
		o.SetManagedFields(nil)
	}
	return nil
}

// shareOf divides requests between n senders.
func shareOf(requests, n int) int { return int(math.Ceil(float64(requests) / float64(n))) }
