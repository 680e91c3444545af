package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kinds of this package.
var GroupVersion = schema.GroupVersion{Group: "usage.signalbox.dev", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package. It always returns nil.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &QuotaUsage{}, &QuotaUsageList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
