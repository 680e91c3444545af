package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// namespaceCase is a namespace as batch admins make it, with a runtime.
type namespaceCase struct {
	// given are what the namespace has, and labels its own.
	given  func(namespace string) []client.Object
	labels map[string]string
	// runtime and job change a runtime of one node, and its TrainJob.
	runtime func(*api.TrainingRuntime)
	job     func(*api.TrainJob)
	// says is why the TrainJob is blocked before it holds quota; "" if it completes, as a Job of the same pods does.
	says string
	// fix lets it complete.
	fix func(ctx context.Context, g *ground)
}

func limitRange(item corev1.LimitRangeItem) func(string) []client.Object {
	return func(namespace string) []client.Object {
		return []client.Object{&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "range"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}}
	}
}

func resourceQuota(hard map[corev1.ResourceName]string) func(string) []client.Object {
	return func(namespace string) []client.Object {
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "quota"}}
		q.Spec.Hard = corev1.ResourceList{}
		for name, amount := range hard {
			q.Spec.Hard[name] = resource.MustParse(amount)
		}
		return []client.Object{q}
	}
}

func amounts(cpu string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: quantity(cpu)}
}

// ofNode changes the container of a runtime's node.
func ofNode(change func(*corev1.Container)) func(*api.TrainingRuntime) {
	return func(rt *api.TrainingRuntime) { change(&podSpec(rt).Containers[0]) }
}

func limitsAlone(c *corev1.Container) {
	c.Resources = corev1.ResourceRequirements{Limits: amounts("4")}
}

var namespaces = map[string]namespaceCase{
	"a LimitRange with default requests, and limits alone": {
		given:   limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, DefaultRequest: amounts("100m")}),
		runtime: ofNode(limitsAlone),
	},
	"a LimitRange with default limits, and neither": {
		given: limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: amounts("2"),
			DefaultRequest: amounts("1")}),
		runtime: ofNode(func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{} }),
	},
	"a LimitRange with a smaller maximum": {
		given:   limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: amounts("2")}),
		runtime: ofNode(limitsAlone),
		says:    "maximum cpu usage per Container is 2",
	},
	"a LimitRange with a smaller maximum for pods": {
		given:   limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: amounts("2")}),
		runtime: ofNode(limitsAlone),
		says:    "maximum cpu usage per Pod is 2",
	},
	"a ResourceQuota of fewer GPUs": {
		given: resourceQuota(map[corev1.ResourceName]string{"requests." + gpu: "4"}),
		says:  "ResourceQuota quota is smaller than what the TrainJob needs: 8 of requests." + string(gpu) + ", of 4",
	},
	"a ResourceQuota for limits that the pods don't have": {
		given: resourceQuota(map[corev1.ResourceName]string{corev1.ResourceLimitsMemory: "1Ti"}),
		says:  "must specify limits.memory",
	},
	"a ResourceQuota with room": {
		given: resourceQuota(map[corev1.ResourceName]string{"requests." + gpu: "8", "pods": "1"}),
	},
	"a ResourceQuota of no Workloads": {
		given: resourceQuota(map[corev1.ResourceName]string{"count/workloads.kueue.x-k8s.io": "0"}),
		says:  "exceeded quota: quota, requested: count/workloads.kueue.x-k8s.io=1",
		fix: func(ctx context.Context, g *ground) {
			gomega.Expect(admin.Delete(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace,
				Name: "quota"}})).To(gomega.Succeed())
		},
	},
	"a ResourceQuota of objects, with room": {
		given: resourceQuota(map[corev1.ResourceName]string{"configmaps": "100", "services": "100", "count/jobs.batch": "2"}),
	},
	"a policy for the labels of a Job's pods": {
		given: podPolicy("'batch.kubernetes.io/job-name' in object.metadata.labels && " +
			"object.metadata.ownerReferences.exists(r, r.kind == 'Job')"),
	},
	"a policy for the Job controller": {
		given: podPolicy("request.userInfo.username.contains('controller')"),
	},
	"a policy for a label that the pods don't have": {
		given: podPolicy("'cost-center' in object.metadata.labels"),
		says:  "ValidatingAdmissionPolicy 'pods-",
	},
	"Pod Security": {
		labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		says:   `violates PodSecurity "restricted:latest"`,
	},
	"Pod Security that lets the pods be": {labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}},
	"Pod Security, and a privileged container": {
		labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
		runtime: ofNode(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		}),
		says: "securityContext.privileged: Forbidden", // by the API server itself, before Pod Security
	},
	"no such ServiceAccount": {
		runtime: func(rt *api.TrainingRuntime) { podSpec(rt).ServiceAccountName = "nobody" },
		says:    `serviceaccount "nobody" not found`,
		fix: func(ctx context.Context, g *ground) {
			gomega.Expect(admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace,
				Name: "nobody"}})).To(gomega.Succeed())
		},
	},
	"no such priority class": {
		runtime: func(rt *api.TrainingRuntime) { podSpec(rt).PriorityClassName = "none-such" },
		says:    "none-such",
	},
	"no such RuntimeClass": {
		runtime: func(rt *api.TrainingRuntime) { podSpec(rt).RuntimeClassName = ptr.To("none-such") },
		says:    "none-such",
	},
	"a RuntimeClass with overhead": {
		given: func(namespace string) []client.Object {
			return []client.Object{&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Handler: "runc",
				Overhead: &nodev1.Overhead{PodFixed: amounts("250m")}}}
		},
		runtime: func(rt *api.TrainingRuntime) { podSpec(rt).RuntimeClassName = &rt.Namespace },
	},
	"GPUs without limits": {
		job:  func(tj *api.TrainJob) { tj.Spec.Trainer.ResourcesPerNode.Limits = nil },
		says: "can't be requested without a limit",
	},
	"a mount without its volume": {
		runtime: ofNode(func(c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}),
		says: "data",
	},
	"a variable that none can have": {
		runtime: ofNode(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "A=B", Value: "1"}} }),
		says:    "A=B",
	},
}

