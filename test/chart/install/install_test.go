// Package install installs the Helm chart on a real control plane with Helm itself, upgrades it, rolls it back and
// takes it away. Images aside: the Deployment's pods are simulated, and a manager runs beside them with what the chart
// has made for it: its ServiceAccount, its configuration and its Secret. `make test-chart` runs it.
package install

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/signalbox-dev/signalbox/test/audit"
)

const external = "TrainJob.v1alpha1.trainer.kubeflow.org"

func TestChart(t *testing.T) {
	s := newStand(t)
	ctx := t.Context()
	before, err := s.clients.CoreV1().ConfigMaps("kueue-system").Get(ctx, "kueue-manager-config", metav1.GetOptions{})
	s.must(err)

	// In a namespace that takes restricted pods only.
	_, err = s.clients.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{})
	s.must(err)
	s.create(ground)

	// What can't work is refused, with the change to make.
	refused := func(text, want string) {
		t.Helper()
		if _, err := s.install(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want it to say %q", err, want)
		}
	}
	s.setKueue("batch/job, trainer.kubeflow.org/trainjob", "")
	refused("", `take "trainer.kubeflow.org/trainjob" out of integrations.frameworks`)
	s.setKueue("batch/job", "")
	refused("", `add "`+external+`" to integrations.externalFrameworks`)
	patch, err := json.Marshal(map[string]any{"data": before.Data})
	s.must(err)
	_, err = s.clients.CoreV1().ConfigMaps("kueue-system").Patch(ctx, "kueue-manager-config", types.MergePatchType, patch,
		metav1.PatchOptions{})
	s.must(err)
	refused("kueue: {configMap: elsewhere}", "ConfigMap kueue-system/elsewhere, which doesn't exist")
	refused("trainer: {enabled: false}", "Kubeflow Trainer is not installed here")
	s.create(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validator.trainer.kubeflow.org}
