package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/kueue/pkg/features"
)

// bundle returns a CA, in PEM and base64, that ends after a time.
func bundle(t *testing.T, valid time.Duration) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(valid), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// installation is Kueue's configuration, webhooks, nodes and leaders.
func installation(config, ca, ready, renewed, gpus, labels string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: kueue-manager-config, namespace: kueue-system}
data: {controller_manager_config.yaml: "%s"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: signalbox}
webhooks:
- {name: mtrainjob.signalbox.dev, clientConfig: {caBundle: "%s", service: {namespace: signalbox-system, name: signalbox}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: signalbox}
webhooks:
- {name: vtrainingruntime.signalbox.dev, clientConfig: {caBundle: "%s", url: "https://example.com"}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: signalbox, namespace: signalbox-system, labels: {kubernetes.io/service-name: signalbox}}
endpoints: [{addresses: [10.0.0.1], conditions: {ready: %s}}]
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: signalbox.signalbox.dev, namespace: signalbox-system}
spec: {holderIdentity: manager-1, leaseDurationSeconds: 15, renewTime: "%s"}
---
apiVersion: v1
kind: Node
metadata: {name: n, labels: {gpu: "%s"}}
status: {allocatable: {nvidia.com/gpu: %s}}`, config, ca, ca, ready, renewed, labels, gpus)
}

func TestDoctor(t *testing.T) {
	const good = `integrations: {externalFrameworks: [TrainJob.v1alpha1.trainer.kubeflow.org]}`
	const broken = `---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: none, namespace: team}
spec:
  mlPolicy: {numNodes: 1}
  template: {spec: {replicatedJobs: []}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lost, namespace: team}
