package integration_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// TestStalledBesideKubeflow holds that a TrainJob is warned of that is to be watched where no process can report. With
// the bundled Trainer, its own webhook knows whether they can.
func TestStalledBesideKubeflow(t *testing.T) {
	for _, c := range []struct {
		trainer *overrides.Dialect
		warns   int
	}{{overrides.Bundled, 0}, {overrides.Kubeflow23, 1}} {
		h := newHarness(t, c.trainer)
		job := newTrainJob("job")
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StalledAfterAnnotation, "30m")
		answer := h.ask("/validate-trainjob", "user", "", encoded(t, job))
		if !answer.Allowed || len(answer.Warnings) != c.warns ||
			c.warns > 0 && !strings.Contains(answer.Warnings[0], "needs the bundled Trainer with trainer.progress") {
			t.Errorf("%s: got %+v", c.trainer.Name, answer)
		}
		if answer = h.ask("/validate-trainjob", "user", encoded(t, job), encoded(t, job)); len(answer.Warnings) > 0 {
			t.Errorf("%s: once: got %q", c.trainer.Name, answer.Warnings)
		}
	}
}
