// Package installed finds out what a cluster has: the releases of Kubernetes, Kueue and JobSet, Kueue's configuration
// and feature gates, and the Trainer. The manager runs with it; kubectl signalbox doctor and version print it. It
// doesn't know jobframework.
package installed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfigv1beta1 "sigs.k8s.io/kueue/apis/config/v1beta1"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

const (
	builtinFramework = "trainer.kubeflow.org/trainjob"
	// ExternalFramework is what Kueue's configuration calls TrainJobs under integrations.externalFrameworks.
	ExternalFramework = "TrainJob.v1alpha1.trainer.kubeflow.org"
	// kueueDeployment is what Kueue's manifests, and its chart as release "kueue", call its Deployment.
	kueueDeployment = "kueue-controller-manager"
)

// KueueConfiguration reads a configuration of Kueue, of any version that Kueue reads.
func KueueConfiguration(text string) (*kueueconfig.Configuration, error) {
	config := &kueueconfig.Configuration{}
	if err := yaml.Unmarshal([]byte(text), &config.TypeMeta); err != nil {
		return nil, err
	}
	if config.APIVersion != kueueconfigv1beta1.SchemeGroupVersion.String() {
		return config, yaml.Unmarshal([]byte(text), config)
	}
	old := &kueueconfigv1beta1.Configuration{}
	if err := yaml.Unmarshal([]byte(text), old); err != nil {
		return nil, err
	}
	return config, old.ConvertTo(config)
}

// Adopt returns the settings with what Kueue's configuration says of those that aren't set, and for feature gates that
// it doesn't name, with the defaults of Kueue's release, which is one of FindReleases. It rejects a Kueue that runs its
// own TrainJob integration, and settings that differ from Kueue's. Where Kueue's configuration isn't where it should
// be, it says so in the log, and Kueue's defaults are taken.
func Adopt(
	ctx context.Context, reader client.Reader, config *configapi.Kueue, release string,
) (*configapi.Kueue, error) {
	var object corev1.ConfigMap
	key := client.ObjectKey{Namespace: config.ConfigMap.Namespace, Name: config.ConfigMap.Name}
	if err := reader.Get(ctx, key, &object); apierrors.IsNotFound(err) {
		ctrl.LoggerFrom(ctx).Info("Kueue's configuration is not where it should be; make sure that it lists "+
			ExternalFramework+" under integrations.externalFrameworks and not "+builtinFramework+
			" under integrations.frameworks, or name its place in kueue.configMap", "configMap", key)
		return withDefaults(config, release), nil
	} else if err != nil {
		return nil, fmt.Errorf("reading Kueue's configuration: %w", err)
	}
	arguments, err := GateArguments(ctx, reader, key.Namespace)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(object.Data)) {
		theirs, err := KueueConfiguration(object.Data[name])
		if err != nil {
			return nil, fmt.Errorf("Kueue's configuration, ConfigMap %s key %s: %w", key, name, err)
		}
		if theirs.Kind != "Configuration" {
			continue
		}
		if len(arguments) > 0 { // Kueue takes them from one place only
			theirs.FeatureGates = arguments
		}
		adopted, err := adopt(config, theirs, release)
		if err != nil {
			return nil, fmt.Errorf("Kueue's configuration, ConfigMap %s key %s: %w", key, name, err)
		}
		return adopted, nil
	}
	return withDefaults(config, release), nil
}

// GateArguments returns the feature gates on Kueue's command line, where its chart writes them; none where Kueue is no
// Deployment of the usual name.
func GateArguments(ctx context.Context, reader client.Reader, namespace string) (map[string]bool, error) {
	var deployment appsv1.Deployment
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: kueueDeployment}, &deployment)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Kueue's Deployment: %w", err)
	}
	gates := map[string]bool{}
	for _, c := range deployment.Spec.Template.Spec.Containers {
		for _, argument := range slices.Concat(c.Command, c.Args) {
			list, found := strings.CutPrefix(argument, "--feature-gates=")
			if !found {
				continue
			}
			for _, gate := range strings.Split(list, ",") {
				name, value, _ := strings.Cut(strings.TrimSpace(gate), "=")
				if on, err := strconv.ParseBool(value); err == nil { // Kueue doesn't start with another value
					gates[name] = on
				}
			}
		}
	}
	return gates, nil
}

