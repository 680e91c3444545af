// Package v1alpha1 is version v1alpha1 of the manager's configuration file (config.signalbox.dev).
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// APIVersion and Kind head every configuration file.
const (
	APIVersion = "config.signalbox.dev/v1alpha1"
	Kind       = "Configuration"
)

// Configuration is the manager's configuration file.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	// Health is where liveness (/healthz) and readiness (/readyz) are answered.
	Health Endpoint `json:"health"`
	// Metrics is where Prometheus metrics are served. The address "0" switches them off.
	Metrics Metrics `json:"metrics"`
	// Webhook is the server of the admission webhooks.
	Webhook Webhook `json:"webhook"`
	// LeaderElection lets one of several replicas reconcile; all of them serve webhooks.
	LeaderElection LeaderElection `json:"leaderElection"`
	// ClientConnection limits the requests to the API server.
	ClientConnection ClientConnection `json:"clientConnection"`
	// Concurrency is how many TrainJobs are reconciled at a time, most of which wait for the API server. Default 16.
	Concurrency int `json:"concurrency"`
	// Kueue repeats the settings of Kueue's own configuration that a process beside it can't see. They must be the same
	// on both sides.
	Kueue Kueue `json:"kueue"`
	// Trainer is the bundled Trainer.
	Trainer Trainer `json:"trainer"`
	// Limits bound what one TrainJob may ask for.
	Limits Limits `json:"limits"`
}

// Limits bound what one TrainJob may ask for, so that none exhausts the manager or holds quota without end. A TrainJob
// beyond them is refused when it is created, or isn't queued, with a message that names the limit.
type Limits struct {
	// Pods is how many pods, and how many nodes, a TrainJob may have. Default 5000.
	Pods int32 `json:"pods"`
	// SpecBytes is the size of a TrainJob's spec, and of its runtime's, as JSON. Default 262144 (256 KiB).
	SpecBytes int `json:"specBytes"`
	// Elements is how many elements the lists of a TrainJob's spec may have in all, and those of its runtime's. Default
	// 1000.
	Elements int `json:"elements"`
	// TerminationGracePeriodSeconds is how long a pod may take to terminate. Quota is held until then. Default 3600.
	TerminationGracePeriodSeconds int64 `json:"terminationGracePeriodSeconds"`
	// PodsWithin is how long after its start a TrainJob may have no pod that can be scheduled; then its quota is released,
	// and condition Blocked says why. Default 5m.
	PodsWithin metav1.Duration `json:"podsWithin"`
}

// Metrics is the server of Prometheus metrics.
type Metrics struct {
	// BindAddress is HOST:PORT; an empty host listens on all addresses, and "0" serves none.
	BindAddress string `json:"bindAddress"`
	// Secure serves them over TLS, with a certificate of its own, to those whose token the API server takes and who may
	// get the non-resource URL /metrics. Default false: over HTTP, to everybody.
	Secure bool `json:"secure"`
}

// Endpoint is an address to listen on.
type Endpoint struct {
	// BindAddress is HOST:PORT; an empty host listens on all addresses.
	BindAddress string `json:"bindAddress"`
}

// Webhook is the webhook server.
type Webhook struct {
	// Host to listen on. Default all addresses.
	Host string `json:"host,omitempty"`
	// Port to listen on. Default 9443.
	Port int `json:"port"`
	// CertDir holds tls.crt and tls.key; they are read again when they change, and waited for when they are not there yet.
	// Default /tmp/k8s-webhook-server/serving-certs.
	CertDir string `json:"certDir"`
	// Certificates are made by the manager where a Secret is named, and by another program where none is.
	Certificates Certificates `json:"certificates"`
}

// Certificates are made, and made again before they expire, without a restart (cert-controller). Whoever mounts the
// Secret to certDir brings them there.
type Certificates struct {
	// Secret to keep them in, with the keys tls.crt, tls.key and ca.crt. It must exist. Default none.
	Secret NamespacedName `json:"secret"`
	// DNSNames that the API server reaches the webhooks by.
	DNSNames []string `json:"dnsNames,omitempty"`
	// WebhookConfigurations, mutating and validating, that are told the CA.
	WebhookConfigurations []string `json:"webhookConfigurations,omitempty"`
}

// LeaderElection is by a Lease.
type LeaderElection struct {
	// Enabled, default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Namespace of the Lease. Default the namespace that the manager runs in.
	Namespace string `json:"namespace,omitempty"`
}

// ClientConnection limits requests.
type ClientConnection struct {
	// QPS is requests per second. Default 300.
	QPS float32 `json:"qps"`
	// Burst is how many requests may go out at once. Default 500.
	Burst int `json:"burst"`
}