var _ = ginkgo.Describe("Real namespaces", func() {
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		c := namespaces[name]
		ginkgo.It(name, func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			if c.labels != nil {
				namespace := get(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: g.namespace}})
				maps.Copy(namespace.Labels, c.labels)
				gomega.Expect(admin.Update(ctx, namespace)).To(gomega.Succeed())
			}
			if c.given != nil {
				for _, o := range c.given(g.namespace) {
					gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
					ginkgo.DeferCleanup(func(ctx context.Context) {
						gomega.Expect(ignoreNotFound(admin.Delete(ctx, o))).To(gomega.Succeed())
					})
					if _, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding); ok {
						gomega.Eventually(enforced(ctx, g.namespace)).Should(gomega.MatchError(gomega.ContainSubstring("pods-")))
					}
					if q, ok := o.(*corev1.ResourceQuota); ok {
						gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(len(q.Spec.Hard)))
					}
				}
			}
			rt := g.runtime(ctx, "torch", "1s", func(rt *api.TrainingRuntime) {
				if c.runtime != nil {
					c.runtime(rt)
				}
			})
			tj := g.submit(ctx, g.trainJob("job", "torch", 1, func(tj *api.TrainJob) {
				if c.job != nil {
					c.job(tj)
				}
			}))
			if c.says != "" {
				gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.ContainSubstring(c.says))
				gomega.Expect(get(ctx, tj).Status.State).To(gomega.Or(gomega.Equal(api.StateBlocked), gomega.BeEmpty()))
				gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
				gomega.Expect(eventsOf(ctx, tj)()).To(gomega.ContainElement(gomega.ContainSubstring(c.says)))
			}
			if c.fix != nil {
				c.fix(ctx, g)
			}
			if c.says == "" || c.fix != nil {
				gomega.Eventually(complete(ctx, tj), "2m").Should(gomega.BeTrue())
			}
			if c.says == "" {
				gomega.Eventually(asJob(ctx, g, rt)).Should(gomega.BeTrue(), "a Job of the same pods completes")
			}
		})
	}

	ginkgo.It("queue what a ResourceQuota has no room for now", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		for _, o := range resourceQuota(map[corev1.ResourceName]string{"requests." + gpu: "8"})(g.namespace) {
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
			q := o.(*corev1.ResourceQuota)
			gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(1))
		}
		g.runtime(ctx, "long", "forever")
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("first", "long", 1))
		gomega.Eventually(running(ctx, first)).Should(gomega.BeTrue())
		gomega.Eventually(func() []string { return g.list(ctx, &corev1.PodList{}) }).Should(gomega.HaveLen(1))
		second := g.submit(ctx, g.trainJob("second", "torch", 1))
		gomega.Eventually(func() bool { return workloadOf(ctx, second) != nil }).Should(gomega.BeTrue())
		gomega.Expect(blockedBy(ctx, second)()).To(gomega.BeEmpty())
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, second), "2m").Should(gomega.BeTrue())
	})

	if !cluster.bundled() {
		return
	}
	ginkgo.It("start every runtime that Trainer ships, and Flux' example, with their Secrets", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		all := append(installShippedRuntimes(ctx), installPodGroupRuntimes(ctx)...)
		for i := range all {
			g.serviceAccounts(ctx, &all[i].Spec)
			name := fmt.Sprintf("job-%d", i)
			tj := g.submit(ctx, &api.TrainJob{
				ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name,
					Labels: map[string]string{constants.QueueLabel: localQueue}},
				Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{Suspend: ptr.To(true),
					RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
						Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: all[i].Name}}},
			})
			gomega.Eventually(func() []string { return g.list(ctx, &batchv1.JobList{}) }).Should(
				gomega.ContainElement(gomega.HavePrefix(name+"-")), "%s: %s", all[i].Name, blockedBy(ctx, tj)())
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		}
	})
})

// serviceAccounts creates those that a runtime names.
func (g *ground) serviceAccounts(ctx context.Context, spec *trainerapi.TrainingRuntimeSpec) {
	ginkgo.GinkgoHelper()
	for _, rj := range spec.Template.Spec.ReplicatedJobs {
		if name := rj.Template.Spec.Template.Spec.ServiceAccountName; name != "" {
			gomega.Expect(ignoreExists(admin.Create(ctx, &corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}))).To(gomega.Succeed())
		}
	}
}

// asJob creates a Job of the pods of a runtime's node, and returns whether it has completed.
func asJob(ctx context.Context, g *ground, rt *api.TrainingRuntime) func() bool {
	ginkgo.GinkgoHelper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "plain"}}
	job.Spec.Template = *rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.DeepCopy()
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job.Spec.Template.Spec.Tolerations = append(job.Spec.Template.Spec.Tolerations,
		corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}) // Kueue would add the flavor's
	gomega.Expect(admin.Create(ctx, job)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		background := client.PropagationPolicy(metav1.DeletePropagationBackground)
		gomega.Expect(admin.Delete(ctx, job, background)).To(gomega.Succeed())
	})
	return func() bool { return get(ctx, job).Status.Succeeded == 1 }
}
