package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// progress reports to the Trainer as its documentation says: by the address, the authority's certificate and the token
// that it gives to a pod in KUBEFLOW_TRAINER_SERVER_….
type progress struct {
	url, token string
	client     *http.Client
}

func newProgress() (*progress, error) {
	ca, err := os.ReadFile(os.Getenv("KUBEFLOW_TRAINER_SERVER_CA_CERT"))
	if err != nil {
		return nil, fmt.Errorf("the Trainer's authority: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(ca) {
		return nil, errors.New("the Trainer's authority is no certificate")
	}
	return &progress{
		url: os.Getenv("KUBEFLOW_TRAINER_SERVER_URL"), token: os.Getenv("KUBEFLOW_TRAINER_SERVER_TOKEN"),
		client: &http.Client{Timeout: 5 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities}}},
	}, nil
}

func (p *progress) report(ctx context.Context, percent int) error {
	token, err := os.ReadFile(p.token) // the kubelet changes it while the pod runs
	if err != nil {
		return fmt.Errorf("the token: %w", err)
	}
	body, err := json.Marshal(map[string]any{"trainerStatus": map[string]any{
		"progressPercentage": percent, "lastUpdatedTime": time.Now().UTC().Format(time.RFC3339)}})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("reporting: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("reporting: %s: %s", response.Status, answer)
	}
	fmt.Printf("reported %d %%\n", percent)
	return nil
}
