package trainer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/features"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins"
	"github.com/kubeflow/trainer/v2/pkg/statusserver"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

func TestAuthorize(t *testing.T) {
	audience := statusserver.TokenAudience("ns", "job")
	fine := authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{audience},
		User: authenticationv1.UserInfo{Username: "system:serviceaccount:ns:default"}}
	with := func(change func(*authenticationv1.TokenReviewStatus)) authenticationv1.TokenReviewStatus {
		s := fine
		change(&s)
		return s
	}
	down := apierrors.NewServiceUnavailable("down")
	cases := map[string]struct {
		reason, header string
		status         authenticationv1.TokenReviewStatus
		err            error
		asked, want    bool
	}{
		"fine":             {"a token for the TrainJob, of its namespace", "Bearer t", fine, nil, true, true},
		"in small letters": {"the scheme has no case", " bearer  t ", fine, nil, true, true},
		"no header":        {"nobody is asked", "", fine, nil, false, false},
		"another scheme":   {"nobody is asked", "Basic t", fine, nil, false, false},
		"no token":         {"nobody is asked", "Bearer", fine, nil, false, false},
		"unknown": {"it is no " +
			"token", "Bearer t", with(func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }), nil, true,
			false},
		"for another": {"it is meant for something else", "Bearer t", with(func(s *authenticationv1.TokenReviewStatus) {
			s.Audiences = []string{statusserver.TokenAudience("ns", "other")}
		}), nil, true, false},
		"for anything": {"the authenticator knows nothing of audiences", "Bearer t",
			with(func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }), nil, true, false},
		"another namespace": {"its pods are not the TrainJob's", "Bearer t",
			with(func(s *authenticationv1.TokenReviewStatus) {
				s.User.Username = "system:serviceaccount:ns2:default"
			}), nil, true, false},
		"a person": {"only processes report " +
			"progress", "Bearer t", with(func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "me" }), nil, true,
			false},
		"no answer": {"it is no refusal", "Bearer t", fine, down, true, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			clients, asked := kubefake.NewClientset(), false
			clients.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				asked = true
				review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
				if review.Spec.Token != "t" || len(review.Spec.Audiences) != 1 || review.Spec.Audiences[0] != audience {
					t.Errorf("it is asked for the TrainJob: got %+v", review.Spec)
				}
				review.Status = c.status
				return true, review, c.err
			})
			r := reviewer{clients}
			if err := r.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := r.Authorize(t.Context(), c.header, "ns", "job")
			if got != c.want || asked != c.asked || !errors.Is(err, c.err) || err != nil && !strings.HasPrefix(err.Error(),
				"reviewing the token: ") {
				t.Errorf("%s: got %t, %v; asked %t", c.reason, got, err, asked)
			}
		})
	}
}

func TestEnableProgress(t *testing.T) {
	restorePlugins(t)
	if err := EnableProgress(&trainerconfig.Configuration{}); err != nil || !features.Enabled(features.TrainJobStatus) {
		t.Errorf("plugins inject what a process needs: got %v", err)
	}
}

// restorePlugins undoes at the test's end what it has changed of Trainer's plugins.
func restorePlugins(t *testing.T) {
	t.Helper()
	was := features.Enabled(features.TrainJobStatus)
	t.Cleanup(func() {
		if err := features.SetEnable(features.TrainJobStatus, was); err != nil {
			t.Error(err)
		}
		if err := pipeline.Use(plugins.NewRegistry(), &trainerconfig.Configuration{}); err != nil {
			t.Error(err)
		}
	})
}

// progressManager takes what is added to it.
type progressManager struct {
	ctrl.Manager
	added manager.Runnable
}

func (m *progressManager) Add(r manager.Runnable) error {
	m.added = r
	return nil
}

