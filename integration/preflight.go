package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	_ "sigs.k8s.io/kueue/pkg/features" // registers Kueue's feature gates
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

const (
	builtinFramework  = "trainer.kubeflow.org/trainjob"
	externalFramework = "TrainJob.v1alpha1.trainer.kubeflow.org"
)

// Prepare sets what jobframework keeps for the whole process: Kueue's feature gates and the kinds that may own
// TrainJobs. It is to be called once, before anything else of this package.
func Prepare(config *configapi.Kueue) error {
	if err := CheckConfiguration(config); err != nil {
		return err
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(config.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	// TrainJob itself isn't registered: one that names another as its owner needs quota of its own, because the other's
	// Workload stands for the other's pods alone.
	for i, kind := range config.OwnerKinds {
		if err := jobframework.RegisterExternalJobType(kind); err != nil {
			return fmt.Errorf("kueue.ownerKinds[%d]: %w", i, err)
		}
	}
	return nil
}

// CheckConfiguration refuses what Prepare would, and changes nothing: gates that Kueue doesn't have, by their name.
func CheckConfiguration(config *configapi.Kueue) error {
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(config.FeatureGates); err != nil {
		return fmt.Errorf("kueue.featureGates: %w", err)
	}
	return nil
}

// Identity returns the name of the user that the client is to the API server.
func Identity(ctx context.Context, clients kubernetes.Interface) (string, error) {
	review, err := clients.AuthenticationV1().SelfSubjectReviews().Create(
		ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking who we are: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// Check refuses a cluster on which the integration can't work, with what to change. It doesn't look at the Trainer.
func Check(
	ctx context.Context, reader client.Reader, disco discovery.DiscoveryInterface, config *configapi.Kueue,
) error {
	return errors.Join(
		served(disco, kueue.SchemeGroupVersion.WithKind("Workload"), "install Kueue v0.19 or later"),
		served(disco, jobset.SchemeGroupVersion.WithKind("JobSet"), "install JobSet v0.12 or later"),
		checkKueue(ctx, reader, config),
	)
}

// serveTime is for how long the API server may not list the kinds of a CRD that it has.
const serveTime = 30 * time.Second

// AwaitTrainJobs waits until TrainJobs and their runtimes are served: a manager that is installed together with their
// CRDs comes before the API server has taken those up. That a CRD is there is for others to check.
func AwaitTrainJobs(ctx context.Context, disco discovery.DiscoveryInterface, clk clock.WithTicker) error {
	version := trainerapi.GroupVersion
	timeout, ticker := clk.After(serveTime), clk.NewTicker(serveTime/100)
	defer ticker.Stop()
	for {
		var missing error // the first; the group alone would be missing once for each kind
		for _, kind := range []string{
			trainerapi.TrainJobKind, trainerapi.TrainingRuntimeKind, trainerapi.ClusterTrainingRuntimeKind,
		} {
			missing = served(disco, version.WithKind(kind), "look at the conditions of the CRDs of group "+version.Group)
			if missing != nil {
				break
			}
		}
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), missing)
		case <-timeout:
			return fmt.Errorf("waited for %s: %w", serveTime, missing)
		case <-ticker.C():
		}
	}
}

func served(disco discovery.DiscoveryInterface, kind schema.GroupVersionKind, wayOut string) error {
	resources, err := disco.ServerResourcesForGroupVersion(kind.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the cluster does not serve %s; %s", kind.GroupVersion(), wayOut)
	}
	if err != nil {
		return fmt.Errorf("looking for %s: %w", kind, err)
	}
	if !slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind.Kind }) {
		return fmt.Errorf("the cluster does not serve kind %s of %s; %s", kind.Kind, kind.GroupVersion(), wayOut)
	}
	return nil
}

// FindTrainer returns how the installed Kubeflow Trainer takes overrides.
func FindTrainer(ctx context.Context, reader client.Reader) (overrides.Dialect, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := reader.Get(ctx, client.ObjectKey{Name: TrainJobCRD}, &crd); apierrors.IsNotFound(err) {
		return nil, errors.New("the cluster has no TrainJobs; install Kubeflow Trainer, or set trainer.enabled to true and " +
			"apply config/crd")
	} else if err != nil {
		return nil, fmt.Errorf("reading CRD %s: %w", TrainJobCRD, err)
	}
	return DialectOf(&crd)
}

// checkKueue refuses a Kueue that runs its own TrainJob integration, and settings that differ from ours.
func checkKueue(ctx context.Context, reader client.Reader, config *configapi.Kueue) error {
	var object corev1.ConfigMap
	key := client.ObjectKey{Namespace: config.ConfigMap.Namespace, Name: config.ConfigMap.Name}
	if err := reader.Get(ctx, key, &object); apierrors.IsNotFound(err) {
		ctrl.LoggerFrom(ctx).Info("Kueue's configuration is not where it should be; make sure that it lists "+
			externalFramework+" under integrations.externalFrameworks and not "+builtinFramework+
			" under integrations.frameworks, or name its place in kueue.configMap", "configMap", key)
		return nil
	} else if err != nil {
		return fmt.Errorf("reading Kueue's configuration: %w", err)
	}
	for name, content := range object.Data {
		var theirs kueueconfig.Configuration
		if err := yaml.Unmarshal([]byte(content), &theirs); err != nil {
			return fmt.Errorf("Kueue's configuration, ConfigMap %s key %s: %w", key, name, err)
		}
		if theirs.Kind == "Configuration" {
			if err := compare(config, &theirs); err != nil {
				return fmt.Errorf("Kueue's configuration, ConfigMap %s key %s: %w", key, name, err)
			}
		}
	}
	return nil
}

// compare looks for what the two configurations must agree on.
func compare(ours *configapi.Kueue, theirs *kueueconfig.Configuration) error {
	var frameworks, external []string
	if theirs.Integrations != nil {
		frameworks, external = theirs.Integrations.Frameworks, theirs.Integrations.ExternalFrameworks
	}
	var errs []error
	if slices.Contains(frameworks, builtinFramework) {
		errs = append(errs, fmt.Errorf("integrations.frameworks lists %q: two integrations would fight over every TrainJob; "+
			"take it out, list %q under integrations.externalFrameworks, and restart Kueue",
			builtinFramework, externalFramework))
	} else if !slices.ContainsFunc(external, func(s string) bool { return strings.EqualFold(s, externalFramework) }) {
		errs = append(errs, fmt.Errorf("integrations.externalFrameworks does not list %q: Kueue would queue the TrainJobs' "+
			"JobSets a second time; add it, and restart Kueue", externalFramework))
	}
	if theirs.ManageJobsWithoutQueueName != ours.ManageJobsWithoutQueueName {
		errs = append(errs, fmt.Errorf("manageJobsWithoutQueueName is %t there and kueue.manageJobsWithoutQueueName %t "+
			"here; make them the same", theirs.ManageJobsWithoutQueueName, ours.ManageJobsWithoutQueueName))
	}
	if waits := theirs.WaitForPodsReady != nil; waits != ours.WaitForPodsReady {
		errs = append(errs, fmt.Errorf("waitForPodsReady is set there: %t, and kueue.waitForPodsReady is %t here; "+
			"make them the same", waits, ours.WaitForPodsReady))
	}
	return errors.Join(errs...)
}
