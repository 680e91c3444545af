package gang

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// versions are those that this package can build, the best first.
var versions = []*version{v1beta1, v1alpha3, v1alpha2}

// howToServe is how an administrator makes the API server serve the API.
const howToServe = "run kube-apiserver with --runtime-config=scheduling.k8s.io/v1beta1=true, and it, kube-scheduler " +
	"and kube-controller-manager with --feature-gates=GenericWorkload=true (on Kubernetes 1.36 v1alpha2, and " +
	"GangScheduling=true too)"

// jobSetCRD is the CRD whose pod templates must have the field for groups.
const jobSetCRD = "jobsets." + "jobset.x-k8s.io"

// unavailableError is why this cluster can't have groups.
type unavailableError struct{ reason string }

// Error returns the reason, and what to do.
func (e *unavailableError) Error() string { return e.reason }

// isUnavailable reports whether an error is an *unavailableError.
func isUnavailable(err error) bool {
	var e *unavailableError
	return errors.As(err, &e)
}

// servedVersion returns the version in use while the API server serves it, and else the best that it serves and this
// package knows; inUse is nil for none. If there is none, the error is an *unavailableError.
func servedVersion(d discovery.DiscoveryInterface, inUse *version) (*version, error) {
	var known []string
	for _, v := range versions {
		known = append(known, v.String())
	}
	for _, v := range append([]*version{inUse}, versions...) {
		if v == nil {
			continue
		}
		if ok, err := servesPodGroups(d, v.String()); err != nil {
			return nil, err
		} else if ok {
			return v, nil
		}
	}
	unknown, err := unknownVersions(d)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return nil, &unavailableError{fmt.Sprintf(
			"the API server serves PodGroups as %s, and this version of Signalbox makes them as %s; upgrade Signalbox",
			strings.Join(unknown, " and "), strings.Join(known, " or "))}
	}
	return nil, &unavailableError{fmt.Sprintf("the API server doesn't serve Workloads and PodGroups of %s; %s",
		strings.Join(known, " or "), howToServe)}
}

// unknownVersions returns the versions with PodGroups that the API server serves, in its order. It is called only if
// the API server serves none that this package knows.
func unknownVersions(d discovery.DiscoveryInterface) ([]string, error) {
	groups, err := d.ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("asking for the API groups: %w", err)
	}
	var unknown []string
	for _, g := range groups.Groups {
		if g.Name != group {
			continue
		}
		for _, v := range g.Versions {
			if ok, err := servesPodGroups(d, v.GroupVersion); err != nil {
				return nil, err
			} else if ok {
				unknown = append(unknown, v.GroupVersion)
			}
		}
	}
	return unknown, nil
}

// servesPodGroups reports whether the API server serves Workloads and PodGroups in a version.
func servesPodGroups(d discovery.DiscoveryInterface, groupVersion string) (bool, error) {
	list, err := d.ServerResourcesForGroupVersion(groupVersion)
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("asking for the resources of %s: %w", groupVersion, err)
	}
	for _, plural := range []string{"workloads", "podgroups"} {
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural }) {
			return false, nil
		}
	}
	return true, nil
}

// checkJobSetCRD returns an *unavailableError if the pod templates of JobSet's CRD have no field for groups. An old CRD
// would drop the field silently, and the pods would not be in their group.
func checkJobSetCRD(ctx context.Context, reader client.Reader) error {
	var crd apiextensionsv1.CustomResourceDefinition
	err := reader.Get(ctx, client.ObjectKey{Name: jobSetCRD}, &crd)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return &unavailableError{fmt.Sprintf(
			"it is unknown whether JobSet accepts groups: %s; apply this release's config/rbac, and JobSet v0.12 or later", err)}
	}
	if err != nil {
		return fmt.Errorf("reading CRD %s: %w", jobSetCRD, err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == jobset.GroupVersion.Version && v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
			return checkSchema(*v.Schema.OpenAPIV3Schema)
		}
	}
	return &unavailableError{fmt.Sprintf("CRD %s has no version %s; upgrade JobSet to v0.12 or later",
		jobSetCRD, jobset.GroupVersion.Version)}
}

// checkSchema returns an *unavailableError if the schema of a JobSet has no field for the group of its pods.
func checkSchema(schema apiextensionsv1.JSONSchemaProps) error {
	const items = ""
	path := []string{"spec", "replicatedJobs", items, "template", "spec", "template", "spec", "schedulingGroup"}
	for _, name := range path {
		if name == items && schema.Items != nil && schema.Items.Schema != nil {
			schema = *schema.Items.Schema
			continue
		}
		next, found := schema.Properties[name]
		if !found {
			return &unavailableError{fmt.Sprintf(
				"the installed JobSet's pod templates have no field %s (CRD %s); upgrade JobSet to v0.12 or later",
				name, jobSetCRD)}
		}
		schema = next
	}
	return nil
}
