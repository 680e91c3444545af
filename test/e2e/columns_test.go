package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// state is status.state of a TrainJob.
func state(ctx context.Context, tj *api.TrainJob) func() api.TrainJobState {
	return func() api.TrainJobState {
		ginkgo.GinkgoHelper()
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
		gomega.Expect(admin.Get(ctx, client.ObjectKeyFromObject(tj), u)).To(gomega.Succeed())
		s, _, err := unstructured.NestedString(u.Object, "status", "state")
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		return api.TrainJobState(s)
	}
}

// told is what a condition of a TrainJob says, as "Status Reason: message".
func told(ctx context.Context, tj *api.TrainJob, condition string) string {
	ginkgo.GinkgoHelper()
	if c := get(ctx, tj).Status.Condition(condition); c != nil {
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	return ""
}

// columns are what kubectl get prints of a TrainJob, but for its age.
func columns(ctx context.Context, tj *api.TrainJob) map[string]string {
	ginkgo.GinkgoHelper()
	c := rest.CopyConfig(config(cluster.kubeconfig("user")))
	c.GroupVersion, c.APIPath, c.NegotiatedSerializer =
		&trainerapi.GroupVersion, "/apis", clientgoscheme.Codecs.WithoutConversion()
	requests, err := rest.RESTClientFor(c)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	data, err := requests.Get().Namespace(tj.Namespace).Resource("trainjobs").Name(tj.Name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	var table metav1.Table
	gomega.Expect(json.Unmarshal(data, &table)).To(gomega.Succeed())
	texts := map[string]string{}
	for i, definition := range table.ColumnDefinitions {
		if definition.Name != "Age" && definition.Priority == 0 { // others are for -o wide
			texts[definition.Name] = ""
			if cell := table.Rows[0].Cells[i]; cell != nil {
				texts[definition.Name] = fmt.Sprint(cell)
			}
		}
	}
	return texts
}

func podsNamed(ctx context.Context, tj *api.TrainJob, replicatedJob string) []string {
	var names []string
	for _, p := range podsOf(ctx, tj) {
		if p.Labels[jobset.ReplicatedJobNameKey] == replicatedJob {
			names = append(names, p.Name)
		}
	}
	return names
}

func succeeded(ctx context.Context, tj *api.TrainJob, replicatedJob string) int32 {
	for _, s := range get(ctx, tj).Status.JobsStatus {
		if s.Name == replicatedJob {
			return ptr.Deref(s.Succeeded, 0)
		}
	}
	return 0
}

// objectsIn are all objects of a namespace that a TrainJob may have to do with, but for those named.
func objectsIn(ctx context.Context, namespace string, but ...string) []string {
	ginkgo.GinkgoHelper()
	known := map[string]bool{}
	for _, name := range but {
		known[name] = true
	}
	var all []string
	for kind, list := range map[string]client.ObjectList{
		"TrainJob": &api.TrainJobList{},
		"Workload": &kueue.WorkloadList{},
		"JobSet":   &jobset.JobSetList{},
		"Job":      &batchv1.JobList{},
		"Pod":      &corev1.PodList{},
		"Service":  &corev1.ServiceList{},
		"Endpoints": &unstructured.UnstructuredList{Object: map[string]any{
			"apiVersion": "v1", "kind": "EndpointsList",
		}},
		"EndpointSlice": &unstructured.UnstructuredList{Object: map[string]any{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
		}},
		"ConfigMap":             &corev1.ConfigMapList{},
		"Secret":                &corev1.SecretList{},
		"PersistentVolumeClaim": &corev1.PersistentVolumeClaimList{},
	} {
		gomega.Expect(admin.List(ctx, list, client.InNamespace(namespace))).To(gomega.Succeed())
		gomega.Expect(apimeta.EachListItem(list, func(o runtimeObject) error {
			if name := o.(client.Object).GetName(); !known[name] {
				all = append(all, kind+" "+name)
			}
			return nil
		})).To(gomega.Succeed())
	}
	return all
}

// freePort is a port of loopback that was free a moment ago.
func freePort() int {
	ginkgo.GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
