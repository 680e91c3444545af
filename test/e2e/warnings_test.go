package e2e

import (
	"encoding/json"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// nodeEntry is an entry for the pods of ReplicatedJob node.
// labelledEntry is an entry that gives the JobSet a label, and labelled what it says.
const labelledEntry = `{"manager":"example.com/team","trainingRuntimeSpec":{"template":{"metadata":{"labels":{"team":"a"}}}}}`

func labelled() *trainerapi.TrainingRuntimeSpecPatch {
	return &trainerapi.TrainingRuntimeSpecPatch{
		Template: &trainerapi.JobSetTemplatePatch{Metadata: &metav1.ObjectMeta{Labels: map[string]string{"team": "a"}}}}
}

func nodeEntry(manager, pod string) string {
	return `{"manager":"` + manager + `","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{` + pod + `}}}}}]}}}}`
}

func list(entries ...string) string { return "[" + strings.Join(entries, ",") + "]" }

func entriesFrom(entries ...string) []any {
	ginkgo.GinkgoHelper()
	var all []any
	gomega.Expect(json.Unmarshal([]byte(list(entries...)), &all)).To(gomega.Succeed())
	return all
}

func parsed(text string) *unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	o := &unstructured.Unstructured{}
	gomega.Expect(json.Unmarshal([]byte(text), &o.Object)).To(gomega.Succeed(), text)
	return o
}

// warnings collects what the API server warns of.
type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }
