package gang

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// For how long is believed what was found: that the API is served, by who starts a TrainJob and by who looks after what is
// there; and that JobSet's pod templates can name a group. retryEvery is how often a TrainJob asks that waits for it.
const (
	checkEvery  = 2 * time.Second
	keepEvery   = 30 * time.Second
	jobSetEvery = 5 * time.Minute
	retryEvery  = 10 * time.Second
)

// howToServe says what makes a Kubernetes 1.36 serve the API.
const howToServe = "on Kubernetes 1.36 run kube-apiserver with --runtime-config=scheduling.k8s.io/v1alpha2=true, and it, kube-scheduler and kube-controller-manager with --feature-gates=GenericWorkload=true,GangScheduling=true"

// jobSetCRD is the CRD whose pod templates must be able to name a group.
const jobSetCRD = "jobsets." + "jobset.x-k8s.io"

// errNotServed says why no groups can be made on this cluster.
type errNotServed struct{ why string }

func (e *errNotServed) Error() string { return e.why }

// find returns the best version that the API server serves and that we can make. Where there is none, the error is an
// *errNotServed.
func find(d discovery.DiscoveryInterface) (version, error) {
	known := make([]string, len(versions))
	for i, v := range versions {
		known[i] = v.groupVersion().String()
		if ok, err := hasPodGroups(d, known[i]); err != nil || ok {
			return v, err
		}
	}
	groups, err := d.ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("asking for the API groups: %w", err)
	}
	var others []string
	for _, g := range groups.Groups {
		if g.Name != group {
			continue
		}
		for _, s := range g.Versions {
			if ok, err := hasPodGroups(d, s.GroupVersion); err != nil {
				return nil, err
			} else if ok {
				others = append(others, s.GroupVersion)
			}
		}
	}
	if len(others) > 0 {
		return nil, &errNotServed{fmt.Sprintf("the API server serves PodGroups as %s, and this version of Signalbox makes them as %s; upgrade Signalbox",
			strings.Join(others, " and "), strings.Join(known, " or "))}
	}
	return nil, &errNotServed{fmt.Sprintf("the API server doesn't serve Workloads and PodGroups of %s; %s", strings.Join(known, " or "), howToServe)}
}

func hasPodGroups(d discovery.DiscoveryInterface, groupVersion string) (bool, error) {
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

// canName looks whether a JobSet's pod templates may have the field: an earlier JobSet's CRD would drop it without a
// word, and the pods would not be in the group that waits for them.
func canName(ctx context.Context, reader client.Reader) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := reader.Get(ctx, client.ObjectKey{Name: jobSetCRD}, &crd); apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return &errNotServed{fmt.Sprintf("whether JobSet takes groups can't be told: %s; apply this release's config/rbac, and JobSet v0.12 or later", err)}
	} else if err != nil {
		return fmt.Errorf("reading CRD %s: %w", jobSetCRD, err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != jobset.GroupVersion.Version || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		s := *v.Schema.OpenAPIV3Schema
		for _, name := range []string{"spec", "replicatedJobs", "", "template", "spec", "template", "spec", "schedulingGroup"} {
			if name == "" && s.Items != nil && s.Items.Schema != nil {
				s = *s.Items.Schema
				continue
			}
			next, found := s.Properties[name]
			if !found {
				return &errNotServed{fmt.Sprintf("the installed JobSet's pod templates have no field %s (CRD %s); upgrade JobSet to v0.12 or later", name, jobSetCRD)}
			}
			s = next
		}
		return nil
	}
	return &errNotServed{fmt.Sprintf("CRD %s has no version %s; upgrade JobSet to v0.12 or later", jobSetCRD, jobset.GroupVersion.Version)}
}

// notServed tells whether an error says that no groups can be made on this cluster.
func notServed(err error) bool {
	var e *errNotServed
	return errors.As(err, &e)
}
