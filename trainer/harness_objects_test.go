package trainer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// runtime is a TrainingRuntime.
func (h *harness) runtime(name, policy string) *api.TrainingRuntime {
	return &api.TrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: *runtimeOf(h.t, policy, lastingVolume),
	}
}

// trainJob is TrainJob ns/job on a runtime, changed by YAML.
func (h *harness) trainJob(runtime, text string) *api.TrainJob {
	h.t.Helper()
	job := jobOf(h.t, runtime, text)
	job.Generation = 3
	return job
}

// pinned pins a TrainJob to its runtime.
func (h *harness) pinned(job *api.TrainJob) *api.TrainJob {
	h.t.Helper()
	rt := &api.TrainingRuntime{}
	if !h.get(rt, job.Spec.RuntimeRef.Name) {
		h.t.Fatalf("no runtime %s", job.Spec.RuntimeRef.Name)
	}
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, store.PinAnnotation, must(store.Pin(&rt.Spec)))
	return job
}

// ownedBy makes an object a TrainJob's.
func ownedBy[T client.Object](job *api.TrainJob, o T) T {
	o.SetNamespace(job.Namespace)
	o.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)),
	})
	return o
}

// read reads an object from YAML.
func read[T any](t testing.TB, text string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), v); err != nil {
		t.Fatal(err)
	}
	return v
}

// jobSetCRD is a CRD of JobSets whose pod templates have schedulingGroup.
func jobSetCRD() *apiextensionsv1.CustomResourceDefinition {
	s := apiextensionsv1.JSONSchemaProps{}
	for _, name := range []string{"schedulingGroup", "spec", "template", "spec", "template", "", "replicatedJobs",
		"spec"} {
		if name == "" {
			items := s
			s = apiextensionsv1.JSONSchemaProps{Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}
			continue
		}
		s = apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{name: s}}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "jobsets.jobset.x-k8s.io"}}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{
		Name: "v1alpha2", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &s},
	}}
	return crd
}

// discoveryOf is the discovery of an API server that serves PodGroups, or doesn't.
func discoveryOf(served bool) *fakediscovery.FakeDiscovery {
	d := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}}
	if served {
		d.Resources = []*metav1.APIResourceList{{
			GroupVersion: "scheduling.k8s.io/v1alpha2", APIResources: []metav1.APIResource{{Name: "workloads"},
				{Name: "podgroups"}},
		}}
	}
	return d
}

// describeStatus returns conditions and counts, in short: those of the TrainJob, its start, those of its queue.
func describeStatus(status *api.TrainJobStatus) string {
	conditions := slices.Clone(status.Conditions)
	add := func(c metav1.Condition) {
		if apimeta.FindStatusCondition(conditions, c.Type) == nil {
			conditions = append(conditions, c)
		}
	}
	if status.StartTime != nil {
		add(metav1.Condition{Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionFalse,
			Reason: trainerapi.TrainJobResumedReason, LastTransitionTime: *status.StartTime})
	}
	if status.Queue != nil {
		for _, c := range status.Queue.Conditions {
			add(c)
		}
	}
	var texts []string
	for _, c := range conditions {
		text := fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason)
		if c.Message != "" && c.Type != trainerapi.TrainJobSuspended &&
			c.Reason != trainerapi.TrainJobDeadlineExceededReason {
			text += "(" + c.Message + ")"
		}
		if c.Reason == trainerapi.TrainJobResumedReason {
			text += c.LastTransitionTime.UTC().Format("@15:04")
		}
		texts = append(texts, text)
	}
	for _, s := range status.JobsStatus {
		texts = append(texts, fmt.Sprintf("%s:a%dr%ds%d", s.Name, ptr.Deref(s.Active, -1), ptr.Deref(s.Ready, -1),
			ptr.Deref(s.Succeeded, -1)))
	}
	return strings.Join(texts, " ")
}

// builtJobSet returns the JobSet of what was built.
func builtJobSet(built *Children, err error) (*jobsetac.JobSetApplyConfiguration, error) {
	if err != nil {
		return nil, err
	}
	return built.JobSet, nil
}
