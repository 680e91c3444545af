// Package v1alpha1 is version v1alpha1 of the manager's configuration file (config.signalbox.dev).
package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"

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

	// Health is the address of the liveness (/healthz) and readiness (/readyz) probes.
	Health Endpoint `json:"health"`
	// Metrics is the server of Prometheus metrics.
	Metrics Metrics `json:"metrics"`
	// Pprof is the server of Go's profiles (net/http/pprof).
	Pprof Pprof `json:"pprof"`
	// Webhook is the server of the admission webhooks.
	Webhook Webhook `json:"webhook"`
	// LeaderElection chooses the one replica that reconciles. All replicas serve webhooks.
	LeaderElection LeaderElection `json:"leaderElection"`
	// ClientConnection limits the rate of requests to the API server.
	ClientConnection ClientConnection `json:"clientConnection"`
	// Concurrency is the number of TrainJobs that are reconciled at a time; most of them wait for the API server.
	// Default 16.
	Concurrency int `json:"concurrency"`
	// Kueue has the settings of Kueue's configuration that Signalbox depends on. They must equal Kueue's.
	Kueue Kueue `json:"kueue"`
	// Trainer is the bundled Trainer.
	Trainer Trainer `json:"trainer"`
	// Limits bound what one TrainJob may request.
	Limits Limits `json:"limits"`
	// Preemption is what a preempted TrainJob gets to lose less.
	Preemption Preemption `json:"preemption"`
	// Usage is the record of who used what.
	Usage Usage `json:"usage"`
	// Nodes is what follows where a node is broken.
	Nodes Nodes `json:"nodes"`
	// Grow is how a partially admitted TrainJob gets more nodes while it runs.
	Grow Grow `json:"grow"`
}

// Grow is how a TrainJob that was admitted with fewer nodes than it asks for, and that has annotation signalbox.dev/grow,
// gets more of them: by a larger Workload, on the same flavors, and a restart at its next checkpoint. Nobody is preempted
// for it. It grows in a ClusterQueue without a cohort and without admission checks only.
type Grow struct {
	// Enabled enables it. It needs Kueue's feature gate ElasticJobsViaWorkloadSlices. Default false.
	Enabled bool `json:"enabled"`
	// Every is the least time between an admission of a TrainJob and its growth. It grows only if the further nodes give
	// more in this time than the restart loses. 10s to 24h, default 30m.
	Every metav1.Duration `json:"every"`
	// Policy is the name of the ValidatingAdmissionPolicy that rejects preemptions for TrainJobs that grow. The chart
	// installs it, and sets the name. Without it, nothing grows.
	Policy string `json:"policy,omitempty"`
}

// Usage is the record of what TrainJobs held of quota, by queue, team and user: useful, lost, idle or unknown.
type Usage struct {
	// Enabled enables it. It needs the CRD quotausages.usage.signalbox.dev. Default false.
	Enabled bool `json:"enabled"`
	// TeamLabel is the label of TrainJobs that names the team. Default "": no team is recorded.
	TeamLabel string `json:"teamLabel,omitempty"`
	// Retention is for how long a day is kept. Default 2160h (90 days), at most 8784h.
	Retention metav1.Duration `json:"retention"`
}

// MaxRetention is the longest retention: 366 days.
const MaxRetention = 366 * 24 * time.Hour

// Nodes is what follows where a node loses pods of TrainJobs, rejects them, can't start them, or fails them at once. All
// is off by default.
type Nodes struct {
	// AvoidFor is for how long a TrainJob keeps off such a node, from its next start on. It needs trainer.enabled: beside
	// an installed Kubeflow Trainer nothing can be remembered. Default 0s, which is not at all, at most 168h.
	AvoidFor metav1.Duration `json:"avoidFor"`
	// AtMost is how many nodes a TrainJob keeps off, and never more than half of those that fit it. Default 8, at most 64.
	AtMost int `json:"atMost"`
	// FailedWithin is how soon after its start a pod has to fail, while another pod of its step runs, so that its node is
	// avoided. Default 1m, at most 1h; 0s for never.
	FailedWithin metav1.Duration `json:"failedWithin"`
	// Namespaces is of how many namespaces the TrainJobs have to avoid a node so that the node gets an event, and the
	// taint. Default 2, which is the least. Set it above the number of namespaces that one user may have.
	Namespaces int `json:"namespaces"`
	// Taint sets taint signalbox.dev/avoided=:NoSchedule on such a node, until its TrainJobs avoid it no more. It needs
	// AvoidFor, and the right to patch nodes. Default false.
	Taint bool `json:"taint"`
}

