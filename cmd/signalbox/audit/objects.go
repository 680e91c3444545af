package audit

import (
	"cmp"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// The rules.
const (
	// Unquoted: a pod of a queued TrainJob runs, and no Workload holds quota for it.
	Unquoted Rule = "no-quota"
	// Exceeds: the pods of a PodSet use more of a resource than Kueue counted for it.
	Exceeds Rule = "exceeds-admission"
	// Idle: a Workload holds quota, and its TrainJob has no pod that runs or can be scheduled.
	Idle Rule = "quota-for-nothing"
	// Altered: a Job differs from the JobSet that created it, in its number of pods or in their requests.
	Altered Rule = "altered-child"
	// OtherFlavor: a pod runs on a node that lacks a label of a ResourceFlavor that its PodSet was assigned.
	OtherFlavor Rule = "other-flavor"
	// Doubled: a TrainJob has more than one JobSet that is not being deleted, or more than one Workload with quota.
	Doubled Rule = "doubled"
)

// Rule is what a finding breaks.
type Rule string

// Finding is one breach of a rule.
type Finding struct {
	Rule Rule
	// Object is the kind, namespace and name of the object, as "Pod team-a/train-0".
	Object string
	// Says is what is wrong with the object.
	Says string
}

// String returns the finding as "rule: object: what is wrong".
func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Rule, f.Object, f.Says) }

// Compare returns the order of two findings: by rule, object, and what is wrong.
func (f Finding) Compare(other Finding) int {
	return cmp.Or(cmp.Compare(f.Rule, other.Rule), cmp.Compare(f.Object, other.Object), cmp.Compare(f.Says, other.Says))
}

// Objects are all that Look compares, of one namespace or of all.
type Objects struct {
	TrainJobs []api.TrainJob
	Workloads []kueue.Workload
	JobSets   []jobset.JobSet
	Jobs      []batchv1.Job
	Pods      []corev1.Pod
	Flavors   []kueue.ResourceFlavor
	// Nodes need only their names and labels.
	Nodes []metav1.PartialObjectMetadata
}

// name returns an object's kind, namespace and name, for Finding.Object.
func name(kind string, o client.Object) string {
	return fmt.Sprintf("%s %s/%s", kind, o.GetNamespace(), o.GetName())
}