// withDefaults returns the settings with Kueue's defaults in the place of those that aren't set.
func withDefaults(config *configapi.Kueue, release string) *configapi.Kueue {
	a := newAdoption(config)
	a.gates(nil, release)
	if a.WaitForPodsReady == nil {
		a.podsReady(&kueueconfig.Configuration{}, release)
	}
	return a.Kueue
}

// adopt returns the given settings; those that aren't set are Kueue's.
func adopt(ours *configapi.Kueue, theirs *kueueconfig.Configuration, release string) (*configapi.Kueue, error) {
	a := newAdoption(ours)
	integrations := ptr.Deref(theirs.Integrations, kueueconfig.Integrations{})
	a.frameworks(integrations)
	if theirs.ManageJobsWithoutQueueName != ours.ManageJobsWithoutQueueName {
		a.differ("manageJobsWithoutQueueName", theirs.ManageJobsWithoutQueueName, ours.ManageJobsWithoutQueueName)
	}
	a.namespaces(theirs)
	a.labels(integrations.LabelKeysToCopy)
	a.retention(ptr.Deref(theirs.ObjectRetentionPolicies, kueueconfig.ObjectRetentionPolicies{}).Workloads)
	a.multiKueue(ptr.Deref(theirs.MultiKueue, kueueconfig.MultiKueue{}).ExternalFrameworks)
	a.resources(theirs.Resources)
	a.gates(theirs.FeatureGates, release)
	a.podsReady(theirs, release)
	return a.Kueue, errors.Join(a.errs...)
}

// adoption is the settings in the making, and what speaks against them.
type adoption struct {
	*configapi.Kueue
	errs []error
}

func newAdoption(ours *configapi.Kueue) *adoption {
	settings := *ours
	return &adoption{Kueue: &settings}
}

// differ notes that a setting has another value here than in Kueue's configuration.
func (a *adoption) differ(name string, theirs, ours any) {
	a.errs = append(a.errs,
		fmt.Errorf("%s is %v there and kueue.%s %v here; make them the same", name, theirs, name, ours))
}

// frameworks checks that Kueue leaves TrainJobs to Signalbox. Kueue compares kinds by case (Kueue v0.19.2,
// pkg/controller/jobframework, ownerReferenceMatchingGVK).
func (a *adoption) frameworks(theirs kueueconfig.Integrations) {
	if slices.Contains(theirs.Frameworks, builtinFramework) {
		a.errs = append(a.errs, fmt.Errorf("integrations.frameworks lists %q: two integrations would fight over every "+
			"TrainJob; take it out, list %q under integrations.externalFrameworks, and restart Kueue",
			builtinFramework, ExternalFramework))
	} else if !slices.Contains(theirs.ExternalFrameworks, ExternalFramework) {
		a.errs = append(a.errs, fmt.Errorf("integrations.externalFrameworks does not list %q: Kueue would queue the "+
			"TrainJobs' JobSets a second time; add it, and restart Kueue", ExternalFramework))
	}
}

// namespaces compares the selectors of namespaces where Kueue's has one; else it is Kueue's default, which depends on
// where Kueue is installed.
func (a *adoption) namespaces(theirs *kueueconfig.Configuration) {
	if theirs.ManagedJobsNamespaceSelector == nil {
		return
	}
	their, err := metav1.LabelSelectorAsSelector(theirs.ManagedJobsNamespaceSelector)
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("managedJobsNamespaceSelector: %w", err))
		return
	}
	our, err := metav1.LabelSelectorAsSelector(a.ManagedJobsNamespaceSelector)
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("kueue.managedJobsNamespaceSelector: %w", err))
		return
	}
	if their.String() != our.String() {
		a.differ("managedJobsNamespaceSelector", fmt.Sprintf("%q", their), fmt.Sprintf("%q", our))
	}
}

func (a *adoption) labels(theirs []string) {
	if a.LabelKeysToCopy == nil {
		a.LabelKeysToCopy = theirs
	} else if !slices.Equal(slices.Sorted(slices.Values(theirs)), slices.Sorted(slices.Values(a.LabelKeysToCopy))) {
		a.differ("labelKeysToCopy", theirs, a.LabelKeysToCopy)
	}
}