// MaxAvoidFor is the longest time for which a node is avoided, and MaxAvoided the most nodes.
const (
	MaxAvoidFor = 168 * time.Hour
	MaxAvoided  = 64
)

// Preemption is what a preempted TrainJob gets to lose less of its work. All is off by default.
type Preemption struct {
	// CheckpointWithin is for how long a TrainJob that Kueue preempts may run on until its next checkpoint. It holds its
	// quota meanwhile. It has to report its checkpoints (annotation signalbox.dev/checkpoint-metric), and may shorten the
	// time (signalbox.dev/checkpoint-within). Every other eviction stops it at once. It needs trainer.progress. Default 0s,
	// which stops it at once, at most 1h.
	CheckpointWithin metav1.Duration `json:"checkpointWithin"`
	// MinimumRuntime is for how long after its admission Kueue doesn't preempt a TrainJob for an equal: one of the same
	// priority. It needs Kueue's feature gate PriorityBoost.
	MinimumRuntime MinimumRuntime `json:"minimumRuntime"`
	// CheapestVictim makes Kueue preempt, of equals, the TrainJob that loses least: by the GPU minutes since its last
	// checkpoint, in steps. It is looked at every five minutes, while others wait. It needs Kueue's feature gate
	// PriorityBoost and trainer.progress. Default false.
	CheapestVictim bool `json:"cheapestVictim"`
}

// MinimumRuntime is for how long a TrainJob isn't preempted for an equal: by its ClusterQueue if that is named, or else
// by its WorkloadPriorityClass if that is, or else the default. Each is at most 24h.
type MinimumRuntime struct {
	// Default is for TrainJobs of other ClusterQueues and classes. Default 0s, which is not at all.
	Default metav1.Duration `json:"default"`
	// PriorityClasses is by the name of the WorkloadPriorityClass.
	PriorityClasses map[string]metav1.Duration `json:"priorityClasses,omitempty"`
	// ClusterQueues is by the name of the ClusterQueue that has admitted the TrainJob.
	ClusterQueues map[string]metav1.Duration `json:"clusterQueues,omitempty"`
}

// MaxMinimumRuntime is the longest minimum runtime.
const MaxMinimumRuntime = 24 * time.Hour

// Set reports whether a TrainJob may have a minimum runtime.
func (m MinimumRuntime) Set() bool {
	for _, durations := range []map[string]metav1.Duration{{"": m.Default}, m.PriorityClasses, m.ClusterQueues} {
		for _, d := range durations {
			if d.Duration > 0 {
				return true
			}
		}
	}
	return false
}

// Boosts reports whether a setting needs Kueue's feature gate PriorityBoost, and its path; "" if none does.
func (p Preemption) Boosts() (path string) {
	switch {
	case p.MinimumRuntime.Set():
		return "preemption.minimumRuntime"
	case p.CheapestVictim:
		return "preemption.cheapestVictim"
	}
	return ""
}

// Limits bound what one TrainJob may request, so that none exhausts the manager or holds quota forever. A TrainJob that
// exceeds one is rejected when it is created, or isn't queued; the message names the limit.
type Limits struct {
	// Pods is the maximum number of pods, and of nodes, of a TrainJob. Default 5000.
	Pods int32 `json:"pods"`
	// SpecBytes is the maximum size, as JSON, of a TrainJob's spec and of its runtime's spec. Default 262144 (256 KiB).
	SpecBytes int `json:"specBytes"`
	// Elements is the maximum number of elements of all lists and maps of a TrainJob's spec, and of its runtime's spec.
	// Default 1000, at most 32768.
	Elements int `json:"elements"`
	// TerminationGracePeriodSeconds is the maximum grace period of a pod. Quota is held until the pod has ended.
	// Default 3600.
	TerminationGracePeriodSeconds int64 `json:"terminationGracePeriodSeconds"`
	// HostPaths allows entries of TrainJobs (runtimePatches, templateOverrides, podTemplateOverrides) to reach the files
	// of a node. Such are volumes hostPath, flexVolume and gitRepo, key files of the node (rbd, cephfs) and privileged
	// containers. So is a wider mount of such a volume of the runtime. Default false, because a submitter is to run what
	// a runtime describes. Runtimes aren't limited; Pod Security is for them.
	HostPaths bool `json:"hostPaths"`
	// Secrets allows TrainJobs to name Secrets of their namespace: in entries, in environment, for initializers and for
	// pulling images. Default true, as for users who may create pods. Runtimes aren't limited.
	Secrets bool `json:"secrets"`
	// PodsWithin is how long a started TrainJob may have no schedulable pod, ten minutes longer if a pod has failed
	// before. Then its quota is released, and condition Blocked has the reason. Default 5m.
	PodsWithin metav1.Duration `json:"podsWithin"`
}

