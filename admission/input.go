package admission

import (
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// Features are the feature gates of Kueue that a start depends on.
type Features struct {
	// TopologyAware gates pods until their topology is assigned (gate TopologyAwareScheduling).
	TopologyAware bool
	// QueueLabels labels pods with their queues (gate AssignQueueLabelsForPods).
	QueueLabels bool
}

// Input is all that a start is decided on.
type Input struct {
	Job     *api.TrainJob
	Runtime *trainerapi.TrainingRuntimeSpec
	// Dialect of the Trainer that is to run it.
	Dialect *dialect.Dialect
	// Effective is what the TrainJob runs with the entries of others alone; nil computes it.
	Effective *overrides.Effective
	// Workload is admitted: status.admission is set.
	Workload *kueue.Workload
	// Flavors holds every ResourceFlavor that the admission assigns.
	Flavors  map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec
	Features Features
	// KeepsOff are the hosts that the pods keep off; Effective may keep off some of them.
	KeepsOff []string
	// Now becomes the entry's time. Trainer's webhook sets it where it is missing, and then rewrites the whole object.
	Now metav1.Time
}

// ConflictError says that something contradicts what admission needs. A retry doesn't help: one of the two has
// to be changed.
type ConflictError overrides.Conflict

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is %q, but %s needs %q; %s", e.Path, e.Says, e.Source, e.Needs, e.WayOut)
}

// Limits of an entry (Trainer v2.3.0's CRD).
const (
	maxTolerations = 128
	maxGates       = 16
)
