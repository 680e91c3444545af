package e2e

import (
	"context"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// row is a namespace as batch admins make it. A TrainJob runs in it on each runtime, beside a JobSet or Job of the same
// pods.
type row struct {
	name string
	// given are what the namespace has, and labels its own.
	given  func(namespace string) []client.Object
	labels map[string]string
	// pods changes the pods of the runtimes and of the twins, and job the TrainJobs.
	pods func(namespace string, spec *corev1.PodSpec)
	job  func(*api.TrainJob)
	// acts reports, by the dry run of a pod, whether the API server acts on the policies that are given.
	acts func(*corev1.Pod, error) bool
	// says is why TrainJobs are blocked before they hold quota, as a regular expression; "" if they complete. Their twins
	// don't complete then. only names the runtimes that it is for; "" is for all.
	says string
	only []string
	// fix lets TrainJobs complete that were blocked.
	fix func(ctx context.Context, namespace string)
	// bundled is for what the bundled Trainer checks alone, and asJobSet for what a Job as a twin doesn't need.
	bundled, asJobSet bool
}

const (
	quotaName  = "quota"
	workloads  = "count/workloads.kueue.x-k8s.io"
	gpuQuota   = "requests." + gpu
	storage    = corev1.ResourceRequestsStorage
	ofClass    = corev1.ResourceName(poolName + ".storageclass.storage.k8s.io/requests.storage")
	enforce    = "pod-security.kubernetes.io/enforce"
	noRegistry = "images come from registry.example.com"
)

var rows = []row{
	{name: "nothing of its own"},

	// LimitRanges. The trainers' containers have limits for CPU and GPU, and all others have nothing.
	{name: "a LimitRange with default requests", given: limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypeContainer, DefaultRequest: amounts("cpu=100m")})},
	{name: "a LimitRange with default limits and requests", given: limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypeContainer, Default: amounts("cpu=2", "memory=2Gi"),
		DefaultRequest: amounts("cpu=1", "memory=1Gi")})},
	{name: "LimitRanges of each type with room", given: limitRange(
		corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: amounts("cpu=100m", "memory=1Mi"),
			Max: amounts("cpu=8", "memory=8Gi"), Default: amounts("cpu=2", "memory=2Gi"),
			DefaultRequest: amounts("cpu=1", "memory=1Gi"), MaxLimitRequestRatio: amounts("cpu=4", "memory=2")},
		corev1.LimitRangeItem{Type: corev1.LimitTypePod, Min: amounts("cpu=100m"), Max: amounts("cpu=16")},
		corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Min: amounts("storage=1Gi"),
			Max: amounts("storage=100Gi")})},
	{name: "a LimitRange with a smaller maximum", given: limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypeContainer, Max: amounts("cpu=2")}), says: "maximum cpu usage per Container is 2"},
	{name: "a LimitRange with a greater minimum", given: limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypeContainer, Min: amounts("cpu=6")}), says: "minimum cpu usage per Container is 6"},
	{name: "a LimitRange with a smaller ratio", given: limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypeContainer, Default: amounts("memory=4Gi"), DefaultRequest: amounts("memory=1Gi"),
		MaxLimitRequestRatio: amounts("memory=2")}), says: "memory max limit to request ratio per Container is 2"},
	{name: "a LimitRange with a smaller maximum for pods", given: limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypePod, Max: amounts("cpu=2")}), says: "maximum cpu usage per Pod is 2"},
	{name: "a LimitRange with a smaller maximum for claims", given: limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypePersistentVolumeClaim, Max: amounts("storage=10Gi")}),
		says: "maximum storage usage per PersistentVolumeClaim is 10Gi", only: claiming, bundled: true},

	// ResourceQuotas.
	{name: "ResourceQuotas of each kind with room", given: together(
		limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: amounts("cpu=2", "memory=2Gi"),
			DefaultRequest: amounts("cpu=1", "memory=1Gi")}),
		quotaOf("requests.cpu=1000", "requests.memory=1Ti", "limits.cpu=1000", "limits.memory=1Ti", "pods=100",
			gpuQuota+"=100", "services=100", "persistentvolumeclaims=10", storage+"=1Ti", ofClass+"=1Ti",
			workloads+"=100", "count/jobs.batch=100", "count/jobsets.jobset.x-k8s.io=100"))},
	{name: "a ResourceQuota for limits that the pods don't have", given: quotaOf("limits.memory=1Ti"),
		says: "must specify limits.memory"},
	{name: "a ResourceQuota of no GPUs", given: quotaOf(gpuQuota + "=0"), says: quotaName + ".*" + string(gpuQuota)},
	{name: "a ResourceQuota of no pods", given: quotaOf("pods=0"), says: quotaName + ".*pods"},
	{name: "a ResourceQuota of no Workloads", given: quotaOf(workloads + "=0"), says: quotaName + ".*" + workloads,
		fix: withoutQuota},
	{name: "a ResourceQuota of no Jobs", given: quotaOf("count/jobs.batch=0"), says: quotaName + ".*jobs.batch",
		bundled: true},
	{name: "a ResourceQuota of no JobSets", given: quotaOf("count/jobsets.jobset.x-k8s.io=0"),
		says: quotaName + ".*jobsets.jobset.x-k8s.io", bundled: true, asJobSet: true, fix: withoutQuota},
	{name: "a ResourceQuota of no Services", given: quotaOf("services=0"), says: quotaName + ".*services",
		bundled: true, asJobSet: true},
	{name: "a ResourceQuota of no claims", given: quotaOf("persistentvolumeclaims=0"),
		says: quotaName + ".*persistentvolumeclaims", only: claiming, bundled: true},
	{name: "a ResourceQuota of less storage", given: quotaOf(storage + "=10Gi"),
		says: quotaName + ".*requests.storage", only: claiming, bundled: true},
	{name: "a ResourceQuota of less storage of the class", given: quotaOf(ofClass + "=10Gi"),
		says: quotaName + ".*" + string(ofClass), only: claiming, bundled: true},
	{name: "a ResourceQuota of no BestEffort pods",
		given: scoped(inScope(corev1.ResourceQuotaScopeBestEffort)), says: quotaName + ".*pods", only: withBestEffort},
	{name: "a ResourceQuota of no other pods", given: scoped(inScope(corev1.ResourceQuotaScopeNotBestEffort)),
		says: quotaName + ".*pods"},
	{name: "a ResourceQuota of no pods with a deadline", given: scoped(inScope(corev1.ResourceQuotaScopeTerminating))},
	{name: "a ResourceQuota of no pods of another priority class", given: scoped(ofPriorityClass)},
	{name: "a ResourceQuota of no pods of their priority class", given: together(priorityClass, scoped(ofPriorityClass)),
		pods: ofPriority, says: quotaName + ".*pods"},

	// What pods name, and what they are.
	{name: "their priority class, which preempts nobody", given: priorityClass, pods: ofPriority},
	{name: "no such priority class", pods: ofPriority, says: "no PriorityClass with name"},
	{name: "a RuntimeClass with overhead and node labels", given: runtimeClass, pods: ofRuntimeClass},
	{name: "no such RuntimeClass", pods: ofRuntimeClass, says: `RuntimeClass.*not found`},
	{name: "their ServiceAccount", given: serviceAccount, pods: asServiceAccount},
	{name: "no such ServiceAccount", pods: asServiceAccount, says: `serviceaccount "trainer" not found`,
		fix: func(ctx context.Context, namespace string) {
			gomega.Expect(admin.Create(ctx, serviceAccount(namespace)[0])).To(gomega.Succeed())
		}},
	{name: "a claim that all pods mount", given: datasetClaim, pods: mountingDataset, bundled: true},
	{name: "GPUs without limits", job: func(tj *api.TrainJob) {
		r := tj.Spec.Trainer.ResourcesPerNode
		r.Limits, r.Requests = nil, r.Limits
	}, pods: withoutLimits, says: "can't be requested without a limit|Limit must be set for non overcommitable"},
	{name: "a mount without its volume", pods: mountingNothing, says: "data"},
	{name: "a variable that none can have", pods: withVariable, says: "A=B"},

	// Pod Security.
	{name: "Pod Security baseline", labels: map[string]string{enforce: "baseline"}},
	{name: "Pod Security baseline, and privileged containers", labels: map[string]string{enforce: "baseline"},
		pods: privileged, says: `violates PodSecurity "baseline:latest"|privileged: Forbidden`},
	{name: "Pod Security restricted", labels: map[string]string{enforce: "restricted"},
		says: `violates PodSecurity "restricted:latest"`},
	// Flux' init container, which Trainer adds, has no security context.
	{name: "Pod Security restricted, and pods as it wants them", labels: map[string]string{enforce: "restricted"},
		pods: restricted, says: `violates PodSecurity "restricted:latest"`, only: []string{"flux"}},

	// Policies.
	{name: "a NetworkPolicy that lets nothing through", given: networkPolicy},
	{name: "a policy that refuses their images", acts: nowRefuses(noRegistry),
		given: policy(noRegistry, "object.spec.containers.all(c, c.image.startsWith('registry.example.com/'))"),
		says:  noRegistry},
	{name: "a policy that every pod of a queued Job satisfies", acts: nowRefuses("pods are of Jobs on quota"),
		given: policy("pods are of Jobs on quota",
			"has(object.metadata.labels) && 'batch.kubernetes.io/job-name' in object.metadata.labels && "+
				"has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind == 'Job') && "+
				"(has(object.spec.nodeSelector) || !object.spec.containers.exists(c, has(c.resources) && "+
				"has(c.resources.limits)))")},
	{name: "a policy for the Job controller", acts: nowRefuses("the Job controller creates pods"),
		given: policy("the Job controller creates pods", "request.userInfo.username.contains('controller')")},
	{name: "a policy for a label that the pods don't have", acts: nowRefuses("name a cost center"),
		given: policy("name a cost center",
			"has(object.metadata.labels) && 'cost-center' in object.metadata.labels"), says: "name a cost center"},
	{name: "a webhook that adds a sidecar, a node label and a toleration", given: injectingWebhook, acts: injected},
	{name: "a policy that adds a sidecar, a label and a toleration", given: injectingPolicy, acts: injected},
}