// Kueue has settings of Kueue's Configuration (config.kueue.x-k8s.io/v1beta2) by their names there. Those whose default
// is Kueue's are read from it, and needn't be set; set to something else they are refused.
type Kueue struct {
	// ConfigMap is where the installed Kueue keeps its configuration. It is read at start-up and every minute afterwards,
	// to take over what Signalbox must do as Kueue does, and to refuse a Kueue that runs its own TrainJob integration and
	// settings that differ from those here. Default kueue-system/kueue-manager-config.
	ConfigMap NamespacedName `json:"configMap"`
	// ManageJobsWithoutQueueName queues TrainJobs without a queue name too. Default false.
	ManageJobsWithoutQueueName bool `json:"manageJobsWithoutQueueName"`
	// ManagedJobsNamespaceSelector is the namespaces that Kueue manages. Default all but kube-system and kueue-system.
	ManagedJobsNamespaceSelector *metav1.LabelSelector `json:"managedJobsNamespaceSelector,omitempty"`
	// WaitForPodsReady keeps the Workloads' PodsReady condition, which Kueue's waitForPodsReady acts on. Default
	// Kueue's, and false where its configuration can't be found.
	WaitForPodsReady *bool `json:"waitForPodsReady,omitempty"`
	// LabelKeysToCopy are labels copied from TrainJobs to Workloads (Kueue: integrations.labelKeysToCopy). Default
	// Kueue's.
	LabelKeysToCopy []string `json:"labelKeysToCopy,omitempty"`
	// AfterDeactivated is how long a TrainJob is kept that Kueue has deactivated (Kueue:
	// objectRetentionPolicies.workloads.afterDeactivatedByKueue). Default Kueue's, which is forever unless set.
	AfterDeactivated *metav1.Duration `json:"afterDeactivated,omitempty"`
	// OwnerKinds are kinds that Kueue manages and that may own TrainJobs, as Kind.version.group; a TrainJob that one of
	// them owns is not queued separately.
	OwnerKinds []string `json:"ownerKinds,omitempty"`
	// OwnerIdentities are users that may create TrainJobs owned by an object of OwnerKinds: the controllers of those
	// kinds. Anybody else's would run on quota that doesn't stand for them. Default
	// system:serviceaccount:appwrapper-system:appwrapper-controller-manager.
	OwnerIdentities []string `json:"ownerIdentities,omitempty"`
	// Identities are users that write TrainJobs on Kueue's behalf, and may carry the integration's entry into another
	// cluster (MultiKueue). Default system:serviceaccount:kueue-system:kueue-controller-manager.
	Identities []string `json:"identities,omitempty"`
	// MultiKueue gives new TrainJobs to MultiKueue whose queue leads to other clusters. Default whether Kueue's
	// multiKueue.externalFrameworks lists TrainJob.
	MultiKueue *bool `json:"multiKueue,omitempty"`
	// FeatureGates of Kueue that differ from its defaults, by name. Signalbox acts on TopologyAwareScheduling,
	// TASMultiLayerTopology and AssignQueueLabelsForPods, and Kueue's library on the others. Default Kueue's, by its
	// configuration, the command line of its Deployment kueue-controller-manager, and its release.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
}

// NamespacedName names an object.
type NamespacedName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Trainer is the role that builds the JobSets of TrainJobs. It takes the place of an installed Kubeflow Trainer.
type Trainer struct {
	// Enabled switches the role on. It is to be off where Kubeflow Trainer is installed. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Progress lets training processes report their progress and metrics into status.trainerStatus (Kubeflow Trainer:
	// feature gate TrainJobStatus).
	Progress Progress `json:"progress"`
	// GangScheduling is for TrainJobs and runtimes that don't say by annotation how their pods are to be placed.
	GangScheduling GangScheduling `json:"gangScheduling"`
}

// GangScheduling places the pods of TrainJobs in groups, by Kubernetes' Workload and PodGroup API (scheduling.k8s.io).
// Beside an installed Kubeflow Trainer it must be off: Kubeflow Trainer builds the JobSets there.
type GangScheduling struct {
	// Mode is required, preferred or off (annotation signalbox.dev/gang-scheduling). Default off.
	Mode api.GangMode `json:"mode"`
	// Policy is gang (all pods of a group or none) or basic (annotation signalbox.dev/gang-scheduling-policy). Default
	// gang.
	Policy api.GangPolicy `json:"policy"`
}

// Progress is Kubeflow Trainer's status server.
type Progress struct {
	// Enabled switches it on. Default false.
	Enabled bool `json:"enabled"`
	// Port that the status server listens on, and that training processes are told. Default 10443.
	Port int32 `json:"port"`
	// Service is the name of the Service, in the manager's namespace, by which training processes reach it. Default
	// signalbox-webhook.
	Service string `json:"service"`
	// Secret is the name of the Secret, in the manager's namespace, whose ca.crt training processes verify the server by.
	// Default signalbox-webhook-cert.
	Secret string `json:"secret"`
}