// Metrics is the server of Prometheus metrics.
type Metrics struct {
	// BindAddress is HOST:PORT. An empty host listens on all addresses; "0" disables metrics.
	BindAddress string `json:"bindAddress"`
	// Secure serves metrics over TLS, with a generated certificate, to clients whose token is valid and who may get the
	// non-resource URL /metrics, as Kueue does. If false, they are served over HTTP, to all clients. Default true.
	Secure bool `json:"secure"`
}

// Pprof is the server of Go's profiles (net/http/pprof).
type Pprof struct {
	// BindAddress is HOST:PORT, as Kueue's pprofBindAddress. Clients aren't authenticated: listen on 127.0.0.1, and use
	// kubectl port-forward. Default "": profiles aren't served.
	BindAddress string `json:"bindAddress,omitempty"`
}

// Endpoint is an address to listen on.
type Endpoint struct {
	// BindAddress is HOST:PORT. An empty host listens on all addresses.
	BindAddress string `json:"bindAddress"`
}

// Webhook is the webhook server.
type Webhook struct {
	// Host is the address to listen on. Default all addresses.
	Host string `json:"host,omitempty"`
	// Port is the port to listen on. Default 9443.
	Port int `json:"port"`
	// CertDir has tls.crt and tls.key. The manager waits until they exist, and reads them again when they change.
	// Default /tmp/k8s-webhook-server/serving-certs.
	CertDir string `json:"certDir"`
	// ClientCABundle has the CAs, in PEM, of the client certificates with which API servers call the webhooks
	// (kube-apiserver: AdmissionConfiguration, kubeConfigFile). Requests without such a certificate are rejected. Default
	// none: everybody who can reach the port may send reviews; what they cost is bounded.
	ClientCABundle string `json:"clientCABundle,omitempty"`
	// Certificates are generated by the manager if a Secret is set. Otherwise another program must provide them.
	Certificates Certificates `json:"certificates"`
}

// Certificates are generated, and rotated before they expire, without a restart (cert-controller). The Deployment
// mounts the Secret at certDir.
type Certificates struct {
	// Secret stores them, with the keys tls.crt, tls.key and ca.crt. It must exist. Default none.
	Secret NamespacedName `json:"secret"`
	// DNSNames are the names at which the API server reaches the webhooks.
	DNSNames []string `json:"dnsNames,omitempty"`
	// WebhookConfigurations, mutating and validating, are those in which the manager sets the CA.
	WebhookConfigurations []string `json:"webhookConfigurations,omitempty"`
}

// LeaderElection is by a Lease.
type LeaderElection struct {
	// Enabled enables leader election. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Namespace of the Lease. Default the manager's namespace.
	Namespace string `json:"namespace,omitempty"`
}

// ClientConnection limits requests.
type ClientConnection struct {
	// QPS is the number of requests per second. Default 300.
	QPS float32 `json:"qps"`
	// Burst is the number of requests that may exceed QPS for a moment. Default 500.
	Burst int `json:"burst"`
}

