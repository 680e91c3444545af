package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/hostile"
)

const (
	hostileLabel = "hostile"         // of what hostile users create
	hostileQuota = 32                // GPUs of the queue in their namespace
	hostileMost  = 40                // objects of a kind, of which they delete one before they create more
	lateQueue    = "hostile-late"    // begins the names of TrainJobs that may run before they are queued
	keeps        = "example.com/own" // a finalizer that nobody removes
)

// hostileUsers do at random what the three kinds of users of docs/security.md can do: a submitter in the namespace of
// the honest users, with their quota; an author and an editor in a namespace of their own. They act on their own
// objects: whoever may write TrainJobs in a namespace may delete all of them.
type hostileUsers struct {
	honest, own               *ground
	users                     []*hostileUser
	webhooks                  []string
	requests, accepted, added atomic.Int64
	over                      atomic.Pointer[string]
}

type hostileUser struct {
	*hostileUsers
	at       *ground
	as       client.Client
	random   *rand.Rand
	misuses  []misuse
	runtimes []string
}

func newHostileUsers(ctx context.Context, honest *chaos, seed uint64) *hostileUsers {
	ginkgo.GinkgoHelper()
	h := &hostileUsers{honest: honest.ground, webhooks: webhookURLs(ctx),
		own: newGround(ctx, map[string]int64{"h100": hostileQuota})}
	ginkgo.DeferCleanup(h.relent)
	h.own.localQueue(ctx, "shared", honest.queue)
	own := &chaos{ground: h.own}
	own.makeRuntimes(ctx)
	h.own.runtime(ctx, "lies", "3s", slowly("2s"), func(rt *api.TrainingRuntime) {
		spec := &rt.Spec.Template.Spec
		spec.ReplicatedJobs = append(spec.ReplicatedJobs, step("first", "", "100ms"))
		spec.SuccessPolicy = &jobset.SuccessPolicy{Operator: jobset.OperatorAll, TargetReplicatedJobs: []string{"first"}}
	})
	add := func(at *ground, as client.Client, misuses []misuse, runtimes ...string) {
		h.users = append(h.users, &hostileUser{hostileUsers: h, at: at, as: as, misuses: misuses, runtimes: runtimes,
			random: rand.New(rand.NewPCG(seed, uint64(3+len(h.users))))})
	}
	submits := []rbacv1.PolicyRule{may("trainer.kubeflow.org", "trainjobs")}
	add(h.honest, h.honest.as(ctx, "submitter", submits), misuses[:1], honest.runtimes...)
	add(h.own, h.own.author(ctx), misuses, append(own.runtimes, "lies")...)
	add(h.own, h.own.master(ctx), misuses, append(own.runtimes, "lies")...)
	return h
}

// actUntil lets all of them act.
func (h *hostileUsers) actUntil(ctx context.Context, end time.Time) {
	ctx, cancel := context.WithDeadline(ctx, end.Add(20*time.Second))
	defer cancel()
	acting, stop := context.WithDeadline(ctx, end) // the last requests are answered later
	defer stop()
	var all sync.WaitGroup
	for _, u := range h.users {
		all.Go(func() {
			wait.JitterUntilWithContext(acting, func(context.Context) { u.act(ctx) }, 100*time.Millisecond, 4, true)
		})
	}
	all.Go(func() { h.sendLarge(ctx, acting) })
	all.Wait()
}

// sendLarge sends dry runs, and reviews past the API server, that cost more than their bytes, as long as it acts.
func (h *hostileUsers) sendLarge(ctx, acting context.Context) {
	defer ginkgo.GinkgoRecover()
	submitter := config(cluster.kubeconfig("user"))
	by, err := rest.HTTPClientFor(submitter)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	anybody, trainJobs := strangers(), hostile.TrainJobs(h.own.namespace, "short")
	reviews, i := hostile.Reviews(trainJobs, "signalbox"), -1
	at := submitter.Host + "/apis/trainer.kubeflow.org/v1alpha1/namespaces/" + h.own.namespace + "/trainjobs?dryRun=All"
	wait.UntilWithContext(acting, func(context.Context) {
		i++
		job, url := trainJobs[i%len(trainJobs)], h.webhooks[i%len(h.webhooks)]
		_, refused := post(ctx, by, at, job.JSON)
		_, unanswered := post(ctx, anybody, url, reviews[job.Kind])
		h.requests.Add(2)
		ginkgo.GinkgoLogr.Info("large requests", "of", job.Kind, "errors", errors.Join(refused, unanswered))
	}, 2*time.Second)
}

