package trainer

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerac "github.com/kubeflow/trainer/v2/pkg/client/applyconfiguration/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/features"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins"
	"github.com/kubeflow/trainer/v2/pkg/statusserver"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Progress lets training processes write status.trainerStatus (progress and metrics) by Kubeflow Trainer's status
// server. It is to be switched on, by EnableProgress, before a Builder is made.
type Progress struct {
	Config  *trainerconfig.Configuration
	CertDir string
	// Await waits until there is a certificate in the folder, or the context ends.
	Await func(ctx context.Context, certDir string) error
	Clock clock.PassiveClock
}

// EnableProgress makes the plugins inject what a training process needs to report its progress.
func EnableProgress(config *trainerconfig.Configuration) error {
	if err := features.SetEnable(features.TrainJobStatus, true); err != nil {
		return err
	}
	return pipeline.Use(plugins.NewRegistry(), config)
}

// AddTo serves the status server in the manager, on every replica, as soon as there is a certificate.
func (p Progress) AddTo(mgr ctrl.Manager, c client.Client, clients kubernetes.Interface) error {
	return mgr.Add(everywhere{func(ctx context.Context) error {
		if err := p.Await(ctx, p.CertDir); err != nil || ctx.Err() != nil {
			return err
		}
		certs, err := certwatcher.New(filepath.Join(p.CertDir, "tls.crt"), filepath.Join(p.CertDir, "tls.key"))
		if err != nil {
			return fmt.Errorf("status server: %w", err)
		}
		config := &tls.Config{GetCertificate: certs.GetCertificate, MinVersion: tls.VersionTLS12}
		server, err := statusserver.NewServer(stamping{c, p.Clock}, p.Config.StatusServer, config, reviewer{clients})
		if err != nil {
			return fmt.Errorf("status server: %w", err)
		}
		ended := make(chan error, 2)
		go func() { ended <- certs.Start(ctx) }()
		go func() { ended <- server.Start(ctx) }()
		// Trainer v2.3.0's server closes its listener with the context, and never returns.
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
	}})
}

// stamping writes when a report arrived in the place of what its sender says, in the same request: a process decides
// neither when it was heard, nor is it unheard if it says nothing new.
type stamping struct {
	client.Client
	clock clock.PassiveClock
}

// Status implements client.Client.
func (s stamping) Status() client.SubResourceWriter {
	return stampingStatus{s.Client.Status(), s.clock}
}

type stampingStatus struct {
	client.SubResourceWriter
	clock clock.PassiveClock
}

// Apply implements client.SubResourceWriter.
func (s stampingStatus) Apply(
	ctx context.Context, applied runtime.ApplyConfiguration, options ...client.SubResourceApplyOption,
) error {
	job, is := applied.(*trainerac.TrainJobApplyConfiguration)
	if is && job.Status != nil && job.Status.TrainerStatus != nil {
		job.Status.TrainerStatus.WithLastUpdatedTime(metav1.NewTime(s.clock.Now()))
	}
	return s.SubResourceWriter.Apply(ctx, applied, options...)
}

// everywhere runs without leader election.
type everywhere struct{ manager.RunnableFunc }

func (everywhere) NeedLeaderElection() bool { return false }

// reviewer lets the API server judge a token: it must be meant for the TrainJob, and belong to a service account of its
// namespace.
type reviewer struct{ clients kubernetes.Interface }

var _ statusserver.TokenAuthorizer = reviewer{}

// Init implements statusserver.TokenAuthorizer.
func (reviewer) Init(context.Context) error { return nil }

// Authorize implements statusserver.TokenAuthorizer.
func (r reviewer) Authorize(ctx context.Context, header, namespace, trainJob string) (bool, error) {
	scheme, token, found := strings.Cut(strings.TrimSpace(header), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return false, nil
	}
	audience := statusserver.TokenAudience(namespace, trainJob)
	review, err := r.clients.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: strings.TrimSpace(token), Audiences: []string{audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("reviewing the token: %w", err)
	}
	// An authenticator that knows nothing of audiences answers without one.
	return review.Status.Authenticated && slices.Contains(review.Status.Audiences, audience) &&
		strings.HasPrefix(review.Status.User.Username, "system:serviceaccount:"+namespace+":"), nil
}