// claiming are the runtimes with claims, and withBestEffort those with pods that request nothing.
var (
	claiming       = []string{"torchtune", "llama-3b", "qwen"}
	withBestEffort = append([]string{"mlx"}, claiming...)
)

func priorityClass(namespace string) []client.Object {
	return []client.Object{&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Value: 1000,
		PreemptionPolicy: ptr.To(corev1.PreemptNever)}}
}

func ofPriority(namespace string, spec *corev1.PodSpec) { spec.PriorityClassName = namespace }

func runtimeClass(namespace string) []client.Object {
	return []client.Object{&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Handler: "runc",
		Overhead: &nodev1.Overhead{PodFixed: amounts("cpu=250m", "memory=64Mi")},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{zoneLabel: "a"},
			Tolerations: []corev1.Toleration{{Key: "example.com/class", Operator: corev1.TolerationOpExists}}}}}
}

func ofRuntimeClass(namespace string, spec *corev1.PodSpec) { spec.RuntimeClassName = &namespace }

func serviceAccount(namespace string) []client.Object {
	return []client.Object{&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "trainer"}}}
}

func asServiceAccount(_ string, spec *corev1.PodSpec) { spec.ServiceAccountName = "trainer" }

func datasetClaim(namespace string) []client.Object {
	return []client.Object{&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: "dataset"}, Spec: claimOfVolume}}
}

