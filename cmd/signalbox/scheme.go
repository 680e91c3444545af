package main

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// newScheme returns a scheme with every kind that the manager reads or writes. trainers adds the types of TrainJobs and
// runtimes: the bundled Trainer's or Kubeflow Trainer's.
func newScheme(trainers func(*runtime.Scheme) error) (*runtime.Scheme, error) {
	kinds := runtime.NewSchemeBuilder(clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, trainers,
		jobset.AddToScheme, kueue.AddToScheme, coscheduling.AddToScheme, volcano.AddToScheme, usageapi.AddToScheme)
	scheme := runtime.NewScheme()
	return scheme, kinds.AddToScheme(scheme)
}
