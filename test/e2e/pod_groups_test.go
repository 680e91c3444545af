package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// podGroupAPI is scheduling.k8s.io in the version that the release of Kubernetes serves, with what differs between
// them.
type podGroupAPI struct {
	version string
	// template is where a PodGroup names its template, and workload its Workload.
	template, workload []string
	// lowersMinCount is whether minCount can change; wholeGroups, whether a group has one priority and may be preempted as
	// a whole; takesOrphans, whether a PodGroup may be created before its Workload.
	lowersMinCount, wholeGroups, takesOrphans bool
}

// podGroupAPIs are by release of Kubernetes; it has none where kube-scheduler acts on no PodGroups.
var podGroupAPIs = map[string]podGroupAPI{
	"1.36": {"v1alpha2", []string{"spec", "podGroupTemplateRef", "workload", "podGroupTemplateName"},
		[]string{"spec", "podGroupTemplateRef", "workload", "workloadName"}, false, false, false},
	"1.37": {"v1beta1", []string{"spec", "workloadRef", "templateName"}, []string{"spec", "workloadRef", "workloadName"},
		true, true, true},
}

// scheduling is the one that is served, until Kubernetes is upgraded.
var scheduling, servesPodGroups = podGroupAPIs[os.Getenv("SIGNALBOX_KUBERNETES")]

// On a control plane that was started with APIS another version may be served, in the same shape.
func init() { scheduling.version = cmp.Or(os.Getenv("SIGNALBOX_POD_GROUPS"), scheduling.version) }

// nextKubernetes is the release that the cluster can be upgraded to; "" for none.
var nextKubernetes = os.Getenv("SIGNALBOX_NEXT_KUBERNETES")

func (a podGroupAPI) kind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "scheduling.k8s.io", Version: a.version, Kind: kind}
}

// empty returns an object of a kind.
func (a podGroupAPI) empty(kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(a.kind(kind))
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// group returns a PodGroup; minCount 0 is for policy basic.
func (a podGroupAPI) group(namespace, name string, minCount int64) *unstructured.Unstructured {
	o := a.empty("PodGroup", namespace, name)
	policy := map[string]any{"basic": map[string]any{}}
	if minCount > 0 {
		policy = map[string]any{"gang": map[string]any{"minCount": minCount}}
	}
	gomega.Expect(unstructured.SetNestedMap(o.Object, policy, "spec", "schedulingPolicy")).To(gomega.Succeed())
	return o
}

// list returns the objects of a kind in a namespace.
func (a podGroupAPI) list(ctx context.Context, kind, namespace string) []unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(a.kind(kind + "List"))
	gomega.Expect(admin.List(ctx, list, client.InNamespace(namespace))).To(gomega.Succeed())
	return list.Items
}

// templates are those of a Workload.
func templates(workload unstructured.Unstructured) int {
	ginkgo.GinkgoHelper()
	all, _, err := unstructured.NestedSlice(workload.Object, "spec", "podGroupTemplates")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return len(all)
}

// text is a field of an object; "" where it isn't set.
func text(o unstructured.Unstructured, path ...string) string {
	ginkgo.GinkgoHelper()
	s, _, err := unstructured.NestedString(o.Object, path...)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return s
}

// podGroups are the PodGroups of a TrainJob, as "template=minCount".
func podGroups(ctx context.Context, tj *api.TrainJob) []string {
	ginkgo.GinkgoHelper()
	var found []string
	for _, pg := range scheduling.list(ctx, "PodGroup", tj.Namespace) {
		if !metav1.IsControlledBy(&pg, tj) {
			continue
		}
		count := "basic"
		minCount, gang, err := unstructured.NestedInt64(pg.Object, "spec", "schedulingPolicy", "gang", "minCount")
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		if gang {
			count = fmt.Sprint(minCount)
		}
		found = append(found, fmt.Sprintf("%s=%s", text(pg, scheduling.template...), count))
	}
	return found
}

// leftovers are the Workloads and PodGroups of a namespace.
func (g *ground) leftovers(ctx context.Context) func() []string {
	return func() []string {
		ginkgo.GinkgoHelper()
		var names []string
		for _, kind := range []string{"Workload", "PodGroup"} {
			if !servesPodGroups {
				continue
			}
			for _, o := range scheduling.list(ctx, kind, g.namespace) {
				names = append(names, o.GetName())
			}
		}
		return names
	}
}