func mountingDataset(_ string, spec *corev1.PodSpec) {
	mountingNothing("", spec)
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "dataset"}}})
}

func mountingNothing(_ string, spec *corev1.PodSpec) {
	c := &spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
}

func withVariable(_ string, spec *corev1.PodSpec) {
	c := &spec.Containers[0]
	c.Env = append(c.Env, corev1.EnvVar{Name: "A=B", Value: "1"})
}

// withoutLimits has the twins request what the TrainJobs request.
func withoutLimits(_ string, spec *corev1.PodSpec) {
	for i := range spec.Containers {
		if r := &spec.Containers[i].Resources; r.Limits != nil {
			r.Limits, r.Requests = nil, r.Limits
		}
	}
}

func securityContext(c *corev1.Container) *corev1.SecurityContext {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	return c.SecurityContext
}

func privileged(_ string, spec *corev1.PodSpec) {
	securityContext(&spec.Containers[0]).Privileged = ptr.To(true)
}

func restricted(_ string, spec *corev1.PodSpec) {
	for i := range spec.Containers {
		s := securityContext(&spec.Containers[i])
		s.RunAsNonRoot, s.AllowPrivilegeEscalation = ptr.To(true), ptr.To(false)
		s.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
		s.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
}

func networkPolicy(namespace string) []client.Object {
	return []client.Object{&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"},
		Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{
			networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}}}
}

func withoutQuota(ctx context.Context, namespace string) {
	gomega.Expect(admin.Delete(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: quotaName}})).To(gomega.Succeed())
}
