package gang

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// v1alpha2 is scheduling.k8s.io/v1alpha2, of Kubernetes 1.36.
type v1alpha2 struct{}

var _ version = v1alpha2{}

func (v1alpha2) groupVersion() schema.GroupVersion { return schedulingv1alpha2.SchemeGroupVersion }

func (v1alpha2) policy(policy api.GangPolicy, g Group) schedulingv1alpha2.PodGroupSchedulingPolicy {
	if policy == api.GangPolicyBasic {
		return schedulingv1alpha2.PodGroupSchedulingPolicy{Basic: &schedulingv1alpha2.BasicSchedulingPolicy{}}
	}
	return schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: g.Pods}}
}

func (v v1alpha2) workload(meta metav1.ObjectMeta, job *api.TrainJob, policy api.GangPolicy,
	groups []Group) client.Object {
	w := &schedulingv1alpha2.Workload{ObjectMeta: meta}
	w.Spec.ControllerRef = &schedulingv1alpha2.TypedLocalObjectReference{
		APIGroup: trainerapi.GroupVersion.Group, Kind: trainerapi.TrainJobKind, Name: job.Name,
	}
	for _, g := range groups {
		template := schedulingv1alpha2.PodGroupTemplate{Name: g.Name, SchedulingPolicy: v.policy(policy, g)}
		w.Spec.PodGroupTemplates = append(w.Spec.PodGroupTemplates, template)
	}
	return w
}

func (v v1alpha2) podGroup(meta metav1.ObjectMeta, workload string, policy api.GangPolicy, g Group) client.Object {
	return &schedulingv1alpha2.PodGroup{ObjectMeta: meta, Spec: schedulingv1alpha2.PodGroupSpec{
		PodGroupTemplateRef: &schedulingv1alpha2.PodGroupTemplateReference{
			Workload: &schedulingv1alpha2.WorkloadPodGroupTemplateReference{
				WorkloadName: workload, PodGroupTemplateName: g.Name,
			},
		},
		SchedulingPolicy: v.policy(policy, g),
	}}
}

func (v1alpha2) emptyPodGroup() (client.Object, client.ObjectList) {
	return &schedulingv1alpha2.PodGroup{}, &schedulingv1alpha2.PodGroupList{}
}

func (v1alpha2) read(o client.Object) podGroupState {
	pg := o.(*schedulingv1alpha2.PodGroup)
	s := podGroupState{
		name: pg.Name, uid: pg.UID, finalizers: pg.Finalizers, created: pg.CreationTimestamp,
		later:     pg.Labels[partLabel] == partLater,
		scheduled: apimeta.FindStatusCondition(pg.Status.Conditions, schedulingv1alpha2.PodGroupScheduled),
	}
	if gang := pg.Spec.SchedulingPolicy.Gang; gang != nil {
		s.minCount = gang.MinCount
	}
	return s
}

// refuses is of later versions.
func (v1alpha2) refuses(Group) error { return nil }

// resizable: no field of a PodGroup's spec can change (Kubernetes 1.36).
func (v1alpha2) resizable() bool { return false }