// watchQuota looks, a few times a second, at how many GPUs the pods use that Kueue has admitted.
func (h *hostileUsers) watchQuota(ctx context.Context) {
	running := client.MatchingFieldsSelector{
		Selector: fields.ParseSelectorOrDie("status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!=")}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		var pods corev1.PodList
		if err := admin.List(ctx, &pods, client.HasLabels{kueueconstants.PodSetLabel}, running); err != nil {
			return // the API server is down
		}
		all := gpusOf(pods.Items)
		honest := gpusOf(slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Namespace == h.own.namespace }))
		if all > honestQuota+hostileQuota || honest > honestQuota {
			h.over.Store(ptr.To(fmt.Sprintf("%d GPUs were in use, %d of them in the honest users' namespace", all, honest)))
		}
	}, 300*time.Millisecond)
}

// act sends a request or two.
func (u *hostileUser) act(ctx context.Context) {
	of, what, how := u.misuses[u.random.IntN(len(u.misuses))], u.random.IntN(10), u.random.IntN(3)
	patch, all := of.patches[u.random.IntN(len(of.patches))], u.objects(ctx, u.at, of.list())
	if what < 2 || len(all) == 0 {
		u.submit(ctx)
		return
	}
	o := all[u.random.IntN(len(all))]
	pod, isPod := o.(*corev1.Pod)
	_, isRuntime := o.(*api.TrainingRuntime)
	switch {
	case len(all) > hostileMost:
		u.sent(merge(ctx, u.as, o, "", unfinalize))
		u.sent(u.as.Delete(ctx, o))
	case isRuntime || what < 6:
		u.sent(merge(ctx, u.as, o, []string{"", "", "status"}[how], patch))
	case isPod && how == 0:
		u.sent(u.as.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{}))
	case what < 8:
		u.sent(u.as.Delete(ctx, o, client.PropagationPolicy([]metav1.DeletionPropagation{
			metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}[how])))
	default:
		u.sent(u.as.Create(ctx, u.forged(o)))
	}
}

// sent counts a request, and reports whether it was accepted.
func (u *hostileUser) sent(err error) bool {
	u.requests.Add(1)
	if err == nil {
		u.accepted.Add(1)
	}
	return err == nil
}

// submit creates a TrainJob with two twists, sometimes by a name that was used before.
func (u *hostileUser) submit(ctx context.Context) {
	name := fmt.Sprintf("hostile-%d", u.random.IntN(5*hostileMost))
	tj := u.at.trainJob(name, u.runtimes[u.random.IntN(len(u.runtimes))], 1)
	tj.Labels[hostileLabel] = ""
	for range 2 {
		twists[u.random.IntN(len(twists))](tj)
	}
	if u.sent(u.as.Create(ctx, tj)) {
		u.added.Add(1)
	}
}

// objects returns those of hostile users: all in their namespace, and what they have created in that of the others.
func (h *hostileUsers) objects(ctx context.Context, at *ground, list client.ObjectList) (all []client.Object) {
	options := []client.ListOption{client.InNamespace(at.namespace)}
	if at == h.honest {
		options = append(options, client.HasLabels{hostileLabel})
	}
	_ = admin.List(ctx, list, options...) // while the API server is down, there is nothing
	_ = apimeta.EachListItem(list, func(o runtimeObject) error {
		all = append(all, o.(client.Object))
		return nil
	})
	return all
}

// relent deletes what hostile users have made, and removes their finalizers.
func (h *hostileUsers) relent(ctx context.Context) {
	gomega.Eventually(func() (left []string) {
		for _, at := range []*ground{h.honest, h.own} {
			for _, of := range misuses {
				for _, o := range h.objects(ctx, at, of.list()) {
					if controllerutil.RemoveFinalizer(o, keeps) {
						_ = merge(ctx, admin, o, "", finalized(o.GetFinalizers()))
					}
					err := admin.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground))
					if o.GetName() != "kube-root-ca.crt" { // which is created again
						left = append(left, fmt.Sprintf("%T %s: %v", o, o.GetName(), err))
					}
				}
			}
		}
		return left
	}, "3m", "1s").Should(gomega.BeEmpty(), "what hostile users have made isn't deleted")
}

// misuse is what hostile users write to objects of a kind, as merge patches.
type misuse struct {
	list    func() client.ObjectList
	patches []string
}

const (
	finalize   = `{"metadata":{"finalizers":["` + keeps + `"]}}`
	unfinalize = `{"metadata":{"finalizers":null}}`
	disown     = `{"metadata":{"ownerReferences":null}}`
	madeUp     = `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"any","uid":"any","controller":true}]}}`
)

