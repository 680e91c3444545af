package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// The figures of the equality spec: the runtimes that Trainer v2.3.0 ships and two with pod groups, and the TrainJobs
// tried on each.
const (
	shippedRuntimes = 10
	withPodGroups   = 2
	jobsPerRuntime  = 7
)

// moduleDir is the folder of a module that this one builds with.
func moduleDir(module string) string {
	ginkgo.GinkgoHelper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return strings.TrimSpace(string(out))
}

// installShippedRuntimes makes sure of all the runtimes of Trainer's manifests, and of its Flux example.
func installShippedRuntimes(ctx context.Context) []api.ClusterTrainingRuntime {
	ginkgo.GinkgoHelper()
	dir := moduleDir(trainerModule)
	var all []api.ClusterTrainingRuntime
	read := func(path string) {
		content, err := os.ReadFile(path)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for {
			rt := &api.ClusterTrainingRuntime{}
			if err := decoder.Decode(rt); errors.Is(err, io.EOF) {
				return
			} else {
				gomega.Expect(err).NotTo(gomega.HaveOccurred(), path)
			}
			if rt.Kind != trainerapi.ClusterTrainingRuntimeKind {
				continue
			}
			if err := admin.Get(ctx, client.ObjectKeyFromObject(rt), rt); err != nil {
				gomega.Expect(admin.Create(ctx, rt)).To(gomega.Succeed(), path)
				made := rt
				ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, made)).To(gomega.Succeed()) })
			}
			all = append(all, *get(ctx, rt))
		}
	}
	gomega.Expect(filepath.WalkDir(filepath.Join(dir, "manifests/base/runtimes"),
		func(path string, _ os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".yaml") && filepath.Base(path) != "kustomization.yaml" {
				read(path)
			}
			return err
		})).To(gomega.Succeed())
	read(filepath.Join(dir, "examples/flux/flux-runtime.yaml"))
	return all
}

// installPodGroupRuntimes makes a torch runtime with each kind of pod group, and the CRDs of these: scheduler-plugins'
// own, and one for Volcano, whose module has none, that takes whatever is sent.
func installPodGroupRuntimes(ctx context.Context) []api.ClusterTrainingRuntime {
	ginkgo.GinkgoHelper()
	installPodGroups(ctx)
	var all []api.ClusterTrainingRuntime
	for name, source := range map[string]trainerapi.PodGroupPolicySource{
		"coscheduling": {Coscheduling: &trainerapi.CoschedulingPodGroupPolicySource{
			ScheduleTimeoutSeconds: ptr.To[int32](100),
		}},
		"volcano": {Volcano: &trainerapi.VolcanoPodGroupPolicySource{}},
	} {
		rt := get(ctx, &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch-distributed"}})
		rt = &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch-" + name}, Spec: *rt.Spec.DeepCopy()}
		rt.Spec.PodGroupPolicy = &trainerapi.PodGroupPolicy{PodGroupPolicySource: source}
		gomega.Expect(admin.Create(ctx, rt)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, rt)).To(gomega.Succeed()) })
		all = append(all, *rt)
	}
	return all
}

func installPodGroups(ctx context.Context) {
	ginkgo.GinkgoHelper()
	applyFiles(ctx, filepath.Join(moduleDir("sigs.k8s.io/scheduler-plugins"),
		"config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"), nil)
	anything := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "podgroups.scheduling.volcano.sh"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "scheduling.volcano.sh", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Kind: "PodGroup", ListKind: "PodGroupList", Plural: "podgroups", Singular: "podgroup",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1beta1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
			}},
		},
	}
	gomega.Expect(ignoreExists(admin.Create(ctx, anything))).To(gomega.Succeed())
	for _, kind := range podGroupKinds {
		gomega.Eventually(func() error {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(kind)
			return admin.List(ctx, list)
		}).Should(gomega.Succeed())
	}
}

var podGroupKinds = []schema.GroupVersionKind{
	{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Kind: "PodGroup"},
	{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroup"},
}