func (a *adoption) resources(theirs *kueueconfig.Resources) {
	if a.Resources == nil {
		a.Resources = theirs
	} else if !equality.Semantic.DeepEqual(theirs, a.Resources) {
		there, thereErr := json.Marshal(theirs)
		here, hereErr := json.Marshal(a.Resources)
		a.errs = append(a.errs, fmt.Errorf("resources is %s there and kueue.resources %s here; take kueue.resources out here",
			there, here), thereErr, hereErr)
	}
}

func (a *adoption) multiKueue(theirs []kueueconfig.MultiKueueExternalFramework) {
	listed := slices.Contains(theirs, kueueconfig.MultiKueueExternalFramework{Name: ExternalFramework})
	switch {
	case a.MultiKueue == nil && listed:
		a.MultiKueue = &listed
	case a.MultiKueue != nil && *a.MultiKueue != listed:
		a.errs = append(a.errs, fmt.Errorf("multiKueue.externalFrameworks lists %s there: %t, and kueue.multiKueue is %t "+
			"here; remove it here", ExternalFramework, listed, *a.MultiKueue))
	}
}

func (a *adoption) retention(theirs *kueueconfig.WorkloadRetentionPolicy) {
	after := ptr.Deref(theirs, kueueconfig.WorkloadRetentionPolicy{}).AfterDeactivatedByKueue
	if a.AfterDeactivated == nil {
		a.AfterDeactivated = after
	} else if after == nil || *after != *a.AfterDeactivated {
		there := "not set"
		if after != nil {
			there = after.Duration.String()
		}
		a.differ("afterDeactivated", there, a.AfterDeactivated.Duration)
	}
}

// gates takes over the feature gates of Kueue's configuration that the library knows, and the defaults of Kueue's
// release. Other gates are of another release, and nothing here depends on them. A gate that only our settings name is
// taken for one of Kueue's command line.
func (a *adoption) gates(theirs map[string]bool, release string) {
	gates, theirs := ExpandGates(a.FeatureGates, release), ExpandGates(theirs, release)
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		gate := cmp.Or(renamedGates[name], featuregate.Feature(name))
		if _, found := known[gate]; !found {
			continue
		}
		if ours, set := gates[string(gate)]; set && ours != theirs[name] {
			a.differ("featureGates."+string(gate), theirs[name], ours)
			continue
		}
		gates[string(gate)] = theirs[name]
	}
	for name, value := range defaultGates(release) {
		if _, set := gates[name]; !set {
			gates[name] = value
		}
	}
	if len(gates) > 0 {
		a.FeatureGates = gates
	}
}

// podsReadyDefault is the first release of Kueue whose waitForPodsReady is on without being configured: a Workload
// whose condition PodsReady isn't true is evicted half an hour after its admission
// (SetDefaults_Configuration, DefaultWaitForPodsReadyTimeout).
const podsReadyDefault = "0.19"

// podsReadyGate is Kueue's feature gate that turns waitForPodsReady off. Kueue will remove it in 0.21.
const podsReadyGate = "DisableWaitForPodsReady"

// podsReady adopts whether Kueue waits for pods. The feature gates must have been adopted before. The setting stays
// unset if Kueue waits by default only; v1beta1 of Kueue's configuration has no such default.
func (a *adoption) podsReady(configuration *kueueconfig.Configuration, release string) {
	theirs := configuration.WaitForPodsReady
	byDefault := !newer(podsReadyDefault, release) &&
		configuration.APIVersion != kueueconfigv1beta1.SchemeGroupVersion.String()
	waits := (theirs != nil || byDefault) && !a.FeatureGates[podsReadyGate]
	switch ours := a.WaitForPodsReady; {
	case ours != nil && *ours != waits:
		why := ""
		if waits && theirs == nil {
			why = fmt.Sprintf(" (by default since Kueue %s, unless feature gate %s is on)", podsReadyDefault, podsReadyGate)
		}
		a.errs = append(a.errs, fmt.Errorf("waitForPodsReady is on there: %t%s, and kueue.waitForPodsReady is %t here; "+
			"take it out here", waits, why, *ours))
	case ours == nil && (theirs != nil || !waits):
		a.WaitForPodsReady = &waits
	}
}