// ended returns the patch of a status that says so.
func ended(how string) string {
	return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":"Hostile","message":"It lies.",`+
		`"lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`, how)
}

// meta returns the patch of a label or an annotation; the value is JSON.
func meta(of, key, value string) string {
	return fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, of, key, value)
}

// misuses are those of all kinds; the first are of TrainJobs.
var misuses = []misuse{
	{func() client.ObjectList { return &api.TrainJobList{} }, []string{
		finalize, finalize, unfinalize, madeUp, disown, ended("Complete"), ended("Failed"),
		meta("labels", constants.QueueLabel, "null"), meta("labels", constants.QueueLabel, `"shared"`),
		meta("labels", constants.QueueLabel, `"training"`), meta("labels", constants.MaxExecTimeSecondsLabel, `"1"`),
		`{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":null}},"spec":{"suspend":true}}`,
		`{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"shared"}},"spec":{"suspend":true}}`,
		meta("labels", constants.WorkloadPriorityClassLabel, `"high"`), meta("labels", constants.WorkloadPriorityClassLabel, `"none"`),
		meta("labels", constants.PrebuiltWorkloadLabel, `"none"`), meta("annotations", "kueue.x-k8s.io/elastic-job", `"true"`),
		meta("annotations", api.StopAnnotation, `"true"`), meta("annotations", api.StopAnnotation, "null"),
		meta("annotations", "kueue.x-k8s.io/job-min-parallelism", `"-1"`), meta("annotations", "signalbox.dev/runtime", `"H4sIAAAAAAAA"`),
		`{"spec":{"suspend":true}}`, `{"spec":{"suspend":false}}`, `{"spec":{"trainer":{"numNodes":2}}}`,
		`{"spec":{"runtimePatches":[{"manager":"a.com/a"},{"manager":"kueue.x-k8s.io/manager"}]}}`,
		`{"metadata":{"labels":` + hostile.Members(1000) + `}}`, `{"metadata":{"labels":` + hostile.Members(60_000) + `}}`,
	}},
	{func() client.ObjectList { return &kueue.WorkloadList{} }, []string{
		finalize, unfinalize, disown, `{"spec":{"active":false}}`, `{"spec":{"active":true}}`, `{"spec":{"priority":7}}`,
		`{"spec":{"queueName":"shared"}}`, `{"spec":{"maximumExecutionTimeSeconds":1}}`,
		meta("annotations", "signalbox.dev/deactivate", `"master"`), meta("annotations", "signalbox.dev/deactivate", "null"),
		`{"status":{"admission":null}}`, `{"status":{"reclaimablePods":[{"name":"node","count":1}]}}`,
		`{"status":{"requeueState":{"count":9,"requeueAt":"2099-01-01T00:00:00Z"}}}`, ended("Finished"),
	}},
	{func() client.ObjectList { return &jobset.JobSetList{} }, []string{
		finalize, unfinalize, disown, `{"spec":{"suspend":true}}`, `{"spec":{"suspend":false}}`,
		`{"spec":{"ttlSecondsAfterFinished":0}}`, meta("annotations", "example.com/mine", `"too"`),
		meta("annotations", jobset.ExclusiveKey, `"rack"`), `{"status":{"restarts":5}}`, ended("Completed"),
	}},
	{func() client.ObjectList { return &batchv1.JobList{} }, []string{
		finalize, unfinalize, disown, `{"spec":{"parallelism":8}}`, `{"spec":{"suspend":true}}`,
		`{"spec":{"suspend":false}}`, `{"spec":{"activeDeadlineSeconds":1}}`, meta("labels", "mine", `"too"`),
		meta("labels", "jobset.sigs.k8s.io/restart-attempt", `"7"`), `{"status":{"succeeded":1,"active":0}}`,
	}},
	{func() client.ObjectList { return &corev1.PodList{} }, []string{
		finalize, unfinalize, disown, meta("labels", "mine", `"too"`), meta("labels", batchv1.ControllerUidLabel, `"any"`),
		meta("labels", kueueconstants.PodSetLabel, "null"), meta("annotations", batchv1.JobCompletionIndexAnnotation, `"7"`),
		`{"spec":{"activeDeadlineSeconds":1}}`, `{"status":{"phase":"Failed"}}`, `{"status":{"phase":"Succeeded"}}`,
	}},
	{func() client.ObjectList { return &api.TrainingRuntimeList{} }, []string{
		finalize, unfinalize, `{"spec":{"mlPolicy":{"numNodes":2}}}`, `{"spec":{"mlPolicy":{"numNodes":1}}}`,
		`{"spec":{"template":{"spec":{"failurePolicy":{"maxRestarts":1}}}}}`,
	}},
	{func() client.ObjectList { return &corev1.ConfigMapList{} }, []string{unfinalize, madeUp}},
}