webhooks:
- {name: validator.trainjob.trainer.kubeflow.org, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://localhost:1"}}
`)
	refused("", "Kubeflow Trainer is installed here (ValidatingWebhookConfiguration validator.trainer.kubeflow.org)")
	s.must(s.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx,
		"validator.trainer.kubeflow.org", metav1.DeleteOptions{}))

	// Installed.
	settings := fmt.Sprintf("webhook: {url: %q}\nmetrics: {prometheusRule: {enabled: false}}\n",
		fmt.Sprintf("https://localhost:%d", s.service.port))
	from, err := audit.End(audit.Log(s.dir))
	s.must(err)
	r, err := s.install(settings)
	s.must(err)
	if r.Info.Status != release.StatusDeployed || !strings.Contains(r.Info.Notes, "rollout status deployment/signalbox") {
		t.Errorf("got %s, %q", r.Info.Status, r.Info.Notes)
	}
	one := s.run("one")
	s.train("first", "Complete")
	s.moments(one)
	s.protected(one)
	s.observed(one)
	s.forged()
	s.reload(one)
	if n := s.stock(); n < 5 {
		t.Errorf("the chart of the stock runtimes has installed %d", n)
	}

	// Upgraded: what runs goes on, and the certificates stay.
	secret, err := s.clients.CoreV1().Secrets(namespace).Get(ctx, "signalbox-webhook-cert", metav1.GetOptions{})
	s.must(err)
	s.submit("runs", "forever", 1)
	s.state("runs", "Running")
	u := action.NewUpgrade(s.helm)
	u.Namespace, u.Wait, u.Timeout = namespace, true, patience
	_, err = u.RunWithContext(ctx, "signalbox", s.chart, values(settings+"replicas: 3\nverbosity: 2\n"))
	s.must(err)
	d, err := s.clients.AppsV1().Deployments(namespace).Get(ctx, "signalbox", metav1.GetOptions{})
	s.must(err)
	if *d.Spec.Replicas != 3 {
		t.Errorf("got %d replicas", *d.Spec.Replicas)
	}
	again, err := s.clients.CoreV1().Secrets(namespace).Get(ctx, "signalbox-webhook-cert", metav1.GetOptions{})
	s.must(err)
	if string(again.Data["tls.crt"]) != string(secret.Data["tls.crt"]) || len(secret.Data["tls.crt"]) == 0 {
		t.Error("the upgrade has changed the certificate")
	}
	s.train("second", "Complete")

	// The certificates are made again without a restart.
	_, err = s.clients.CoreV1().Secrets(namespace).Patch(ctx, "signalbox-webhook-cert", types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{})
	s.must(err)
	s.eventually("another certificate is served, and trusted", func() (string, bool) {
		now, err := s.clients.CoreV1().Secrets(namespace).Get(ctx, "signalbox-webhook-cert", metav1.GetOptions{})
		s.must(err)
		if len(now.Data["tls.crt"]) == 0 || string(now.Data["tls.crt"]) == string(secret.Data["tls.crt"]) {
			return "the Secret has no other", false
		}
		return s.trusted(one, now)
	})
	s.train("third", "Complete")

	s.burst(one, s.run("two"))

	// Rolled back.
	b := action.NewRollback(s.helm)
	b.Version, b.Wait, b.Timeout = 1, true, patience
	s.must(b.Run("signalbox"))
	d, err = s.clients.AppsV1().Deployments(namespace).Get(ctx, "signalbox", metav1.GetOptions{})
	s.must(err)
	if *d.Spec.Replicas != 2 {
		t.Errorf("got %d replicas after the rollback", *d.Spec.Replicas)
	}
	s.train("fourth", "Complete")
	s.state("runs", "Running")

	// The manager has been refused nothing that it has asked for.
	denied, err := audit.Since(audit.Log(s.dir), from, func(r audit.Request) bool {
		return r.User.Username == "system:serviceaccount:"+namespace+":signalbox" && r.Forbidden()
	})
	s.must(err)
	for _, r := range denied {
		t.Errorf("forbidden: %s %s/%s %s", r.Verb, r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ObjectRef.Name)
	}

	// Taken away: no TrainJob is lost.
	_, err = action.NewUninstall(s.helm).Run("signalbox")
	s.must(err)
	s.uninstalled()
	for _, name := range []string{"first", "runs"} {
		if _, err := s.get("trainer.kubeflow.org", "v1alpha1", "trainjobs", "team", name); err != nil {
			t.Errorf("TrainJob %s: %v", name, err)
		}
	}
	// The CRDs stay this release's, and are another's only if that is said.
	other := func(ownership bool, text string) error {
		i := action.NewInstall(s.helm)
		i.ReleaseName, i.Namespace, i.TakeOwnership = "other", namespace, ownership
		_, err := i.Run(s.chart, values(text))
		return err
	}
	if err := other(false, ""); err == nil || !strings.Contains(err.Error(), `is here already and not this release's (it is of release "signalbox"`) {
		t.Errorf("got %v", err)
	}
	s.must(other(true, "checks: {enabled: false}"))
	_, err = action.NewUninstall(s.helm).Run("other")
	s.must(err)
	s.must(func() error {
		_, err := s.get("trainer.kubeflow.org", "v1alpha1", "trainjobs", "team", "first")
		return err
	}())

	// Beside Kubeflow Trainer, TrainJobs that nobody queues don't depend on us: no replica answers here.
	free := unqueued("free", "first")
	_, err = s.trainJobs().Create(ctx, free, metav1.CreateOptions{})
	s.must(err)
	s.must(other(true,
		"{checks: {enabled: false}, crds: {install: false}, trainer: {enabled: false}, webhook: {url: "+
			"\"https://localhost:1\"}}"))
	label := func(name, key string) error {
		_, err := s.trainJobs().Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"x"}}}`, key), metav1.PatchOptions{})
		return err
	}
	s.must(label("free", "seen"))
	elsewhere := s.objects.Resource(trainJobResource).Namespace("kueue-system")
	_, err = elsewhere.Create(ctx, unqueued("free", "first"), metav1.CreateOptions{})
	s.must(err)
	s.must(elsewhere.Delete(ctx, "free", metav1.DeleteOptions{}))
	for what, err := range map[string]error{
		"a queued one is changed": label("first", "seen"),
		"one is queued":           label("free", "kueue.x-k8s.io/queue-name"),
		"one is created where Kueue manages TrainJobs": func() error {
			_, err := s.trainJobs().Create(ctx, unqueued("another", "first"), metav1.CreateOptions{})
			return err
		}(),
		"one is given a pin": func() error {
			_, err := s.trainJobs().Patch(ctx, "free", types.MergePatchType, []byte(`{"metadata":{"annotations":{"signalbox.dev/runtime":"forged"}}}`), metav1.PatchOptions{})
			return err
		}(),
	} {
		if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("%s unguarded: got %v", what, err)
		}
	}
	_, err = action.NewUninstall(s.helm).Run("other")
	s.must(err)

	left, err := s.clients.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, ours)
	s.must(err)
	if len(left.Items) != 0 {
		t.Errorf("webhooks are left that nobody answers: %d", len(left.Items))
	}
}
