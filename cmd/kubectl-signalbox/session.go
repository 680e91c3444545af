package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// fieldOwner is the name under which the plugin writes.
const fieldOwner = client.FieldOwner("kubectl-signalbox")

// session is a cluster, as one user sees it.
type session struct {
	client    client.WithWatch
	clients   kubernetes.Interface
	namespace string
	// kueueNamespace is where Kueue runs.
	kueueNamespace string
	streams        genericiooptions.IOStreams
	// missing are the rights that the user lacks, such as "list nodes".
	missing []string
	asked
	elsewhere
}

// asked is what the cluster has been asked for, once.
type asked struct {
	// gated is set when simulations run with the cluster's feature gates.
	gated bool
	// trainer is the cluster's; nil if it hasn't been asked for yet.
	trainer *dialect.Dialect
}

// newSession connects to the cluster that the flags name.
func newSession(
	flags *genericclioptions.ConfigFlags, kueueNamespace string, streams genericiooptions.IOStreams,
) (*session, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return sessionWith(config, namespace, kueueNamespace, streams)
}

// sessionWith connects to the cluster of a configuration.
func sessionWith(
	config *rest.Config, namespace, kueueNamespace string, streams genericiooptions.IOStreams,
) (*session, error) {
	config.QPS, config.Burst = 50, 100 // a command makes a few dozen requests at once
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	clients, clientsErr := kubernetes.NewForConfig(config)
	if err := errors.Join(err, clientsErr); err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return &session{client: c, clients: clients, namespace: namespace, kueueNamespace: kueueNamespace,
		streams: streams}, nil
}

// newScheme returns the kinds that the commands read.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme), kueue.AddToScheme(scheme),
		jobset.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), usageapi.AddToScheme(scheme))
}

// elsewhere reaches other clusters, with the rights that the user has there.
type elsewhere struct {
	// open returns a session with the cluster of a context of the kubeconfig.
	open func(context string) (*session, error)
	// contexts are those of clusters that MultiKueue names otherwise.
	contexts map[string]string
}

// at returns a session with a cluster that MultiKueue names.
func (e elsewhere) at(cluster string) (*session, error) {
	context, named := e.contexts[cluster]
	if !named {
		context = cluster
	}
	in, err := e.open(context)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w; name its context by --cluster %s=CONTEXT", cluster, err, cluster)
	}
	return in, nil
}

// cli is what all commands share.
type cli struct {
	streams genericiooptions.IOStreams
	// connect returns a session with the cluster that the flags name.
	connect func() (*session, error)
}

// connected returns a cobra function that runs with a session.
func connected(
	c *cli, run func(ctx context.Context, s *session, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := c.connect()
		if err != nil {
			return err
		}
		return run(cmd.Context(), s, args)
	}
}

// lacks notes that the user lacks a right, once.
func (s *session) lacks(right string) {
	if !slices.Contains(s.missing, right) {
		s.missing = append(s.missing, right)
	}
}

// list reads objects. It reports whether they could be read: what the user may not read is noted, and kinds that the
// cluster doesn't have are none.
func (s *session) list(
	ctx context.Context, list client.ObjectList, what string, options ...client.ListOption,
) (bool, error) {
	err := s.pages(ctx, list, options...)
	switch {
	case err == nil || apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsForbidden(err):
		s.lacks("list " + what)
		return false, nil
	}
	return false, fmt.Errorf("listing %s: %w", what, err)
}

// pageSize is how many objects are read at once: one answer with all of a large cluster would hold up the API server.
const pageSize = 500

// pages reads objects in pages, or all at once if the cluster changes too much meanwhile.
func (s *session) pages(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		of := reflect.New(reflect.TypeOf(list).Elem()).Interface().(client.ObjectList)
		paged := append(slices.Clone(options), client.Limit(o.Limit), client.Continue(o.Continue))
		return of, s.client.List(ctx, of, paged...)
	})
	p.PageSize = pageSize
	read, _, err := p.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	all, err := apimeta.ListAccessor(read)
	if err != nil {
		return err
	}
	items, err := apimeta.ExtractList(read)
	if err != nil {
		return err
	}
	list.SetResourceVersion(all.GetResourceVersion())
	return apimeta.SetList(list, items)
}

// scope is of which namespaces objects were read.
type scope int

const (
	nowhere scope = iota
	ownNamespace
	everywhere
)

// listWide reads objects of all namespaces, or of the user's own if that isn't allowed.
func (s *session) listWide(ctx context.Context, list client.ObjectList, what, namespace string) (scope, error) {
	if read, err := s.list(ctx, list, what); err != nil || read {
		return everywhere, err
	}
	read, err := s.list(ctx, list, what+" in namespace "+namespace, client.InNamespace(namespace))
	if err != nil || !read {
		return nowhere, err
	}
	return ownNamespace, nil
}

// trainJob reads a TrainJob of the session's namespace.
func (s *session) trainJob(ctx context.Context, name string) (*api.TrainJob, error) {
	job := &api.TrainJob{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, job); err != nil {
		return nil, fmt.Errorf("reading TrainJob %s in namespace %s: %w", name, s.namespace, err)
	}
	return job, nil
}

// dialect returns what the cluster's Trainer makes of a TrainJob: the bundled one, if the user may not read which one
// that is.
func (s *session) dialect(ctx context.Context) (*dialect.Dialect, error) {
	if s.trainer != nil {
		return s.trainer, nil
	}
	var crd apiextensionsv1.CustomResourceDefinition
	err := s.client.Get(ctx, client.ObjectKey{Name: installed.TrainJobCRD}, &crd)
	if apierrors.IsForbidden(err) {
		s.lacks("get customresourcedefinitions.apiextensions.k8s.io")
	}
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		s.trainer, err = dialect.Bundled, nil
	case err != nil:
		return nil, fmt.Errorf("reading CRD %s: %w", installed.TrainJobCRD, err)
	default:
		s.trainer, err = installed.TrainerOf(&crd)
	}
	return s.trainer, err
}

// completeTrainJobs completes the names of TrainJobs.
func completeTrainJobs(c *cli) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		s, err := c.connect()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var jobs api.TrainJobList
		if err := s.pages(cmd.Context(), &jobs, client.InNamespace(s.namespace)); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := utilslices.Map(jobs.Items, func(job *api.TrainJob) string { return job.Name })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
