package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/installed"
)

// awaitGauge waits until a gauge has a value.
func awaitGauge(t *testing.T, gauge prometheus.Gauge, want float64) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return testutil.ToFloat64(gauge) == want, nil })
	if err != nil {
		t.Fatalf("the gauge is not %v", want)
	}
}

func TestAwaitChange(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(head)
	configValid.Set(1)
	ended := make(chan error, 1)
	check := func(_ context.Context, config *configapi.Configuration) error {
		if config.Kueue.WaitForPodsReady != nil {
			return errors.New("Kueue's is another")
		}
		return nil
	}
	go func() { ended <- awaitChange(t.Context(), path, []byte(head), time.Millisecond, check) }()
	runsOn := func(want float64) {
		t.Helper()
		awaitGauge(t, configValid, want)
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		default:
		}
	}
	write(head + "concurrency: 0\n")
	runsOn(0)
	write(head)
	runsOn(1)
	write(head + "kueue: {featureGates: {Nothing: true}}\n")
	runsOn(0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	runsOn(0)
	write(head)
	runsOn(1)
	write(head + "kueue: {waitForPodsReady: true}\n")
	runsOn(0)
	write(head + "concurrency: 7\n")
	if err := <-ended; !errors.Is(err, errChanged) {
		t.Errorf("another that is valid: got %v", err)
	}
}

func TestKueueIsFollowed(t *testing.T) {
	const head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n" +
		"integrations: {externalFrameworks: [TrainJob.v1alpha1.trainer.kubeflow.org]}\n"
	s := newServer(t)
	given := configapi.Default()
	path := "/api/v1/namespaces/" + given.Kueue.ConfigMap.Namespace + "/configmaps/" + given.Kueue.ConfigMap.Name
	write := func(content string) {
		t.Helper()
		data, err := json.Marshal(&corev1.ConfigMap{Data: map[string]string{"a.yaml": content}})
		if err != nil {
			t.Fatal(err)
		}
		s.serve(path, string(data))
	}
	write(head)
	cluster, err := connect(configapi.Default().ClientConnection)
	if err != nil {
		t.Fatal(err)
	}
	running, err := findKueue(t.Context(), cluster, given, installed.Newest())
	if err != nil {
		t.Fatal(err)
	}
	follows := func(ctx context.Context) error { return followKueue(ctx, cluster, given, running, time.Millisecond) }
	if (always{follows}).NeedLeaderElection() {
		t.Error("each replica runs with it")
	}
	ended := make(chan error, 1)
	kueueConfigValid.Set(1)
	go func() { ended <- follows(t.Context()) }()
	write(head + "manageJobsWithoutQueueName: true\n") // which the manager's configuration contradicts
	awaitGauge(t, kueueConfigValid, 0)
	write(head + "multiKueue: {gcInterval: 1m}\n") // which the manager doesn't use
	awaitGauge(t, kueueConfigValid, 1)
	s.serve("/version", `{"gitVersion":"v1.99.0"}`) // which needs no restart
	err = wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			return testutil.ToFloat64(releaseInfo.WithLabelValues("Kubernetes", "1.99", "false")) == 1, nil
		})
	if err != nil {
		t.Fatalf("another Kubernetes isn't reported: %v", err)
	}
	select {
	case err := <-ended:
		t.Fatalf("it has ended: %v", err)
	default:
	}
	write(head + "waitForPodsReady: {timeout: 1m}\n")
	if err := <-ended; !errors.Is(err, errChanged) {
		t.Errorf("another that fits: got %v", err)
	}
	running, err = findKueue(t.Context(), cluster, given, installed.Newest())
	if err != nil {
		t.Fatal(err)
	}
	given.Preemption.CheapestVictim = true
	go func() { ended <- follows(t.Context()) }()
	awaitGauge(t, kueueConfigValid, 0) // Kueue's gate PriorityBoost is off
	write(head + "waitForPodsReady: {timeout: 1m}\nfeatureGates: {PriorityBoost: true}\n")
	if err := <-ended; !errors.Is(err, errChanged) {
		t.Errorf("with the gate that was missing: got %v", err)
	}
	given.Preemption.CheapestVictim = false
	s.serve(crdPath+"workloads.kueue.x-k8s.io", crdOfWorkloads(10))
	if err := follows(t.Context()); !errors.Is(err, errChanged) {
		t.Errorf("another release of Kueue: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := follows(ctx); err != nil {
		t.Errorf("asked to end: got %v", err)
	}
}
