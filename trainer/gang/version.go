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

// version makes and reads the objects of one version of the API. A version that comes is a file with one of these, and a
// line in versions.
type version interface {
	groupVersion() schema.GroupVersion
	// workload returns a Workload: the templates of the groups, which nobody acts on but those who make PodGroups.
	workload(meta metav1.ObjectMeta, job *api.TrainJob, policy api.GangPolicy, groups []Group) client.Object
	// podGroup returns a PodGroup, with all that kube-scheduler goes by.
	podGroup(meta metav1.ObjectMeta, workload string, policy api.GangPolicy, g Group) client.Object
	// emptyPodGroup and podGroups return what PodGroups can be read into.
	emptyPodGroup() client.Object
	podGroups() client.ObjectList
	// read returns what is to be known of a PodGroup.
	read(podGroup client.Object) podGroupState
}

// podGroupState is what is to be known of a PodGroup.
type podGroupState struct {
	name       string
	uid        types.UID
	finalizers []string
	made       metav1.Time
	// later tells that its pods don't come at once.
	later bool
	// minCount of a gang; 0 of the policy basic.
	minCount int32
	// scheduled is kube-scheduler's word; nil before its first.
	scheduled *metav1.Condition
}

func (s podGroupState) placed() bool {
	return s.scheduled != nil && s.scheduled.Status == metav1.ConditionTrue
}

func (s podGroupState) refused() bool {
	return s.scheduled != nil && s.scheduled.Status == metav1.ConditionFalse
}

// versions that we can make, the best first.
var versions = []version{v1alpha2{}}

// maxTemplates is how many templates a Workload may hold (scheduling.k8s.io/v1alpha2, WorkloadMaxPodGroupTemplates).
const maxTemplates = 8
