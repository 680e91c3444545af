// Package v1alpha1 is the API of Signalbox's records of who used what: group usage.signalbox.dev. Signalbox writes
// them, and nobody else.
//
// +kubebuilder:object:generate=true
// +groupName=usage.signalbox.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kinds of this package.
var GroupVersion = schema.GroupVersion{Group: "usage.signalbox.dev", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package. It always returns nil.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &QuotaUsage{}, &QuotaUsageList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// QuotaUsage is what the TrainJobs of a LocalQueue held of its quota on one day in UTC, by runs that have ended. A run
// is one time that a TrainJob holds quota. Amounts are in thousandths of a unit and a second: of GPUs and cores, or of
// GiB.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=quotausages,singular=quotausage
// +kubebuilder:printcolumn:name="Queue",type=string,JSONPath=`.queue`
// +kubebuilder:printcolumn:name="Day",type=string,JSONPath=`.day`
// +kubebuilder:printcolumn:name="Runs",type=integer,JSONPath=`.runs`
type QuotaUsage struct {
	metav1.TypeMeta `json:",inline"`

	// metadata of the record.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// queue is the name of the LocalQueue.
	Queue string `json:"queue"`

	// day is the day in UTC, such as 2026-11-28.
	Day string `json:"day"`

	// rows are what was held, by team, user, ClusterQueue, flavor and resource. There are at most 500; what is of others
	// is added up under user "other".
	// +listType=atomic
	// +optional
	Rows []Row `json:"rows,omitempty"`

	// runs is how many runs began on the day.
	// +optional
	Runs int64 `json:"runs,omitempty"`

	// recent are the last runs that are in the record, so that none is counted twice.
	// +listType=atomic
	// +optional
	Recent []Recorded `json:"recent,omitempty"`
}

// Row is what was held of a resource of a flavor.
type Row struct {
	// team is the value of the label that the configuration names (usage.teamLabel).
	// +optional
	Team string `json:"team,omitempty"`

	// user is who created the TrainJob.
	// +optional
	User string `json:"user,omitempty"`

	// clusterQueue whose quota was held.
	// +optional
	ClusterQueue string `json:"clusterQueue,omitempty"`

	// flavor of the resource.
	// +optional
	Flavor string `json:"flavor,omitempty"`

	// resource, such as nvidia.com/gpu.
	Resource string `json:"resource"`

	Held `json:",inline"`
}

// Held is what a resource was held for, in thousandths of a unit and a second.
type Held struct {
	// useful is until the last checkpoint of a run, or until its end if the TrainJob has succeeded.
	// +optional
	Useful int64 `json:"useful,omitempty"`

	// lost is after the last checkpoint, if the run was stopped, restarted or has failed.
	// +optional
	Lost int64 `json:"lost,omitempty"`

	// idle is while no pod ran.
	// +optional
	Idle int64 `json:"idle,omitempty"`

	// unknown is of a run that reports no checkpoints and that has not succeeded.
	// +optional
	Unknown int64 `json:"unknown,omitempty"`
}

// Recorded is a run that is in a record.
type Recorded struct {
	// run is the UID of its Workload, and when its quota was reserved.
	Run string `json:"run"`

	// until is up to when the run is in the record.
	Until metav1.MicroTime `json:"until"`
}

// QuotaUsageList is a list of records.
//
// +kubebuilder:object:root=true
type QuotaUsageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []QuotaUsage `json:"items"`
}
