package gang

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// group of the Workload and PodGroup API.
const group = "scheduling.k8s.io"

// version builds and reads the objects of one version of the API. To support another version, add a file with an
// implementation, and list it in versions (discovery.go).
type version interface {
	groupVersion() schema.GroupVersion
	// workload returns a Workload with the templates of the groups. No Kubernetes component acts on it.
	workload(meta metav1.ObjectMeta, job *api.TrainJob, policy api.GangPolicy, groups []Group) client.Object
	// podGroup returns a PodGroup, which kube-scheduler acts on.
	podGroup(meta metav1.ObjectMeta, workload string, policy api.GangPolicy, g Group) client.Object
	// emptyPodGroup returns an empty PodGroup, and an empty list of them.
	emptyPodGroup() (client.Object, client.ObjectList)
	// read returns the version-independent state of a PodGroup.
	read(podGroup client.Object) podGroupState
	// refuses returns why kube-scheduler of this version would not place a group; nil if it would.
	refuses(g Group) error
	// resizable reports whether the minCount of a PodGroup may change. Where it may not, the PodGroup is replaced.
	resizable() bool
}

// podGroupState is the version-independent state of a PodGroup.
type podGroupState struct {
	name       string
	uid        types.UID
	finalizers []string
	created    metav1.Time
	// later is true if the pods are created after others, not at the start of the TrainJob.
	later bool
	// minCount of a gang; 0 for policy basic.
	minCount int32
	// scheduled is kube-scheduler's condition; nil before kube-scheduler has tried to place the group.
	scheduled *metav1.Condition
}

// placed reports whether kube-scheduler has placed the group.
func (s podGroupState) placed() bool {
	return s.scheduled != nil && s.scheduled.Status == metav1.ConditionTrue
}

// refused reports whether kube-scheduler can't place the group.
func (s podGroupState) refused() bool {
	return s.scheduled != nil && s.scheduled.Status == metav1.ConditionFalse
}

// maxTemplates is the number of templates that a Workload may hold (scheduling.k8s.io,
// WorkloadMaxPodGroupTemplates).
const maxTemplates = 8
