package v1alpha1

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TrainJobSpec represents specification of the desired TrainJob. Beside runtimePatches, which the embedded type has, it
// holds what a TrainJob may change of its runtime in the shapes that came before.
type TrainJobSpec struct {
	trainerapi.TrainJobSpec `json:",inline"`

	// podTemplateOverrides change the pod templates of the runtime, as Kubeflow Trainer v2.1 had it: later entries win over
	// earlier ones, and runtimePatches win over all of them.
	// Deprecated: use runtimePatches; kubectl signalbox convert rewrites a manifest.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	PodTemplateOverrides []PodTemplateOverride `json:"podTemplateOverrides,omitempty"`

	// templateOverrides change the runtime's templates by manager, as a proposal for Kubeflow Trainer had it. Each is a
	// history: entries may be added, never changed or removed, and those of later times win. They win over
	// podTemplateOverrides, and runtimePatches win over them.
	// Deprecated: use runtimePatches; kubectl signalbox convert rewrites a manifest.
	// +listType=map
	// +listMapKey=manager
	// +kubebuilder:validation:MaxItems=16
	// +optional
	TemplateOverrides []TemplateOverride `json:"templateOverrides,omitempty"`

	// podSpecOverrides are what TrainJobs of Kubeflow Trainer v2.0 have. They are not in our CRD.
	// +listType=atomic
	// +optional
	PodSpecOverrides []PodSpecOverride `json:"podSpecOverrides,omitempty"`

	// labels of the JobSet, which TrainJobs of Kubeflow Trainer before v2.2 have. They are not in our CRD.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// annotations of the JobSet, which TrainJobs of Kubeflow Trainer before v2.2 have. They are not in our CRD.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// TargetJob names a ReplicatedJob of the runtime.
type TargetJob struct {
	// name of the ReplicatedJob.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`
}

// PodTemplateOverride changes the pod templates of some ReplicatedJobs.
type PodTemplateOverride struct {
	// targetJobs are the ReplicatedJobs whose pods it changes.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +required
	TargetJobs []TargetJob `json:"targetJobs,omitempty"`

	// metadata is merged into the pod template's. Only labels and annotations are allowed.
	// +optional
	Metadata *metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec changes the pod template's spec.
	// +optional
	Spec *PodTemplateSpecOverride `json:"spec,omitempty"`
}

// PodTemplateSpecOverride is what a PodTemplateOverride may change of a pod's spec. Volumes and what a container has
// are merged by name; every other field takes the place of the runtime's.
type PodTemplateSpecOverride struct {
	// serviceAccountName of the pods.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName *string `json:"serviceAccountName,omitempty"`

	// nodeSelector of the pods.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// affinity of the pods.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// tolerations of the pods.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// volumes to add to the pods, or to put in the place of those of the same name.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Volumes []corev1.Volume `json:"volumes,omitempty"`

	// initContainers of the pods to change.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +optional
	InitContainers []ContainerOverride `json:"initContainers,omitempty"`

	// containers of the pods to change.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Containers []ContainerOverride `json:"containers,omitempty"`

	// schedulingGates of the pods.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +optional
	SchedulingGates []corev1.PodSchedulingGate `json:"schedulingGates,omitempty"`

	// imagePullSecrets of the pods.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
}

// ContainerOverride is what may be changed of a container.
type ContainerOverride struct {
	// name of the container, which the runtime must have.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`

	// env to add to the container, or to put in the place of those of the same name. That of the containers node,
	// dataset-initializer and model-initializer is set by spec.trainer and spec.initializer instead.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`

	// volumeMounts to add to the container, or to put in the place of those of the same path or the same volume.
	// +listType=map
	// +listMapKey=mountPath
	// +kubebuilder:validation:MaxItems=128
	// +optional
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`
}

// TemplateOverride is what one manager changes of the runtime's templates.
type TemplateOverride struct {
	// manager that owns this history: a domain-prefixed path.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Manager string `json:"manager,omitempty"`

	// job is the history of changes to Job templates and to the JobSet's metadata.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Job []JobTemplateHistoryEntry `json:"job,omitempty"`

	// pod is the history of changes to pod templates.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Pod []PodTemplateHistoryEntry `json:"pod,omitempty"`
}

// JobTemplateHistoryEntry changes the metadata of Job templates, or of the JobSet.
type JobTemplateHistoryEntry struct {
	// time at which it was added. It is set where it is missing.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`

	// targetJobs are the ReplicatedJobs whose Job templates it changes. Without any, it changes the JobSet.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +optional
	TargetJobs []TargetJob `json:"targetJobs,omitempty"`

	// metadata to merge. Only labels and annotations are allowed.
	// +optional
	Metadata *metav1.ObjectMeta `json:"metadata,omitempty"`
}

// PodTemplateHistoryEntry changes pod templates. It is merged into them as runtimePatches are.
type PodTemplateHistoryEntry struct {
	// time at which it was added. It is set where it is missing.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`

	// targetJobs are the ReplicatedJobs whose pods it changes.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +required
	TargetJobs []TargetJob `json:"targetJobs,omitempty"`

	// metadata to merge. Only labels and annotations are allowed.
	// +optional
	Metadata *metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec to merge.
	// +optional
	Spec *PodSpecOverlay `json:"spec,omitempty"`
}

// PodSpecOverlay is what a history may change of a pod's spec.
type PodSpecOverlay struct {
	PodTemplateSpecOverride `json:",inline"`

	// securityContext of the pods.
	// +optional
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`

	// terminationGracePeriodSeconds of the pods, in seconds.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// PodSpecOverride changes the pods of some ReplicatedJobs, as Kubeflow Trainer v2.0 had it.
type PodSpecOverride struct {
	// targetJobs are the ReplicatedJobs whose pods it changes; each may be named once in the whole list.
	TargetJobs []TargetJob `json:"targetJobs,omitempty"`
	// serviceAccountName of the pods.
	ServiceAccountName *string `json:"serviceAccountName,omitempty"`
	// nodeSelector of the pods.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations of the pods.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// volumes of the pods.
	Volumes []corev1.Volume `json:"volumes,omitempty"`
	// initContainers of the pods to change.
	InitContainers []ContainerOverride `json:"initContainers,omitempty"`
	// containers of the pods to change.
	Containers []ContainerOverride `json:"containers,omitempty"`
	// schedulingGates of the pods.
	SchedulingGates []corev1.PodSchedulingGate `json:"schedulingGates,omitempty"`
}