spec: {clusterQueue: nowhere}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: inactive}
status: {conditions: [{type: Active, status: "False", reason: FlavorNotFound, message: references missing ResourceFlavor x, lastTransitionTime: "2026-11-24T10:00:00Z"}]}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: stuck, namespace: team, uid: stuck, creationTimestamp: "2026-11-24T10:00:00Z", labels: {kueue.x-k8s.io/queue-name: none}}
spec: {suspend: true, runtimeRef: {name: torch}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: kubeflow}
webhooks: [{name: validator.trainjob.trainer.kubeflow.org, clientConfig: {url: "https://example.com"}}]`
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	cases := map[string]struct {
		reason, more string
		out          []string
		not          []string
		ok           bool
	}{
		"all is well": {reason: "but for the CRDs, which are not in this cluster",
			more: installation(good, bundle(t, 10000*time.Hour), "true", now, "8", "a100"),
			not:  []string{"webhook", "Lease", "ResourceFlavor", "configuration:"}},
		"in other case": {reason: "Kueue compares kinds by case",
			more: installation(strings.Replace(good, "TrainJob.", "trainjob.", 1), bundle(t, 10000*time.Hour), "true", now, "8",
				"a100"),
			out: []string{"doesn't list TrainJob.v1alpha1.trainer.kubeflow.org"}},
		"all is wrong": {reason: "each is named, with what mends it",
			more: installation("integrations: {frameworks: [trainer.kubeflow.org/trainjob]}", bundle(t, time.Hour), "false",
				"2026-11-24T10:00:00.000000Z", "4", "a100") + "\n" + broken,
			out: []string{
				"ERROR: Kueue's configuration: Kueue runs TrainJobs itself", "kubectl -n kueue-system edit configmap",
				"doesn't list TrainJob.v1alpha1.trainer.kubeflow.org", "its CA ends at", "has no ready endpoint",
				"manager-1, was last seen", "references missing ResourceFlavor x", "its ClusterQueue nowhere doesn't exist",
				"the quota of all ClusterQueues for nvidia.com/gpu is 8, and its 1 nodes have 4",
				"TrainJob team/stuck: LocalQueueMissing", "are both installed, and fight over every JobSet",
			}},
		"certificates": {reason: "what isn't one is said", more: installation(good, "bm8=", "true", now, "8", "a100"),
			out: []string{"its caBundle has no certificate"}},
		"priorities": {
			reason: "those that are too close are named",
			more: installation(good+`\nfeatureGates: {PriorityBoost: true}`, bundle(t, 10000*time.Hour), "true", now, "8", "a100") + `
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: spare}
value: -5
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: low}
value: 4
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: normal}
value: 9
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: usual}
value: 9
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 10`,
			out: []string{"the priorities of no class (0) and of class low (4) differ by 4: TrainJobs of the lower one",
				"the priorities of class usual (9) and of class high (10) differ by 1", "set values that differ by 5 or more"},
			not: []string{"spare", "class low (4) and", "normal"},
		},
		"configuration": {
			reason: "what isn't YAML is said",
			more:   installation("[", bundle(t, 10000*time.Hour), "true", now, "8", "a100"),
			out: []string{
				"ERROR: Kueue's configuration: Kueue's configuration is invalid: ConfigMap kueue-system/kueue-manager-config",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			features.SetFeatureGateDuringTest(t, features.PriorityBoost, false)
			tr := newTrial(t, interceptor.Funcs{}, c.more)
			err := tr.try("doctor")
			for _, part := range c.out {
				if !strings.Contains(tr.out.String(), part) {
					t.Errorf("%s: got\n%s\nwant %q (%v)", c.reason, tr.out.String(), part, err)
				}
			}
			for _, part := range c.not {
				if strings.Contains(strings.SplitAfter(tr.out.String(), "Checked:")[0], part) {
					t.Errorf("%s: got\n%s\nwant no %q", c.reason, tr.out.String(), part)
				}
			}
		})
	}
}

// A user without an admin's rights gets what can be checked, and which rights are missing.
func TestDoctorForbidden(t *testing.T) {
	tr := newTrial(
		t,
		forbids("MutatingWebhookConfiguration", "Lease", "Node", "ClusterQueue", "TrainingRuntime elsewhere"),
	)
	_ = tr.try("doctor")
	if !strings.Contains(tr.out.String(), "Not fully checked, for lack of rights: list mutatingwebhookconfigurations") {
		t.Errorf("got %s", tr.out.String())
	}
}

// Every list that fails fails the command, with what was listed.
func TestReadsFail(t *testing.T) {
	down := errors.New("connection refused")
	for _, args := range [][]string{
		{"list"}, {"top"}, {"explain", "second"}, {"simulate", "second"}, {"doctor"}, {"logs", "first"}, {"wait", "first"},
		{"stop", "first"}, {"resume", "first"}, {"restart", "first"}, {"version"},
	} {
		for fails := range 14 {
			var lists atomic.Int32
			tr := newTrial(t, interceptor.Funcs{List: func(
				ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
			) error {
				if int(lists.Add(1)) == fails+1 {
					return down
				}
				return c.List(ctx, list, opts...)
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			err := tr.run(ctx, args...)
			cancel()
			n := int(lists.Load())
			if n == fails+1 && err == nil {
				t.Errorf("%v: list %d has failed, and nobody says so", args, n)
			}
			if n <= fails {
				break
			}
		}
	}
}

// Without a cluster, each command says that there is none.
func TestNoCluster(t *testing.T) {
	none := &cli{connect: func() (*session, error) { return nil, errors.New("no cluster") }}
	for _, cmd := range none.commands() {
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"x"})
		if cmd.Args != nil && cmd.Args(cmd, []string{"x"}) != nil {
			cmd.SetArgs(nil)
		}
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "no cluster") {
			t.Errorf("%s: got %v", cmd.Name(), err)
		}
	}
	server, namespace := "http://127.0.0.1:1", "team"
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer, flags.Namespace = &server, &namespace
	s, err := newSession(flags, defaultKueueNamespace, genericiooptions.IOStreams{})
	if err != nil || s.namespace != "team" {
		t.Fatalf("got %v, %v", s, err)
	}
	missing := t.TempDir() + "/none"
	flags.KubeConfig = &missing
	if _, err := newSession(flags, defaultKueueNamespace, genericiooptions.IOStreams{}); err == nil {
		t.Error("there is no such file")
	}
}

// TestMostSimulated holds that doctor doesn't take longer the longer the queues are.
func TestMostSimulated(t *testing.T) {
	for workloads, want := range map[int]int{0: 100, 200: 100, 1000: 20, 10000: 2, 1000000: 1} {
		if got := mostSimulated(workloads); got != want {
			t.Errorf("with %d Workloads, %d TrainJobs are simulated, want %d", workloads, got, want)
		}
	}
}