// Kueue has settings of Kueue's Configuration (config.kueue.x-k8s.io/v1beta2) by their names there. Settings whose
// default is Kueue's needn't be set. Signalbox rejects a value that differs from Kueue's.
type Kueue struct {
	// ConfigMap has the configuration of the installed Kueue. Signalbox reads it at start-up and every minute, and
	// adopts the settings that both must share. It rejects a Kueue that runs its own TrainJob integration, and settings
	// that differ from those here. Default kueue-system/kueue-manager-config.
	ConfigMap NamespacedName `json:"configMap"`
	// ManageJobsWithoutQueueName also queues TrainJobs without a queue name. Default false.
	ManageJobsWithoutQueueName bool `json:"manageJobsWithoutQueueName"`
	// ManagedJobsNamespaceSelector selects the namespaces that Kueue manages. Default all except kube-system and
	// kueue-system.
	ManagedJobsNamespaceSelector *metav1.LabelSelector `json:"managedJobsNamespaceSelector,omitempty"`
	// WaitForPodsReady maintains the Workloads' PodsReady condition, which Kueue's waitForPodsReady uses. Default
	// Kueue's setting. If that isn't set either, Kueue 0.19 evicts Workloads whose pods aren't ready within half an hour;
	// the condition is then maintained from the fifth minute after the admission on.
	WaitForPodsReady *bool `json:"waitForPodsReady,omitempty"`
	// LabelKeysToCopy are labels that are copied from TrainJobs to Workloads (Kueue: integrations.labelKeysToCopy).
	// Default Kueue's setting.
	LabelKeysToCopy []string `json:"labelKeysToCopy,omitempty"`
	// AfterDeactivated is how long after Kueue has deactivated a TrainJob it is deleted (Kueue:
	// objectRetentionPolicies.workloads.afterDeactivatedByKueue). Default Kueue's setting, which is never unless set.
	AfterDeactivated *metav1.Duration `json:"afterDeactivated,omitempty"`
	// OwnerKinds are kinds that Kueue manages and that may own TrainJobs, as Kind.version.group. A TrainJob with such
	// an owner isn't queued separately.
	OwnerKinds []string `json:"ownerKinds,omitempty"`
	// OwnerIdentities are users that may create TrainJobs with an owner of OwnerKinds: the controllers of those kinds.
	// A TrainJob of another user would run without quota of its own. Default
	// system:serviceaccount:appwrapper-system:appwrapper-controller-manager.
	OwnerIdentities []string `json:"ownerIdentities,omitempty"`
	// Identities are users that write TrainJobs on Kueue's behalf, and may copy the integration's entry into another
	// cluster (MultiKueue). Default system:serviceaccount:kueue-system:kueue-controller-manager.
	Identities []string `json:"identities,omitempty"`
	// MultiKueue sets spec.managedBy of new TrainJobs whose queue leads to other clusters. Default whether Kueue's
	// multiKueue.externalFrameworks lists TrainJob.
	MultiKueue *bool `json:"multiKueue,omitempty"`
	// Resources are what Kueue excludes from quota and transforms (Kueue: resources). Default Kueue's setting.
	Resources *kueueconfig.Resources `json:"resources,omitempty"`
	// FeatureGates are Kueue's gates that differ from its defaults, by name. Signalbox uses TopologyAwareScheduling,
	// TASMultiLayerTopology, AssignQueueLabelsForPods and PriorityBoost; Kueue's library uses the others. Default Kueue's
	// gates: from its configuration, the command line of its Deployment kueue-controller-manager, and its release.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
}

// NamespacedName names an object.
type NamespacedName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Trainer is the role that builds the JobSets of TrainJobs, instead of an installed Kubeflow Trainer.
type Trainer struct {
	// Enabled enables the role. It must be false where Kubeflow Trainer is installed. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Progress serves the endpoint at which training processes report progress and metrics, which are copied to
	// status.trainerStatus (Kubeflow Trainer: feature gate TrainJobStatus).
	Progress Progress `json:"progress"`
	// GangScheduling has the defaults for TrainJobs and runtimes without its annotations.
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
	// Enabled enables it. Default false.
	Enabled bool `json:"enabled"`
	// Port is the port of the status server. Training processes get it in their environment. Default 10443.
	Port int32 `json:"port"`
	// Service is the name of the Service, in the manager's namespace, through which training processes reach the status
	// server. Default signalbox-webhook.
	Service string `json:"service"`
	// Secret is the name of the Secret, in the manager's namespace, whose ca.crt verifies the status server. Default
	// signalbox-webhook-cert.
	Secret string `json:"secret"`
}
