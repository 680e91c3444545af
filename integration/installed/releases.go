package installed

import (
	"context"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/podsets"
)

// Component is what Signalbox needs of a cluster, and the releases of it that Signalbox supports
// (docs/compatibility.md). An older release is rejected; a later one is only logged.
type Component struct {
	// Name for messages.
	Name string
	// Oldest and Newest are releases by their first two numbers, such as "1.36".
	Oldest, Newest string
	// kind is one of the component's, and crd its CRD; none for Kubernetes.
	kind schema.GroupVersionKind
	crd  string
}

// The components, in the order in which they are checked.
var (
	Kubernetes = Component{Name: "Kubernetes", Oldest: "1.34", Newest: "1.37"}
	// Before 0.18 Kueue doesn't know reason OnHold of condition QuotaReserved: a TrainJob that is blocked would be
	// admitted again and again, and hold quota that it doesn't use.
	Kueue = Component{Name: "Kueue", Oldest: "0.18", Newest: "0.19",
		kind: kueue.SchemeGroupVersion.WithKind("Workload"), crd: "workloads.kueue.x-k8s.io"}
	JobSet = Component{Name: "JobSet", Oldest: "0.10", Newest: "0.12",
		kind: jobset.SchemeGroupVersion.WithKind("JobSet"), crd: "jobsets.jobset.x-k8s.io"}
)

// Releases are the releases that a cluster has, by their first two numbers. Those of Kueue and JobSet are found by
// their CRDs, because no other object of every installation says its version: a release whose CRD is the previous one's
// counts as the previous.
type Releases struct {
	Kubernetes, Kueue, JobSet string
	// MaxPodSets is how many PodSets a Workload may have: 10 in Kueue 0.18, 18 in 0.19.
	MaxPodSets int
}

// Newest returns the latest releases that Signalbox supports.
func Newest() Releases {
	return Releases{Kubernetes.Newest, Kueue.Newest, JobSet.Newest, podsets.Max}
}

// FindReleases returns the releases of a cluster. A component that is missing, or older than Signalbox supports, is an
// error that says what to install. Where the manager may not read a CRD, the release is that of assumed: the role is
// then an earlier chart's, as during a rollback.
func FindReleases(
	ctx context.Context, reader client.Reader, disco discovery.DiscoveryInterface, assumed Releases,
) (Releases, error) {
	r := assumed
	var errs [3]error
	r.Kubernetes, errs[0] = kubernetesRelease(disco)
	var crd *apiextensionsv1.CustomResourceDefinition
	if crd, errs[1] = Kueue.readCRD(ctx, reader, disco); crd != nil {
		r.Kueue, r.MaxPodSets, errs[1] = kueueRelease(crd)
	} else if errs[1] != nil {
		r.Kueue, r.MaxPodSets = "", 0
	}
	if crd, errs[2] = JobSet.readCRD(ctx, reader, disco); crd != nil {
		r.JobSet, errs[2] = jobSetRelease(crd)
	} else if errs[2] != nil {
		r.JobSet = ""
	}
	return r, errors.Join(errs[:]...)
}

// Unsupported returns the components that are later than Signalbox supports, such as "Kueue 0.20".
func (r Releases) Unsupported() []string {
	var unsupported []string
	for _, c := range r.Components() {
		if !c.Supported() {
			unsupported = append(unsupported, c.Name+" "+c.Release)
		}
	}
	return unsupported
}

// Found is a component as a cluster has it.
type Found struct {
	Component
	Release string
}

// Components returns the components with their releases.
func (r Releases) Components() []Found {
	return []Found{{Kubernetes, r.Kubernetes}, {Kueue, r.Kueue}, {JobSet, r.JobSet}}
}

// Supported reports whether Signalbox supports the release.
func (f Found) Supported() bool { return !newer(f.Release, f.Newest) && !newer(f.Oldest, f.Release) }

// newer reports whether release a is later than b.
func newer(a, b string) bool {
	return version.MustParseGeneric(b).LessThan(version.MustParseGeneric(a))
}

// tooOld is the error for a release before the oldest. found is what is known of it.
func (c Component) tooOld(found string) error {
	return fmt.Errorf("%s is older than %s %s; upgrade it to %s or later", found, c.Name, c.Oldest, c.Oldest)
}

func kubernetesRelease(disco discovery.ServerVersionInterface) (string, error) {
	info, err := disco.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("asking for the version of Kubernetes: %w", err)
	}
	v, err := version.ParseGeneric(info.GitVersion) // such as v1.36.3-gke.1
	if err != nil {
		return "", fmt.Errorf("the API server says that it is version %q: %w", info.GitVersion, err)
	}
	release := fmt.Sprintf("%d.%d", v.Major(), v.Minor())
	if newer(Kubernetes.Oldest, release) {
		return "", Kubernetes.tooOld("Kubernetes " + info.GitVersion)
	}
	return release, nil
}

// readCRD returns the CRD of a component; nil without an error if the manager may not read it.
func (c Component) readCRD(
	ctx context.Context, reader client.Reader, disco discovery.DiscoveryInterface,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	if err := served(disco, c.kind, "install "+c.Name+" v"+c.Oldest+" or later"); err != nil {
		return nil, err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	err := reader.Get(ctx, client.ObjectKey{Name: c.crd}, &crd)
	if apierrors.IsForbidden(err) {
		ctrl.LoggerFrom(ctx).Info("Not allowed to read the CRD that shows the release of a component; apply the role of "+
			"this version of Signalbox", "crd", c.crd, "component", c.Name)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading CRD %s: %w", c.crd, err)
	}
	return &crd, nil
}

// kueueRelease returns the release of Kueue that has the CRD of Workloads, and how many PodSets it takes.
func kueueRelease(crd *apiextensionsv1.CustomResourceDefinition) (release string, maxPodSets int, err error) {
	spec := specOf(crd, kueue.SchemeGroupVersion.Version)
	maxPodSets = int(ptr.Deref(spec["podSets"].MaxItems, podsets.Max))
	switch {
	case maxPodSets <= 8:
		return "", 0, Kueue.tooOld(fmt.Sprintf("Kueue, whose CRD %s takes %d PodSets,", crd.Name, maxPodSets))
	case maxPodSets <= 10:
		release = "0.18"
	case serves(crd, "v1beta1"):
		release = "0.19"
	default:
		release = "0.20" // or later
	}
	return release, maxPodSets, nil
}

// jobSetRelease returns the release of JobSet that has the CRD.
func jobSetRelease(crd *apiextensionsv1.CustomResourceDefinition) (string, error) {
	spec := specOf(crd, jobset.SchemeGroupVersion.Version)
	has := func(path ...string) bool { return hasField(spec, path) }
	pod := []string{"replicatedJobs", "template", "spec", "template", "spec"}
	switch {
	case has(append(pod, "schedulingGroup")...):
		return "0.12", nil
	case has("volumeClaimPolicies"):
		return "0.11", nil
	case has("failurePolicy", "rules", "onJobFailureMessagePatterns"):
		return "0.10", nil
	}
	return "", JobSet.tooOld("JobSet, whose CRD " + crd.Name +
		" has no spec.failurePolicy.rules.onJobFailureMessagePatterns,")
}
