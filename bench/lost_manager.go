package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/statusserver"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// reports sends what processes have saved to Signalbox's status server, as a callback of a training program does.
type reports struct {
	client client.Client
	server string
	via    *http.Client
	mu     sync.Mutex
	tokens map[string]string
}

// metricSaved is the metric that says what a process has saved.
const metricSaved = "saved"

// managerNamespace is that of a manager that runs in no cluster.
const managerNamespace = "kubeflow-system"

// sections are of Signalbox's configuration.
type sections map[string]map[string]any

// configure starts Signalbox again with further sections in its configuration.
func configure(dir string, further sections) error {
	path := filepath.Join(dir, "config", "signalbox.yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for name, section := range further {
		config[name] = section
	}
	if content, err = yaml.Marshal(config); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	return act(dir, "restart", "signalbox")
}

// withReports starts Signalbox again with the status server, and further sections.
func withReports(ctx context.Context, g *ground, dir string, further sections) (*reports, error) {
	port, err := unused()
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "pki", "ca.crt"))
	if err != nil {
		return nil, err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: managerNamespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: managerNamespace, Name: "signalbox-webhook-cert"},
			Data:       map[string][]byte{"ca.crt": ca},
		},
	} {
		if err := client.IgnoreAlreadyExists(g.client.Create(ctx, o)); err != nil {
			return nil, err
		}
	}
	further["trainer"] = map[string]any{"enabled": true, "progress": map[string]any{"enabled": true, "port": port}}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // it is on loopback
	return &reports{
		client: g.client, server: fmt.Sprintf("https://127.0.0.1:%d", port), tokens: map[string]string{},
		via: &http.Client{Transport: transport, Timeout: 10 * time.Second},
	}, configure(dir, further)
}

// unused returns a port that nobody listens on.
func unused() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// send reports what a process has saved.
func (r *reports) send(ctx context.Context, name string, saved time.Duration) error {
	token, err := r.token(ctx, name)
	if err != nil {
		return err
	}
	body, err := json.Marshal(trainerapi.UpdateTrainJobStatusRequest{TrainerStatus: &trainerapi.TrainerStatus{
		Metrics: []trainerapi.Metric{{Name: metricSaved, Value: seconds(saved)}}, LastUpdatedTime: metav1.Now(),
	}})
	if err != nil {
		return err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server+statusserver.StatusUrl(namespace, name),
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	post.Header.Set("Authorization", "Bearer "+token)
	answer, err := r.via.Do(post)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("of %s was answered by %s", name, answer.Status)
	}
	return errors.Join(err, answer.Body.Close())
}

// token returns a token as the pods of a TrainJob have one.
func (r *reports) token(ctx context.Context, name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token := r.tokens[name]; token != "" {
		return token, nil
	}
	hours := int64(4 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{statusserver.TokenAudience(namespace, name)}, ExpirationSeconds: &hours,
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	if err := r.client.SubResource("token").Create(ctx, account, request); err != nil {
		return "", err
	}
	r.tokens[name] = request.Status.Token
	return request.Status.Token, nil
}
