package integration

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Register serves the webhook.
func (w *Webhook) Register(mgr ctrl.Manager) {
	server := mgr.GetWebhookServer()
	for path, handler := range map[string]webhookadmission.HandlerFunc{
		"/mutate-trainjob": w.mutate, "/mutate-workload": w.mutateWorkload, "/validate-trainjob": w.validate,
		"/validate-eviction": w.validateEviction,
	} {
		server.Register(path, &webhook.Admission{Handler: handler})
	}
}