// twists are what hostile users make of a TrainJob before they create it.
var twists = []func(*api.TrainJob){
	func(*api.TrainJob) {}, func(*api.TrainJob) {},
	func(tj *api.TrainJob) { tj.Finalizers = []string{keeps} },
	func(tj *api.TrainJob) {
		any := &metav1.ObjectMeta{Name: "any", UID: "any"}
		tj.OwnerReferences = []metav1.OwnerReference{controller("apps/v1", "ReplicaSet", any)}
	},
	func(tj *api.TrainJob) { // its pods need neither GPUs nor quota
		tj.Name = lateQueue + strings.TrimPrefix(tj.Name, "hostile")
		delete(tj.Labels, constants.QueueLabel)
		requests(corev1.ResourceCPU, "1")(tj)
	},
	func(tj *api.TrainJob) { tj.Labels[constants.WorkloadPriorityClassLabel] = "high" },
	func(tj *api.TrainJob) { tj.Labels[constants.PrebuiltWorkloadLabel] = "none" },
	func(tj *api.TrainJob) { metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.StopAnnotation, "true") },
	func(tj *api.TrainJob) { tj.Spec.ActiveDeadlineSeconds = 1 },
	func(tj *api.TrainJob) { tj.Spec.Suspend = ptr.To(false) },
	func(tj *api.TrainJob) { tj.Spec.Trainer.NumNodes = ptr.To[int32](2) },
	func(tj *api.TrainJob) { tj.Spec.Trainer.NumNodes = ptr.To[int32](9) },
	func(tj *api.TrainJob) { tj.Name += strings.Repeat("-a", 20) },
	requests(gpu, "-8"), withVolume(theNodesFiles), inTemplate(metav1.ObjectMeta{Finalizers: []string{keeps}}),
	entryFor("example.com/team", "node", func(meta *metav1.ObjectMeta, _ *trainerapi.PodSpecPatch) {
		meta.Labels = map[string]string{jobset.JobSetNameKey: "job-0", "mine": "too"}
	}),
}

// forged returns an object that is to be mistaken for one of another's, or that blocks its deletion.
func (u *hostileUser) forged(o client.Object) client.Object {
	owner := metav1.OwnerReference{Name: o.GetName(), UID: o.GetUID()}
	if gvk, err := admin.GroupVersionKindFor(o); err == nil {
		owner.APIVersion, owner.Kind = gvk.GroupVersion().String(), gvk.Kind
	}
	blocks, controls := owner, owner
	blocks.BlockOwnerDeletion, controls.Controller = ptr.To(true), ptr.To(true)
	own := map[string]string{hostileLabel: ""}
	trainJob := u.at.trainJob("", u.runtimes[0], 1)
	trainJob.Labels[hostileLabel] = ""
	trainJob.OwnerReferences = [][]metav1.OwnerReference{{blocks}, {controls}}[u.random.IntN(2)]
	owned := metav1.ObjectMeta{Namespace: u.at.namespace, Labels: own, OwnerReferences: trainJob.OwnerReferences}
	set := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: u.at.namespace, Name: o.GetName()}}
	set.Spec = jobset.JobSetSpec{Suspend: ptr.To(true), ReplicatedJobs: []jobset.ReplicatedJob{step("own", "", "1s")}}
	wl := &kueue.Workload{ObjectMeta: owned, Spec: kueue.WorkloadSpec{QueueName: localQueue, PodSets: []kueue.PodSet{
		{Name: "node", Count: 1, Template: u.at.podTemplate(own)}}}}
	wl.OwnerReferences = []metav1.OwnerReference{controller(trainerapi.GroupVersion.String(), trainerapi.TrainJobKind, o)}
	all := []client.Object{
		&corev1.ConfigMap{ObjectMeta: owned}, &corev1.ConfigMap{ObjectMeta: owned}, trainJob, set, wl,
		&batchv1.Job{ObjectMeta: owned, Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: u.at.podTemplate(own)}},
		u.at.ownPod("", own, owned.OwnerReferences...),
		u.at.ownPod("", map[string]string{batchv1.ControllerUidLabel: string(o.GetUID())}),
		u.at.ownPod("", map[string]string{jobset.JobSetNameKey: o.GetName(), jobset.JobSetUIDKey: string(o.GetUID())}),
	}
	forged := all[u.random.IntN(len(all))]
	forged.SetGenerateName("hostile-")
	forged.SetFinalizers([][]string{nil, {keeps}}[u.random.IntN(2)])
	return forged
}
