package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/explain"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// checks are what doctor looks at, in this order.
var checks = []struct {
	name string
	run  func(context.Context, *session) ([]finding, error)
}{
	{"versions", checkVersions}, {"Kueue's configuration", checkConfig}, {"webhooks", checkWebhooks},
	{"leaders", checkLeaders}, {"queues", checkQueues}, {"flavors and nodes", checkNodes}, {"runtimes", checkRuntimes},
	{"TrainJobs", checkTrainJobs},
}

// checkVersions compares the releases of Kubernetes, Kueue and JobSet with those that Signalbox supports.
func checkVersions(ctx context.Context, s *session) ([]finding, error) {
	releases, err := integration.FindReleases(ctx, s.client, s.clients.Discovery(), integration.Newest())
	switch {
	case apierrors.IsForbidden(err):
		s.lacks("get customresourcedefinitions.apiextensions.k8s.io")
		return nil, nil
	case err != nil:
		return []finding{{bad, "versions", err.Error(), "docs/compatibility.md has the releases that Signalbox supports"}}, nil
	}
	var found []finding
	for _, later := range releases.Unsupported() {
		found = append(found, finding{poor, later, "it is later than Signalbox was tested with",
			"docs/compatibility.md has the releases that Signalbox supports"})
	}
	return found, nil
}

// externalFramework is the name of TrainJob in Kueue's configuration.
const externalFramework = "TrainJob.v1alpha1.trainer.kubeflow.org"

// checkConfig looks at Kueue's configuration.
func checkConfig(ctx context.Context, s *session) ([]finding, error) {
	config, err := s.kueueConfig(ctx)
	if err != nil {
		return []finding{{bad, "Kueue's configuration", err.Error(), ""}}, nil
	}
	if config == nil {
		return nil, nil
	}
	edit := "kubectl -n " + kueueNamespace() + " edit configmap kueue-manager-config; kubectl -n " + kueueNamespace() +
		" rollout restart deployment kueue-controller-manager"
	var found []finding
	frameworks, external := []string{}, []string{}
	if config.Integrations != nil {
		frameworks, external = config.Integrations.Frameworks, config.Integrations.ExternalFrameworks
	}
	if slices.Contains(frameworks, "trainer.kubeflow.org/trainjob") {
		found = append(found, finding{bad, "Kueue's configuration", "Kueue runs TrainJobs itself: integrations.frameworks has " +
			"trainer.kubeflow.org/trainjob; take it out", edit})
	}
	if !slices.Contains(external, externalFramework) {
		found = append(found, finding{bad, "Kueue's configuration", "integrations.externalFrameworks doesn't list " +
			externalFramework + ": Kueue would queue the JobSets of TrainJobs a second time; add it", edit})
	}
	return found, nil
}

// checkWebhooks looks at the webhooks for TrainJobs, at their certificates, and at what serves them.
func checkWebhooks(ctx context.Context, s *session) ([]finding, error) {
	var mutating admissionv1.MutatingWebhookConfigurationList
	var validating admissionv1.ValidatingWebhookConfigurationList
	read, err := s.list(ctx, &mutating, "mutatingwebhookconfigurations.admissionregistration.k8s.io")
	if err != nil || !read {
		return nil, err
	}
	if read, err = s.list(ctx, &validating, "validatingwebhookconfigurations.admissionregistration.k8s.io"); err != nil || !read {
		return nil, err
	}
	hooks := map[string]admissionv1.WebhookClientConfig{}
	kubeflow := ""
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			hooks[w.Name] = w.ClientConfig
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			hooks[w.Name] = w.ClientConfig
			if strings.HasSuffix(w.Name, ".trainer.kubeflow.org") {
				kubeflow = c.Name
			}
		}
	}
	var found []finding
	ours, bundled := 0, false
	for _, name := range slices.Sorted(maps.Keys(hooks)) {
		if !strings.HasSuffix(name, ".signalbox.dev") {
			continue
		}
		ours++
		bundled = bundled || strings.Contains(name, "trainingruntime")
		found = append(found, s.checkWebhook(ctx, name, hooks[name])...)
	}
	if ours == 0 {
		found = append(found, finding{bad, "webhooks", "there is no webhook of Signalbox: it isn't installed, or its " +
			"configuration was deleted", "helm upgrade --install signalbox …"})
	}
	if bundled && kubeflow != "" {
		found = append(found, finding{bad, "webhooks", "the bundled Trainer and Kubeflow Trainer (" + kubeflow + ") are both " +
			"installed, and fight over every JobSet", "helm upgrade signalbox … --set trainer.enabled=false"})
	}
	return found, nil
}

// soon is how long before its end a certificate is worth a word. cert-controller renews 90 days before it.
const soon = 7 * 24 * time.Hour