// writeCertificate writes a key and a certificate of its own.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	for file, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY",
			Bytes: must(x509.MarshalPKCS8PrivateKey(key))},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProgressServer(t *testing.T) {
	none := errors.New("no certificate")
	config := &trainerconfig.Configuration{StatusServer: &trainerconfig.StatusServer{Port: ptr.To[int32](0)}}
	cases := map[string]struct {
		reason string
		config *trainerconfig.Configuration
		certs  bool
		await  func(context.CancelFunc) error
		want   string
	}{
		"no certificate": {"it is passed on", config, false, func(context.CancelFunc) error { return none },
			"no certificate"},
		"ends before": {"there is nothing to " +
			"serve", config, false, func(stop context.CancelFunc) error { stop(); return nil }, ""},
		"not readable": {"the path is in the error", config, false, func(context.CancelFunc) error { return nil },
			"status server: open "},
		"not configured": {"Trainer's word is passed on", &trainerconfig.Configuration{}, true,
			func(context.CancelFunc) error { return nil }, "status server: cfg info is required"},
		"serves, and ends": {"it ends with the manager", config, true, func(stop context.CancelFunc) error {
			time.AfterFunc(time.Millisecond, stop)
			return nil
		}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h, m, dir := newHarness(t), &progressManager{}, t.TempDir()
			if c.certs {
				writeCertificate(t, dir)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			p := Progress{Config: c.config, CertDir: dir, Clock: h.clock, Await: func(_ context.Context, at string) error {
				if at != dir {
					t.Errorf("it waits for %s, want %s", at, dir)
				}
				return c.await(stop)
			}}
			if err := p.AddTo(m, h.store, kubefake.NewClientset()); err != nil {
				t.Fatal(err)
			}
			if everywhere, ok := m.added.(manager.LeaderElectionRunnable); !ok || everywhere.NeedLeaderElection() {
				t.Error("every replica serves")
			}
			err := m.added.Start(ctx)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
}

// TestCheckpoint holds that the status has what a training process has last saved, by the metric that its runtime
// names, and keeps it after a stop. Other metrics, and the same value again, cost no write.
func TestCheckpoint(t *testing.T) {
	h := newHarness(t)
	job := h.pinned(h.trainJob("torch", started))
	js := jobSetOf(t, job, "status: {replicatedJobsStatus: [{name: node, active: 1, ready: 1}]}")
	js.Annotations = map[string]string{api.CheckpointMetricAnnotation: "saved"}
	js.Finalizers = []string{"foregroundDeletion"} // as the API server does
	h.put(job, js)
	h.reconcile("job")
	h.clock.Step(2 * time.Second)
	h.reconcile("job")
	h.requests()
	report := func(loss, saved string) {
		j := h.job("job")
		j.Status.TrainerStatus = &trainerapi.TrainerStatus{
			Metrics: []trainerapi.Metric{{Name: "loss", Value: loss}, {Name: "saved", Value: saved}},
		}
		if err := h.store.Status().Update(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	report("0.2", "100")
	h.waits("it is worth a write", 4*time.Second)
	at := h.clock.Now().Truncate(time.Second)
	saved := func() string {
		c := h.job("job").Status.Checkpoint
		return c.Value + " " + c.Time.UTC().Format(time.RFC3339)
	}
	want := "100 " + at.UTC().Format(time.RFC3339)
	if got := saved(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	h.clock.Step(time.Minute)
	report("0.1", "100")
	h.reconcile("job")
	h.wantRequests("nothing more is saved")
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.reconcile("job") // deletes the JobSet, in the foreground
	h.requests()
	h.clock.Step(time.Minute)
	report("0.1", "200") // at SIGTERM, a moment before it ends
	h.reconcile("job")
	h.wantRequests("the JobSet, which knows the metric, is about to go", statusPatch)
	want = "200 " + h.clock.Now().Truncate(time.Second).UTC().Format(time.RFC3339)
	h.remove(&jobset.JobSet{}, "job")
	h.reconcile("job")
	h.clock.Step(time.Minute)
	h.reconcile("job")
	if got := saved(); got != want {
		t.Errorf("after a stop: got %s, want %s", got, want)
	}
}