// checkWebhook looks at one webhook.
func (s *session) checkWebhook(ctx context.Context, name string, c admissionv1.WebhookClientConfig) []finding {
	var found []finding
	about := "webhook " + name
	if ends, err := certificateEnd(c.CABundle); err != nil {
		found = append(found, finding{bad, about, err.Error() + ": the API server can't call it, so that TrainJobs can't be " +
			"changed", "kubectl rollout restart deployment signalbox"})
	} else if left := time.Until(ends); left < soon {
		found = append(found, finding{bad, about, "its CA ends at " + ends.Format(time.RFC3339), "kubectl rollout restart " +
			"deployment signalbox"})
	}
	if c.Service == nil {
		return found
	}
	var slicesOf discoveryv1.EndpointSliceList
	read, err := s.list(ctx, &slicesOf, "endpointslices in namespace "+c.Service.Namespace,
		client.InNamespace(c.Service.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: c.Service.Name})
	if err != nil || !read {
		return found
	}
	for _, slice := range slicesOf.Items {
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) {
				return found
			}
		}
	}
	return append(found, finding{bad, about, fmt.Sprintf("service %s/%s has no ready endpoint", c.Service.Namespace,
		c.Service.Name), fmt.Sprintf("kubectl -n %s get pods", c.Service.Namespace)})
}

// certificateEnd returns when the last certificate of a bundle ends.
func certificateEnd(bundle []byte) (time.Time, error) {
	var last time.Time
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return last, fmt.Errorf("its caBundle is invalid: %w", err)
		}
		if certificate.NotAfter.After(last) {
			last = certificate.NotAfter
		}
	}
	if last.IsZero() {
		return last, fmt.Errorf("its caBundle has no certificate")
	}
	return last, nil
}

// signalboxLease is the name of the Lease of Signalbox's leader.
const signalboxLease = "signalbox.signalbox.dev"

// checkLeaders looks at whether the leaders of Signalbox and Kueue renew their Leases.
func checkLeaders(ctx context.Context, s *session) ([]finding, error) {
	var leases coordinationv1.LeaseList
	read, err := s.list(ctx, &leases, "leases.coordination.k8s.io")
	if err != nil || !read {
		return nil, err
	}
	var found []finding
	for _, lease := range leases.Items {
		if lease.Name != signalboxLease && lease.Name != kueueLease || lease.Spec.RenewTime == nil {
			continue
		}
		late := time.Since(lease.Spec.RenewTime.Time)
		limit := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 15)) * time.Second
		if late > 2*limit {
			found = append(found, finding{bad, "Lease " + lease.Namespace + "/" + lease.Name, fmt.Sprintf("its leader, %s, was "+
				"last seen %s ago", ptr.Deref(lease.Spec.HolderIdentity, "nobody"), age(lease.Spec.RenewTime.Time)),
				"kubectl -n " + lease.Namespace + " get pods"})
		}
	}
	return found, nil
}

// checkQueues looks for queues that admit nobody.
func checkQueues(ctx context.Context, s *session) ([]finding, error) {
	q, err := s.queues(ctx, s.namespace)
	if err != nil || !q.clusterQueues {
		return nil, err
	}
	var found []finding
	names := map[string]bool{}
	for i := range q.ClusterQueues {
		cq := &q.ClusterQueues[i]
		names[cq.Name] = true
		for _, c := range cq.Status.Conditions {
			if c.Type == kueue.ClusterQueueActive && c.Status != "True" && c.Reason != kueue.ClusterQueueActiveReasonStopped {
				found = append(found, finding{bad, "ClusterQueue " + cq.Name, c.Message, "kubectl describe clusterqueue " + cq.Name})
			}
		}
	}
	for i := range q.LocalQueues {
		lq := &q.LocalQueues[i]
		if !names[string(lq.Spec.ClusterQueue)] {
			found = append(found, finding{bad, "LocalQueue " + lq.Namespace + "/" + lq.Name, "its ClusterQueue " +
				string(lq.Spec.ClusterQueue) + " doesn't exist", "kubectl -n " + lq.Namespace + " delete localqueue " + lq.Name})
		}
	}
	return found, nil
}

// checkNodes compares flavors and quota with the nodes.
func checkNodes(ctx context.Context, s *session) ([]finding, error) {
	q, err := s.queues(ctx, s.namespace)
	if err != nil || !q.clusterQueues {
		return nil, err
	}
	var nodes corev1.NodeList
	if read, err := s.list(ctx, &nodes, "nodes"); err != nil || !read {
		return nil, err
	}
	var found []finding
	quota := nominal(q.ClusterQueues)
	for i := range q.Flavors {
		flavor := &q.Flavors[i]
		if len(quota[flavor.Name]) == 0 {
			continue // nobody has quota of it
		}
		has, n := allocatable(nodes.Items, flavor.Spec.NodeLabels)
		if n == 0 {
			found = append(found, finding{poor, "ResourceFlavor " + flavor.Name, fmt.Sprintf("no node has its labels %s: what is "+
				"admitted on it has no node, unless nodes are added then", labelsText(flavor.Spec.NodeLabels)),
				"kubectl get nodes --show-labels"})
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(quota[flavor.Name])) {
			given, there := quota[flavor.Name][name], has[name]
			if given.Cmp(there) > 0 {
				found = append(found, finding{poor, "ResourceFlavor " + flavor.Name, fmt.Sprintf("the quota of all ClusterQueues for "+
					"%s is %s, and its %d nodes have %s: what is admitted above that waits for nodes while it holds quota", name,
					given.String(), n, there.String()), "kubectl edit clusterqueue"})
			}
		}
	}
	return found, nil
}

// nominal returns the nominal quota of all ClusterQueues by flavor and resource.
func nominal(queues []kueue.ClusterQueue) map[string]map[corev1.ResourceName]resource.Quantity {
	total := map[string]map[corev1.ResourceName]resource.Quantity{}
	for i := range queues {
		for _, group := range queues[i].Spec.ResourceGroups {
			for _, fq := range group.Flavors {
				for _, rq := range fq.Resources {
					of := total[string(fq.Name)]
					if of == nil {
						of = map[corev1.ResourceName]resource.Quantity{}
						total[string(fq.Name)] = of
					}
					sum := of[rq.Name]
					sum.Add(rq.NominalQuota)
					of[rq.Name] = sum
				}
			}
		}
	}
	return total
}

// allocatable returns what the nodes with some labels have, and how many they are.
func allocatable(nodes []corev1.Node, labels map[string]string) (corev1.ResourceList, int) {
	total, n := corev1.ResourceList{}, 0
	for i := range nodes {
		node := &nodes[i]
		fits := true
		for key, value := range labels {
			fits = fits && node.Labels[key] == value
		}
		if !fits || node.Spec.Unschedulable {
			continue
		}
		n++
		for name, amount := range node.Status.Allocatable {
			sum := total[name]
			sum.Add(amount)
			total[name] = sum
		}
	}
	return total, n
}

func labelsText(labels map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+labels[key])
	}
	return cmp.Or(strings.Join(parts, ","), "(none)")
}

// checkRuntimes looks for runtimes whose TrainJobs can't be queued.
func checkRuntimes(ctx context.Context, s *session) ([]finding, error) {
	var cluster api.ClusterTrainingRuntimeList
	var own api.TrainingRuntimeList
	if _, err := s.list(ctx, &cluster, "clustertrainingruntimes.trainer.kubeflow.org"); err != nil {
		return nil, err
	}
	if _, err := s.listWide(ctx, &own, "trainingruntimes.trainer.kubeflow.org", s.namespace); err != nil {
		return nil, err
	}
	var found []finding
	check := func(about string, spec *trainerapi.TrainingRuntimeSpec) {
		if err := queueable(spec); err != nil {
			found = append(found, finding{bad, about, "its TrainJobs can't be queued: " + err.Error(), "kubectl edit " + about})
		}
	}
	for i := range cluster.Items {
		check("clustertrainingruntime/"+cluster.Items[i].Name, &cluster.Items[i].Spec)
	}
	for i := range own.Items {
		check("trainingruntime/"+own.Items[i].Name+" -n "+own.Items[i].Namespace, &own.Items[i].Spec)
	}
	return found, nil
}

// queueable returns why a TrainJob that changes nothing of a runtime can't be queued; nil if it can.
func queueable(spec *trainerapi.TrainingRuntimeSpec) error {
	job := &api.TrainJob{}
	job.Name = "doctor"
	effective, err := overrides.Bundled.Compute(job, spec, nil)
	if err != nil {
		return err
	}
	_, err = podsets.Of(effective, podsets.Features{TopologyAware: true})
	return err
}

// stuck are the causes that don't pass by themselves.
var stuck = map[explain.Code]severity{
	explain.CodeBlocked: bad, explain.CodeNoQueue: bad, explain.CodeNoCQ: bad, explain.CodeCQInactive: bad,
	explain.CodeNamespace: bad, explain.CodeNoWorkload: bad, explain.CodeKueueDown: bad, explain.CodeNoFlavor: bad,
	explain.CodeNoResource: bad, explain.CodeTooLarge: bad, explain.CodeInvalid: bad, explain.CodeRejected: bad,
	explain.CodeImage: bad, explain.CodeCrash: bad, explain.CodeOverdue: bad, explain.CodeGang: poor,
	explain.CodeNoNode: poor, explain.CodeTopology: poor,
}

// young is for how long a TrainJob may be in such a state.
const young = time.Minute

// checkTrainJobs looks for TrainJobs that are stuck.
func checkTrainJobs(ctx context.Context, s *session) ([]finding, error) {
	var jobs api.TrainJobList
	if _, err := s.listWide(ctx, &jobs, "trainjobs.trainer.kubeflow.org", s.namespace); err != nil {
		return nil, err
	}
	q, err := s.queues(ctx, s.namespace)
	if err != nil {
		return nil, err
	}
	var found []finding
	for i := range jobs.Items {
		job := &jobs.Items[i]
		if time.Since(job.CreationTimestamp.Time) < young {
			continue
		}
		cause := explain.Explain(q.factsOf(job)).Cause
		if severity := stuck[cause.Code]; severity != "" {
			found = append(found, finding{severity, "TrainJob " + job.Namespace + "/" + job.Name, string(cause.Code) + ": " +
				cause.Text, "kubectl signalbox explain " + job.Name + " -n " + job.Namespace})
		}
	}
	return found, nil
}
